//! What answers say of time: `_ts` and the numbers of entries.

use std::collections::{BTreeMap, HashMap};

use super::model::Tolerance;
use crate::history::Operation;

/// A stamp that cannot be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WrongStamp {
    /// The version is older than its write.
    Early(Operation),
    /// The version is of a time that had not come when its write was answered.
    Late(Operation),
    /// A later write of the same range has an earlier stamp.
    Backwards(Operation),
    /// A later write of the same range is not a later entry.
    EntryBackwards(Operation),
}

/// Judges the stamps of all versions, of all keys, by the answers to their writes and by the reads that show
/// them: of a write whose outcome nobody knew only those tell.
pub fn wrong_stamps(operations: &[Operation], tolerance: Tolerance) -> Vec<WrongStamp> {
    let mut wrong = Vec::new();
    let mut ranges: BTreeMap<u32, Vec<&Operation>> = BTreeMap::new();
    let version = |one: &Operation, serial: u64| (one.key.clone(), serial);
    let writes =
        operations.iter().filter_map(|one| Some((version(one, one.action.serial()?), one)));
    let writes: HashMap<_, &Operation> = writes.collect();
    for one in operations {
        let (Some((serial, ts)), Some(ret)) = (one.told(), one.ret) else { continue };
        // What nobody has written is for others to complain of.
        let write = writes.get(&version(one, serial));
        if write.is_some_and(|write| ts < tolerance.first_stamp(write.call)) {
            wrong.push(WrongStamp::Early(one.clone()));
        }
        if ts > tolerance.last_stamp(ret) {
            wrong.push(WrongStamp::Late(one.clone()));
        }
        if let (Some(_), Some((range, _))) = (one.written(), one.entry) {
            ranges.entry(range).or_default().push(one);
        }
    }
    for writes in ranges.values() {
        wrong.extend(out_of_order(writes));
    }
    wrong
}

/// Writes with less than what had returned before they were called.
fn out_of_order(writes: &[&Operation]) -> Vec<WrongStamp> {
    let stamp = |one: &Operation| {
        let (_, ts) = one.written().expect("only writes are here");
        (ts, one.entry.expect("only entries are here").1)
    };
    let mut calls = writes.to_vec();
    calls.sort_by_key(|one| one.call);
    let mut returns = writes.to_vec();
    returns.sort_by_key(|one| one.ret);
    let mut returns = returns.into_iter().peekable();
    let (mut latest, mut last_entry) = (0, None);
    let mut wrong = Vec::new();
    for one in calls {
        while let Some(earlier) = returns.next_if(|earlier| earlier.ret < Some(one.call)) {
            let (ts, entry) = stamp(earlier);
            latest = latest.max(ts);
            last_entry = last_entry.max(Some(entry));
        }
        let (ts, entry) = stamp(one);
        if ts < latest {
            wrong.push(WrongStamp::Backwards(one.clone()));
        }
        if Some(entry) <= last_entry {
            wrong.push(WrongStamp::EntryBackwards(one.clone()));
        }
    }
    wrong
}
