//! Printed trees read back as they were, and carry no parenthesis too many.

use proptest::prelude::*;

use super::*;
use crate::query::ast::ClauseSpans;
use crate::query::error::Span;
use crate::query::parser::parse;

#[test]
fn what_needs_no_parentheses_gets_none() {
    for text in [
        "SELECT * FROM c",
        "SELECT DISTINCT TOP 5 c.a AS b, c[\"first name\"], c[0] FROM root AS c",
        "SELECT VALUE (SELECT VALUE COUNT(1) FROM t IN c.tags) > 2 FROM c",
        "SELECT c.id FROM c JOIN t IN c.a[\"b c\"][3].d JOIN (SELECT VALUE 1) AS one",
        "SELECT c.a, COUNT(1) AS n FROM c GROUP BY c.a OFFSET 0 LIMIT @limit",
        "SELECT * FROM c ORDER BY c.a, c.b DESC",
        "SELECT * FROM c ORDER BY RANK FullTextScore(c.text, \"x\")",
        "SELECT VALUE udf.f(@p, [1, 2.5, -3], {\"a b\": null, \"c\": undefined}, true, NaN)",
        "SELECT VALUE EXISTS(SELECT * WHERE a) AND ALL(SELECT VALUE b) OR NOT c",
        "SELECT VALUE a = 4 & b = 6 ? x ?? y : p ? q : r",
        "SELECT VALUE a || \"x\" = \"ax\"",
        "SELECT VALUE a - b - c * d / e % f + -g",
        "SELECT VALUE a BETWEEN 3 AND 9 AND b NOT IN (1, x ? y : z) OR c LIKE \"%\" ESCAPE \"!\"",
        "SELECT VALUE NOT a = 4",
        "SELECT VALUE a[b.c[\"d\"] + 1].e",
        "SELECT VALUE a >>> 1 >> 2 << 3 | ~b ^ 5",
    ] {
        assert_eq!(parse(text).unwrap().to_string(), text);
    }
}

#[test]
fn what_groups_otherwise_keeps_its_parentheses() {
    for text in [
        "SELECT VALUE (a OR b) AND c",
        "SELECT VALUE a - (b - c)",
        "SELECT VALUE a = b BETWEEN (c AND d) AND (e ?? f)",
        "SELECT VALUE (a IN (1)) IN (2)",
        "SELECT VALUE NOT (a = 4)",
        "SELECT VALUE -(a + b)",
        "SELECT VALUE (a ? b : c) ? d : e",
        "SELECT VALUE (a ?? b).c",
        "SELECT VALUE (-a)[0]",
        "SELECT VALUE (1).a",
        "SELECT VALUE - -a",
    ] {
        assert_eq!(parse(text).unwrap().to_string(), text);
    }
}

#[test]
fn numbers_and_text_stay_what_they_are() {
    for (text, printed) in [
        ("SELECT VALUE 0x2F", "SELECT VALUE 47"),
        ("SELECT VALUE 7.", "SELECT VALUE 7.0"),
        ("SELECT VALUE .5e-7", "SELECT VALUE 5e-8"),
        ("SELECT VALUE 9223372036854775808", "SELECT VALUE 9.223372036854776e18"),
        ("SELECT VALUE 'it\\'s \"\\u0041'", "SELECT VALUE \"it's \\\"A\""),
    ] {
        assert_eq!(parse(text).unwrap().to_string(), printed);
    }
}

fn name() -> impl Strategy<Value = String> {
    let names = ["c", "item", "Tag", "_x", "a9", "all", "LAST", "Rank", "escape", "UDF", "NaN"];
    prop::sample::select(names.to_vec()).prop_map(str::to_string)
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::collection::vec(any::<char>(), 0..5).prop_map(String::from_iter),
        prop::sample::select(vec!["", "first name", "order", "it's", "\"", "\\", "--"])
            .prop_map(str::to_string),
    ]
}

fn literal() -> impl Strategy<Value = Literal> {
    use prop::num::f64::{INFINITE, POSITIVE, SUBNORMAL, ZERO};
    prop_oneof![
        Just(Literal::Undefined),
        Just(Literal::Null),
        any::<bool>().prop_map(Literal::Bool),
        (0..=i64::MAX).prop_map(Literal::Int),
        (POSITIVE | SUBNORMAL | ZERO | INFINITE).prop_map(|number| Literal::Float(number.abs())),
        (0_u32..2000).prop_map(|number| Literal::Float(f64::from(number) / 8.0)),
        text().prop_map(Literal::Text),
    ]
}

fn expr(kind: ExprKind) -> Expr {
    Expr { kind, span: Span::default() }
}

fn boxed(inner: &BoxedStrategy<Expr>) -> impl Strategy<Value = Box<Expr>> + use<> {
    inner.clone().prop_map(Box::new)
}

fn unary_op() -> impl Strategy<Value = UnaryOp> {
    prop::sample::select(vec![UnaryOp::Minus, UnaryOp::Plus, UnaryOp::BitNot, UnaryOp::Not])
}

fn binary_op() -> impl Strategy<Value = BinaryOp> {
    prop::sample::select(vec![
        BinaryOp::Coalesce,
        BinaryOp::Or,
        BinaryOp::And,
        BinaryOp::Concat,
        BinaryOp::BitOr,
        BinaryOp::BitXor,
        BinaryOp::BitAnd,
        BinaryOp::Equal,
        BinaryOp::NotEqual,
        BinaryOp::Less,
        BinaryOp::LessOrEqual,
        BinaryOp::Greater,
        BinaryOp::GreaterOrEqual,
        BinaryOp::ShiftLeft,
        BinaryOp::ShiftRight,
        BinaryOp::ShiftRightUnsigned,
        BinaryOp::Add,
        BinaryOp::Subtract,
        BinaryOp::Multiply,
        BinaryOp::Divide,
        BinaryOp::Modulo,
    ])
}

fn call(inner: BoxedStrategy<Expr>) -> impl Strategy<Value = ExprKind> {
    let names = vec!["ABS", "left", "RIGHT", "ALL", "FIRST", "Count", "_f"];
    let args = prop::collection::vec(inner, 0..3);
    (prop::sample::select(names), any::<bool>(), args).prop_map(|(name, user_defined, args)| {
        // The parser tells these in capitals.
        let name = if name == "left" { "LEFT" } else { name };
        // Their names are keywords, and so none for a function of a user.
        let user_defined = user_defined && !matches!(name, "LEFT" | "RIGHT");
        ExprKind::Call { name: name.to_string(), user_defined, name_span: Span::default(), args }
    })
}

fn tests(inner: &BoxedStrategy<Expr>) -> impl Strategy<Value = ExprKind> + use<> {
    let list = prop::collection::vec(inner.clone(), 1..4);
    prop_oneof![
        (boxed(inner), boxed(inner), boxed(inner), any::<bool>()).prop_map(
            |(value, low, high, negated)| ExprKind::Between { value, low, high, negated }
        ),
        (boxed(inner), list, any::<bool>()).prop_map(|(value, list, negated)| ExprKind::In {
            value,
            list,
            negated
        }),
        (boxed(inner), boxed(inner), any::<Option<char>>(), any::<bool>()).prop_map(
            |(value, pattern, escape, negated)| ExprKind::Like { value, pattern, escape, negated }
        ),
    ]
}

fn subquery(inner: BoxedStrategy<Expr>) -> impl Strategy<Value = ExprKind> {
    let kinds = vec![
        SubqueryKind::Scalar,
        SubqueryKind::Exists,
        SubqueryKind::Array,
        SubqueryKind::All,
        SubqueryKind::First,
        SubqueryKind::Last,
    ];
    (prop::sample::select(kinds), query(inner))
        .prop_map(|(kind, query)| ExprKind::Subquery(kind, Box::new(query)))
}

fn any_expr() -> BoxedStrategy<Expr> {
    let leaf = prop_oneof![
        literal().prop_map(ExprKind::Literal),
        "[a-zA-Z0-9_]{1,3}".prop_map(ExprKind::Parameter),
        name().prop_map(ExprKind::Name),
    ];
    leaf.prop_map(expr)
        .boxed()
        .prop_recursive(6, 40, 4, |inner| {
            let members = prop::collection::vec((text(), inner.clone()), 0..3);
            prop_oneof![
                (boxed(&inner), name()).prop_map(|(of, name)| ExprKind::Member(of, name)),
                (boxed(&inner), boxed(&inner)).prop_map(|(of, at)| ExprKind::Index(of, at)),
                (unary_op(), boxed(&inner)).prop_map(|(op, of)| ExprKind::Unary(op, of)),
                (binary_op(), boxed(&inner), boxed(&inner))
                    .prop_map(|(op, left, right)| ExprKind::Binary(op, left, right)),
                (boxed(&inner), boxed(&inner), boxed(&inner))
                    .prop_map(|(test, yes, no)| ExprKind::Conditional(test, yes, no)),
                prop::collection::vec(inner.clone(), 0..3).prop_map(ExprKind::Array),
                members.prop_map(ExprKind::Object),
                tests(&inner),
                call(inner.clone()),
                subquery(inner),
            ]
            .prop_map(expr)
        })
        .boxed()
}

fn count() -> impl Strategy<Value = Count> {
    let value = prop_oneof![
        (0_u32..).prop_map(|count| CountValue::Literal(f64::from(count))),
        (0_u32..40).prop_map(|count| CountValue::Literal(f64::from(count) / 4.0)),
        Just(CountValue::Literal(f64::INFINITY)),
        "[a-z]{1,3}".prop_map(CountValue::Parameter),
    ];
    value.prop_map(|value| Count { value, span: Span::default() })
}

fn select(inner: BoxedStrategy<Expr>) -> impl Strategy<Value = Select> {
    let item = (inner.clone(), prop::option::of(name()))
        .prop_map(|(expr, alias)| SelectItem { expr, alias });
    prop_oneof![
        Just(Select::Star(Span::default())),
        inner.prop_map(Select::Value),
        prop::collection::vec(item, 1..4).prop_map(Select::List),
    ]
}

fn source(inner: BoxedStrategy<Expr>) -> impl Strategy<Value = Source> {
    let step = prop_oneof![text().prop_map(PathStep::Name), any::<u32>().prop_map(PathStep::Index)];
    let path = (name(), prop::collection::vec(step, 0..3))
        .prop_map(|(root, steps)| Collection::Path { root, steps });
    // A subquery in a subquery's source is enough.
    let simple = (select(inner), prop::option::of(any_filter())).prop_map(|(select, filter)| {
        Collection::Subquery(Box::new(Query { select, filter, ..empty() }))
    });
    (prop_oneof![path, simple], prop::option::of(name()), any::<bool>()).prop_map(
        |(collection, alias, iterates)| {
            let iterates = iterates && alias.is_some();
            Source { collection, alias, iterates, span: Span::default() }
        },
    )
}

fn any_filter() -> impl Strategy<Value = Expr> {
    name().prop_map(|name| expr(ExprKind::Name(name)))
}

fn empty() -> Query {
    Query {
        distinct: None,
        top: None,
        select: Select::Star(Span::default()),
        from: Vec::new(),
        filter: None,
        group_by: Vec::new(),
        order_by: Vec::new(),
        rank: None,
        offset_limit: None,
        span: Span::default(),
        clauses: ClauseSpans::default(),
    }
}

/// What RANK ranks by are calls of functions.
fn can_be_ranked(sorts: &[Sort]) -> bool {
    let is_call = |sort: &Sort| match &sort.expr.kind {
        ExprKind::Call { name, user_defined, .. } => {
            !user_defined && !matches!(name.as_str(), "LEFT" | "RIGHT")
        }
        _ => false,
    };
    sorts.first().is_some_and(is_call)
}

fn query(inner: BoxedStrategy<Expr>) -> impl Strategy<Value = Query> {
    let sort =
        (inner.clone(), any::<bool>()).prop_map(|(expr, descending)| Sort { expr, descending });
    let head = (any::<bool>(), prop::option::of(count()), select(inner.clone()));
    let sources = prop::collection::vec(source(inner.clone()), 0..3);
    let group_by = prop::collection::vec(inner.clone(), 0..3);
    let order_by = (prop::collection::vec(sort, 0..3), any::<bool>());
    let window = prop::option::of((count(), count()));
    (head, sources, prop::option::of(inner), group_by, order_by, window).prop_map(
        |((distinct, top, select), from, filter, group_by, (order_by, rank), offset_limit)| {
            let distinct = distinct.then(Span::default);
            let rank = (rank && can_be_ranked(&order_by)).then(Span::default);
            Query {
                distinct,
                top,
                select,
                from,
                filter,
                group_by,
                order_by,
                rank,
                offset_limit,
                ..empty()
            }
        },
    )
}

/// Forgets where everything stood.
fn strip(query: &mut Query) {
    let Query {
        distinct,
        top,
        select,
        from,
        filter,
        group_by,
        order_by,
        rank,
        offset_limit,
        span,
        clauses,
    } = query;
    *span = Span::default();
    *clauses = ClauseSpans::default();
    *distinct = distinct.map(|_| Span::default());
    *rank = rank.map(|_| Span::default());
    let counts = offset_limit.iter_mut().flat_map(|(offset, limit)| [offset, limit]);
    counts.chain(top).for_each(|count| count.span = Span::default());
    match select {
        Select::Star(span) => *span = Span::default(),
        Select::Value(expr) => strip_expr(expr),
        Select::List(items) => items.iter_mut().for_each(|item| strip_expr(&mut item.expr)),
    }
    for source in from {
        source.span = Span::default();
        if let Collection::Subquery(query) = &mut source.collection {
            strip(query);
        }
    }
    let sorts = order_by.iter_mut().map(|sort| &mut sort.expr);
    filter.iter_mut().chain(group_by).chain(sorts).for_each(strip_expr);
}

fn strip_expr(expr: &mut Expr) {
    expr.span = Span::default();
    match &mut expr.kind {
        ExprKind::Literal(_) | ExprKind::Parameter(_) | ExprKind::Name(_) => {}
        ExprKind::Member(inner, _) | ExprKind::Unary(_, inner) => strip_expr(inner),
        ExprKind::Index(a, b)
        | ExprKind::Binary(_, a, b)
        | ExprKind::Like { value: a, pattern: b, .. } => {
            strip_expr(a);
            strip_expr(b);
        }
        ExprKind::Conditional(a, b, c) | ExprKind::Between { value: a, low: b, high: c, .. } => {
            strip_expr(a);
            strip_expr(b);
            strip_expr(c);
        }
        ExprKind::In { value, list, .. } => {
            strip_expr(value);
            list.iter_mut().for_each(strip_expr);
        }
        ExprKind::Call { name_span, args, .. } => {
            *name_span = Span::default();
            args.iter_mut().for_each(strip_expr);
        }
        ExprKind::Array(elements) => elements.iter_mut().for_each(strip_expr),
        ExprKind::Object(members) => members.iter_mut().for_each(|(_, expr)| strip_expr(expr)),
        ExprKind::Subquery(_, query) => strip(query),
    }
}

proptest! {
    #[test]
    fn any_tree_reads_back_as_it_was_printed(query in query(any_expr())) {
        let text = query.to_string();
        let parsed = parse(&text).map(|mut parsed| {
            strip(&mut parsed);
            parsed
        });
        prop_assert_eq!(parsed, Ok(query), "{}", text);
    }
}
