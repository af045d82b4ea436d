//! The names under which a select list's values stand in a row.
#![expect(clippy::wildcard_enum_match_arm, reason = "asks for one form among many")]

use std::collections::HashSet;

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

/// Of what shares a name the last, where it stands.
pub(super) fn last_of_each<T>(named: Vec<(String, T)>) -> Vec<(String, T)> {
    let mut seen = HashSet::with_capacity(named.len());
    let is_last: Vec<bool> =
        named.iter().rev().map(|(name, _)| seen.insert(name.as_str())).collect();
    let kept = named.into_iter().zip(is_last.into_iter().rev());
    kept.filter_map(|(one, is_last)| is_last.then_some(one)).collect()
}

/// The numbers that are written as words, unless something goes by that name.
pub(super) fn number_word(name: &str) -> Option<f64> {
    match name {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        _ => None,
    }
}
