//! Judges a counter: each increment is done once, and no read goes back.

use crate::history::Nanos;

/// What happened to a counter, or to whatever else only grows by one.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Calls and returns of increments; none where nobody knows what came of them.
    pub increments: Vec<(Nanos, Option<Nanos>)>,
    /// Calls, returns, and what was shown.
    pub reads: Vec<(Nanos, Nanos, u64)>,
    /// What was shown in the end, if it is no counter.
    pub gone: Option<String>,
}

impl Counts {
    /// How many operations are judged.
    pub fn len(&self) -> usize {
        self.increments.len() + self.reads.len()
    }

    /// True if nothing has happened.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads of less than was acknowledged or shown before, or of more than was ever begun.
    pub fn wrong(&self) -> Vec<String> {
        let mut returns: Vec<Nanos> = self.increments.iter().filter_map(|(_, ret)| *ret).collect();
        let mut calls: Vec<Nanos> = self.increments.iter().map(|(call, _)| *call).collect();
        returns.sort_unstable();
        calls.sort_unstable();
        let shown = Shown::of(self.reads.iter().map(|(_, ret, n)| (*ret, *n)));
        let gone = self.gone.iter().map(|shown| format!("is gone in the end: {shown}"));
        let mut wrong: Vec<String> = gone.collect();
        for (call, ret, n) in &self.reads {
            let acknowledged = returns.partition_point(|at| at < call) as u64;
            let most = calls.partition_point(|at| at < ret) as u64;
            if !(acknowledged..=most).contains(n) {
                wrong.push(format!("{n} was read, of {acknowledged} to {most}"));
            }
            wrong.extend(shown.fell_back(*call, *n));
        }
        wrong
    }
}

/// What reads have shown of something that only grows: a later one shows no less.
pub(super) struct Shown {
    /// Returns, and the most that was shown until then.
    most: Vec<(Nanos, u64)>,
}

impl Shown {
    /// By when each read ended, and how much it showed.
    pub(super) fn of(reads: impl Iterator<Item = (Nanos, u64)>) -> Self {
        let mut most: Vec<(Nanos, u64)> = reads.collect();
        most.sort_unstable();
        for at in 1..most.len() {
            most[at].1 = most[at].1.max(most[at - 1].1);
        }
        Self { most }
    }

    /// What is wrong with a read that shows so much, if one that ended before it was called shows more.
    pub(super) fn fell_back(&self, call: Nanos, n: u64) -> Option<String> {
        let before = self.most.partition_point(|(ret, _)| *ret < call).checked_sub(1)?;
        let (_, least) = self.most[before];
        (n < least).then(|| format!("{n} was shown after {least} had been"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(increments: &[(Nanos, Option<Nanos>)], reads: &[(Nanos, Nanos, u64)]) -> usize {
        let (increments, reads) = (increments.to_vec(), reads.to_vec());
        Counts { increments, reads, gone: None }.wrong().len()
    }

    #[test]
    fn a_read_is_between_what_was_acknowledged_and_what_was_begun() {
        let judged = |reads: &[_]| judged(&[(10, Some(20)), (30, None), (50, Some(60))], reads);
        assert_eq!(judged(&[(0, 5, 0), (25, 28, 1), (61, 70, 2), (61, 70, 3)]), 0);
        assert_eq!(judged(&[(25, 28, 0)]), 1, "lost");
        assert_eq!(judged(&[(25, 28, 2)]), 1, "done twice");
        assert_eq!(judged(&[(61, 70, 4)]), 1, "done twice");
    }

    #[test]
    fn what_was_shown_once_is_not_taken_back_while_nobody_knows_of_it() {
        let in_flight = [(10, Some(20)), (40, Some(100))];
        assert_eq!(judged(&in_flight, &[(50, 60, 2), (70, 80, 1), (110, 120, 2)]), 1);
        assert_eq!(judged(&in_flight, &[(50, 60, 1), (70, 80, 2), (110, 120, 2)]), 0);
        assert_eq!(judged(&in_flight, &[(50, 60, 2), (60, 80, 1)]), 0, "at the same time");
        let unknown = [(10, Some(20)), (40, None)];
        assert_eq!(judged(&unknown, &[(50, 60, 2), (70, 80, 1), (90, 99, 1)]), 2);
        assert_eq!(judged(&unknown, &[(50, 90, 2), (51, 60, 1), (70, 80, 1)]), 0, "it was slow");
    }

    #[test]
    fn a_counter_that_is_gone_in_the_end_is_wrong() {
        let counts = Counts { gone: Some("404/0".to_string()), ..Counts::default() };
        assert_eq!(counts.wrong().len(), 1);
    }
}
