//! What only the outermost query has: ORDER BY, TOP, OFFSET LIMIT.
#![expect(clippy::wildcard_enum_match_arm, reason = "asks for one form and refuses all others")]

use super::super::ast::{Count, CountValue, Expr, ExprKind, Query, Sort};
use super::super::compiled::{SortOrder, Window};
use super::super::error::{QueryError, Span};
use super::super::op::{Op, Path, Projection, ROOT, Step};
use super::super::value::{Number, Value};
use super::Compiler;
use crate::indexing::{IndexRules, SortSupport};

/// Largest count of TOP, OFFSET and LIMIT.
const COUNT_MAX: i64 = 4_294_967_295;

/// What ORDER BY may sort by.
enum Sortable {
    /// A path of the item: by it, or by a computed property.
    Path(Vec<String>),
    /// A path that starts at what FROM or JOIN made of the item.
    Correlated,
    /// Anything else.
    Nothing,
}

impl<'q> Compiler<'q> {
    /// TOP comes first: OFFSET and LIMIT are about what it leaves.
    pub(super) fn window(&mut self, query: &Query) -> Window {
        let top = query.top.as_ref().map(|top| {
            let message = "The count value provided for a TOP clause must be an integer.";
            self.count(top, "SC2060", message)
        });
        let Some((offset, limit)) = &query.offset_limit else {
            return Window { skip: 0, take: top };
        };
        let message = "The OFFSET count value exceeds the maximum allowed value.";
        let skip = self.count(offset, "SC2062", message);
        let message = "The LIMIT count value exceeds the maximum allowed value.";
        let limit = self.count(limit, "SC2061", message);
        let left = top.map(|top| top.saturating_sub(skip));
        Window { skip, take: Some(left.map_or(limit, |left| left.min(limit))) }
    }

    fn count(&mut self, count: &Count, code: &str, message: &str) -> u64 {
        let number = match &count.value {
            CountValue::Literal(number) => Some(Number::Float(*number)),
            CountValue::Parameter(name) => {
                match self.parameters.get(name).map(|given| &*given.value) {
                    Some(Value::Number(number)) => Some(*number),
                    _ => None,
                }
            }
        };
        match number.map(Number::whole) {
            Some(Number::Int(count @ 0..=COUNT_MAX)) => count.unsigned_abs(),
            Some(Number::Int(_) | Number::Float(_)) | None => {
                self.errors.push(QueryError::coded(code, message, count.span));
                0
            }
        }
    }

    /// The sort keys; `grouped` if rows have become groups, which cannot be sorted.
    pub(super) fn order(
        &mut self,
        query: &'q Query,
        index: &IndexRules,
        grouped: bool,
    ) -> Vec<SortOrder> {
        if query.order_by.is_empty() {
            return Vec::new();
        }
        let clause = query.clauses.order_by;
        if query.rank.is_some() {
            self.refuse_rank(query, clause);
            return Vec::new();
        }
        if grouped && query.group_by.is_empty() {
            // One row has no order.
            return Vec::new();
        }
        if grouped {
            let message = "ORDER BY cannot be combined with GROUP BY.";
            self.errors.push(QueryError::at(message, clause));
            return Vec::new();
        }
        let keys: Option<Vec<SortOrder>> =
            query.order_by.iter().map(|sort| self.sort(sort)).collect();
        let mut keys = keys.unwrap_or_default();
        self.check_support(&mut keys, index);
        keys
    }

    /// A sort key, as far as the query alone can tell.
    fn sort(&mut self, sort: &'q Sort) -> Option<SortOrder> {
        if is_call_of(&sort.expr, &["VECTORDISTANCE"]) {
            self.op(&sort.expr);
            return None;
        }
        let errors = self.errors.len();
        let key = self.op(&sort.expr);
        if self.errors.len() > errors {
            return None;
        }
        match sortable(&key) {
            Sortable::Path(path) => {
                let descending = sort.descending;
                Some(SortOrder { path, descending, keeps_undefined: false, key })
            }
            Sortable::Correlated => {
                let message = "Order-by over correlated collections is not supported.";
                self.errors.push(QueryError::Plain(message.into()));
                None
            }
            Sortable::Nothing => {
                let message = "Unsupported ORDER BY clause. ORDER BY item expression could not be \
                               mapped to a document path.";
                self.errors.push(QueryError::Numbered { code: 2206, message: message.into() });
                None
            }
        }
    }

    /// One key needs its path indexed, several need a composite index of their own.
    fn check_support(&mut self, keys: &mut [SortOrder], index: &IndexRules) {
        if let [key] = keys {
            // No wildcard means computed properties.
            let unlisted = matches!(key.key, Op::Computed(_)) && !index.lists_names(&key.path);
            let support = index.sort_support(&key.path);
            key.keeps_undefined = match if unlisted { SortSupport::Excluded } else { support } {
                SortSupport::WithUndefined => true,
                SortSupport::WithoutUndefined => false,
                SortSupport::Excluded => {
                    let message =
                        "The index path corresponding to the specified order-by item is excluded.";
                    self.errors.push(QueryError::Plain(message.into()));
                    false
                }
            };
            return;
        }
        let wanted: Vec<(Vec<String>, bool)> =
            keys.iter().map(|key| (key.path.clone(), key.descending)).collect();
        if !keys.is_empty() && index.composite_support(&wanted).is_none() {
            let message = "The order by query does not have a corresponding composite index that \
                           it can be served from.";
            self.errors.push(QueryError::Plain(message.into()));
        }
        for key in keys {
            key.keeps_undefined = true;
        }
    }

    /// ORDER BY RANK is checked as far as its words go, and then refused.
    fn refuse_rank(&mut self, query: &'q Query, clause: Span) {
        let errors = self.errors.len();
        let scores = ["VECTORDISTANCE", "FULLTEXTSCORE", "RRF"];
        if !query.order_by.iter().all(|sort| is_call_of(&sort.expr, &scores)) {
            let message = "The ORDER BY RANK clause must be followed by a VectorDistance and/or a \
                           FullTextScore function call.";
            self.errors.push(QueryError::coded("SC2221", message, clause));
        }
        for (code, what, found) in [
            ("SC2223", "IN in the FROM clause", query.from.first().is_some_and(|one| one.iterates)),
            ("SC2224", "JOIN", query.from.len() > 1),
            ("SC2225", "a subquery in the FROM clause", has_subquery(query)),
        ] {
            if found {
                let message = format!("ORDER BY RANK cannot be combined with {what}.");
                self.errors.push(QueryError::coded(code, message, clause));
            }
        }
        for sort in &query.order_by {
            self.check_weights(&sort.expr);
        }
        if self.errors.len() == errors {
            self.errors.push(QueryError::unsupported("ORDER BY RANK", clause));
        }
    }

    /// The weights of RRF, if there are any, are as many numbers as there are scores.
    fn check_weights(&mut self, score: &Expr) {
        let ExprKind::Call { args, .. } = &score.kind else { return };
        if !is_call_of(score, &["RRF"]) {
            return;
        }
        let (mut scores, mut weights) = (0, None);
        for arg in args {
            match &arg.kind {
                ExprKind::Call { .. } => scores += 1,
                kind => weights = Some((kind, arg.span)),
            }
        }
        let Some((weights, span)) = weights else { return };
        let are_right = match weights {
            ExprKind::Array(weights) => {
                weights.len() == scores && weights.iter().all(|weight| is_number(&weight.kind))
            }
            _ => false,
        };
        if !are_right {
            let message = "The weights of the RRF function must be a literal array of as many \
                           numbers as there are scores.";
            self.errors.push(QueryError::coded("SC2229", message, span));
        }
    }
}

/// True if what rows are sorted by is part of what they are made of, so that equal rows are neighbours.
pub(super) fn is_selected(order: &[SortOrder], select: &Projection) -> bool {
    let selected: Vec<&Op> = match select {
        Projection::Value(op) => vec![op],
        Projection::List(list) => list.iter().map(|(_, op)| op).collect(),
    };
    order.iter().all(|sort| selected.iter().any(|op| holds(op, &sort.key)))
}

/// True if a value holds what a sort key is.
fn holds(selected: &Op, key: &Op) -> bool {
    match (selected, key) {
        (Op::Path(selected), Op::Path(key)) => {
            selected.slot == key.slot && key.steps.starts_with(&selected.steps)
        }
        // Equal items have equal computed properties.
        (Op::Path(selected), Op::Computed(_)) => *selected == Path::slot(ROOT),
        (Op::Computed(selected), Op::Computed(key)) => selected.name == key.name,
        _ => false,
    }
}

fn has_subquery(query: &Query) -> bool {
    use super::super::ast::Collection;
    query.from.iter().any(|source| matches!(source.collection, Collection::Subquery(_)))
}

fn is_call_of(expr: &Expr, functions: &[&str]) -> bool {
    match &expr.kind {
        ExprKind::Call { name, user_defined: false, .. } => {
            functions.iter().any(|function| function.eq_ignore_ascii_case(name))
        }
        _ => false,
    }
}

fn is_number(kind: &ExprKind) -> bool {
    use super::super::ast::{Literal, UnaryOp};
    match kind {
        ExprKind::Literal(Literal::Int(_) | Literal::Float(_)) => true,
        ExprKind::Unary(UnaryOp::Minus | UnaryOp::Plus, operand) => is_number(&operand.kind),
        _ => false,
    }
}

fn sortable(key: &Op) -> Sortable {
    let names = match key {
        Op::Path(Path { slot: ROOT, steps }) => names(steps),
        Op::Path(_) => return Sortable::Correlated,
        Op::Computed(computed) => Some(vec![computed.name.clone()]),
        _ => None,
    };
    match names {
        Some(names) if !names.is_empty() => Sortable::Path(names),
        _ => Sortable::Nothing,
    }
}

fn names(steps: &[Step]) -> Option<Vec<String>> {
    let name = |step: &Step| match step {
        Step::Name(name) => Some(name.clone()),
        Step::Index(_) => None,
    };
    steps.iter().map(name).collect()
}
