//! A second interpreter: straight over the tree, copying whatever it touches, written from the rules
//! and not from the evaluator. What both say must be the same.
#![expect(
    clippy::wildcard_enum_match_arm,
    clippy::float_cmp,
    reason = "the shortest way to say it, for an oracle that nobody has to be quick with"
)]

use crate::query::Value;
use crate::query::ast::{
    BinaryOp, Collection, Expr, ExprKind, Literal, PathStep, Query, Select, Source, SubqueryKind,
    UnaryOp,
};
use crate::query::value::Number;

/// Names and what they stand for, the innermost last.
type Names = Vec<(String, Value)>;

/// What an expression is evaluated in.
#[derive(Clone)]
struct Around<'q> {
    text: &'q str,
    names: Names,
    /// The keys of GROUP BY and the rows of the group, where a group is selected from.
    group: Option<(&'q [Expr], Vec<Names>)>,
}

/// All results of a query over one item.
pub(super) fn results(text: &str, query: &Query, item: &Value) -> Vec<Value> {
    let around = Around { text, names: Vec::new(), group: None };
    rows(query, &around, Some(item))
}

fn rows<'q>(query: &'q Query, outer: &Around<'q>, item: Option<&Value>) -> Vec<Value> {
    let mut kept = from(query, outer, item);
    kept.retain(|names| {
        let around = Around { names: names.clone(), group: None, ..outer.clone() };
        query.filter.as_ref().is_none_or(|filter| is_true(&eval(filter, &around)))
    });
    let mut selected = Vec::new();
    if query.group_by.is_empty() && !aggregates(&query.select) {
        for names in kept {
            let around = Around { names, group: None, ..outer.clone() };
            selected.extend(select(query, &around));
        }
    } else {
        for (names, rows) in groups(query, outer, kept) {
            let group = Some((query.group_by.as_slice(), rows));
            selected.extend(select(query, &Around { names, group, ..outer.clone() }));
        }
    }
    if query.distinct.is_some() {
        let mut distinct: Vec<Value> = Vec::new();
        for value in selected {
            if !distinct.iter().any(|known| is_same(known, &value)) {
                distinct.push(value);
            }
        }
        selected = distinct;
    }
    selected
}

/// The groups with the names of their first row; without keys one group, of all rows.
fn groups<'q>(query: &'q Query, outer: &Around<'q>, rows: Vec<Names>) -> Vec<(Names, Vec<Names>)> {
    if query.group_by.is_empty() {
        let first = rows.first().cloned().unwrap_or_else(|| outer.names.clone());
        return vec![(first, rows)];
    }
    let mut groups: Vec<(Vec<Value>, Vec<Names>)> = Vec::new();
    for names in rows {
        let around = Around { names: names.clone(), group: None, ..outer.clone() };
        let keys: Vec<Value> = query.group_by.iter().map(|key| eval(key, &around)).collect();
        let same = |known: &[Value]| known.iter().zip(&keys).all(|(a, b)| is_same(a, b));
        match groups.iter_mut().find(|(known, _)| same(known)) {
            Some((_, rows)) => rows.push(names),
            None => groups.push((keys, vec![names])),
        }
    }
    groups.into_iter().map(|(_, rows)| (rows[0].clone(), rows)).collect()
}

/// One value for DISTINCT and GROUP BY: equal, or both undefined, or both NaN.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Undefined, Value::Undefined) => true,
        (Value::Number(a), Value::Number(b)) if a.as_f64().is_nan() => b.as_f64().is_nan(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let has = |(name, value): &(String, Value)| {
                b.iter().any(|(other, found)| other == name && is_same(value, found))
            };
            a.len() == b.len() && a.iter().all(has)
        }
        _ => equal(a, b) == Some(true),
    }
}

fn from(query: &Query, outer: &Around<'_>, item: Option<&Value>) -> Vec<Names> {
    let mut rows = vec![outer.names.clone()];
    for source in &query.from {
        let mut joined = Vec::new();
        for names in rows {
            let around = Around { names: names.clone(), group: None, ..outer.clone() };
            for value in source_values(source, &around, item) {
                let mut names = names.clone();
                names.push((alias(source), value));
                joined.push(names);
            }
        }
        rows = joined;
    }
    rows
}

fn source_values(source: &Source, around: &Around<'_>, item: Option<&Value>) -> Vec<Value> {
    let found = match &source.collection {
        Collection::Subquery(query) => rows(query, around, item),
        Collection::Path { root, steps } => {
            let known = around.names.iter().rev().find(|(name, _)| name == root);
            let root = known.map(|(_, value)| value).or(item).expect("the root is known");
            let value = steps.iter().fold(root.clone(), |value, step| match step {
                PathStep::Name(name) => member(&value, name),
                PathStep::Index(index) => element(&value, f64::from(*index)),
            });
            Some(value).filter(Value::is_defined).into_iter().collect()
        }
    };
    if !source.iterates {
        return found;
    }
    let elements = |value| if let Value::Array(elements) = value { elements } else { Vec::new() };
    found.into_iter().flat_map(elements).collect()
}

fn alias(source: &Source) -> String {
    if let Some(alias) = &source.alias {
        return alias.clone();
    }
    let Collection::Path { root, steps } = &source.collection else { return String::new() };
    let names = steps.iter().rev().filter_map(|step| match step {
        PathStep::Name(name) => Some(name.clone()),
        PathStep::Index(_) => None,
    });
    names.chain([root.clone()]).next().expect("there is a root")
}

fn select(query: &Query, around: &Around<'_>) -> Option<Value> {
    match &query.select {
        Select::Star(_) => around.names.last().map(|(_, value)| value.clone()),
        Select::Value(expr) => Some(eval(expr, around)).filter(Value::is_defined),
        Select::List(items) => {
            let mut members: Vec<(String, Value)> = Vec::new();
            for item in items {
                let name = item.alias.clone().expect("generated lists have aliases");
                members.retain(|(known, _)| *known != name);
                members.push((name, eval(&item.expr, around)));
            }
            members.retain(|(_, value)| value.is_defined());
            Some(Value::Object(members.into()))
        }
    }
}

fn aggregates(select: &Select) -> bool {
    fn within(expr: &Expr) -> bool {
        aggregate_of(expr).is_some()
            || crate::query::compile::tree::children(expr).into_iter().any(within)
    }
    match select {
        Select::Star(_) => false,
        Select::Value(expr) => within(expr),
        Select::List(items) => items.iter().any(|item| within(&item.expr)),
    }
}

fn aggregate_of(expr: &Expr) -> Option<(&str, &Expr)> {
    let ExprKind::Call { name, args, .. } = &expr.kind else { return None };
    let is_aggregate = ["COUNT", "SUM", "AVG", "MIN", "MAX", "COUNTIF", "MAKELIST", "MAKESET"];
    is_aggregate.contains(&name.as_str()).then(|| (name.as_str(), &args[0]))
}

fn eval(expr: &Expr, around: &Around<'_>) -> Value {
    if let Some((keys, rows)) = &around.group {
        let shown = expr.span.of(around.text);
        if keys.iter().any(|key| key.span.of(around.text) == shown) {
            return eval(expr, &Around { group: None, ..around.clone() });
        }
        if let Some((name, argument)) = aggregate_of(expr) {
            let values = rows.iter().map(|names| {
                eval(argument, &Around { names: names.clone(), group: None, ..around.clone() })
            });
            return aggregate(name, values.filter(Value::is_defined).collect());
        }
    }
    let eval = |expr: &Expr| eval(expr, around);
    match &expr.kind {
        ExprKind::Literal(literal) => constant(literal),
        ExprKind::Parameter(_) => panic!("no parameters are generated"),
        ExprKind::Name(name) => match around.names.iter().rev().find(|(known, _)| known == name) {
            Some((_, value)) => value.clone(),
            None if name == "NaN" => Value::float(f64::NAN),
            None => Value::float(f64::INFINITY),
        },
        ExprKind::Member(object, name) => member(&eval(object), name),
        ExprKind::Index(inner, index) => match eval(index) {
            Value::Text(name) => member(&eval(inner), &name),
            Value::Number(number) => element(&eval(inner), number.as_f64()),
            _ => Value::Undefined,
        },
        ExprKind::Unary(operator, operand) => unary(*operator, &eval(operand)),
        ExprKind::Binary(operator, left, right) => binary(*operator, &eval(left), &eval(right)),
        ExprKind::Conditional(condition, yes, no) => {
            if is_true(&eval(condition)) {
                eval(yes)
            } else {
                eval(no)
            }
        }
        ExprKind::Between { value, low, high, negated } => {
            let value = eval(value);
            let above = binary(BinaryOp::GreaterOrEqual, &value, &eval(low));
            let below = binary(BinaryOp::LessOrEqual, &value, &eval(high));
            not_if(*negated, binary(BinaryOp::And, &above, &below))
        }
        ExprKind::In { value, list, negated } => {
            let value = eval(value);
            let found = list.iter().any(|entry| equal(&value, &eval(entry)) == Some(true));
            let result = if value.is_defined() { Value::Bool(found) } else { Value::Undefined };
            not_if(*negated, result)
        }
        ExprKind::Like { value, pattern, escape: None, negated } => {
            let result = match (eval(value), eval(pattern)) {
                (Value::Text(text), Value::Text(pattern)) => {
                    let (text, pattern): (Vec<_>, Vec<_>) =
                        (text.chars().collect(), pattern.chars().collect());
                    Value::Bool(like(&text, &pattern))
                }
                _ => Value::Undefined,
            };
            not_if(*negated, result)
        }
        ExprKind::Like { .. } => panic!("no ESCAPE is generated"),
        ExprKind::Call { name, args, .. } => {
            let value = eval(&args[0]);
            match name.as_str() {
                "IS_DEFINED" => Value::Bool(value.is_defined()),
                "IS_NULL" => Value::Bool(matches!(value, Value::Null)),
                name => panic!("{name} is not generated here"),
            }
        }
        ExprKind::Array(elements) => {
            Value::Array(elements.iter().map(eval).filter(Value::is_defined).collect())
        }
        ExprKind::Object(members) => {
            let mut object: Vec<(String, Value)> = Vec::new();
            for (name, value) in members {
                object.retain(|(known, _)| known != name);
                object.push((name.clone(), eval(value)));
            }
            object.retain(|(_, value)| value.is_defined());
            Value::Object(object.into())
        }
        ExprKind::Subquery(kind, query) => subquery(*kind, query, around),
    }
}

fn subquery(kind: SubqueryKind, query: &Query, around: &Around<'_>) -> Value {
    if kind == SubqueryKind::All {
        let always = Expr { kind: ExprKind::Literal(Literal::Bool(true)), span: query.span };
        let filter = query.filter.clone().unwrap_or(always);
        let kind = ExprKind::Unary(UnaryOp::Not, Box::new(filter));
        let negated = Expr { kind, span: query.span };
        let query = Query { filter: Some(negated), ..query.clone() };
        return Value::Bool(rows(&query, around, None).is_empty());
    }
    let mut rows = rows(query, around, None);
    match kind {
        SubqueryKind::Exists => Value::Bool(!rows.is_empty()),
        SubqueryKind::Array => Value::Array(rows),
        SubqueryKind::Last => rows.pop().unwrap_or_default(),
        SubqueryKind::Scalar | SubqueryKind::First | SubqueryKind::All => {
            rows.into_iter().next().unwrap_or_default()
        }
    }
}

fn constant(literal: &Literal) -> Value {
    match literal {
        Literal::Undefined => Value::Undefined,
        Literal::Null => Value::Null,
        Literal::Bool(truth) => Value::Bool(*truth),
        Literal::Int(number) => Value::Number(Number::Int(*number)),
        Literal::Float(number) => Value::float(*number),
        Literal::Text(text) => Value::Text(text.clone()),
    }
}

fn member(value: &Value, name: &str) -> Value {
    let Value::Object(members) = value else { return Value::Undefined };
    let found = members.iter().find(|(known, _)| known == name);
    found.map_or(Value::Undefined, |(_, value)| value.clone())
}

fn element(value: &Value, index: f64) -> Value {
    let Value::Array(elements) = value else { return Value::Undefined };
    let mut numbered = (0_u32..).map(f64::from).zip(elements);
    numbered.find(|(at, _)| *at == index).map_or(Value::Undefined, |(_, value)| value.clone())
}

fn is_true(value: &Value) -> bool {
    matches!(value, Value::Bool(true))
}

fn not_if(negated: bool, value: Value) -> Value {
    if negated { unary(UnaryOp::Not, &value) } else { value }
}

fn unary(operator: UnaryOp, operand: &Value) -> Value {
    match (operator, operand) {
        (UnaryOp::Not, Value::Bool(truth)) => Value::Bool(!truth),
        (UnaryOp::Plus, Value::Number(_)) => operand.clone(),
        (UnaryOp::Minus, Value::Number(Number::Int(number))) if *number != 0 => {
            Value::Number(Number::Int(-number))
        }
        (UnaryOp::Minus, Value::Number(number)) => Value::float(-number.as_f64()),
        (UnaryOp::BitNot, Value::Number(number)) => Value::float(f64::from(!bits(number.as_f64()))),
        _ => Value::Undefined,
    }
}

/// None if undefined.
fn equal(a: &Value, b: &Value) -> Option<bool> {
    if !a.is_defined() || !b.is_defined() {
        return None;
    }
    Some(match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        // Generated numbers are small: doubles hold them exactly.
        #[expect(clippy::float_cmp, reason = "equality is what is asked for")]
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Text(a), Value::Text(b)) => a == b,
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b) == Some(true))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(name, value)| equal(value, &member_of(b, name)) == Some(true))
        }
        _ => false,
    })
}

fn member_of(members: &[(String, Value)], name: &str) -> Value {
    member(&Value::Object(members.to_vec().into()), name)
}

fn binary(operator: BinaryOp, a: &Value, b: &Value) -> Value {
    let truth = |found: Option<bool>| found.map_or(Value::Undefined, Value::Bool);
    match operator {
        BinaryOp::Coalesce => if a.is_defined() { a } else { b }.clone(),
        BinaryOp::And => match (a, b) {
            (Value::Bool(false), _) | (_, Value::Bool(false)) => Value::Bool(false),
            (Value::Bool(true), Value::Bool(true)) => Value::Bool(true),
            _ => Value::Undefined,
        },
        BinaryOp::Or => match (a, b) {
            (Value::Bool(true), _) | (_, Value::Bool(true)) => Value::Bool(true),
            (Value::Bool(false), Value::Bool(false)) => Value::Bool(false),
            _ => Value::Undefined,
        },
        BinaryOp::Concat => match (a, b) {
            (Value::Text(a), Value::Text(b)) => Value::Text(format!("{a}{b}")),
            _ => Value::Undefined,
        },
        BinaryOp::Equal => truth(equal(a, b)),
        BinaryOp::NotEqual => truth(equal(a, b).map(|equal| !equal)),
        BinaryOp::Less => truth(less(a, b, false)),
        BinaryOp::LessOrEqual => truth(less(a, b, true)),
        BinaryOp::Greater => truth(less(b, a, false)),
        BinaryOp::GreaterOrEqual => truth(less(b, a, true)),
        BinaryOp::BitOr
        | BinaryOp::BitXor
        | BinaryOp::BitAnd
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRight
        | BinaryOp::ShiftRightUnsigned
        | BinaryOp::Add
        | BinaryOp::Subtract
        | BinaryOp::Multiply
        | BinaryOp::Divide
        | BinaryOp::Modulo => match (a, b) {
            (Value::Number(a), Value::Number(b)) => whole(operator, *a, *b)
                .unwrap_or_else(|| Value::float(calculate(operator, a.as_f64(), b.as_f64()))),
            _ => Value::Undefined,
        },
    }
}

/// `a < b`, or `a <= b` if `or_equal`.
fn less(a: &Value, b: &Value, or_equal: bool) -> Option<bool> {
    match (a, b) {
        (Value::Null, Value::Null) => Some(or_equal),
        (Value::Bool(a), Value::Bool(b)) => Some(if or_equal { a <= b } else { a < b }),
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64(), b.as_f64());
            Some(if or_equal { a <= b } else { a < b })
        }
        (Value::Text(a), Value::Text(b)) => {
            let (a, b): (Vec<u16>, Vec<u16>) =
                (a.encode_utf16().collect(), b.encode_utf16().collect());
            Some(if or_equal { a <= b } else { a < b })
        }
        _ => None,
    }
}

/// Sums, differences and products of integers, as long as they fit.
fn whole(operator: BinaryOp, a: Number, b: Number) -> Option<Value> {
    let (Number::Int(a), Number::Int(b)) = (a, b) else { return None };
    let (a, b) = (i128::from(a), i128::from(b));
    let exact = match operator {
        BinaryOp::Add => a + b,
        BinaryOp::Subtract => a - b,
        BinaryOp::Multiply => a * b,
        _ => return None,
    };
    i64::try_from(exact).ok().map(|number| Value::Number(Number::Int(number)))
}

fn calculate(operator: BinaryOp, a: f64, b: f64) -> f64 {
    let (x, y) = (bits(a), bits(b));
    let shift = y.cast_unsigned() % 32;
    match operator {
        BinaryOp::Add => a + b,
        BinaryOp::Subtract => a - b,
        BinaryOp::Multiply => a * b,
        BinaryOp::Divide => a / b,
        BinaryOp::Modulo => a % b,
        BinaryOp::BitOr => f64::from(x | y),
        BinaryOp::BitXor => f64::from(x ^ y),
        BinaryOp::BitAnd => f64::from(x & y),
        BinaryOp::ShiftLeft => f64::from(x << shift),
        BinaryOp::ShiftRight => f64::from(x >> shift),
        BinaryOp::ShiftRightUnsigned => f64::from(x.cast_unsigned() >> shift),
        other => panic!("{other:?} does not calculate"),
    }
}

fn is_nan(value: &Value) -> bool {
    matches!(value, Value::Number(number) if number.as_f64().is_nan())
}

/// The low 32 bits of a number without its fraction.
fn bits(number: f64) -> i32 {
    let whole = if number.is_finite() { number.trunc() } else { 0.0 };
    let low = whole % 4_294_967_296.0;
    #[expect(clippy::cast_possible_truncation, reason = "the low 32 bits are asked for")]
    let low = low as i64 as i32;
    low
}

fn like(text: &[char], pattern: &[char]) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['%', rest @ ..] => (0..=text.len()).any(|taken| like(&text[taken..], rest)),
        ['_', rest @ ..] => !text.is_empty() && like(&text[1..], rest),
        [one, rest @ ..] => text.first() == Some(one) && like(&text[1..], rest),
    }
}

/// An aggregate over the defined values of a group.
fn aggregate(name: &str, values: Vec<Value>) -> Value {
    let numbers: Option<Vec<f64>> = values
        .iter()
        .map(|value| if let Value::Number(number) = value { Some(number.as_f64()) } else { None })
        .collect();
    let count = |count: usize| Value::Number(Number::Int(i64::try_from(count).unwrap()));
    match name {
        "COUNT" => count(values.len()),
        "COUNTIF" => count(values.iter().filter(|value| is_true(value)).count()),
        "SUM" => numbers.map_or(Value::Undefined, |all| {
            Value::float(all.iter().fold(0.0, |sum, number| sum + number))
        }),
        "AVG" => numbers.filter(|all| !all.is_empty()).map_or(Value::Undefined, |all| {
            let sum = all.iter().fold(0.0, |sum, number| sum + number);
            Value::float(sum / f64::from(u32::try_from(all.len()).unwrap()))
        }),
        "MIN" | "MAX" => {
            if values.iter().any(|value| matches!(value, Value::Array(_) | Value::Object(_))) {
                return Value::Undefined;
            }
            let mut best = Value::Undefined;
            for value in values {
                let better = match value.rank().cmp(&best.rank()) {
                    std::cmp::Ordering::Equal => {
                        let (a, b) = if name == "MIN" { (&value, &best) } else { (&best, &value) };
                        (is_nan(a) && !is_nan(b)) || less(a, b, false) == Some(true)
                    }
                    order => order.is_lt() == (name == "MIN"),
                };
                if better || !best.is_defined() {
                    best = value;
                }
            }
            best
        }
        "MAKELIST" => Value::Array(values),
        _ => {
            let mut distinct: Vec<Value> = Vec::new();
            for value in values {
                if !distinct.iter().any(|known| is_same(known, &value)) {
                    distinct.push(value);
                }
            }
            Value::Array(distinct)
        }
    }
}
