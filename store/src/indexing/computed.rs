//! Which top-level names stand for computed properties, and what computes those that have entries.
//!
//! A query knows the definitions of now, and an index those it was built by: entries serve only where
//! both are the same. While a definition changes, a partition hears of it after its container does.

use serde::{Deserialize, Serialize};

use super::path::Step;

/// Names of computed properties, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ComputedNames(Vec<ComputedName>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ComputedName {
    name: String,
    /// The query that computes it; none if it has no entries, so that nobody computes it.
    query: Option<String>,
}

impl ComputedNames {
    /// Names with their queries; `has_entries` tells which ones the policy reaches.
    pub(super) fn new<'d>(
        definitions: impl IntoIterator<Item = (&'d str, &'d str)>,
        has_entries: impl Fn(&str) -> bool,
    ) -> Self {
        let known = |(name, query): (&str, &str)| ComputedName {
            name: name.to_string(),
            query: has_entries(name).then(|| query.to_string()),
        };
        let mut names: Vec<ComputedName> = definitions.into_iter().map(known).collect();
        names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Self(names)
    }

    /// True if a name is one of them.
    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Those that have entries, each with its query.
    pub(super) fn with_entries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|known| Some((&*known.name, known.query.as_deref()?)))
    }

    /// True if a path leads into one of them.
    pub(super) fn reach(&self, steps: &[Step]) -> bool {
        self.at(steps).is_some()
    }

    /// True if the values at a path are those that somebody means: of the stored item, or computed by
    /// this query.
    pub(super) fn hold(&self, steps: &[Step], computed_by: Option<&str>) -> bool {
        match (self.at(steps), computed_by) {
            (None, None) => true,
            (Some(known), Some(_)) => known.query.as_deref() == computed_by,
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    fn at(&self, steps: &[Step]) -> Option<&ComputedName> {
        match steps.first() {
            Some(Step::Member(first)) => self.find(first),
            Some(Step::Elements) | None => None,
        }
    }

    fn find(&self, name: &str) -> Option<&ComputedName> {
        let at = self.0.binary_search_by(|known| known.name.as_str().cmp(name));
        at.ok().map(|at| &self.0[at])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::indexing::{IndexRules, Step, complete};

    #[test]
    fn queries_of_computed_properties_without_entries_do_not_matter() {
        let policy = json!({
            "includedPaths": [{ "path": "/*" }, { "path": "/a/b/?" }],
            "excludedPaths": [{ "path": "/x/?" }],
            "compositeIndexes": [[{ "path": "/c" }, { "path": "/v" }]],
        });
        let rules = |policy| IndexRules::new(&complete(Some(policy)).unwrap()).unwrap();
        let with = |name, query| rules(&policy).with_computed([(name, query)]);
        let (old, new) = ("SELECT VALUE LOWER(c.name) FROM c", "SELECT VALUE UPPER(c.name) FROM c");
        for (name, matters) in [("a", true), ("c", true), ("x", false), ("y", false)] {
            let (before, after) = (with(name, old), with(name, new));
            assert_eq!(!before.gives_the_entries_of(&after), matters, "{name}");
            let path = [Step::from(name)];
            assert_eq!(before.computed().hold(&path, Some(old)), matters, "{name}");
            assert!(
                !before.computed().hold(&path, Some(new)) && !before.computed().hold(&path, None),
                "{name}"
            );
            assert!(!before.gives_the_entries_of(&rules(&policy)), "{name}");
        }
        assert!(rules(&policy).computed().hold(&[Step::from("a")], None));
        assert!(!rules(&policy).computed().hold(&[Step::from("a")], Some(old)));
    }
}
