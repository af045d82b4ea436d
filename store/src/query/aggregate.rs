//! Aggregates: what rows add up to, kept small enough to be sent on and merged.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::op::Aggregate;
use super::run::{GATHERED_BYTES_MAX, Limit, Run, SUMS_BYTES_MAX, weight_of};
use super::value::{Value, as_bytes};
use crate::codec;

/// Which aggregate; clients know them by these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum AggregateKind {
    Count,
    CountIf,
    Sum,
    Average,
    Min,
    Max,
    #[serde(rename = "MakeList")]
    List,
    #[serde(rename = "MakeSet")]
    Set,
}

/// Bytes that a place tells of what was added up, at most.
const SUMS_BYTES_TOLD: usize = 500;

impl AggregateKind {
    /// The aggregate of this name; case does not matter.
    pub(super) fn named(name: &str) -> Option<Self> {
        let kinds = [
            AggregateKind::Count,
            AggregateKind::CountIf,
            AggregateKind::Sum,
            AggregateKind::Average,
            AggregateKind::Min,
            AggregateKind::Max,
            AggregateKind::List,
            AggregateKind::Set,
        ];
        kinds.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    /// Its name, in capitals.
    pub(super) fn name(self) -> &'static str {
        match self {
            AggregateKind::Count => "COUNT",
            AggregateKind::CountIf => "COUNTIF",
            AggregateKind::Sum => "SUM",
            AggregateKind::Average => "AVG",
            AggregateKind::Min => "MIN",
            AggregateKind::Max => "MAX",
            AggregateKind::List => "MAKELIST",
            AggregateKind::Set => "MAKESET",
        }
    }
}

/// What the rows so far add up to, one value for each aggregate of the query.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accumulators(Vec<Accumulator>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Accumulator {
    Count(u64),
    CountIf(u64),
    Sum(Sum),
    Average(Sum),
    Min(Extreme),
    Max(Extreme),
    List(Gathered),
    Set(Gathered),
}

/// A sum, as long as everything is a number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Sum {
    total: f64,
    count: u64,
    /// False once anything else was seen: the result is undefined for good.
    all_numbers: bool,
}

/// The least or greatest value, as long as nothing is an array or an object.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Extreme {
    /// Undefined before the first.
    #[serde(with = "as_bytes")]
    value: Value,
    /// False once an array or an object was seen: the result is undefined for good.
    all_scalars: bool,
}

/// Values one by one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Gathered {
    values: Vec<GatheredValue>,
    bytes: usize,
    /// True once more came than may be kept.
    overflowed: bool,
    /// What is there already, where that matters; filled when it is first asked.
    #[serde(skip)]
    known: BTreeSet<Vec<u8>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct GatheredValue(#[serde(with = "as_bytes")] Value);

impl PartialEq for Extreme {
    fn eq(&self, other: &Self) -> bool {
        self.all_scalars == other.all_scalars && self.value.key() == other.value.key()
    }
}

impl PartialEq for Gathered {
    fn eq(&self, other: &Self) -> bool {
        let keys = |of: &Self| of.values.iter().map(|one| one.0.key()).collect::<Vec<_>>();
        self.overflowed == other.overflowed && keys(self) == keys(other)
    }
}

impl Accumulators {
    /// Bytes that each of them takes in memory.
    pub(super) const SIZE_OF_EACH: usize = size_of::<Accumulator>();

    /// Nothing seen yet.
    pub(super) fn new(aggregates: &[Aggregate]) -> Self {
        Self(aggregates.iter().map(|aggregate| Accumulator::new(aggregate.kind)).collect())
    }

    /// Adds what a row gives: one value for each aggregate.
    pub(super) fn add<'v>(&mut self, values: impl Iterator<Item = Cow<'v, Value>>, run: &Run) {
        let mut room = self.room();
        for (accumulator, value) in self.0.iter_mut().zip(values) {
            if value.is_defined() {
                accumulator.add(value, &mut room, run);
            }
        }
        if self.size() > SUMS_BYTES_MAX {
            run.stop(Limit::Summed);
        }
    }

    /// Bytes that may still be gathered.
    fn room(&self) -> usize {
        let gathered = |accumulator: &Accumulator| match accumulator {
            Accumulator::List(gathered) | Accumulator::Set(gathered) => gathered.bytes,
            Accumulator::Count(_)
            | Accumulator::CountIf(_)
            | Accumulator::Sum(_)
            | Accumulator::Average(_)
            | Accumulator::Min(_)
            | Accumulator::Max(_) => 0,
        };
        self.0.iter().map(gathered).fold(GATHERED_BYTES_MAX, usize::saturating_sub)
    }

    /// True if they are those of these aggregates: what comes from elsewhere is checked.
    pub(super) fn suit(&self, aggregates: &[Aggregate]) -> bool {
        let kinds = self.0.iter().map(Accumulator::kind);
        kinds.eq(aggregates.iter().map(|aggregate| aggregate.kind))
    }

    /// Adds so many rows to what does nothing but count them.
    pub(super) fn add_count(&mut self, rows: u64) {
        let [Accumulator::Count(count)] = self.0.as_mut_slice() else {
            panic!("only a count is counted")
        };
        *count = count.saturating_add(rows);
    }

    /// Adds what other rows added up to. Both must belong to the same query.
    pub fn merge(&mut self, other: Accumulators) {
        assert_eq!(self.0.len(), other.0.len(), "sums of one query have one shape");
        let mut room = self.room();
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            mine.merge(theirs, &mut room);
        }
    }

    /// About how many bytes they hold.
    pub fn size(&self) -> usize {
        let size = |accumulator: &Accumulator| match accumulator {
            Accumulator::Count(_) | Accumulator::CountIf(_) => 8,
            Accumulator::Sum(_) | Accumulator::Average(_) => 24,
            Accumulator::Min(extreme) | Accumulator::Max(extreme) => 8 + extreme.value.size(),
            Accumulator::List(gathered) | Accumulator::Set(gathered) => {
                gathered.bytes.saturating_add(8)
            }
        };
        self.0.iter().map(size).fold(0, usize::saturating_add)
    }

    /// True if a place may be able to tell them: a page that ends in the middle of a sum hands it
    /// on to the next. Whoever knows the place decides.
    pub(super) fn may_fit_a_place(&self) -> bool {
        self.size() <= SUMS_BYTES_TOLD && codec::encode(self).len() <= SUMS_BYTES_TOLD
    }

    /// The results.
    pub(super) fn results(&self, run: &Run) -> Vec<Value> {
        self.0.iter().map(|accumulator| accumulator.result(run)).collect()
    }
}

impl Accumulator {
    fn new(kind: AggregateKind) -> Self {
        let sum = Sum { total: 0.0, count: 0, all_numbers: true };
        let extreme = Extreme { value: Value::Undefined, all_scalars: true };
        match kind {
            AggregateKind::Count => Accumulator::Count(0),
            AggregateKind::CountIf => Accumulator::CountIf(0),
            AggregateKind::Sum => Accumulator::Sum(sum),
            AggregateKind::Average => Accumulator::Average(sum),
            AggregateKind::Min => Accumulator::Min(extreme),
            AggregateKind::Max => Accumulator::Max(extreme),
            AggregateKind::List => Accumulator::List(Gathered::default()),
            AggregateKind::Set => Accumulator::Set(Gathered::default()),
        }
    }

    fn kind(&self) -> AggregateKind {
        match self {
            Accumulator::Count(_) => AggregateKind::Count,
            Accumulator::CountIf(_) => AggregateKind::CountIf,
            Accumulator::Sum(_) => AggregateKind::Sum,
            Accumulator::Average(_) => AggregateKind::Average,
            Accumulator::Min(_) => AggregateKind::Min,
            Accumulator::Max(_) => AggregateKind::Max,
            Accumulator::List(_) => AggregateKind::List,
            Accumulator::Set(_) => AggregateKind::Set,
        }
    }

    /// Adds a defined value.
    fn add(&mut self, value: Cow<'_, Value>, room: &mut usize, run: &Run) {
        match self {
            Accumulator::Count(count) => *count += 1,
            Accumulator::CountIf(count) => *count += u64::from(value.is_true()),
            Accumulator::Sum(sum) | Accumulator::Average(sum) => sum.add(&value),
            Accumulator::Min(extreme) => extreme.add(value, Ordering::Less, run),
            Accumulator::Max(extreme) => extreme.add(value, Ordering::Greater, run),
            Accumulator::List(gathered) => gathered.add(run.own(value), room),
            Accumulator::Set(gathered) => gathered.add_new(run.own(value), room),
        }
    }

    fn merge(&mut self, other: Accumulator, room: &mut usize) {
        match (self, other) {
            (Accumulator::Count(mine), Accumulator::Count(theirs))
            | (Accumulator::CountIf(mine), Accumulator::CountIf(theirs)) => {
                *mine = mine.saturating_add(theirs);
            }
            (Accumulator::Sum(mine), Accumulator::Sum(theirs))
            | (Accumulator::Average(mine), Accumulator::Average(theirs)) => mine.merge(theirs),
            (Accumulator::Min(mine), Accumulator::Min(theirs)) => {
                mine.merge(theirs, Ordering::Less);
            }
            (Accumulator::Max(mine), Accumulator::Max(theirs)) => {
                mine.merge(theirs, Ordering::Greater);
            }
            (Accumulator::List(mine), Accumulator::List(theirs)) => {
                mine.overflowed |= theirs.overflowed;
                theirs.values.into_iter().for_each(|value| mine.add(value.0, room));
            }
            (Accumulator::Set(mine), Accumulator::Set(theirs)) => {
                mine.overflowed |= theirs.overflowed;
                theirs.values.into_iter().for_each(|value| mine.add_new(value.0, room));
            }
            _ => panic!("sums of one query have one shape"),
        }
    }

    fn result(&self, run: &Run) -> Value {
        match self {
            Accumulator::Count(count) | Accumulator::CountIf(count) => Value::count(*count),
            Accumulator::Sum(sum) if sum.all_numbers => Value::float(sum.total),
            Accumulator::Average(sum) if sum.all_numbers && sum.count > 0 => {
                #[expect(clippy::cast_precision_loss, reason = "an average is a double")]
                let count = sum.count as f64;
                Value::float(sum.total / count)
            }
            Accumulator::Min(extreme) | Accumulator::Max(extreme) if extreme.all_scalars => {
                extreme.value.clone()
            }
            Accumulator::Sum(_)
            | Accumulator::Average(_)
            | Accumulator::Min(_)
            | Accumulator::Max(_) => Value::Undefined,
            Accumulator::List(gathered) | Accumulator::Set(gathered) => {
                if gathered.overflowed {
                    run.stop(Limit::Gathered);
                }
                Value::Array(gathered.values.iter().map(|value| value.0.clone()).collect())
            }
        }
    }
}

impl Sum {
    fn add(&mut self, value: &Value) {
        self.count += 1;
        match value {
            Value::Number(number) => self.total += number.as_f64(),
            Value::Undefined
            | Value::Null
            | Value::Bool(_)
            | Value::Text(_)
            | Value::Array(_)
            | Value::Object(_) => self.all_numbers = false,
        }
    }

    fn merge(&mut self, other: Sum) {
        self.total += other.total;
        self.count = self.count.saturating_add(other.count);
        self.all_numbers &= other.all_numbers;
    }
}

impl Extreme {
    /// Takes a value that comes `before` or after all others.
    fn add(&mut self, value: Cow<'_, Value>, wanted: Ordering, run: &Run) {
        if matches!(*value, Value::Array(_) | Value::Object(_)) {
            self.all_scalars = false;
        } else if run.spend(self.weight_beside(&value)) && self.is_beaten_by(&value, wanted) {
            self.value = run.own(value);
        }
    }

    /// What comparing takes: a text is gone over as far as the other one is long.
    fn weight_beside(&self, value: &Value) -> u64 {
        match (&self.value, value) {
            (Value::Text(a), Value::Text(b)) => weight_of(a.len().min(b.len())),
            _ => 0,
        }
    }

    fn is_beaten_by(&self, value: &Value, wanted: Ordering) -> bool {
        !self.value.is_defined() || value.sort_compare(&self.value) == wanted
    }

    fn merge(&mut self, other: Extreme, wanted: Ordering) {
        self.all_scalars &= other.all_scalars;
        if other.value.is_defined() && self.is_beaten_by(&other.value, wanted) {
            self.value = other.value;
        }
    }
}

impl Gathered {
    fn add(&mut self, value: Value, room: &mut usize) {
        // However short it is as JSON, it takes its place in memory.
        let size = value.size().max(size_of::<Value>());
        if size > *room {
            self.overflowed = true;
        } else if !self.overflowed {
            *room -= size;
            self.bytes += size;
            self.values.push(GatheredValue(value));
        }
    }

    /// Adds a value unless it is there already.
    fn add_new(&mut self, value: Value, room: &mut usize) {
        if self.known.len() < self.values.len() {
            self.known = self.values.iter().map(|one| one.0.key()).collect();
        }
        if !self.overflowed && self.known.insert(value.key()) {
            self.add(value, room);
        }
    }
}

#[cfg(test)]
mod tests;
