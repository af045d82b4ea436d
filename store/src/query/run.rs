//! One run of a query: the moment it happens at, and how much work an item may cause.
//!
//! Evaluation never fails. Past a limit everything is undefined and every loop ends; whoever drives
//! the run asks `exceeded` before it uses what came out.

use std::borrow::Cow;
use std::cell::Cell;

use super::error::QueryError;
use super::functions::Moment;
use super::value::Value;

/// Operations that one item, or one group, may cause: about a second's worth.
pub const OPERATIONS_MAX: u64 = 10_000_000;
/// Bytes of values that may be built for one item, or one group: several full pages.
pub const BUILT_BYTES_MAX: usize = 32 << 20;
/// The same for a computed property, which is computed when an item is written, too: enough to go once
/// through the largest item. Beyond it the property is undefined.
pub const COMPUTED_OPERATIONS_MAX: u64 = 200_000;
/// Bytes of values that a computed property may build for one item.
pub const COMPUTED_BYTES_MAX: usize = 4 << 20;
/// The same for a brief look, which must be over in no time.
const BRIEF_OPERATIONS_MAX: u64 = 1_000;
const BRIEF_BYTES_MAX: usize = 64 << 10;
/// Bytes of values that `MAKELIST` and `MAKESET` of a query may gather together: they travel
/// between nodes and stay in memory until the end.
pub const GATHERED_BYTES_MAX: usize = 1 << 20;
/// The same for all aggregates: `MIN` and `MAX` keep texts.
pub(super) const SUMS_BYTES_MAX: usize = 8 << 20;

/// Bytes of text, or elements, that are gone over in the time of one operation.
const LENGTH_OF_OPERATION: usize = 16;

/// Operations' worth of going over so many bytes of text, or elements.
pub(super) fn weight_of(length: usize) -> u64 {
    (length / LENGTH_OF_OPERATION) as u64
}

/// Pays for what is gone over bit by bit, however small the bits.
pub(super) struct Toll<'r> {
    run: &'r Run,
    /// What was gone over since an operation was paid.
    unpaid: usize,
}

impl<'r> Toll<'r> {
    pub(super) fn new(run: &'r Run) -> Self {
        Self { run, unpaid: 0 }
    }

    /// Pays for so many bytes or elements; false past the limit.
    pub(super) fn pay(&mut self, length: usize) -> bool {
        self.unpaid = self.unpaid.saturating_add(length);
        let operations = weight_of(self.unpaid);
        self.unpaid %= LENGTH_OF_OPERATION;
        self.run.spend(operations)
    }
}

/// What is counted of work, and of values that are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tariff {
    /// What replicas agreed on. They compute conditions of patches and computed properties each by
    /// itself, in whatever version, and must come to the same: it never changes.
    Agreed,
    /// Also what that leaves out: the places of values in memory, and work that was found later.
    Actual,
}

/// The moment and the budget of a run.
#[derive(Debug)]
pub struct Run {
    /// What functions of time and chance compute from.
    pub moment: Moment,
    tariff: Cell<Tariff>,
    /// What each item may spend.
    budget: (u64, usize),
    /// False if that is for all of them together.
    refills: bool,
    operations: Cell<u64>,
    /// What items before the one at hand have spent.
    spent: Cell<u64>,
    bytes: Cell<usize>,
    over: Cell<Option<Limit>>,
}

/// A limit that was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Operations,
    Built,
    Gathered,
    Summed,
}

impl Run {
    /// A run at a moment.
    pub fn new(moment: Moment) -> Self {
        Self::with_budget(moment, Tariff::Actual, OPERATIONS_MAX, BUILT_BYTES_MAX)
    }

    /// A run with one budget for all it does: for what is done at once, and not in a thread of its
    /// own.
    pub fn undivided(moment: Moment) -> Self {
        Self { refills: false, ..Self::new(moment) }
    }

    /// A run in which an item may cause no more than a simple filter does.
    pub fn brief(moment: Moment) -> Self {
        Self::with_budget(moment, Tariff::Actual, BRIEF_OPERATIONS_MAX, BRIEF_BYTES_MAX)
    }

    /// A run with so much to spend.
    pub(super) fn with_budget(
        moment: Moment,
        tariff: Tariff,
        operations: u64,
        bytes: usize,
    ) -> Self {
        let budget = (operations, bytes);
        let (operations, bytes) = (Cell::new(operations), Cell::new(bytes));
        let (tariff, spent, over) = (Cell::new(tariff), Cell::new(0), Cell::new(None));
        Self { moment, tariff, budget, refills: true, operations, spent, bytes, over }
    }

    /// Gives the next item, or group, a budget of its own.
    pub(super) fn refill(&self) {
        if self.refills && self.over.get().is_none() {
            self.spent.set(self.spent());
            self.operations.set(self.budget.0);
            self.bytes.set(self.budget.1);
        }
    }

    /// How many operations the whole run has taken so far.
    pub(super) fn spent(&self) -> u64 {
        self.spent.get() + (self.budget.0 - self.operations.get())
    }

    /// What went beyond its limit, if anything did. Once it did, nothing more is computed.
    pub fn exceeded(&self) -> Option<QueryError> {
        let whom = if self.refills { "for a single item" } else { "to finish its result" };
        let message = match self.over.get()? {
            Limit::Operations => {
                format!("The query needs more than {OPERATIONS_MAX} operations {whom}.")
            }
            Limit::Built => {
                format!("The query builds more than {BUILT_BYTES_MAX} bytes of values {whom}.")
            }
            Limit::Summed => {
                format!("The aggregates of the query hold more than {SUMS_BYTES_MAX} bytes.")
            }
            Limit::Gathered => {
                format!("MAKELIST or MAKESET gathers more than {GATHERED_BYTES_MAX} bytes.")
            }
        };
        Some(QueryError::Plain(message))
    }

    /// True if more operations were needed than there are.
    pub(super) fn lacks_operations(&self) -> bool {
        self.over.get() == Some(Limit::Operations)
    }

    /// True once a limit was passed.
    pub(super) fn is_over(&self) -> bool {
        self.over.get().is_some()
    }

    pub(super) fn stop(&self, limit: Limit) {
        if self.over.get().is_none() {
            self.over.set(Some(limit));
        }
    }

    /// Pays for operations; false past the limit.
    pub(super) fn spend(&self, operations: u64) -> bool {
        match self.operations.get().checked_sub(operations) {
            Some(left) if self.over.get().is_none() => {
                self.operations.set(left);
                true
            }
            Some(_) => false,
            None => {
                self.stop(Limit::Operations);
                false
            }
        }
    }

    /// Pays for bytes of a value; false past the limit.
    pub(super) fn build(&self, bytes: usize) -> bool {
        match self.bytes.get().checked_sub(bytes) {
            Some(left) if self.over.get().is_none() => {
                self.bytes.set(left);
                true
            }
            Some(_) => false,
            None => {
                self.stop(Limit::Built);
                false
            }
        }
    }

    /// Pays for operations that the agreed tariff leaves out; false past the limit.
    pub(super) fn spend_beside(&self, operations: impl FnOnce() -> u64) -> bool {
        match self.tariff.get() {
            Tariff::Agreed => true,
            Tariff::Actual => self.spend(operations()),
        }
    }

    /// Pays for bytes of a value that the agreed tariff leaves out; false past the limit.
    pub(super) fn build_beside(&self, bytes: usize) -> bool {
        match self.tariff.get() {
            Tariff::Agreed => true,
            Tariff::Actual => self.build(bytes),
        }
    }

    /// Pays for a value; false past the limit.
    pub(super) fn build_value(&self, value: &Value) -> bool {
        self.build(match self.tariff.get() {
            Tariff::Agreed => value.size(),
            Tariff::Actual => value.held(),
        })
    }

    /// What a computed property is, within a budget of its own: whatever else the query does with the
    /// item, it comes to the same.
    pub(super) fn compute<'v>(&self, evaluate: impl FnOnce() -> Cow<'v, Value>) -> Cow<'v, Value> {
        if self.is_over() {
            return Cow::Owned(Value::Undefined);
        }
        let tariff = self.tariff.replace(Tariff::Agreed);
        let (operations, bytes) = (self.operations.get(), self.bytes.get());
        let own = (operations.min(COMPUTED_OPERATIONS_MAX), bytes.min(COMPUTED_BYTES_MAX));
        self.operations.set(own.0);
        self.bytes.set(own.1);
        let value = evaluate();
        self.tariff.set(tariff);
        self.operations.set(operations - (own.0 - self.operations.get()));
        self.bytes.set(bytes - (own.1 - self.bytes.get()));
        match self.over.get() {
            Some(Limit::Operations) if own.0 == COMPUTED_OPERATIONS_MAX => {}
            Some(Limit::Built) if own.1 == COMPUTED_BYTES_MAX => {}
            Some(Limit::Operations | Limit::Built | Limit::Gathered | Limit::Summed) | None => {
                return value;
            }
        }
        self.over.set(None);
        Cow::Owned(Value::Undefined)
    }

    /// A value whose parts were paid for, in places that are paid for, too.
    pub(super) fn placed(&self, value: Value) -> Value {
        if self.build_beside(value.places()) { value } else { Value::Undefined }
    }

    /// A value of our own; what has to be copied is paid for.
    pub(super) fn own(&self, value: Cow<'_, Value>) -> Value {
        match value {
            Cow::Owned(value) => value,
            Cow::Borrowed(value) if self.build_value(value) => value.clone(),
            Cow::Borrowed(_) => Value::Undefined,
        }
    }
}
