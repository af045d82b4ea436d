//! What a Raft group replicates: a machine that changes only by applying log entries.
//!
//! `partition::Partition` and `catalog::Catalog` are the two machines. An entry is applied in one
//! engine batch together with its position, so a crash leaves a prefix of the log applied and a
//! replay starts exactly behind it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::engine::{Batch, Engine, Fault, KeyRange, Read, Table};
use crate::ids::GroupId;

/// A position in a group's log.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LogId {
    /// The term of the leader that wrote the entry.
    pub term: u64,
    /// Its place in the log.
    pub index: u64,
}

impl std::fmt::Display for LogId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.term, self.index)
    }
}

/// The members of a group as Raft last agreed on them, in Raft's own encoding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The entry that set it; none for the one a group was formed with.
    pub log_id: Option<LogId>,
    /// Opaque to the machine.
    #[serde(with = "serde_bytes")]
    pub members: Vec<u8>,
}

/// How far a machine has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The last entry applied.
    pub applied: Option<LogId>,
    /// The membership as of that entry.
    pub membership: Option<Membership>,
}

/// A committed entry.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// Written by a new leader to commit what its predecessors left.
    Blank,
    /// A change of members, in Raft's own encoding.
    Membership(&'a [u8]),
    /// A command of the machine, encoded.
    Command(&'a [u8]),
}

/// A replicated state machine.
pub trait Machine: Send + Sync + 'static {
    /// What a command answers.
    type Outcome: Send + Sync + 'static;

    /// How far the machine has come.
    fn progress(&self) -> Progress;

    /// Applies the entry after the last one; an outcome for commands, nothing for the rest.
    ///
    /// A fault stops the replica: it is never an answer and the entry is never skipped.
    fn apply(&self, position: LogId, entry: Entry<'_>) -> Result<Option<Self::Outcome>, Fault>;

    /// Applies entries that follow one another, as `apply` does one by one; some of them may be written
    /// together. Each is answered, in order, when what it changed can be read.
    fn apply_all(
        &self,
        entries: &mut dyn Iterator<Item = (LogId, Entry<'_>)>,
        answer: &mut dyn FnMut(Option<Self::Outcome>),
    ) -> Result<(), Fault> {
        for (position, entry) in entries {
            answer(self.apply(position, entry)?);
        }
        Ok(())
    }

    /// True if applying an encoded command takes hardly longer than having another thread do it, by what
    /// can be seen of it at once.
    fn is_brief(&self, _command: &[u8]) -> bool {
        false
    }

    /// The rows that are this machine's state, `Table::Meta` apart.
    fn ranges(&self) -> Vec<KeyRange>;

    /// The rows as they are after the last entry applied, and how far that is.
    fn view(&self) -> (Arc<dyn Read>, Progress);

    /// Makes the machine unreadable: its rows are about to be replaced by a snapshot, not all at once.
    fn unload(&self);

    /// Takes up the state found in the engine, after its rows were replaced by a snapshot.
    fn reload(&self) -> Result<(), Fault>;
}

/// Rows a group keeps in `Table::Meta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaTag {
    /// The machine's own state.
    State,
    /// The membership.
    Membership,
    /// A snapshot installation that has begun and not ended.
    Installing,
    /// What rows belong to the group, so that they can be removed when nothing else knows any more.
    Spec,
    /// The indexing policy, and which generations of entries there are.
    Index,
    /// How far building the next generation came.
    IndexBuild,
    /// The unique keys.
    UniqueKeys,
    /// Deleted logical partitions that may still have rows.
    Cleared,
}

const SPEC_TAG: u8 = 3;

/// The key of a meta row.
pub fn meta_key(group: GroupId, tag: MetaTag) -> Vec<u8> {
    let tag = match tag {
        MetaTag::State => 0,
        MetaTag::Membership => 1,
        MetaTag::Installing => 2,
        MetaTag::Spec => SPEC_TAG,
        MetaTag::Index => 4,
        MetaTag::IndexBuild => 5,
        MetaTag::UniqueKeys => 6,
        MetaTag::Cleared => 7,
    };
    let mut key = group.0.to_be_bytes().to_vec();
    key.push(tag);
    key
}

/// All meta rows of a group.
pub fn meta_range(group: GroupId) -> KeyRange {
    KeyRange::prefix(Table::Meta, group.0.to_be_bytes().to_vec())
}

/// Every `MetaTag::Spec` row of the engine, decoded.
pub fn read_specs<T: serde::de::DeserializeOwned>(read: &dyn Read) -> Result<Vec<T>, Fault> {
    let mut specs = Vec::new();
    for row in read.scan(&KeyRange::prefix(Table::Meta, Vec::new())) {
        let (key, value) = row?;
        if key.last() == Some(&SPEC_TAG) {
            let spec = codec::decode(&value).map_err(|error| Fault::corrupt("meta", error))?;
            specs.push(spec);
        }
    }
    Ok(specs)
}

/// Reads and decodes a meta row.
pub fn read_meta<T: serde::de::DeserializeOwned>(
    read: &dyn Read,
    group: GroupId,
    tag: MetaTag,
) -> Result<Option<T>, Fault> {
    let row = read.get(Table::Meta, &meta_key(group, tag))?;
    row.map(|bytes| codec::decode(&bytes).map_err(|error| Fault::corrupt("meta", error)))
        .transpose()
}

/// Puts an encoded meta row into a batch.
pub fn put_meta<T: Serialize>(batch: &mut Batch, group: GroupId, tag: MetaTag, value: &T) {
    batch.put(Table::Meta, &meta_key(group, tag), &codec::encode(value));
}

/// Removes every trace of a group's machine: its rows and its meta rows.
pub fn drop_rows(
    engine: &Arc<dyn Engine>,
    group: GroupId,
    ranges: Vec<KeyRange>,
) -> Result<(), Fault> {
    let mut batch = Batch::default();
    for range in ranges {
        batch.delete_range(&range);
    }
    batch.delete_range(&meta_range(group));
    engine.write(batch)
}

/// Checks that an entry is the next one.
pub fn assert_next(applied: Option<LogId>, position: LogId) {
    let next = applied.map_or(0, |applied| applied.index + 1);
    assert_eq!(position.index, next, "log entries apply in order, without gaps");
    assert!(applied.is_none_or(|applied| applied.term <= position.term), "terms never go back");
}
