//! How deep the values of a query may nest, told by the query alone.
//!
//! Each source of FROM and JOIN may wrap what the one before it gave in a hundred arrays, and so
//! may each subquery around it. Values are walked, sent and dropped by recursion: too deep ones are
//! never built.

use super::op::{Block, Op, Path, Projection, Source};
use super::value::Value;

/// How deep stored items and parameters nest at most.
const GIVEN: u32 = 128;
/// How deep one expression over such values nests its own: 200 levels of functions, each of which
/// may add two. Stands for constants and computed properties, which are not looked into.
const EXPRESSION: u32 = GIVEN + 2 * 200;

/// How deep the values that a block makes of an item may nest, those included that it makes on the
/// way.
pub(super) fn of(block: &Block) -> u32 {
    let mut depths = Depths { slots: vec![GIVEN], most: GIVEN };
    depths.of_block(block);
    depths.most
}

struct Depths {
    /// Of what is in each slot.
    slots: Vec<u32>,
    /// Of everything so far.
    most: u32,
}

impl Depths {
    fn of_block(&mut self, block: &Block) -> u32 {
        let Block { first_slot, sources, filter, due: _, grouping, select, distinct: _ } = block;
        self.slots.resize(*first_slot, GIVEN);
        for source in sources {
            let depth = match source {
                Source::One(op) | Source::Elements(op) => self.of(op),
                Source::Rows(block) | Source::RowElements(block) => self.of_block(block),
            };
            self.slots.push(depth);
        }
        if let Some(filter) = filter {
            self.of(filter);
        }
        if let Some(grouping) = grouping {
            let mut groups: Vec<u32> = grouping.keys.iter().map(|key| self.of(key)).collect();
            let aggregates = grouping.aggregates.iter();
            groups.extend(aggregates.map(|aggregate| self.of(&aggregate.argument) + 1));
            self.slots.truncate(*first_slot);
            self.slots.extend(groups);
        }
        let depth = match select {
            Projection::Value(op) => self.of(op),
            Projection::List(list) => self.most_of(list.iter().map(|(_, op)| op)) + 1,
        };
        self.slots.truncate(*first_slot);
        self.noted(depth)
    }

    fn of(&mut self, op: &Op) -> u32 {
        let depth = match op {
            Op::Constant(value) => depth_of(value),
            Op::Path(Path { slot, steps: _ }) => self.slots.get(*slot).copied().unwrap_or(GIVEN),
            Op::Computed(_) => EXPRESSION,
            Op::DocumentId => 0,
            Op::Steps(one, _) | Op::Unary(_, one) | Op::Like(one, _) | Op::Matches(one, _) => {
                self.of(one)
            }
            Op::Binary(_, left, right) | Op::LikeComputed(left, right, _) => {
                self.of(left).max(self.of(right))
            }
            Op::Chain(first, rest) => {
                let first = self.of(first);
                first.max(self.most_of(rest.iter().map(|(_, op)| op)))
            }
            Op::And(ops) | Op::Or(ops) => self.most_of(ops),
            Op::Conditional(a, b, c) | Op::Between(a, b, c) => {
                self.most_of([a, b, c].into_iter().map(AsRef::as_ref))
            }
            Op::In(value, list) => self.of(value).max(self.most_of(list)),
            // Some read JSON, which nests as deep as items do.
            Op::Call(_, args) => self.most_of(args).max(GIVEN) + 2,
            Op::Array(elements) => self.most_of(elements) + 1,
            Op::Object(members) => self.most_of(members.iter().map(|(_, op)| op)) + 1,
            Op::Subquery(_, block) => self.of_block(block) + 1,
        };
        self.noted(depth)
    }

    fn most_of<'o>(&mut self, ops: impl IntoIterator<Item = &'o Op>) -> u32 {
        ops.into_iter().map(|op| self.of(op)).max().unwrap_or(0)
    }

    fn noted(&mut self, depth: u32) -> u32 {
        self.most = self.most.max(depth);
        depth
    }
}

fn depth_of(constant: &Value) -> u32 {
    match constant {
        Value::Array(_) | Value::Object(_) => EXPRESSION,
        Value::Undefined | Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => 0,
    }
}
