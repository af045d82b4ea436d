//! The compiled form of a query: what the compiler makes, the evaluator runs and the planner reads.
//!
//! Names are gone. Every value that a name stood for has a slot in the row at hand: slot 0 is the
//! item, then come the sources of FROM and JOIN, then those of subqueries as they open. Behind
//! GROUP BY the sources' slots hold the keys and the aggregates instead.

use std::sync::Arc;

use super::aggregate::AggregateKind;
use super::ast::{BinaryOp, UnaryOp};
use super::functions::Function;
use super::functions::regex::Regex;
use super::like::LikePattern;
use super::value::Value;

/// The slot of the item.
pub(super) const ROOT: usize = 0;

/// A compiled expression.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// A constant; a parameter's value is shared by all its uses.
    Constant(Arc<Value>),
    /// A slot, or what lies below it.
    Path(Path),
    /// A computed property of the item.
    Computed(Box<Computed>),
    /// What lies below a computed value. All steps at once: a text may have thousands of them.
    Steps(Box<Op>, Vec<Step>),
    /// An operator before its operand.
    Unary(UnaryOp, Box<Op>),
    /// An operator between its operands; never AND or OR.
    Binary(BinaryOp, Box<Op>, Box<Op>),
    /// Several operators in a row, from left to right; never AND or OR.
    Chain(Box<Op>, Vec<(BinaryOp, Op)>),
    /// All of these.
    And(Vec<Op>),
    /// Any of these.
    Or(Vec<Op>),
    /// `c ? x : y`
    Conditional(Box<Op>, Box<Op>, Box<Op>),
    /// `v BETWEEN a AND b`
    Between(Box<Op>, Box<Op>, Box<Op>),
    /// `v IN (…)`
    In(Box<Op>, Vec<Op>),
    /// `s LIKE 'p'`, the pattern a constant.
    Like(Box<Op>, Box<LikePattern>),
    /// `s LIKE p ESCAPE 'c'`, the pattern computed.
    LikeComputed(Box<Op>, Box<Op>, Option<char>),
    /// `REGEXMATCH(s, 'p')`, the pattern a constant.
    Matches(Box<Op>, Box<Regex>),
    /// `f(…)`
    Call(&'static Function, Vec<Op>),
    /// The number of the item.
    DocumentId,
    /// `[…]`
    Array(Vec<Op>),
    /// `{…}`
    Object(Vec<(String, Op)>),
    /// `(SELECT …)` and its relatives.
    Subquery(RowsTo, Box<Block>),
}

/// Where a value is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// The slot it starts from.
    pub(super) slot: usize,
    /// The way down from there.
    pub(super) steps: Vec<Step>,
}

/// One step down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// To a member of an object.
    Name(String),
    /// To an element of an array.
    Index(usize),
}

/// A computed property where it is used.
#[derive(Clone, Debug)]
pub(super) struct Computed {
    /// Its name, which is also its path in the indexing policy.
    pub(super) name: String,
    /// What it computes from the item.
    pub(super) body: Arc<Op>,
}

/// How the rows of a subquery become a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowsTo {
    /// The first row, or undefined.
    First,
    /// The last row, or undefined.
    Last,
    /// All rows.
    Array,
    /// Whether there is a row.
    Exists,
    /// Whether there is none.
    Absent,
}

/// A query without what only the outermost one can have: order and window.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// The slot of the first source, or of the first key of a group.
    pub(super) first_slot: usize,
    /// What FROM and JOIN add to the row, one slot each. A name for what has a slot adds none.
    pub(super) sources: Vec<Source>,
    /// What a row must satisfy.
    pub(super) filter: Option<Op>,
    /// For each number of sources that were joined, which operands of the filter's AND can be
    /// evaluated then, and could not before.
    pub(super) due: Vec<Vec<usize>>,
    /// How rows are brought together.
    pub(super) grouping: Option<Grouping>,
    /// What is made of a row, or of a group.
    pub(super) select: Projection,
    /// Equal results count once.
    pub(super) distinct: bool,
}

/// Something that rows come from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// One row, if the value is defined.
    One(Op),
    /// A row for each element of an array.
    Elements(Op),
    /// A row for each row of a subquery.
    Rows(Block),
    /// A row for each element of each array that a subquery gives.
    RowElements(Block),
}

/// GROUP BY, or aggregates without it.
#[derive(Clone, Debug)]
pub(super) struct Grouping {
    /// The keys; none: all rows are one group, even if there are none.
    pub(super) keys: Vec<Op>,
    /// What is computed over a group's rows.
    pub(super) aggregates: Vec<Aggregate>,
}

/// An aggregate over rows.
#[derive(Clone, Debug)]
pub(super) struct Aggregate {
    /// Which one.
    pub(super) kind: AggregateKind,
    /// What it takes from each row.
    pub(super) argument: Op,
}

/// What a query makes of a row.
#[derive(Clone, Debug)]
pub(super) enum Projection {
    /// One value; undefined removes the row.
    Value(Op),
    /// An object of named values; undefined removes the member.
    List(Vec<(String, Op)>),
}

impl Path {
    /// The slot itself.
    pub(super) fn slot(slot: usize) -> Self {
        Self { slot, steps: Vec::new() }
    }

    /// The names on the way from the item, if that is all there is.
    pub(super) fn names(&self) -> Option<Vec<String>> {
        if self.slot != ROOT {
            return None;
        }
        let name = |step: &Step| match step {
            Step::Name(name) => Some(name.clone()),
            Step::Index(_) => None,
        };
        self.steps.iter().map(name).collect()
    }
}

impl Op {
    /// A constant.
    pub(super) fn constant(value: Value) -> Self {
        Op::Constant(Arc::new(value))
    }

    /// Shows this expression and all within it, those of subqueries included, but not the bodies of computed
    /// properties: a query may refer to a long one very often.
    pub(super) fn visit<'o>(&'o self, see: &mut dyn FnMut(&'o Op)) {
        see(self);
        match self {
            Op::Constant(_) | Op::Path(_) | Op::DocumentId | Op::Computed(_) => {}
            Op::Steps(one, _) | Op::Unary(_, one) | Op::Like(one, _) | Op::Matches(one, _) => {
                one.visit(see);
            }
            Op::Binary(_, left, right) | Op::LikeComputed(left, right, _) => {
                left.visit(see);
                right.visit(see);
            }
            Op::Chain(first, rest) => {
                first.visit(see);
                for (_, op) in rest {
                    op.visit(see);
                }
            }
            Op::And(ops) | Op::Or(ops) | Op::Call(_, ops) | Op::Array(ops) => {
                for op in ops {
                    op.visit(see);
                }
            }
            Op::Conditional(a, b, c) | Op::Between(a, b, c) => {
                for op in [a, b, c] {
                    op.visit(see);
                }
            }
            Op::In(value, list) => {
                value.visit(see);
                for op in list {
                    op.visit(see);
                }
            }
            Op::Object(members) => {
                for (_, op) in members {
                    op.visit(see);
                }
            }
            Op::Subquery(_, block) => block.visit(see),
        }
    }

    /// What must all be true for it to be true.
    pub(super) fn conjuncts(&self) -> &[Op] {
        if let Op::And(operands) = self { operands } else { std::slice::from_ref(self) }
    }

    /// How many of the first `slots` slots must be filled to evaluate it.
    pub(super) fn reach(&self, slots: usize) -> usize {
        let mut reach = 0;
        self.visit(&mut |op| {
            let slot = if let Op::Path(path) = op { Some(path.slot) } else { None };
            // A computed property is of the item.
            let slot = slot.or(matches!(op, Op::Computed(_)).then_some(ROOT));
            if let Some(slot) = slot.filter(|slot| *slot < slots) {
                reach = reach.max(slot + 1);
            }
        });
        reach
    }
}

impl Block {
    /// Shows every expression of the block.
    pub(super) fn visit<'o>(&'o self, see: &mut dyn FnMut(&'o Op)) {
        let Self { first_slot: _, sources, filter, due: _, grouping, select, distinct: _ } = self;
        for source in sources {
            match source {
                Source::One(op) | Source::Elements(op) => op.visit(see),
                Source::Rows(block) | Source::RowElements(block) => block.visit(see),
            }
        }
        if let Some(op) = filter {
            op.visit(see);
        }
        if let Some(Grouping { keys, aggregates }) = grouping {
            for op in keys {
                op.visit(see);
            }
            for aggregate in aggregates {
                aggregate.argument.visit(see);
            }
        }
        select.visit(see);
    }
}

impl Projection {
    /// Shows every expression of the projection.
    pub(super) fn visit<'o>(&'o self, see: &mut dyn FnMut(&'o Op)) {
        match self {
            Projection::Value(op) => op.visit(see),
            Projection::List(list) => {
                for (_, op) in list {
                    op.visit(see);
                }
            }
        }
    }
}
