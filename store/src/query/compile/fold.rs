//! Computes in advance what depends on no row, no time and no chance.

use super::super::evaluate::Row;
use super::super::op::Op;
use super::super::value::Value;
use super::Compiler;
use super::calls::depends_on_moment;
use crate::ids::ItemNumber;

impl Compiler<'_> {
    /// The constant that an operation over constants gives, or the operation as it is.
    pub(super) fn fold(&self, op: Op) -> Op {
        if !is_foldable(&op) || self.folding.is_over() {
            return op;
        }
        let nothing = Value::Undefined;
        let row = Row::of(&nothing, ItemNumber(0));
        let value = self.folding.own(op.evaluate(&row, &self.folding));
        // Past its budget folding stops, and what came out means nothing.
        if self.folding.is_over() { op } else { Op::constant(value) }
    }
}

fn is_foldable(op: &Op) -> bool {
    match op {
        Op::Constant(_) | Op::Path(_) | Op::Computed(_) | Op::DocumentId | Op::Subquery(..) => {
            false
        }
        Op::Steps(one, _) | Op::Unary(_, one) | Op::Like(one, _) | Op::Matches(one, _) => {
            is_constant(one)
        }
        Op::Binary(_, left, right) | Op::LikeComputed(left, right, _) => {
            is_constant(left) && is_constant(right)
        }
        Op::Chain(first, rest) => is_constant(first) && rest.iter().all(|(_, op)| is_constant(op)),
        Op::And(ops) | Op::Or(ops) | Op::Array(ops) => ops.iter().all(is_constant),
        Op::Call(function, args) => {
            !depends_on_moment(function.name) && args.iter().all(is_constant)
        }
        Op::Conditional(a, b, c) | Op::Between(a, b, c) => {
            is_constant(a) && is_constant(b) && is_constant(c)
        }
        Op::In(value, list) => is_constant(value) && list.iter().all(is_constant),
        Op::Object(members) => members.iter().all(|(_, op)| is_constant(op)),
    }
}

fn is_constant(op: &Op) -> bool {
    matches!(op, Op::Constant(_))
}
