//! Random histories: what is done to a partition, and what its leader's clock reads meanwhile.

use proptest::prelude::*;

use crate::indexes::POLICIES;

/// Ids that occur; an item's partition key is the remainder of its id by `KEYS`.
pub(crate) const IDS: u8 = 6;
pub(crate) const KEYS: u8 = 2;

/// One step of a history.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) clock: ClockMove,
    /// How uncertain the leader is of the time, in milliseconds.
    pub(crate) width: u64,
    /// How far behind the reading the clocks are that vouch for it; empty if nobody was asked.
    pub(crate) vouchers: Vec<u64>,
    pub(crate) act: Act,
    /// How many milliseconds after the leader's reading somebody looks.
    pub(crate) look_after: u64,
}

/// How the clock of the leader differs from that of the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClockMove {
    Stand,
    Forward(u64),
    Back(u64),
    /// To the next whole second, or a millisecond before or after it.
    NextSecond(i64),
    /// Further than a jump, for good.
    Jump(u64),
    /// Further than a jump, for this one step.
    Spike(u64),
}

/// What is done.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Write(Vec<Write>),
    SetPolicy {
        default_ttl: Option<i64>,
        epoch: Epoch,
    },
    Advance,
    Sweep {
        limit: u32,
        grace: u64,
    },
    /// Sets one of `indexes::POLICIES`.
    SetIndexPolicy {
        policy: usize,
        epoch: Epoch,
    },
    /// Enters so many items into the index that is being built.
    BuildIndex(u32),
    /// Deletes what has this partition key.
    Clear {
        key: u8,
    },
    SweepCleared {
        limit: u32,
    },
    Flush(Which),
    /// Everything that was not flushed is lost, and applied again from the log.
    Crash(Which),
    /// The follower applies so many entries.
    CatchUp(usize),
    /// The follower is given a snapshot, in chunks of so many bytes; it may crash after some of them.
    Snapshot {
        chunk_bytes: usize,
        crash_after: Option<usize>,
    },
}

/// Which change of the policy it is, compared with the one in force.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Epoch {
    Newer(u64),
    Equal,
    Older,
}

impl Epoch {
    /// The epoch that it is, if this one is in force.
    pub(crate) fn after(self, current: u64) -> u64 {
        match self {
            Epoch::Newer(by) => current + by,
            Epoch::Equal => current,
            Epoch::Older => current.saturating_sub(1),
        }
    }
}

/// One of the two replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    Leader,
    Follower,
}

/// A write to one item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) id: u8,
    pub(crate) operation: Operation,
    /// The `ttl` of the body, or the one patched in; 0 is not valid.
    pub(crate) ttl: Option<i64>,
    /// What it has of the unique key; none for something that nothing else has.
    pub(crate) tag: Option<u8>,
    pub(crate) condition: Condition,
}

/// What is done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Replace,
    Upsert,
    Patch,
    PatchTtl,
    PatchTtlAway,
    Delete,
    Read,
    /// To this id, of the same partition key.
    Rename(u8),
}

/// A condition on the etag of the last version anybody was told of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Condition {
    None,
    IfMatchLast,
    IfMatchOther,
    IfNoneMatchLast,
}

/// Histories of up to so many steps.
pub(crate) fn history(steps_max: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..=steps_max)
}

fn step() -> impl Strategy<Value = Step> {
    let width = prop_oneof![3 => Just(0), 2 => 0..50_u64, 1 => 0..=2000_u64];
    let vouchers = prop::collection::vec(prop_oneof![0..2500_u64, Just(4_000_000)], 0..=3);
    let look_after = prop_oneof![Just(0), 0..3000_u64];
    (clock_move(), width, vouchers, act(), look_after).prop_map(
        |(clock, width, vouchers, act, look_after)| Step {
            clock,
            width,
            vouchers,
            act,
            look_after,
        },
    )
}

fn clock_move() -> impl Strategy<Value = ClockMove> {
    prop_oneof![
        10 => Just(ClockMove::Stand),
        10 => (1..=1500_u64).prop_map(ClockMove::Forward),
        10 => (-1..=1_i64).prop_map(ClockMove::NextSecond),
        4 => (1..=5000_u64).prop_map(ClockMove::Back),
        1 => (1..=8_000_u64).prop_map(ClockMove::Forward),
        1 => (1..=5_000_000_u64).prop_map(ClockMove::Jump),
        1 => (1..=5_000_000_u64).prop_map(ClockMove::Spike),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let one = prop::collection::vec(write(), 1);
    let several = prop::collection::vec(write(), 2..=4);
    let policy = (default_ttl(), epoch())
        .prop_map(|(default_ttl, epoch)| Act::SetPolicy { default_ttl, epoch });
    let grace = prop_oneof![4 => Just(0), 1 => Just(3_600_000_u64)];
    let sweep = (1..=4_u32, grace).prop_map(|(limit, grace)| Act::Sweep { limit, grace });
    let index_policy = (0..POLICIES.len(), epoch())
        .prop_map(|(policy, epoch)| Act::SetIndexPolicy { policy, epoch });
    let chunk_bytes = prop_oneof![1..400_usize, Just(1 << 20)];
    let snapshot = (chunk_bytes, prop::option::of(0..4_usize))
        .prop_map(|(chunk_bytes, crash_after)| Act::Snapshot { chunk_bytes, crash_after });
    prop_oneof![
        28 => one.prop_map(Act::Write),
        6 => several.prop_map(Act::Write),
        6 => policy,
        6 => Just(Act::Advance),
        8 => sweep,
        3 => index_policy,
        5 => (1..=3_u32).prop_map(Act::BuildIndex),
        3 => (0..KEYS).prop_map(|key| Act::Clear { key }),
        4 => (1..=4_u32).prop_map(|limit| Act::SweepCleared { limit }),
        2 => which().prop_map(Act::Flush),
        2 => which().prop_map(Act::Crash),
        4 => (1..12_usize).prop_map(Act::CatchUp),
        1 => snapshot,
    ]
}

fn epoch() -> impl Strategy<Value = Epoch> {
    prop_oneof![
        6 => (1..=2_u64).prop_map(Epoch::Newer),
        1 => Just(Epoch::Equal),
        1 => Just(Epoch::Older),
    ]
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![Just(Which::Leader), Just(Which::Follower)]
}

fn default_ttl() -> impl Strategy<Value = Option<i64>> {
    prop_oneof![1 => Just(None), 2 => Just(Some(-1)), 5 => (1..=9_i64).prop_map(Some)]
}

fn write() -> impl Strategy<Value = Write> {
    let ttl = prop_oneof![
        6 => Just(None),
        2 => Just(Some(-1)),
        8 => (1..=6_i64).prop_map(Some),
        1 => Just(Some(i64::from(i32::MAX))),
        1 => Just(Some(0)),
    ];
    let condition = prop_oneof![
        8 => Just(Condition::None),
        2 => Just(Condition::IfMatchLast),
        1 => Just(Condition::IfMatchOther),
        1 => Just(Condition::IfNoneMatchLast),
    ];
    let tag = prop_oneof![3 => Just(None), 2 => (0..3_u8).prop_map(Some)];
    let id_and_operation = (0..IDS).prop_flat_map(|id| (Just(id), operation(id)));
    (id_and_operation, ttl, tag, condition).prop_map(|((id, operation), ttl, tag, condition)| {
        Write { id, operation, ttl, tag, condition }
    })
}

fn operation(id: u8) -> impl Strategy<Value = Operation> {
    let new_id = (0..IDS / KEYS).prop_map(move |place| place * KEYS + id % KEYS);
    prop_oneof![
        6 => Just(Operation::Create),
        4 => Just(Operation::Replace),
        8 => Just(Operation::Upsert),
        2 => Just(Operation::Patch),
        2 => Just(Operation::PatchTtl),
        1 => Just(Operation::PatchTtlAway),
        2 => Just(Operation::Delete),
        2 => Just(Operation::Read),
        2 => new_id.prop_map(Operation::Rename),
    ]
}
