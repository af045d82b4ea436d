//! What a leader proposes to a partition, and what applying it answers.

use std::num::NonZeroU32;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::charge::Charge;
use crate::codec;
use crate::document::Document;
use crate::ids::{Etag, ItemNumber, Lsn};
use crate::indexing::{IndexRules, UniqueKeys};
use crate::item::{ItemKey, LogicalPartition, Stamp};
use crate::partition::Retention;
use crate::partition::{BuildStep, ClearedRows};
use crate::patch::{PatchFailure, PatchRequest};
use crate::time::{ClockInterval, Millis};
use crate::ttl::{InvalidTtl, PolicyEpoch, TtlPolicy, Vouchers};

/// A command with the proposing leader's reading of the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// What the leader's clock said.
    pub now: ClockInterval,
    /// Who else says so; needed only for a jump of the partition clock.
    pub vouchers: Option<Vouchers>,
    /// What to do.
    pub command: Command,
}

/// Most bytes of a transaction's writes, encoded: whatever they hold, decoding them stays below its limit.
pub const WRITES_BYTES_MAX: usize = 8 << 20;
/// Most bytes of bodies that a transaction works on, both of those that it finds and of those that it stores.
pub const TRANSACTION_BYTES_MAX: usize = 16 << 20;
/// No further write belongs to a transaction whose changes of index entries take more.
pub(crate) const TRANSACTION_ENTRIES_BYTES_MAX: usize = 64 << 20;
/// Operations that a transaction may take for conditions of patches and computed properties before it is refused: about
/// a tenth of a second.
pub(crate) const TRANSACTION_OPERATIONS_MAX: u64 = 1_000_000;

/// A write of one item that takes no more than this, encoded, is brief.
const BRIEF_BYTES_MAX: usize = 4 << 10;

/// What a proposal takes beside its writes, and a write beside its key and its body, encoded: rounded up, for room
/// that is taken at once.
const PROPOSAL_BYTES: usize = 64;
const WRITE_BYTES: usize = 48;

impl Proposal {
    /// The proposal as it stands in the log.
    pub fn encode(&self) -> Vec<u8> {
        let writes = match &self.command {
            Command::Write(writes) => &writes[..],
            Command::SetTtlPolicy { .. }
            | Command::AdvanceClock
            | Command::Clear(_)
            | Command::SweepCleared(_)
            | Command::Sweep { .. }
            | Command::SetIndexPolicy { .. }
            | Command::BuildIndex(_)
            | Command::SetUniqueKeys(_) => &[],
        };
        let write_bytes = |write: &ItemWrite| {
            WRITE_BYTES + write.key.as_bytes().len() + write.action.body_bytes()
        };
        codec::encode_about(PROPOSAL_BYTES + writes.iter().map(write_bytes).sum::<usize>(), self)
    }

    /// True for the encoding of a write to one small item, by what it begins with. Of a patch the item may be large.
    pub fn is_brief(encoded: &[u8]) -> bool {
        const WRITE: u32 = 0;
        const PATCH: u32 = 3;

        type Write = (ItemKey, Precondition, u32);
        type Start = (ClockInterval, Option<Vouchers>, u32, u64, Write);
        let is_brief = |(_, _, variant, writes, (_, _, action)): Start| {
            (variant, writes) == (WRITE, 1) && action != PATCH
        };
        encoded.len() <= BRIEF_BYTES_MAX && codec::decode_start(encoded).is_some_and(is_brief)
    }
}

/// A change of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Writes to items, all or none of them, at one instant.
    Write(Vec<ItemWrite>),
    /// Sets what the container's definition says; ignored unless the epoch is newer.
    SetTtlPolicy {
        /// Counts the container's policy changes.
        epoch: PolicyEpoch,
        /// The new policy.
        policy: TtlPolicy,
        /// How long the change feed of all versions remembers what happens; none: not at all.
        retention: Option<Retention>,
    },
    /// Moves the partition clock, so that what has expired is dead for everybody.
    AdvanceClock,
    /// Deletes everything that a logical partition holds; the rows go later.
    Clear(LogicalPartition),
    /// Removes items that were deleted with their logical partition.
    SweepCleared(ClearedRows),
    /// Removes up to `limit` items that are dead at the partition clock; apply decides which.
    Sweep {
        /// The most items to remove.
        limit: NonZeroU32,
        /// How long the dead are kept after a jump of the partition clock.
        grace: Millis,
    },
    /// Sets what the container's definition says of indexing; ignored unless the epoch is newer.
    SetIndexPolicy {
        /// Orders the container's definitions.
        epoch: PolicyEpoch,
        /// The new rules.
        rules: IndexRules,
    },
    /// Enters items into the index that the last policy asks for.
    BuildIndex(BuildStep),
    /// Sets the container's unique keys, before there are items; ignored if they are set.
    SetUniqueKeys(UniqueKeys),
}

/// A write to one item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemWrite {
    /// Which item.
    pub key: ItemKey,
    /// What must hold for the write to happen.
    pub precondition: Precondition,
    /// What to do.
    pub action: Action,
}

/// A condition on the stored version, judged when the command is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Precondition {
    /// Nothing.
    None,
    /// `If-Match: "…"`; no etag if the header held something no etag looks like.
    IfMatch(Option<Etag>),
    /// `If-Match: *`.
    IfMatchAny,
    /// `If-None-Match: "…"`.
    IfNoneMatch(Option<Etag>),
    /// `If-None-Match: *`.
    IfNoneMatchAny,
    /// The item was named by its `_rid`: whichever has its id by then is not meant.
    IsItem(ItemNumber),
}

impl Precondition {
    /// False for an item that is not meant: it counts as absent.
    pub fn means(self, number: ItemNumber) -> bool {
        match self {
            Precondition::IsItem(meant) => meant == number,
            Precondition::None
            | Precondition::IfMatch(_)
            | Precondition::IfMatchAny
            | Precondition::IfNoneMatch(_)
            | Precondition::IfNoneMatchAny => true,
        }
    }

    /// True if a write to a version with this etag may happen.
    pub fn allows(self, stored: Etag) -> bool {
        match self {
            Precondition::None | Precondition::IfMatchAny | Precondition::IsItem(_) => true,
            Precondition::IfMatch(wanted) => wanted == Some(stored),
            Precondition::IfNoneMatch(unwanted) => unwanted != Some(stored),
            Precondition::IfNoneMatchAny => false,
        }
    }

    /// True for the conditions that ask for something new.
    pub fn is_none_match(self) -> bool {
        match self {
            Precondition::IfNoneMatch(_) | Precondition::IfNoneMatchAny => true,
            Precondition::None
            | Precondition::IfMatch(_)
            | Precondition::IfMatchAny
            | Precondition::IsItem(_) => false,
        }
    }
}

/// What to do with an item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Store it; refused if it exists.
    Create(Document),
    /// Store it over the existing version; refused if there is none.
    Replace(Document),
    /// Store it.
    Upsert(Document),
    /// Change parts of it; refused if there is none.
    Patch(PatchRequest),
    /// Remove it; refused if there is none.
    Delete,
    /// Look at it, at the same instant as the rest of the transaction; refused if there is none.
    Read,
    /// Store it in place of the existing version, under another id in the same logical partition;
    /// refused if there is none, or if the id is taken. It stays the item it was.
    Rename {
        /// Where it goes.
        to: ItemKey,
        /// What is stored.
        document: Document,
    },
}

impl Action {
    /// Bytes of what the client sent.
    fn body_bytes(&self) -> usize {
        match self {
            Action::Create(document)
            | Action::Replace(document)
            | Action::Upsert(document)
            | Action::Rename { document, .. } => document.body.len(),
            Action::Patch(request) => request.text.len(),
            Action::Delete | Action::Read => 0,
        }
    }
}

/// An answer that is the same on every replica: the command changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Refusal {
    /// There is no such item.
    #[error("Entity with the specified id does not exist in the system.")]
    NotFound,
    /// There is such an item already.
    #[error("Entity with the specified id already exists in the system.")]
    Conflict,
    /// Another item of the logical partition has the same values of a unique key.
    #[error(
        "Unique index constraint violation: another item with this partition key has the same \
         values of {paths}."
    )]
    UniqueKeyTaken {
        /// The paths of the key.
        paths: String,
    },
    /// A condition does not hold.
    #[error("Operation cannot be performed because one of the specified precondition is not met.")]
    PreconditionFailed,
    /// The body's `ttl` is not valid, and expiry is on.
    #[error(
        "The value {value} of 'ttl' is not allowed: it must be -1 or an integer \
         between 1 and 2147483647."
    )]
    InvalidTtl {
        /// The value, as JSON.
        value: String,
    },
    /// The patch cannot be carried out on this item.
    #[error("{0}")]
    PatchFailed(PatchFailure),
    /// The item lies outside the partition's range: the proposer's map was old.
    #[error("the item does not belong to this partition")]
    WrongPartition,
    /// The transaction works on more than replicas do at once.
    #[error(
        "The batch has more than {} operations, or its items, as they were and as they would be, have more than \
         {TRANSACTION_BYTES_MAX} bytes, too many indexed values, or conditions and computed properties that take \
         long. Split the batch.",
        ItemNumber::OPERATIONS_MAX
    )]
    TransactionTooLarge,
    /// The transaction replaces dead items that are not swept yet, and with these it is too large.
    #[error(
        "with what has expired, or was deleted by its partition key, and is still being removed, it would be too \
         much at once. Split the batch, or wait"
    )]
    SweepAwaited,
}

impl From<InvalidTtl> for Refusal {
    fn from(error: InvalidTtl) -> Self {
        Refusal::InvalidTtl { value: error.value }
    }
}

/// A logical partition was not deleted: too many of them wait for their rows to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("the rows of too many deleted logical partitions wait to be removed")]
pub struct TooManyCleared;

/// What an operation did to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// There was none before.
    Created,
    /// There was one before.
    Replaced,
    /// There is none now.
    Deleted,
    /// It was looked at.
    Read,
    /// It was not looked at: the client has this version.
    NotModified,
}

/// One operation that was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// What happened.
    pub effect: Effect,
    /// The version that is there now; of a deleted item the version that was.
    pub stamp: Stamp,
    /// Its cost.
    pub charge: Charge,
    /// The body, if the proposer cannot know it: of a patch or a read.
    pub body: Option<Bytes>,
    /// True if a `ttl` that is not valid was stored, which expiry being off allows (R6).
    pub has_inert_ttl: bool,
}

/// A transaction that changed nothing, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Which write of the command, counted from 0.
    pub operation: u16,
    /// Why.
    pub refusal: Refusal,
    /// What was looked at on the way costs all the same.
    pub charge: Charge,
}

/// What applying a command answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The entry's place in the log.
    pub lsn: Lsn,
    /// What it did.
    pub effect: CommandEffect,
}

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandEffect {
    /// Items were written, or none of them was.
    Write(Result<Vec<Written>, Refused>),
    /// The policy in force is now of this epoch.
    PolicySet(PolicyEpoch),
    /// The clock moved, or stood already where it should.
    ClockAdvanced,
    /// A logical partition holds nothing any more, or nothing was done.
    Cleared(Result<(), TooManyCleared>),
    /// So many dead or deleted items were removed.
    Swept {
        /// How many.
        removed: u32,
        /// How many records of the history were dropped because their time is over.
        trimmed: u32,
        /// True if there may be more.
        more: bool,
        /// What deleting them would have cost a user.
        charge: Charge,
    },
    /// The indexing policy in force is now of this epoch.
    IndexPolicySet(PolicyEpoch),
    /// So many items were entered into the index that is being built.
    IndexBuilt {
        /// How many.
        items: u32,
        /// True if there are more.
        more: bool,
        /// What that is worth.
        charge: Charge,
    },
    /// The unique keys are set.
    UniqueKeysSet,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::document::DocumentRules;
    use crate::ids::ItemId;
    use crate::indexing::{self, IndexRules};
    use crate::partition_key::{KeyDefinition, KeyKind, PartitionKey};
    use crate::ttl::TtlField;

    fn is_brief(command: Command) -> bool {
        let now = ClockInterval::default();
        Proposal::is_brief(&codec::encode(&Proposal { now, vouchers: None, command }))
    }

    fn write(action: Action) -> ItemWrite {
        let definition = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
        let value = PartitionKey::parse("[1]").unwrap();
        let id = ItemId::try_from("a".to_string()).unwrap();
        let key = ItemKey::new(&definition.place(&value), &value, &id);
        ItemWrite { key, precondition: Precondition::None, action }
    }

    fn create(bytes: usize) -> ItemWrite {
        let body = vec![b'x'; bytes].into();
        write(Action::Create(Document { body, ttl: TtlField::Absent, indexed_values: 1 }))
    }

    #[test]
    fn writes_of_one_small_item_are_brief_and_nothing_else_is() {
        assert!(is_brief(Command::Write(vec![create(1024)])));
        assert!(is_brief(Command::Write(vec![write(Action::Delete)])));
        assert!(!is_brief(Command::Write(vec![create(BRIEF_BYTES_MAX)])));
        let key = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
        let index = IndexRules::new(&indexing::complete(None).unwrap()).unwrap();
        let rules = Arc::new(DocumentRules::new(key, index));
        let patch = PatchRequest { text: b"{}".to_vec(), rules };
        assert!(!is_brief(Command::Write(vec![write(Action::Patch(patch))])));
        assert!(!is_brief(Command::Write(vec![create(1), create(1)])));
        assert!(!is_brief(Command::AdvanceClock));
        let limit = NonZeroU32::MIN;
        assert!(!is_brief(Command::SweepCleared(ClearedRows::default())));
        assert!(!is_brief(Command::Sweep { limit, grace: Millis(1) }));
        assert!(!Proposal::is_brief(b""));
    }
}
