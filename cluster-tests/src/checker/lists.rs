//! Judges a list that grows at its end: reads show beginnings of one order of all values, that of time.

use std::collections::HashMap;

use super::counts::Shown;
use crate::history::Nanos;

/// What happened to a list. Every value is appended once.
#[derive(Clone, Debug, Default)]
pub struct List {
    /// Calls and returns by value; none where nobody knows what came of it.
    pub appends: HashMap<u64, (Nanos, Option<Nanos>)>,
    /// Calls, returns, and the values that were shown.
    pub reads: Vec<(Nanos, Nanos, Vec<u64>)>,
}

impl List {
    /// What cannot be, if what the last read shows is all there is.
    pub fn wrong(&self) -> Vec<String> {
        let Some((looked, _, last)) = self.reads.iter().max_by_key(|(call, ..)| *call) else {
            return Vec::new();
        };
        let mut wrong = Vec::new();
        let places: HashMap<u64, usize> =
            last.iter().enumerate().map(|(at, value)| (*value, at)).collect();
        if places.len() != last.len() {
            wrong.push("a value is there twice".to_string());
        }
        for (value, (_, ret)) in &self.appends {
            if ret.is_some_and(|ret| ret < *looked) && !places.contains_key(value) {
                wrong.push(format!("{value} was acknowledged and is lost"));
            }
        }
        wrong.extend(
            last.iter()
                .filter(|value| !self.appends.contains_key(value))
                .map(|value| format!("{value} was refused and is there")),
        );
        let shown = Shown::of(self.reads.iter().map(|(_, ret, values)| (*ret, length(values))));
        for (call, ret, values) in &self.reads {
            if ret < looked && !last.starts_with(values) {
                wrong.push(format!("{values:?} is no beginning of {last:?}"));
            }
            wrong
                .extend(shown.fell_back(*call, length(values)).map(|why| format!("values: {why}")));
            let is_missing = |(_, done): &(Nanos, Option<Nanos>)| done.is_some_and(|at| at < *call);
            let due = self.appends.iter().filter(|(_, times)| is_missing(times));
            let missing = due.filter(|(value, _)| !values.contains(value));
            wrong.extend(missing.map(|(value, _)| format!("a read does not show {value}")));
            let of_later = values
                .iter()
                .filter(|value| self.appends.get(value).is_some_and(|(begun, _)| begun > ret));
            wrong.extend(of_later.map(|value| format!("{value} was shown before it was sent")));
        }
        // In the order of the list, nothing is called after what is behind it has returned.
        let times = last.iter().filter_map(|value| self.appends.get(value).map(|at| (value, at)));
        let mut latest_call = (0, 0);
        for (value, (call, ret)) in times {
            if ret.is_some_and(|ret| ret < latest_call.0) {
                wrong
                    .push(format!("{value} stands behind {}, which was sent later", latest_call.1));
            }
            latest_call = latest_call.max((*call, *value));
        }
        wrong
    }
}

fn length(values: &[u64]) -> u64 {
    values.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    type Appends<'a> = &'a [(u64, (Nanos, Option<Nanos>))];
    type Reads<'a> = &'a [(Nanos, Nanos, &'a [u64])];

    fn judged_of(appends: Appends, reads: Reads) -> usize {
        let reads = reads.iter().map(|(call, ret, values)| (*call, *ret, values.to_vec()));
        List { appends: appends.iter().copied().collect(), reads: reads.collect() }.wrong().len()
    }

    fn judged(reads: Reads) -> usize {
        judged_of(&[(1, (10, Some(20))), (2, (30, None)), (3, (40, Some(50)))], reads)
    }

    #[test]
    fn reads_show_beginnings_of_one_list() {
        assert_eq!(judged(&[(15, 18, &[]), (21, 35, &[1]), (60, 61, &[1, 3])]), 0);
        assert_eq!(judged(&[(35, 45, &[1, 2]), (60, 61, &[1, 2, 3])]), 0);
    }

    #[test]
    fn what_is_lost_doubled_turned_round_or_stale_is_found() {
        assert_eq!(judged(&[(60, 61, &[1])]), 2, "lost, and not shown");
        assert_eq!(judged(&[(25, 26, &[]), (60, 61, &[1, 3])]), 1, "not there for a while");
        assert_eq!(judged(&[(60, 61, &[1, 3, 3])]), 1, "twice");
        assert_eq!(judged(&[(60, 61, &[3, 1])]), 1, "turned round");
        assert_eq!(judged(&[(55, 56, &[1]), (60, 61, &[1, 3])]), 1, "stale");
        assert_eq!(judged(&[(60, 61, &[1, 3, 4])]), 1, "from nowhere");
        assert_eq!(judged(&[(12, 14, &[1, 3]), (60, 61, &[1, 3])]), 1, "before it was sent");
    }

    #[test]
    fn a_value_that_was_shown_is_shown_from_then_on_also_while_nobody_knows_of_it() {
        let in_flight = [(1, (10, Some(20))), (3, (40, Some(100)))];
        let shown_and_not = [(50, 60, &[1, 3][..]), (70, 80, &[1]), (110, 120, &[1, 3])];
        assert_eq!(judged_of(&in_flight, &shown_and_not), 1);
        let not_and_shown = [(50, 60, &[1][..]), (70, 80, &[1, 3]), (110, 120, &[1, 3])];
        assert_eq!(judged_of(&in_flight, &not_and_shown), 0);
        let together = [(50, 75, &[1, 3][..]), (70, 80, &[1]), (110, 120, &[1, 3])];
        assert_eq!(judged_of(&in_flight, &together), 0, "at the same time");
    }
}
