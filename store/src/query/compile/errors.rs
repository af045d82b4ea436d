//! What is wrong with a query, as it is found.

use super::super::error::QueryError;

/// Errors told at most: a text may have a hundred thousand.
const ERRORS_MAX: usize = 100;

/// The errors found so far.
#[derive(Debug, Default)]
pub(super) struct Errors {
    list: Vec<QueryError>,
    /// How many were found, those included that are not told.
    found: usize,
    /// What is told instead of all others, which follow from it.
    instead: Option<QueryError>,
}

impl Errors {
    pub(super) fn push(&mut self, error: QueryError) {
        self.found += 1;
        if !self.is_full() {
            self.list.push(error);
        }
    }

    /// Notes what is told instead of all others; the first such error is.
    pub(super) fn push_instead(&mut self, error: QueryError) {
        self.found += 1;
        self.instead.get_or_insert(error);
    }

    /// True if no other is told.
    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= ERRORS_MAX
    }

    /// How many were found.
    pub(super) fn len(&self) -> usize {
        self.found
    }

    /// All of them as one; none if there is none.
    pub(super) fn all(self) -> Option<QueryError> {
        self.instead.or_else(|| QueryError::all(self.list))
    }
}
