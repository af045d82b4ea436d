//! What a policy says of every place in a document: whether it is indexed, and how it may be sorted.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::computed::ComputedNames;
use super::path::Step;
use super::pattern::{End, Pattern};
use super::policy::{IndexingMode, InvalidPolicy, Policy};
use crate::engine::Direction;
use crate::query::Metric;

/// Says which values of an item are indexed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexRules {
    is_on: bool,
    nodes: Vec<Node>,
    composites: Vec<Composite>,
    /// Names that stand for computed properties.
    computed: ComputedNames,
    /// Where shapes are indexed, in order.
    shapes: Vec<ShapePath>,
    /// What their coordinates mean.
    metric: Metric,
    /// Entries of composite and spatial indexes, which an item pays for.
    special_entries: u32,
}

/// A path of a spatial index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct ShapePath {
    steps: Vec<Step>,
    /// True if everything below is meant, too: `/*`.
    below: bool,
}

/// The paths of a composite index, and for each whether it sorts descending; the first never does,
/// because an index reads both ways.
pub(super) type Composite = Vec<(Vec<Step>, bool)>;

/// What a policy says of sorting by one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortSupport {
    /// The path is not indexed: refused.
    Excluded,
    /// Items without the property are left out.
    WithoutUndefined,
    /// Items without the property come first.
    WithUndefined,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Node {
    /// In order.
    names: Vec<(String, u32)>,
    elements: Option<u32>,
    /// What a rule ending in `/?` says of the value right here.
    value: Option<bool>,
    /// What a rule ending in `/*` says of everything below.
    below: Option<bool>,
}

/// Where a walk through a document stands in the rules.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    node: Option<u32>,
    /// What the closest rule above says.
    included: bool,
}

const ROOT: u32 = 0;

/// Indexed with every item, whatever the policy includes.
const ALWAYS_INDEXED: [&str; 2] = ["id", "_ts"];
/// Properties the system adds that have no entries: queries look at the items.
const NEVER_STORED: [&str; 4] = ["_rid", "_self", "_etag", "_attachments"];

impl IndexRules {
    /// Compiles a policy that was checked and completed, perhaps long ago.
    pub fn new(policy: &Value) -> Result<Self, InvalidPolicy> {
        let policy = policy.as_object().ok_or(InvalidPolicy::Malformed("indexingPolicy"))?;
        let policy = Policy::of_stored(policy)?;
        let mut rules = Self {
            is_on: policy.mode != IndexingMode::None,
            nodes: vec![Node::default()],
            composites: Vec::new(),
            computed: ComputedNames::default(),
            shapes: Vec::new(),
            metric: Metric::default(),
            special_entries: 0,
        };
        if !rules.is_on {
            return Ok(rules);
        }
        rules.special_entries = u32::try_from(policy.composites.len() + policy.spatial.len())
            .expect("a policy has a few thousand entries");
        for pattern in &policy.included {
            rules.add(pattern, true);
        }
        for pattern in &policy.excluded {
            rules.add(pattern, false);
        }
        for composite in policy.composites {
            rules.add_composite(composite);
        }
        rules.shapes = policy.spatial.into_iter().map(ShapePath::from).collect();
        rules.shapes.sort_unstable();
        rules.shapes.dedup();
        Ok(rules)
    }

    /// The same for a container with computed properties of these names, each with its query: `/*` is
    /// not about them.
    #[must_use]
    pub fn with_computed<'d>(
        mut self,
        definitions: impl IntoIterator<Item = (&'d str, &'d str)>,
    ) -> Self {
        self.computed = ComputedNames::new(definitions, |name| self.enters_below(name));
        self
    }

    /// True if the policy names something to enter at or below a top-level property.
    fn enters_below(&self, name: &str) -> bool {
        let names = self.nodes.first().map_or(&[][..], |root| &root.names);
        let Ok(at) = names.binary_search_by(|(known, _)| known.as_str().cmp(name)) else {
            return false;
        };
        let starts = |(steps, _): &(Vec<Step>, bool)| steps.first() == Some(&Step::from(name));
        self.reach()[names[at].1 as usize] || self.composites.iter().flatten().any(starts)
    }

    /// The same for a container whose coordinates mean this.
    #[must_use]
    pub fn with_metric(self, metric: Metric) -> Self {
        Self { metric, ..self }
    }

    /// What coordinates mean.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// Notes a path; a tuple says nothing of single values.
    fn add(&mut self, pattern: &Pattern, included: bool) {
        if !pattern.tuple.is_empty() {
            return;
        }
        let node = self.grow(&pattern.steps);
        match pattern.end {
            End::Value => self.nodes[node as usize].value = Some(included),
            End::Below => self.nodes[node as usize].below = Some(included),
            End::Bare => unreachable!("paths without an end are refused"),
        }
    }

    /// Notes a composite index, read in the direction in which its first path ascends.
    fn add_composite(&mut self, mut composite: Composite) {
        let backward = composite.first().is_some_and(|(_, descending)| *descending);
        for (_, descending) in &mut composite {
            *descending ^= backward;
        }
        if !self.composites.contains(&composite) {
            for (steps, _) in &composite {
                self.grow(steps);
            }
            self.composites.push(composite);
        }
    }

    /// The node of a path, made if it is not there yet.
    fn grow(&mut self, steps: &[Step]) -> u32 {
        steps.iter().fold(ROOT, |node, step| self.child(node, step))
    }

    fn child(&mut self, node: u32, step: &Step) -> u32 {
        let next = u32::try_from(self.nodes.len()).expect("a policy has a few thousand paths");
        let place = match step {
            Step::Elements => *self.node_mut(node).elements.get_or_insert(next),
            Step::Member(name) => {
                let names = &mut self.node_mut(node).names;
                match names.binary_search_by(|(known, _)| known.as_str().cmp(name)) {
                    Ok(at) => names[at].1,
                    Err(at) => {
                        names.insert(at, (name.clone(), next));
                        next
                    }
                }
            }
        };
        if place == next {
            self.nodes.push(Node::default());
        }
        place
    }

    fn node_mut(&mut self, node: u32) -> &mut Node {
        &mut self.nodes[node as usize]
    }

    fn node(&self, place: Place) -> Option<&Node> {
        Some(&self.nodes[place.node? as usize])
    }

    /// True if nothing of any item is indexed.
    pub fn is_empty(&self) -> bool {
        !self.is_on
    }

    /// True if items have the same entries by both rules.
    pub fn gives_the_entries_of(&self, other: &Self) -> bool {
        let Self { is_on, nodes, composites, computed, shapes, metric, special_entries: _ } = self;
        (is_on, nodes, composites, computed, shapes)
            == (&other.is_on, &other.nodes, &other.composites, &other.computed, &other.shapes)
            && (*metric == other.metric || shapes.is_empty())
    }

    /// How many entries of composite and spatial indexes every item pays for.
    pub fn special_entries(&self) -> u32 {
        self.special_entries
    }

    /// The place of the whole document.
    pub fn root(&self) -> Place {
        Place { node: Some(ROOT), included: self.nodes[0].below.unwrap_or(false) }
    }

    /// The place of a member of the object at `place`.
    pub fn member(&self, place: Place, name: &str) -> Place {
        let names = self.node(place).map_or(&[][..], |node| &node.names);
        let found = names.binary_search_by(|(known, _)| known.as_str().cmp(name));
        let next = self.step(place, found.ok().map(|at| names[at].1));
        let is_computed = place.node == Some(ROOT) && self.computed.has(name);
        if !is_computed {
            return next;
        }
        let below = self.node(next).and_then(|node| node.below);
        Place { included: below.unwrap_or(false), ..next }
    }

    /// The place of an element of the array at `place`.
    pub fn element(&self, place: Place) -> Place {
        self.step(place, self.node(place).and_then(|node| node.elements))
    }

    fn step(&self, from: Place, node: Option<u32>) -> Place {
        let below = node.and_then(|node| self.nodes[node as usize].below);
        Place { node, included: below.unwrap_or(from.included) }
    }

    /// The place behind some steps.
    pub(super) fn place(&self, steps: &[Step]) -> Place {
        steps.iter().fold(self.root(), |place, step| match step {
            Step::Member(name) => self.member(place, name),
            Step::Elements => self.element(place),
        })
    }

    /// True if a value at `place` is indexed: the closest rule decides, the exact one first.
    pub fn includes_value(&self, place: Place) -> bool {
        self.node(place).and_then(|node| node.value).unwrap_or(place.included)
    }

    /// The names that stand for computed properties.
    pub(super) fn computed(&self) -> &ComputedNames {
        &self.computed
    }

    /// Whether and how results may be sorted by a path.
    pub fn sort_support(&self, path: &[String]) -> SortSupport {
        if self.is_on && matches!(path, [only] if ALWAYS_INDEXED.contains(&only.as_str())) {
            return SortSupport::WithoutUndefined;
        }
        let steps: Vec<Step> = path.iter().cloned().map(Step::Member).collect();
        if !self.includes_value(self.place(&steps)) {
            SortSupport::Excluded
        } else if self.lists(&steps) || !self.composites.is_empty() {
            SortSupport::WithUndefined
        } else {
            SortSupport::WithoutUndefined
        }
    }

    /// Which way a composite index gives this order: the same paths, all directions as it has them or
    /// all the other way. None if there is no such index.
    pub fn composite_support(&self, keys: &[(Vec<String>, bool)]) -> Option<Direction> {
        self.composite(keys).map(|(_, direction)| direction)
    }

    pub(super) fn composite(
        &self,
        keys: &[(Vec<String>, bool)],
    ) -> Option<(&Composite, Direction)> {
        let (_, backward) = keys.first()?;
        let matches = |composite: &&Composite| {
            let mut pairs = composite.iter().zip(keys);
            composite.len() == keys.len()
                && pairs.all(|((steps, descending), (path, wanted))| {
                    is_path(steps, path) && *descending == (wanted ^ backward)
                })
        };
        let composite = self.composites.iter().find(matches)?;
        Some((composite, if *backward { Direction::Backward } else { Direction::Forward }))
    }

    /// The rules of the walk through a body: `id` is indexed whatever the policy says.
    pub(super) fn with_id(mut self) -> Self {
        if self.is_on {
            let id = self.grow(&[Step::from("id")]);
            self.node_mut(id).value = Some(true);
        }
        self
    }

    /// The composite indexes that have entries. Those of array elements would serve nobody; and what
    /// the system adds is not in the body, the stamp apart.
    pub(super) fn kept_composites(&self) -> impl Iterator<Item = &Composite> {
        let is_kept = |(steps, _): &(Vec<Step>, bool)| match steps.first() {
            Some(Step::Member(first)) => {
                !NEVER_STORED.contains(&first.as_str()) && !steps.contains(&Step::Elements)
            }
            Some(Step::Elements) | None => false,
        };
        self.composites.iter().filter(move |composite| composite.iter().all(is_kept))
    }

    /// True if shapes are indexed anywhere.
    pub(super) fn has_shapes(&self) -> bool {
        !self.shapes.is_empty()
    }

    /// True if a shape at a path is indexed.
    pub(super) fn includes_shape(&self, steps: &[Step]) -> bool {
        self.shapes.iter().any(|path| path.includes(steps))
    }

    /// Where a walk for shapes begins.
    pub(super) fn shapes_at_root(&self) -> ShapesAt<'_> {
        ShapesAt { paths: &self.shapes, depth: 0, within: false }
    }

    #[cfg(test)]
    fn composites(&self) -> &[Composite] {
        &self.composites
    }

    /// True if a path has an entry in every item that has it.
    pub(super) fn includes(&self, steps: &[Step]) -> bool {
        match steps {
            [Step::Member(only)] if self.is_on && ALWAYS_INDEXED.contains(&only.as_str()) => true,
            [Step::Member(first), ..] if NEVER_STORED.contains(&first.as_str()) => false,
            [] => false,
            [Step::Member(_) | Step::Elements, ..] => self.includes_value(self.place(steps)),
        }
    }

    /// True if the policy includes this very path of names, and not only through a wildcard.
    pub fn lists_names(&self, path: &[String]) -> bool {
        self.lists(&path.iter().cloned().map(Step::Member).collect::<Vec<_>>())
    }

    /// True if a path is included by itself, so that items without it have an entry as well.
    pub(super) fn lists(&self, steps: &[Step]) -> bool {
        let place = self.place(steps);
        let listed = self.node(place).and_then(|node| node.value) == Some(true);
        listed && !steps.contains(&Step::Elements)
    }

    /// Every path that is included by itself and leads to one value.
    pub(super) fn listed(&self) -> Vec<Vec<Step>> {
        let mut listed = Vec::new();
        // Where the walk is, and what it has still to see: how deep, by which name, and the node.
        let mut steps: Vec<Step> = Vec::new();
        let mut rest = vec![(0, None, ROOT)];
        while let Some((depth, name, node)) = rest.pop() {
            let name: Option<&String> = name;
            steps.truncate(depth - name.iter().len());
            steps.extend(name.cloned().map(Step::Member));
            let Node { names, value, .. } = &self.nodes[node as usize];
            rest.extend(names.iter().rev().map(|(name, child)| (depth + 1, Some(name), *child)));
            if *value == Some(true) {
                listed.push(steps.clone());
            }
        }
        listed
    }

    /// The node of a place, for those who keep something beside the rules.
    pub(super) fn node_of(place: Place) -> Option<usize> {
        place.node.map(|node| node as usize)
    }

    /// For each node, whether anything at it or below may be included.
    pub(super) fn reach(&self) -> Vec<bool> {
        let mut reach = vec![false; self.nodes.len()];
        // Children come behind their parents.
        for (at, node) in self.nodes.iter().enumerate().rev() {
            let children = node.names.iter().map(|(_, child)| *child).chain(node.elements);
            reach[at] = node.value == Some(true)
                || node.below == Some(true)
                || children.into_iter().any(|child| reach[child as usize]);
        }
        reach
    }
}

/// Where a walk for shapes stands: what paths of the policy say of it and of what is below.
#[derive(Clone, Copy)]
pub(super) struct ShapesAt<'r> {
    /// The paths that lead here or on from here, those that end here first.
    paths: &'r [ShapePath],
    depth: usize,
    /// True if a path above means everything below it.
    within: bool,
}

impl ShapesAt<'_> {
    /// True if a shape here is indexed.
    pub(super) fn includes(&self) -> bool {
        self.within || self.paths.first().is_some_and(|path| path.steps.len() == self.depth)
    }

    /// True if a shape here or below may be indexed.
    pub(super) fn reaches(&self) -> bool {
        self.within || !self.paths.is_empty()
    }

    /// One step down.
    pub(super) fn member(&self, name: &str) -> Self {
        let Self { paths, depth, within } = *self;
        let ended = paths.iter().take_while(|path| path.steps.len() == depth);
        let within = within || ended.clone().any(|path| path.below);
        let paths = &paths[ended.count()..];
        // Paths through the elements of arrays come behind all names.
        let order = |path: &ShapePath| match &path.steps[depth] {
            Step::Member(member) => member.as_str().cmp(name),
            Step::Elements => Ordering::Greater,
        };
        let start = paths.partition_point(|path| order(path).is_lt());
        let end = paths.partition_point(|path| order(path).is_le());
        Self { paths: &paths[start..end], depth: depth + 1, within }
    }
}

impl ShapePath {
    fn includes(&self, steps: &[Step]) -> bool {
        self.steps == steps || (self.below && steps.starts_with(&self.steps))
    }
}

impl From<Pattern> for ShapePath {
    fn from(pattern: Pattern) -> Self {
        Self { below: pattern.end == End::Below, steps: pattern.steps }
    }
}

impl Place {
    /// What the closest rule above says.
    pub(super) fn is_below_included(self) -> bool {
        self.included
    }
}

fn is_path(steps: &[Step], path: &[String]) -> bool {
    let is_member = |(step, name): (&Step, &String)| match step {
        Step::Member(member) => member == name,
        Step::Elements => false,
    };
    steps.len() == path.len() && steps.iter().zip(path).all(is_member)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::policy::complete;
    use super::*;

    fn rules(policy: &Value) -> IndexRules {
        IndexRules::new(&complete(Some(policy)).unwrap()).unwrap()
    }

    fn steps(path: &[&str]) -> Vec<Step> {
        let step = |name: &&str| if *name == "[]" { Step::Elements } else { Step::from(*name) };
        path.iter().map(step).collect()
    }

    fn names(path: &[&str]) -> Vec<String> {
        path.iter().map(ToString::to_string).collect()
    }

    fn included(policy: &Value, path: &[&str]) -> bool {
        let rules = rules(policy);
        rules.includes_value(rules.place(&steps(path)))
    }

    #[test]
    fn the_closest_rule_decides() {
        let policy = json!({
            "includedPaths": [{ "path": "/*" }, { "path": "/a/keep/?" }],
            "excludedPaths": [{ "path": "/a/*" }, { "path": "/list/[]/x/?" }],
        });
        assert!(included(&policy, &["b"]));
        assert!(!included(&policy, &["a", "other"]));
        assert!(included(&policy, &["a", "keep"]));
        assert!(!included(&policy, &["a", "keep", "below"]));
        assert!(!included(&policy, &["list", "[]", "x"]));
        assert!(included(&policy, &["list", "[]", "y"]));
        assert!(included(&json!({}), &["a", "[]", "b"]));
    }

    #[test]
    fn a_walk_for_shapes_knows_where_they_are() {
        let path = |steps: &[&str], below| ShapePath {
            steps: steps
                .iter()
                .map(|name| if *name == "[]" { Step::Elements } else { Step::from(*name) })
                .collect(),
            below,
        };
        let mut rules = rules(&complete(None).unwrap());
        rules.shapes = vec![
            path(&["a"], false),
            path(&["a", "b", "c"], false),
            path(&["a", "b", "c"], true),
            path(&["a", "bb"], true),
            path(&["b", "a"], true),
            path(&["b", "a", "a"], false),
            path(&["b", "[]", "a"], true),
            path(&["[]"], true),
        ];
        rules.shapes.sort_unstable();
        let names = ["a", "b", "bb", "c", "x"];
        let mut rest = vec![(Vec::new(), rules.shapes_at_root())];
        while let Some((walked, at)) = rest.pop() {
            assert_eq!(at.includes(), rules.includes_shape(&walked), "{walked:?}");
            let leads_on = |path: &ShapePath| path.steps.starts_with(&walked);
            let reaches = rules.includes_shape(&walked) || rules.shapes.iter().any(leads_on);
            assert_eq!(at.reaches(), reaches, "{walked:?}");
            if walked.len() < 5 {
                rest.extend(names.map(|name| {
                    (walked.iter().cloned().chain([Step::from(name)]).collect(), at.member(name))
                }));
            }
        }
    }

    #[test]
    fn mode_none_indexes_nothing() {
        let policy = json!({ "indexingMode": "None", "includedPaths": [{ "path": "/a/?" }] });
        for path in ["a", "id", "_ts"] {
            assert!(!included(&policy, &[path]));
            assert_eq!(rules(&policy).sort_support(&names(&[path])), SortSupport::Excluded);
        }
        assert!(rules(&policy).is_empty());
    }

    #[test]
    fn id_and_stamp_are_always_indexed() {
        let rules = rules(&json!({ "excludedPaths": [{ "path": "/*" }] }));
        for path in ["id", "_ts"] {
            assert!(rules.includes(&steps(&[path])));
            assert_eq!(rules.sort_support(&names(&[path])), SortSupport::WithoutUndefined);
        }
        assert!(!rules.includes(&steps(&["a"])) && !rules.is_empty());
    }

    #[test]
    fn a_path_listed_by_itself_keeps_items_without_it() {
        let policy = json!({ "includedPaths": [{ "path": "/*" }, { "path": "/a/b/?" }] });
        let support = |path: &[&str]| rules(&policy).sort_support(&names(path));
        assert_eq!(support(&["a", "b"]), SortSupport::WithUndefined);
        assert_eq!(support(&["a"]), SortSupport::WithoutUndefined);
        assert_eq!(rules(&policy).listed(), [steps(&["a", "b"])]);
    }

    #[test]
    fn a_composite_index_serves_its_paths_in_its_order_or_all_the_other_way() {
        let index = json!([{ "path": "/a" }, { "path": "/b/c", "order": "descending" }]);
        let rules = rules(&json!({ "compositeIndexes": [index] }));
        let support = |keys: &[(&[&str], bool)]| {
            let keys: Vec<_> = keys.iter().map(|(path, down)| (names(path), *down)).collect();
            rules.composite_support(&keys)
        };
        let (a, bc): (&[&str], &[&str]) = (&["a"], &["b", "c"]);
        assert_eq!(support(&[(a, false), (bc, true)]), Some(Direction::Forward));
        assert_eq!(support(&[(a, true), (bc, false)]), Some(Direction::Backward));
        for unserved in [
            &[(a, false), (bc, false)][..],
            &[(a, true), (bc, true)],
            &[(bc, true), (a, false)],
            &[(a, false)],
            &[(a, false), (bc, true), (a, false)],
            &[],
        ] {
            assert_eq!(support(unserved), None, "{unserved:?}");
        }
        assert_eq!(rules.sort_support(&names(&["z"])), SortSupport::WithUndefined);
    }

    #[test]
    fn composite_indexes_that_are_one_another_backward_are_one() {
        let down = json!([{ "path": "/a", "order": "descending" }, { "path": "/b" }]);
        let up = json!([{ "path": "/a" }, { "path": "/b", "order": "descending" }]);
        let rules = rules(&json!({ "compositeIndexes": [down, up] }));
        assert_eq!((rules.composites().len(), rules.special_entries()), (1, 2));
    }

    #[test]
    fn a_policy_that_was_once_taken_is_never_refused() {
        let policy = json!({
            "indexingMode": "consistent",
            "includedPaths": [{ "path": "/a/?" }, { "path": "/not-today/?" }, {}],
            "compositeIndexes": [[{ "path": "/a" }]],
        });
        assert!(complete(Some(&policy)).is_err());
        let rules = IndexRules::new(&policy).unwrap();
        assert!(rules.includes(&steps(&["a"])) && !rules.includes(&steps(&["b"])));
    }

    #[test]
    fn wildcards_are_not_about_computed_properties() {
        let policy = json!({ "includedPaths": [{ "path": "/*" }, { "path": "/named/?" }] });
        let rules = rules(&policy).with_computed([("named", ""), ("other", "")]);
        assert_eq!(rules.sort_support(&names(&["named"])), SortSupport::WithUndefined);
        assert_eq!(rules.sort_support(&names(&["other"])), SortSupport::Excluded);
        assert_eq!(rules.sort_support(&names(&["a", "other"])), SortSupport::WithoutUndefined);
    }
}
