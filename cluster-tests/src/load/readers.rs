//! Readers that look at items again and again around the second in which these expire, and judge what they see.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::checker::{Due, DueVerdict, Margin, Read};

/// What was wrong is told of so many reads.
const TOLD_MAX: usize = 5;

/// One who reads.
pub trait Look: Send + 'static {
    /// Reads something; when that is due, and what was seen.
    fn look(&mut self) -> impl Future<Output = (Due, Read)> + Send;
}

/// Readers at work.
pub struct Readers {
    tasks: JoinSet<Seen>,
    stop: Arc<AtomicBool>,
}

/// What readers have seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// All reads.
    pub reads: u64,
    /// Reads that saw an item that had expired.
    pub visible: u64,
    /// Reads that missed an item that had not.
    pub early: u64,
    /// Other answers, by status; 0 stands for none.
    pub unexpected: BTreeMap<u16, u64>,
    /// Some of the reads that were visible or early.
    pub told: Vec<String>,
}

impl Readers {
    /// Lets all of them read, each with such pauses.
    pub fn start(
        readers: impl IntoIterator<Item = impl Look>,
        margin: Margin,
        pause: Duration,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for reader in readers {
            tasks.spawn(run(reader, margin, pause, stop.clone()));
        }
        Self { tasks, stop }
    }

    /// Lets every reader finish what it is at; answers what they have seen together.
    pub async fn stop(mut self) -> Seen {
        self.stop.store(true, Ordering::SeqCst);
        let mut all = Seen::default();
        while let Some(seen) = self.tasks.join_next().await {
            all.add(seen.expect("readers do not panic"));
        }
        all
    }
}

async fn run(
    mut reader: impl Look,
    margin: Margin,
    pause: Duration,
    stop: Arc<AtomicBool>,
) -> Seen {
    let mut seen = Seen::default();
    while !stop.load(Ordering::SeqCst) {
        let (due, read) = reader.look().await;
        seen.count(due, read, margin);
        tokio::time::sleep(pause).await;
    }
    seen
}

impl Seen {
    fn count(&mut self, due: Due, read: Read, margin: Margin) {
        self.reads += 1;
        match due.judge(read, margin) {
            DueVerdict::Right => return,
            DueVerdict::Unexpected => {
                *self.unexpected.entry(read.status).or_default() += 1;
                return;
            }
            DueVerdict::Visible => self.visible += 1,
            DueVerdict::Early => self.early += 1,
        }
        if self.told.len() < TOLD_MAX {
            let Read { started_ms, finished_ms, status } = read;
            self.told.push(format!(
                "{status} from {started_ms} to {finished_ms} ms, due at {} ms",
                due.ms()
            ));
        }
    }

    fn add(&mut self, other: Self) {
        let Self { reads, visible, early, unexpected, told } = other;
        self.reads += reads;
        self.visible += visible;
        self.early += early;
        for (status, count) in unexpected {
            *self.unexpected.entry(status).or_default() += count;
        }
        self.told.extend(told);
        self.told.truncate(TOLD_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARGIN: Margin = Margin { before_ms: 0, after_ms: 50 };

    #[test]
    fn all_readers_together_have_seen_what_each_has() {
        let mut all = Seen::default();
        for _ in 0..2 {
            let mut one = Seen::default();
            for (started_ms, status) in [(10_100, 404), (10_100, 200), (9_000, 404), (9_000, 503)] {
                let read = Read { started_ms, finished_ms: started_ms + 1, status };
                one.count(Due(10), read, MARGIN);
            }
            all.add(one);
        }
        assert_eq!((all.reads, all.visible, all.early), (8, 2, 2));
        assert_eq!(all.unexpected, BTreeMap::from([(503, 2)]));
        assert_eq!(all.told[0], "200 from 10100 to 10101 ms, due at 10000 ms");
        assert_eq!(all.told.len(), 4);
    }

    /// Shows an item once it is dead, and asks to be stopped.
    struct Late(Arc<AtomicBool>);

    impl Look for Late {
        async fn look(&mut self) -> (Due, Read) {
            self.0.store(true, Ordering::SeqCst);
            (Due(10), Read { started_ms: 10_050, finished_ms: 10_060, status: 200 })
        }
    }

    #[tokio::test]
    async fn what_a_reader_sees_is_judged() {
        let looked = Arc::new(AtomicBool::new(false));
        let readers = Readers::start([Late(looked.clone())], MARGIN, Duration::ZERO);
        while !looked.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        let seen = readers.stop().await;
        assert!(seen.visible > 0 && seen.visible == seen.reads, "{seen:?}");
    }
}
