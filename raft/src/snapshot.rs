//! Snapshots on their way: sent chunk by chunk, staged in a file, installed when complete.
//!
//! 1. The leader takes a view of its machine and offers it: "my state after entry 7.1200".
//! 2. The follower answers which chunk it wants: the first, or where a broken transfer ended.
//! 3. Each chunk is checked and appended to a staging file; the last one is followed by a sync.
//! 4. openraft installs the file: marker, old rows out, new rows in, flush, marker away.
//!
//! Replicas are identical after the same entry, so a transfer begun by one leader can be continued
//! by the next, if it offers the same position.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ephemeris_store::engine::{Engine, Fault};
use ephemeris_store::ids::GroupId;
use ephemeris_store::machine::{LogId, Machine, Progress};
use ephemeris_store::snapshot::{Chunk, Exporter, Installer};
use thiserror::Error;
use tracing::{info, warn};

use crate::clock::{self, Instant};
use crate::disk::{Disk, DiskFile};
use crate::state_machine::storage_error;

/// About how many bytes of rows go into a chunk.
const CHUNK_BYTES: usize = 1 << 20;
/// Chunks in a staging file have their length before them.
const LENGTH_BYTES: usize = 4;
/// How long a view is kept for a transfer that broke.
const OFFER_KEPT: Duration = Duration::from_mins(1);

/// Why a chunk was not taken.
#[derive(Debug, Error)]
pub(crate) enum StageError {
    #[error("chunk {found} came, chunk {wanted} is wanted")]
    OutOfOrder { wanted: u32, found: u32 },
    #[error("no snapshot at this position is being received")]
    Unknown,
    #[error(transparent)]
    Damaged(#[from] ephemeris_store::snapshot::DamagedChunk),
    #[error("snapshot file: {0}")]
    Io(#[from] io::Error),
}

/// A group's snapshot files. Clones share it.
#[derive(Clone)]
pub(crate) struct SnapshotStore {
    disk: Arc<dyn Disk>,
    group: GroupId,
    incoming: Arc<Mutex<Option<Incoming>>>,
}

/// A snapshot that is arriving.
struct Incoming {
    position: Option<LogId>,
    name: String,
    file: Arc<dyn DiskFile>,
    offset: u64,
    next: u32,
    complete: bool,
}

impl SnapshotStore {
    pub(crate) fn new(disk: Arc<dyn Disk>, group: GroupId) -> Self {
        Self { disk, group, incoming: Arc::new(Mutex::new(None)) }
    }

    fn file_name(&self, position: Option<LogId>) -> String {
        let LogId { term, index } = position.unwrap_or_default();
        format!("{}-{term}-{index}.snapshot", self.group)
    }

    /// Prepares to receive a snapshot of this position; answers the chunk that is wanted next.
    pub(crate) fn begin(&self, position: Option<LogId>) -> Result<u32, StageError> {
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = incoming.as_ref().filter(|known| known.position == position) {
            return Ok(known.next);
        }
        let name = self.file_name(position);
        let staged = self.take_up(position, name)?;
        let next = staged.next;
        *incoming = Some(staged);
        Ok(next)
    }

    /// Goes on with a staging file that an earlier process left, or starts a new one.
    fn take_up(&self, position: Option<LogId>, name: String) -> io::Result<Incoming> {
        let prefix = format!("{}-", self.group);
        for other in self.disk.list()? {
            if other.starts_with(&prefix) && other != name {
                self.disk.remove(&other)?;
            }
        }
        if let Ok(file) = self.disk.open(&name) {
            let (offset, next, complete) = read_chunks(&*file, |_| Ok(()))?;
            info!(group = %self.group, next, "going on with a broken snapshot transfer");
            return Ok(Incoming { position, name, file, offset, next, complete });
        }
        let file = self.disk.create(&name, 0)?;
        self.disk.sync_directory()?;
        Ok(Incoming { position, name, file, offset: 0, next: 0, complete: false })
    }

    /// Takes a chunk; answers the one that is wanted next.
    pub(crate) fn stage(
        &self,
        position: Option<LogId>,
        number: u32,
        bytes: &[u8],
    ) -> Result<u32, StageError> {
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        let incoming = incoming.as_mut().filter(|known| known.position == position);
        let incoming = incoming.ok_or(StageError::Unknown)?;
        if number < incoming.next {
            return Ok(incoming.next);
        }
        let chunk = Chunk::decode(bytes)?;
        if number != incoming.next || chunk.number != number || incoming.complete {
            return Err(StageError::OutOfOrder { wanted: incoming.next, found: number });
        }
        let length = u32::try_from(bytes.len()).expect("chunks stay far below 4 GiB");
        incoming.file.write_at(incoming.offset, &length.to_be_bytes())?;
        incoming.file.write_at(incoming.offset + LENGTH_BYTES as u64, bytes)?;
        incoming.offset += (LENGTH_BYTES + bytes.len()) as u64;
        incoming.next += 1;
        incoming.complete = chunk.last;
        if chunk.last {
            incoming.file.sync()?;
        }
        Ok(incoming.next)
    }

    /// The file of a completely received snapshot.
    pub(crate) fn staged(&self, position: Option<LogId>) -> Option<String> {
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        let ready =
            incoming.as_ref().is_some_and(|known| known.position == position && known.complete);
        if !ready {
            return None;
        }
        incoming.take().map(|known| known.name)
    }

    /// Replaces the machine's rows by those of a staged file.
    pub(crate) fn install<M: Machine>(
        &self,
        engine: &Arc<dyn Engine>,
        machine: &M,
        name: &str,
    ) -> io::Result<()> {
        let file = self.disk.open(name)?;
        let begun = Installer::begin(engine.clone(), self.group, machine.ranges(), name);
        let mut installer = begun.map_err(|fault| storage_error(&fault))?;
        read_chunks(&*file, |chunk| installer.write(chunk).map_err(|fault| storage_error(&fault)))?;
        let finished = installer.finish().and_then(|()| machine.reload());
        finished.map_err(|fault| storage_error(&fault))?;
        self.disk.remove(name)?;
        info!(group = %self.group, name, "installed a snapshot");
        Ok(())
    }

    /// Finishes an installation that a crash interrupted.
    pub(crate) fn resume<M: Machine>(
        &self,
        engine: &Arc<dyn Engine>,
        machine: &M,
    ) -> io::Result<()> {
        let name = Installer::interrupted(engine.as_ref(), self.group);
        let Some(name) = name.map_err(|fault| storage_error(&fault))? else { return Ok(()) };
        warn!(group = %self.group, name, "a snapshot installation was interrupted; starting it over");
        self.install(engine, machine, &name)
    }

    /// Removes every staged file of the group.
    pub(crate) fn clear(&self) -> io::Result<()> {
        let prefix = format!("{}-", self.group);
        for name in self.disk.list()? {
            if name.starts_with(&prefix) {
                self.disk.remove(&name)?;
            }
        }
        Ok(())
    }
}

/// Reads the sound chunks of a staging file; returns where they end, the next number, and whether
/// the last one was there.
fn read_chunks(
    file: &dyn DiskFile,
    mut each: impl FnMut(Chunk) -> io::Result<()>,
) -> io::Result<(u64, u32, bool)> {
    let (mut offset, mut next, mut complete) = (0, 0, false);
    let length = file.length()?;
    while !complete && offset + (LENGTH_BYTES as u64) < length {
        let mut size = [0; LENGTH_BYTES];
        file.read_at(offset, &mut size)?;
        let size = u32::from_be_bytes(size);
        let end = offset + LENGTH_BYTES as u64 + u64::from(size);
        if end > length {
            break;
        }
        let mut bytes = vec![0; size as usize];
        file.read_at(offset + LENGTH_BYTES as u64, &mut bytes)?;
        let Ok(chunk) = Chunk::decode(&bytes) else { break };
        if chunk.number != next {
            break;
        }
        (offset, next, complete) = (end, next + 1, chunk.last);
        each(chunk)?;
    }
    Ok((offset, next, complete))
}

/// A view of a machine, being sent.
pub(crate) struct Offer {
    pub(crate) progress: Progress,
    exporter: Exporter,
    /// The chunk made last, kept in case it must be sent again.
    last: Option<(u32, Bytes)>,
    next: u32,
}

impl Offer {
    pub(crate) fn new<M: Machine>(machine: &M, group: GroupId) -> Self {
        let (view, progress) = machine.view();
        let exporter = Exporter::new(view, group, machine.ranges());
        Self { progress, exporter, last: None, next: 0 }
    }

    /// The encoded chunk of this number; none behind the last. Going forward is cheap, going back
    /// more than one chunk is not possible: make a new offer.
    pub(crate) fn chunk(&mut self, number: u32) -> Result<Option<Bytes>, Fault> {
        if let Some((last, bytes)) = &self.last
            && *last == number
        {
            return Ok(Some(bytes.clone()));
        }
        while self.next <= number {
            let Some(chunk) = self.exporter.next_chunk(CHUNK_BYTES)? else { return Ok(None) };
            self.next += 1;
            self.last = Some((chunk.number, Bytes::from(chunk.encode())));
        }
        match &self.last {
            Some((last, bytes)) if *last == number => Ok(Some(bytes.clone())),
            _ => Err(Fault::corrupt("snapshot", "the receiver went back too far")),
        }
    }

    /// True if a transfer can go on at this chunk.
    pub(crate) fn reaches(&self, number: u32) -> bool {
        number >= self.next || self.last.as_ref().is_some_and(|(last, _)| *last == number)
    }
}

/// Offers kept for transfers that broke, by receiver.
#[derive(Clone, Default)]
pub(crate) struct Offers(Arc<Mutex<BTreeMap<u64, (Instant, Offer)>>>);

impl Offers {
    /// Takes the offer kept for a receiver.
    pub(crate) fn take(&self, receiver: u64) -> Option<Offer> {
        self.prune();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(&receiver).map(|(_, offer)| offer)
    }

    /// Drops offers kept too long: a view keeps the engine from cleaning up.
    pub(crate) fn prune(&self) {
        let now = clock::monotonic();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, (since, _)| now.duration_since(*since) < OFFER_KEPT);
    }

    /// Keeps an offer whose transfer broke.
    pub(crate) fn keep(&self, receiver: u64, offer: Offer) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert(receiver, (clock::monotonic(), offer));
    }
}
