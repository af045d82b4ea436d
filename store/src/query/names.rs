//! The names under which a select list's values stand in a row.
#![expect(clippy::wildcard_enum_match_arm, reason = "asks for one form among many")]

use super::ast::{ExprKind, SelectItem};
use super::compile::tree::member;

/// A name for each item: its alias, else the last name of its path, else `$1`, `$2` and so on,
/// counting only those without a name.
pub(super) fn select_names(items: &[SelectItem], is_source: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut unnamed = 0;
    let name = |item: &SelectItem| {
        item.alias.clone().or_else(|| implied_name(item, is_source)).unwrap_or_else(|| {
            unnamed += 1;
            format!("${unnamed}")
        })
    };
    items.iter().map(name).collect()
}

/// The name an unnamed expression lends to its member of the row.
fn implied_name(item: &SelectItem, is_source: &dyn Fn(&str) -> bool) -> Option<String> {
    if let Some((_, name)) = member(&item.expr) {
        return Some(name.to_string());
    }
    match &item.expr.kind {
        ExprKind::Name(name) if is_source(name) || number_word(name).is_none() => {
            Some(name.clone())
        }
        _ => None,
    }
}

/// The numbers that are written as words, unless something goes by that name.
pub(super) fn number_word(name: &str) -> Option<f64> {
    match name {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        _ => None,
    }
}
