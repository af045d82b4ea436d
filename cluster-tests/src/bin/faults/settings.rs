//! What the nodes of a run are like: their number and their times, which the seed chooses.

use std::fmt;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::arguments::Place;
use crate::nemesis::Mode;

/// Apart from what else the seed decides.
const STREAM: u64 = 0x5e77_1265;
/// One seed in so many has five nodes: two cores have enough to do with three.
const FIVE_NODES: f64 = 0.2;

/// Entries kept that a node lacks after a few seconds.
const SHORT_LOG: u64 = 100;

/// Settings of all nodes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) nodes: u32,
    pub(crate) heartbeat_ms: u64,
    pub(crate) election_timeout_ms: u64,
    /// Entries behind the last flushed one.
    pub(crate) log_entries_kept: u64,
}

impl Settings {
    /// What a node does without settings, on so many nodes.
    pub(crate) const fn default(nodes: u32) -> Self {
        Self { nodes, heartbeat_ms: 150, election_timeout_ms: 450, log_entries_kept: 2000 }
    }

    /// The settings of a run in which all of this goes wrong.
    pub(crate) fn of(place: Place, seed: u64, modes: &[Mode]) -> Self {
        let Place::Local { nodes, chosen } = place else { return Self::default(3) };
        let mut settings = match (chosen, nodes) {
            (true, _) => Self::random(nodes, seed),
            (false, nodes) => Self::default(nodes.unwrap_or(3)),
        };
        if modes.iter().any(|mode| mode.needs_short_log()) {
            settings.log_entries_kept = settings.log_entries_kept.min(SHORT_LOG);
        }
        settings
    }

    fn random(nodes: Option<u32>, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ STREAM);
        let random = if rng.random_bool(FIVE_NODES) { 5 } else { 3 };
        let (heartbeat_ms, election_timeout_ms) =
            one_of(&mut rng, [(150, 450), (100, 450), (100, 700), (200, 600), (250, 1000)]);
        let log_entries_kept = one_of(&mut rng, [50, 100, 1000, 2000]);
        let nodes = nodes.unwrap_or(random);
        Self { nodes, heartbeat_ms, election_timeout_ms, log_entries_kept }
    }

    /// The same, as arguments of a node.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let Self { nodes: _, heartbeat_ms, election_timeout_ms, log_entries_kept } = self;
        vec![
            format!("--heartbeat-ms={heartbeat_ms}"),
            format!("--election-timeout-ms={election_timeout_ms}"),
            format!("--log-entries-kept={log_entries_kept}"),
        ]
    }

    pub(crate) fn election_timeout(&self) -> Duration {
        Duration::from_millis(self.election_timeout_ms)
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, heartbeat_ms, election_timeout_ms, log_entries_kept } = self;
        write!(
            f,
            "{nodes} nodes, heartbeat {heartbeat_ms} ms, election timeout {election_timeout_ms} ms, \
             {log_entries_kept} entries kept"
        )
    }
}

fn one_of<T: Copy, const N: usize>(rng: &mut SmallRng, choices: [T; N]) -> T {
    choices[rng.random_range(0..N)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_chooses_the_same_again_and_seeds_differ() {
        let chosen = Place::Local { nodes: None, chosen: true };
        let some: Vec<Settings> = (0..50).map(|seed| Settings::of(chosen, seed, &[])).collect();
        assert_eq!(some, (0..50).map(|seed| Settings::of(chosen, seed, &[])).collect::<Vec<_>>());
        assert!(some.iter().any(|one| one.nodes == 5) && some.iter().any(|one| one.nodes == 3));
        assert!(some.iter().all(|one| one.election_timeout_ms >= 2 * one.heartbeat_ms));
    }

    #[test]
    fn what_was_asked_for_is_not_chosen() {
        let four = Place::Local { nodes: Some(4), chosen: true };
        assert!((0..50).all(|seed| Settings::of(four, seed, &[]).nodes == 4));
        let plain = Place::Local { nodes: None, chosen: false };
        assert_eq!(Settings::of(plain, 7, &[]), Settings::default(3));
        assert_eq!(Settings::of(Place::Compose, 7, &[]), Settings::default(3));
        let with_snapshots = Settings::of(plain, 7, &[Mode::Snapshot]);
        assert_eq!(with_snapshots.log_entries_kept, SHORT_LOG);
    }
}
