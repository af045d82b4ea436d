//! openraft's own suite for log stores, run on the write-ahead log. The state machine beside it is a
//! mere counter of entries: the real ones are tested with their groups.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use futures_util::{Stream, StreamExt as _};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{OptionalSend, StorageError};

use super::*;
use crate::testing::MemoryDisk;
use crate::types::{Answer, RaftStoredMembership};
use crate::wal::WalOptions;

type Meta = crate::state_machine::RaftSnapshotMeta;
type Snapshot = openraft::Snapshot<
    openraft::vote::leader_id_std::CommittedLeaderId<u64>,
    ephemeris_store::ids::ReplicaId,
    (),
    Meta,
>;

/// Remembers what was applied last, and nothing else.
#[derive(Clone, Default)]
struct Applied {
    meta: Meta,
    snapshot: Option<Meta>,
}

impl RaftSnapshotBuilder<TypeConfig> for Applied {
    type SnapshotData = Meta;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        Ok(Snapshot { meta: self.meta.clone(), snapshot: self.meta.clone() })
    }
}

impl RaftStateMachine<TypeConfig> for Applied {
    type SnapshotData = Meta;
    type SnapshotBuilder = Self;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<RaftLogId>, RaftStoredMembership), io::Error> {
        Ok((self.meta.last_log_id, self.meta.last_membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.next().await {
            let (entry, responder) = entry?;
            self.meta.last_log_id = Some(entry.log_id);
            if let openraft::EntryPayload::Membership(membership) = entry.payload {
                let stored = RaftStoredMembership::new(Some(entry.log_id), membership);
                self.meta.last_membership = stored;
            }
            if let Some(responder) = responder {
                responder.send(Answer(None));
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.snapshot = Some(self.meta.clone());
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &Meta, _: Meta) -> Result<(), io::Error> {
        self.meta = meta.clone();
        self.snapshot = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        Ok(self.snapshot.clone().map(|meta| Snapshot { meta: meta.clone(), snapshot: meta }))
    }
}

struct Builder;

/// Ends the writer with the store.
struct Guard(Wal, Option<JoinHandle<io::Result<()>>>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.close(Box::new(|_| {}));
        let thread = self.1.take().expect("dropped once");
        thread.join().expect("the writer does not panic").expect("memory does not fail");
    }
}

impl StoreBuilder<TypeConfig, LogStore, Applied, Guard> for Builder {
    async fn build(&self) -> Result<(Guard, LogStore, Applied), StorageError<TypeConfig>> {
        let disk = Arc::new(MemoryDisk::new());
        let options = WalOptions { segment_bytes: 4096, cache_bytes: 256, segments_max: 3 };
        let (wal, writer) = Wal::open(disk, options).expect("an empty disk opens");
        let thread = std::thread::spawn(move || writer.run());
        let store = LogStore::new(wal.clone(), GroupId(1), Executor::Inline);
        Ok((Guard(wal, Some(thread)), store, Applied::default()))
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_passes_openrafts_own_suite() {
    Suite::test_all(Builder).await.expect("the suite passes");
}
