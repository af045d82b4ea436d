//! Request charges: what an operation costs, from logical quantities alone (`docs/COMPATIBILITY.md`).
//!
//! Sums are exact, in millionths of a request unit; a response rounds up once, to hundredths.

use std::fmt;
use std::iter::Sum;
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// Millionths of a request unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Charge(pub u64);

/// Millionths of a request unit that come in each second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(NonZeroU64);

const BYTES_PER_KB: u64 = 1024;
const MILLIONTHS: u64 = 1_000_000;

impl Charge {
    /// Reading a resource that is not an item.
    pub const METADATA_READ: Charge = Charge(1_000_000);
    /// Writing a resource that is not an item.
    pub const METADATA_WRITE: Charge = Charge(4_950_000);
    /// A request refused after its body was read.
    pub const REFUSED_BODY: Charge = Charge(1_670_000);
    /// A point read that finds nothing, expired or never there.
    pub const NOT_FOUND: Charge = Charge(1_000_000);
    /// A conditional read that finds nothing new.
    pub const NOT_MODIFIED: Charge = Charge(1_000_000);
    /// What the first page of a query or feed costs at a partition before it has found anything.
    pub const QUERY_START: Charge = Charge(2_300_000);
    /// Nothing.
    pub const ZERO: Charge = Charge(0);

    /// Reading one item of so many bytes.
    pub fn point_read(bytes: usize) -> Self {
        Charge(1_000_000 + above_one_kb(bytes, 90_900))
    }

    /// Creating or deleting an item of so many bytes with so many indexed values.
    pub fn create(bytes: usize, indexed_values: u32) -> Self {
        Charge(4_950_000 + above_one_kb(bytes, 454_500) + u64::from(indexed_values) * 400_000)
    }

    /// Entering a stored item of so many bytes and indexed values into a new index: reading it, and
    /// what its values add to the cost of a write.
    pub fn index(bytes: usize, indexed_values: u32) -> Self {
        Self::point_read(bytes) + Charge(u64::from(indexed_values) * 400_000)
    }

    /// Replacing an item, by its new image.
    pub fn replace(bytes: usize, indexed_values: u32) -> Self {
        let once = Self::create(bytes, indexed_values);
        Charge(once.0 * 2)
    }

    /// One page of a query or feed at one partition.
    pub fn query_page(work: &QueryWork) -> Self {
        let base = if work.first_page { Self::QUERY_START.0 } else { 0 };
        let per_item = work.items_loaded * 66_600;
        let per_kb = work.bytes_loaded * 10_100 / BYTES_PER_KB;
        let scanned = work.values_scanned * 20_000 + work.tuples * 10_000;
        let charge = base + per_item.max(per_kb) + work.rows * 650_000 + scanned;
        Charge(charge.max(1_000_000))
    }
}

impl Rate {
    /// One partition's even share of so many request units a second.
    pub fn share(request_units: u32, partitions: NonZeroU32) -> Self {
        let millionths = u64::from(request_units) * MILLIONTHS / u64::from(partitions.get());
        Rate(NonZeroU64::new(millionths).unwrap_or(NonZeroU64::MIN))
    }

    /// What comes in during one second.
    pub fn per_second(self) -> Charge {
        Charge(self.0.get())
    }
}

/// What a query page did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryWork {
    /// True on the first page at a partition, which pays for compiling the query.
    pub first_page: bool,
    /// Live items looked at.
    pub items_loaded: u64,
    /// Their bytes.
    pub bytes_loaded: u64,
    /// Rows sent.
    pub rows: u64,
    /// Distinct index values passed by scans of a whole index.
    pub values_scanned: u64,
    /// Tuples that JOIN made of items.
    pub tuples: u64,
}

fn above_one_kb(bytes: usize, per_kb: u64) -> u64 {
    let bytes = u64::try_from(bytes).expect("an item fits in memory");
    bytes.saturating_sub(BYTES_PER_KB) * per_kb / BYTES_PER_KB
}

impl Add for Charge {
    type Output = Charge;

    fn add(self, other: Charge) -> Charge {
        Charge(self.0 + other.0)
    }
}

impl AddAssign for Charge {
    fn add_assign(&mut self, other: Charge) {
        *self = *self + other;
    }
}

impl Sum for Charge {
    fn sum<I: Iterator<Item = Charge>>(charges: I) -> Charge {
        charges.fold(Charge::ZERO, Add::add)
    }
}

impl fmt::Display for Charge {
    /// Hundredths of a request unit, rounded up, without trailing zeros.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = self.0.div_ceil(10_000);
        let (whole, fraction) = (hundredths / 100, hundredths % 100);
        match fraction {
            0 => write!(f, "{whole}"),
            tenths if tenths % 10 == 0 => write!(f, "{whole}.{}", tenths / 10),
            _ => write!(f, "{whole}.{fraction:02}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_follow_the_published_figures() {
        assert_eq!(Charge::point_read(1024).to_string(), "1");
        assert_eq!(Charge::point_read(100).to_string(), "1");
        assert_eq!(Charge::point_read(100 * 1024).to_string(), "10");
        assert_eq!(Charge::create(1024, 0).to_string(), "4.95");
        assert_eq!(Charge::create(100 * 1024, 0).to_string(), "49.95");
        assert_eq!(Charge::create(1024, 2).to_string(), "5.75");
        assert_eq!(Charge::create(1024, 25).to_string(), "14.95");
    }

    #[test]
    fn a_query_pays_once_for_its_start_and_then_by_what_it_does() {
        let page = |first_page, items_loaded, rows| {
            let work = QueryWork { first_page, items_loaded, rows, ..QueryWork::default() };
            Charge::query_page(&work).to_string()
        };
        assert_eq!(page(true, 1, 1), "3.02");
        assert_eq!(page(true, 7, 7), "7.32");
        assert_eq!(page(true, 10, 10), "9.47");
        assert_eq!(page(false, 0, 0), "1");
        let work = QueryWork { values_scanned: 1000, tuples: 200, ..QueryWork::default() };
        assert_eq!(Charge::query_page(&work), Charge(22_000_000));
    }

    #[test]
    fn partitions_share_a_rate_evenly() {
        let share =
            |rate, partitions| Rate::share(rate, NonZeroU32::new(partitions).unwrap()).per_second();
        assert_eq!(share(400, 1), Charge(400_000_000));
        assert_eq!(share(30_000, 5), Charge(6_000_000_000));
        assert_eq!(share(400, 3), Charge(133_333_333));
        assert_eq!(share(0, 1), Charge(1), "a rate of nothing would wait for ever");
    }

    #[test]
    fn responses_round_up_to_hundredths() {
        assert_eq!(Charge(1_000_001).to_string(), "1.01");
        assert_eq!(Charge(5_500_000).to_string(), "5.5");
        assert_eq!(Charge::ZERO.to_string(), "0");
    }
}
