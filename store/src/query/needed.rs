//! Which parts of an item a query reads, and reading no more than those.
//!
//! Most queries look at a few properties of items that have many. What is not needed is passed over
//! without being built.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::compiled::SortOrder;
use super::op::{Block, Op, Path, ROOT, Source, Step};
use super::value::{Builder, Member, Value, all_members};
use crate::ids::{ContainerNumber, ResourceId};
use crate::item::Stamp;

/// How deep parts are told apart: bounds the stack of whoever walks or drops them.
const STEPS_MAX: usize = 200;

/// The parts of an item that are needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// True if all of it is, down to the last member.
    whole: bool,
    /// Members by name.
    members: BTreeMap<String, Needed>,
}

impl Needed {
    /// All of an item.
    pub fn everything() -> Self {
        Self { whole: true, members: BTreeMap::new() }
    }

    /// The members at these paths.
    pub(crate) fn members_at<'p>(paths: impl IntoIterator<Item = &'p Vec<String>>) -> Self {
        let mut needed = Self::default();
        for path in paths {
            let steps: Vec<Step> = path.iter().cloned().map(Step::Name).collect();
            needed.add(&steps);
        }
        needed
    }

    /// True if nothing of it is needed: the item only has to be there.
    pub fn is_nothing(&self) -> bool {
        !self.whole && self.members.is_empty()
    }

    /// The needed members, each with what is needed of it; empty if everything is.
    pub fn members(&self) -> impl Iterator<Item = (&str, &Needed)> {
        self.members.iter().map(|(name, needed)| (name.as_str(), needed))
    }

    /// What a query reads. Where an item is selected as it is, that does not count: whoever has the
    /// stored bytes can copy them.
    pub(super) fn by(block: &Block, order: &[SortOrder]) -> Self {
        let mut needed = Needing::default();
        let mut see = |op: &Op| needed.see(op);
        if block.selects_item() {
            block.visit_rows(&mut see);
        } else {
            block.visit(&mut see);
        }
        for sort in order {
            sort.key.visit(&mut see);
        }
        needed.parts
    }

    /// What expressions over an item read.
    pub(super) fn of<'o>(expressions: impl IntoIterator<Item = &'o Op>) -> Self {
        let mut needed = Needing::default();
        for expression in expressions {
            expression.visit(&mut |op| needed.see(op));
        }
        needed.parts
    }

    /// Adds a path; of an array all elements are needed, and so is all that is very deep.
    fn add(&mut self, steps: &[Step]) {
        let mut needed = self;
        for step in steps.iter().take(STEPS_MAX) {
            let Step::Name(name) = step else { break };
            if needed.whole {
                return;
            }
            needed = needed.members.entry(name.clone()).or_default();
        }
        *needed = Self::everything();
    }

    fn wants(&self, name: &str) -> bool {
        self.whole || self.members.contains_key(name)
    }
}

/// What expressions need, as they are seen one after the other.
#[derive(Default)]
struct Needing {
    parts: Needed,
    /// The bodies of computed properties that were seen: a query may refer to one very often.
    bodies: BTreeSet<*const Op>,
}

impl Needing {
    fn see(&mut self, op: &Op) {
        if let Op::Path(Path { slot: ROOT, steps }) = op {
            self.parts.add(steps);
        }
        if let Op::Computed(computed) = op
            && self.bodies.insert(Arc::as_ptr(&computed.body))
        {
            computed.body.visit(&mut |op| self.see(op));
        }
    }
}

impl Block {
    /// True if every result is the item, as it is stored.
    pub(super) fn selects_item(&self) -> bool {
        use super::op::Projection;
        let is_item = matches!(
            &self.select,
            Projection::Value(Op::Path(Path { slot: ROOT, steps })) if steps.is_empty()
        );
        is_item && self.grouping.is_none() && !self.distinct
    }

    /// Shows the expressions that rows are made by, but not what is selected from them.
    fn visit_rows<'o>(&'o self, see: &mut dyn FnMut(&'o Op)) {
        for source in &self.sources {
            match source {
                Source::One(op) | Source::Elements(op) => op.visit(see),
                Source::Rows(block) | Source::RowElements(block) => block.visit(see),
            }
        }
        if let Some(op) = &self.filter {
            op.visit(see);
        }
    }
}

impl Value {
    /// Reads of JSON what is needed. Members that are not needed are missing; an array of which
    /// only members would be needed, and which has none, is empty.
    pub fn read(json: &[u8], needed: &Needed) -> Result<Value, serde_json::Error> {
        Reading { needed, complete: &|_| {} }.of(json)
    }

    /// Reads of a stored item what is needed, system properties included.
    pub fn read_item(
        body: &[u8],
        stamp: &Stamp,
        container: ContainerNumber,
        needed: &Needed,
    ) -> Result<Value, serde_json::Error> {
        let complete =
            |members: &mut Vec<Member>| add_system_properties(members, stamp, container, needed);
        Reading { needed, complete: &complete }.of(body)
    }
}

/// Adds what `item::client_json` splices in, in the same order.
fn add_system_properties(
    members: &mut Vec<Member>,
    stamp: &Stamp,
    container: ContainerNumber,
    needed: &Needed,
) {
    let rid = || ResourceId::item(container, stamp.number);
    let link = || {
        let collection = ResourceId::Container(container);
        let database = ResourceId::Database(container.database);
        format!("dbs/{database}/colls/{collection}/docs/{}/", rid())
    };
    let mut add = |name: &str, value: &dyn Fn() -> Value| {
        if needed.wants(name) {
            members.push((name.to_string(), value()));
        }
    };
    add("_rid", &|| Value::Text(rid().to_string()));
    add("_self", &|| Value::Text(link()));
    add("_etag", &|| Value::Text(stamp.etag.to_string()));
    add("_attachments", &|| Value::Text("attachments/".to_string()));
    add("_ts", &|| Value::count(stamp.ts.0));
}

/// Reads one value, as far as it is needed.
struct Reading<'n> {
    needed: &'n Needed,
    /// Adds what is missing among its members, if it has any.
    complete: &'n dyn Fn(&mut Vec<Member>),
}

impl Reading<'_> {
    fn of(self, json: &[u8]) -> Result<Value, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let value = self.deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(value)
    }
}

impl<'de> DeserializeSeed<'de> for Reading<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reading<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        Builder.visit_unit()
    }

    fn visit_bool<E: serde::de::Error>(self, truth: bool) -> Result<Value, E> {
        Builder.visit_bool(truth)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Value, E> {
        Builder.visit_i64(number)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Value, E> {
        Builder.visit_u64(number)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Value, E> {
        Builder.visit_f64(number)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        Builder.visit_str(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        if self.needed.whole {
            return Builder.visit_seq(seq);
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Array(Vec::new()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = if self.needed.whole {
            all_members(&mut map)?
        } else {
            needed_members(&mut map, self.needed)?
        };
        (self.complete)(&mut members);
        Ok(Value::Object(members.into()))
    }
}

fn needed_members<'de, A: MapAccess<'de>>(
    map: &mut A,
    needed: &Needed,
) -> Result<Vec<Member>, A::Error> {
    let mut members = Vec::with_capacity(needed.members.len());
    while let Some(found) = map.next_key_seed(Name(needed))? {
        match found {
            Some((name, needed)) => {
                let value = map.next_value_seed(Reading { needed, complete: &|_| {} })?;
                members.push((name.clone(), value));
            }
            None => {
                map.next_value::<IgnoredAny>()?;
            }
        }
    }
    Ok(members)
}

/// Reads a member's name, and tells if it is one of those that are needed.
struct Name<'n>(&'n Needed);

impl<'de, 'n> DeserializeSeed<'de> for Name<'n> {
    type Value = Option<(&'n String, &'n Needed)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'n> Visitor<'_> for Name<'n> {
    type Value = Option<(&'n String, &'n Needed)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.members.get_key_value(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::{CompiledQuery, ComputedProperties, Parameters};

    fn needed(text: &str) -> Needed {
        let policy = crate::indexing::complete(None).unwrap();
        let index = crate::indexing::IndexRules::new(&policy).unwrap();
        let (parameters, computed) = (Parameters::default(), ComputedProperties::default());
        CompiledQuery::new(text, &parameters, &index, &computed).unwrap().needed().clone()
    }

    fn shown(needed: &Needed) -> String {
        if needed.whole {
            return "*".to_string();
        }
        let members = needed.members().map(|(name, needed)| format!("{name}{}", shown(needed)));
        format!("({})", members.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_query_needs_what_it_names() {
        for (text, expected) in [
            ("SELECT c.a, c.b.d FROM c", "(a* b(d*))"),
            ("SELECT c.a FROM c WHERE c.a.b = 1", "(a*)"),
            ("SELECT * FROM c", "()"),
            ("SELECT VALUE c FROM c WHERE c['x y'] > 1 ORDER BY c.s", "(s* x y*)"),
            ("SELECT DISTINCT * FROM c", "*"),
            ("SELECT c FROM c", "*"),
            ("SELECT VALUE COUNT(1) FROM c", "()"),
            ("SELECT VALUE SUM(c.n) FROM c", "(n*)"),
            ("SELECT c.g, MAX(c.n) FROM c GROUP BY c.g", "(g* n*)"),
            ("SELECT t.name FROM c JOIN t IN c.tags", "(tags*)"),
            ("SELECT VALUE c.list[0].x FROM c", "(list*)"),
            ("SELECT VALUE l FROM c.lines.first l", "(lines(first*))"),
            ("SELECT VALUE EXISTS(SELECT VALUE x FROM x IN c.t WHERE x = c.k) FROM c", "(k* t*)"),
            ("SELECT VALUE 1", "()"),
        ] {
            assert_eq!(shown(&needed(text)), expected, "{text}");
        }
    }

    #[test]
    fn only_what_is_needed_is_read() {
        let json = br#"{"a":{"b":[1,{"c":2}],"d":3},"e":[4],"f":"g","h":null}"#;
        for (text, expected) in [
            ("SELECT c.a.b FROM c", r#"{"a":{"b":[1,{"c":2}]}}"#),
            ("SELECT c.a.d, c.f FROM c", r#"{"a":{"d":3},"f":"g"}"#),
            ("SELECT c.e.x, c.f.y, c.h FROM c", r#"{"e":[],"f":"g","h":null}"#),
            ("SELECT c.none FROM c", "{}"),
            ("SELECT c FROM c", std::str::from_utf8(json).unwrap()),
        ] {
            let value = Value::read(json, &needed(text)).unwrap();
            assert_eq!(String::from_utf8(value.to_json()).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_refused_also_where_it_is_not_needed() {
        for json in ["", "{", r#"{"a":1,"b":}"#, r#"{"a":1} x"#, r#"{"b":[1,}"#] {
            assert!(Value::read(json.as_bytes(), &needed("SELECT c.a FROM c")).is_err(), "{json}");
        }
    }

    #[test]
    fn system_properties_are_those_that_clients_see() {
        use crate::ids::{DatabaseNumber, Etag, ItemNumber, Lsn};
        use crate::time::Seconds;
        use crate::ttl::ItemTtl;
        let stamp = Stamp {
            lsn: Lsn(7),
            operation: 1,
            ts: Seconds(1234),
            ttl: ItemTtl::Inherit,
            etag: Etag(99),
            number: ItemNumber::new(3, Lsn(5), 0),
            indexed_values: 2,
            tells_place: false,
        };
        let container = ContainerNumber { database: DatabaseNumber(1), number: 2 };
        let body = br#"{"id":"x","n":1}"#;
        let read = |needed: &Needed| Value::read_item(body, &stamp, container, needed).unwrap();
        let shown = crate::item::client_json(body, &stamp, container);
        assert_eq!(read(&Needed::everything()).to_json(), shown);
        assert_eq!(read(&needed("SELECT c._ts, c.n FROM c")).to_json(), br#"{"n":1,"_ts":1234}"#);
        assert_eq!(read(&needed("SELECT c.n FROM c")).to_json(), br#"{"n":1}"#);
    }
}
