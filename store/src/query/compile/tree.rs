//! What the compiler asks of the tree itself: what stands in it, and whether two parts are the same.
#![expect(clippy::wildcard_enum_match_arm, reason = "asks for one form and refuses all others")]

use super::super::ast::{Expr, ExprKind, Literal, Select};

/// What a visitor wants to see next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::query) enum Then {
    /// The parts of what it was shown.
    Descend,
    /// Nothing of that.
    Skip,
}

/// Shows an expression and its parts, but not what is in subqueries.
pub(in crate::query) fn visit<'e>(expr: &'e Expr, see: &mut dyn FnMut(&'e Expr) -> Then) {
    if see(expr) == Then::Descend {
        for child in children(expr) {
            visit(child, see);
        }
    }
}

/// Shows what a select list consists of.
pub(super) fn visit_select<'e>(select: &'e Select, see: &mut dyn FnMut(&'e Expr) -> Then) {
    match select {
        Select::Star(_) => {}
        Select::Value(expr) => visit(expr, see),
        Select::List(items) => {
            for item in items {
                visit(&item.expr, see);
            }
        }
    }
}

/// The parts of an expression, those in subqueries left out.
pub(in crate::query) fn children(expr: &Expr) -> Vec<&Expr> {
    match &expr.kind {
        ExprKind::Literal(_)
        | ExprKind::Parameter(_)
        | ExprKind::Name(_)
        | ExprKind::Subquery(..) => Vec::new(),
        ExprKind::Member(inner, _) | ExprKind::Unary(_, inner) => vec![inner],
        ExprKind::Index(left, right) | ExprKind::Binary(_, left, right) => vec![left, right],
        ExprKind::Conditional(a, b, c) => vec![a, b, c],
        ExprKind::Between { value, low, high, negated: _ } => vec![value, low, high],
        ExprKind::In { value, list, negated: _ } => {
            std::iter::once(value.as_ref()).chain(list).collect()
        }
        ExprKind::Like { value, pattern, escape: _, negated: _ } => vec![value, pattern],
        ExprKind::Call { args, .. } => args.iter().collect(),
        ExprKind::Array(elements) => elements.iter().collect(),
        ExprKind::Object(members) => members.iter().map(|(_, value)| value).collect(),
    }
}

/// True if two expressions are the same tree, wherever they stand; `c.a` and `c["a"]` are. Nothing
/// is once no more nodes may be compared.
pub(super) fn same(a: &Expr, b: &Expr, nodes_left: &mut u64) -> bool {
    *nodes_left = nodes_left.saturating_sub(1);
    if *nodes_left == 0 {
        return false;
    }
    if let (Some((a, a_name)), Some((b, b_name))) = (member(a), member(b)) {
        return a_name == b_name && same(a, b, nodes_left);
    }
    let mut same_parts = || {
        let (a, b) = (children(a), children(b));
        *nodes_left = nodes_left.saturating_sub((a.len() + b.len()) as u64);
        a.len() == b.len() && a.into_iter().zip(b).all(|(a, b)| same(a, b, nodes_left))
    };
    let same_nodes = match (&a.kind, &b.kind) {
        (ExprKind::Literal(a), ExprKind::Literal(b)) => a == b,
        (ExprKind::Parameter(a), ExprKind::Parameter(b))
        | (ExprKind::Name(a), ExprKind::Name(b)) => a == b,
        (ExprKind::Unary(a, _), ExprKind::Unary(b, _)) => a == b,
        (ExprKind::Binary(a, ..), ExprKind::Binary(b, ..)) => a == b,
        (ExprKind::Between { negated: a, .. }, ExprKind::Between { negated: b, .. })
        | (ExprKind::In { negated: a, .. }, ExprKind::In { negated: b, .. }) => a == b,
        (
            ExprKind::Like { escape: a, negated: not_a, .. },
            ExprKind::Like { escape: b, negated: not_b, .. },
        ) => a == b && not_a == not_b,
        (
            ExprKind::Call { name: a, user_defined: a_user, .. },
            ExprKind::Call { name: b, user_defined: b_user, .. },
        ) => a.eq_ignore_ascii_case(b) && a_user == b_user,
        (ExprKind::Object(a), ExprKind::Object(b)) => {
            a.iter().map(|(name, _)| name).eq(b.iter().map(|(name, _)| name))
        }
        (ExprKind::Index(..), ExprKind::Index(..))
        | (ExprKind::Conditional(..), ExprKind::Conditional(..))
        | (ExprKind::Array(_), ExprKind::Array(_)) => true,
        _ => false,
    };
    same_nodes && same_parts()
}

/// The object and the name of `o.name` or `o["name"]`.
pub(in crate::query) fn member(expr: &Expr) -> Option<(&Expr, &str)> {
    match &expr.kind {
        ExprKind::Member(object, name) => Some((object, name)),
        ExprKind::Index(object, index) => match &index.kind {
            ExprKind::Literal(Literal::Text(name)) => Some((object, name)),
            _ => None,
        },
        _ => None,
    }
}
