//! Snapshots on their way: sent chunk by chunk, staged in a file, installed when complete.
//!
//! 1. The leader takes a view of its machine and offers it: "my state after entry 7.1200".
//! 2. The follower answers what it has already: nothing, or what a broken transfer brought.
//! 3. Each chunk holds the rows behind those. It is checked and appended to a staging file, which is synced now and
//!    then, and after the last one.
//! 4. openraft installs the file: sync, marker, old rows out, new rows in, flush, marker away. The
//!    machine shows nothing meanwhile.
//!
//! From step 4 on the file is all this replica has: nothing removes it before the marker is away.
//!
//! Replicas are identical after the same entry, but for garbage, and any part of that may be there or not. So a
//! transfer begun by one leader can be continued by the next, if it offers the same position, behind the
//! last row that arrived. Chunks are cut differently where there is other garbage: their numbers say nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use bytes::Bytes;
use ephemeris_store::engine::{Engine, Fault};
use ephemeris_store::ids::GroupId;
use ephemeris_store::machine::{LogId, Machine, Progress};
use ephemeris_store::snapshot::{Chunk, Exporter, Installer, Received};
use thiserror::Error;
use tracing::{info, warn};

use crate::clock::{self, Instant};
use crate::disk::{Disk, DiskFile};
use crate::ending::Stop;
use crate::state_machine::storage_error;

/// About how many bytes of rows go into a chunk.
const CHUNK_BYTES: usize = 1 << 20;
/// A file that arrives is synced whenever so much was written: the last sync, which the sender waits for, is short.
const UNSYNCED_BYTES_MAX: u64 = 32 << 20;
/// Chunks in a staging file have their length before them.
const LENGTH_BYTES: usize = 4;
/// How long a view is kept for a transfer that broke, since its receiver last took something of it.
const OFFER_KEPT: Duration = Duration::from_mins(1);

/// Why a chunk was not taken.
#[derive(Debug, Error)]
pub(crate) enum StageError {
    #[error("chunk {found} came as chunk {wanted}")]
    Misnumbered { wanted: u32, found: u32 },
    #[error("no snapshot at this position is being received")]
    Unknown,
    #[error(transparent)]
    Damaged(#[from] ephemeris_store::snapshot::DamagedChunk),
    #[error("snapshot file: {0}")]
    Io(#[from] io::Error),
}

/// Why an interrupted installation could not be finished.
#[derive(Debug, Error)]
pub(crate) enum ResumeError {
    #[error("its file {0} is missing or damaged")]
    Lost(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A group's snapshot files. Clones share it.
#[derive(Clone)]
pub(crate) struct SnapshotStore {
    disk: Arc<dyn Disk>,
    group: GroupId,
    staging: Arc<Mutex<Staging>>,
    stop: Stop,
}

#[derive(Default)]
struct Staging {
    incoming: Option<Incoming>,
    /// Complete files that were handed over to be installed.
    held: BTreeSet<String>,
    /// True if the group has no other files on the disk.
    is_tidy: bool,
}

/// A snapshot that is arriving.
struct Incoming {
    position: Option<LogId>,
    name: String,
    file: Arc<dyn DiskFile>,
    offset: u64,
    /// Up to where it is synced.
    synced: u64,
    received: Received,
}

impl SnapshotStore {
    pub(crate) fn new(disk: Arc<dyn Disk>, group: GroupId, stop: Stop) -> Self {
        Self { disk, group, staging: Arc::default(), stop }
    }

    /// The group whose files these are.
    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    fn staging(&self) -> MutexGuard<'_, Staging> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file_name(&self, position: Option<LogId>) -> String {
        let LogId { term, index } = position.unwrap_or_default();
        format!("{}-{term}-{index}.snapshot", self.group)
    }

    /// The position that a file is of.
    fn position(&self, name: &str) -> Option<LogId> {
        let rest = name.strip_prefix(&format!("{}-", self.group))?;
        let (term, index) = rest.strip_suffix(".snapshot")?.split_once('-')?;
        Some(LogId { term: term.parse().ok()?, index: index.parse().ok()? })
    }

    /// Prepares to receive a snapshot of this position; answers what is here of it.
    pub(crate) fn begin(&self, position: Option<LogId>) -> Result<Received, StageError> {
        let mut staging = self.staging();
        self.stop.check()?;
        if let Some(known) = staging.incoming.as_ref().filter(|known| known.position == position) {
            return Ok(known.received.clone());
        }
        let name = self.file_name(position);
        staging.is_tidy = false;
        let staged = self.take_up(position, name, &staging.held)?;
        let received = staged.received.clone();
        staging.incoming = Some(staged);
        Ok(received)
    }

    /// Goes on with a staging file that an earlier process left, or starts a new one. Files of other
    /// positions are removed, unless they are `held`.
    fn take_up(
        &self,
        position: Option<LogId>,
        name: String,
        held: &BTreeSet<String>,
    ) -> io::Result<Incoming> {
        for other in self.names()? {
            if other != name && !held.contains(&other) {
                self.disk.remove(&other)?;
            }
        }
        match self.disk.open(&name) {
            Ok(file) => {
                let (offset, received) = read_chunks(&*file, |_| Ok(()))?;
                let chunks = received.chunks;
                info!(group = %self.group, chunks, "going on with a broken snapshot transfer");
                return Ok(Incoming { position, name, file, offset, synced: 0, received });
            }
            // It may be all that this replica has: an empty one must not take its place.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => {}
        }
        let file = self.disk.create(&name, 0)?;
        self.disk.sync_directory().map_err(|error| self.distrust(&name, error))?;
        let received = Received::default();
        Ok(Incoming { position, name, file, offset: 0, synced: 0, received })
    }

    /// Takes a chunk that was made to follow what is `received`, if nothing else has come meanwhile; answers
    /// what is here now.
    pub(crate) fn stage(
        &self,
        position: Option<LogId>,
        received: &Received,
        bytes: &[u8],
    ) -> Result<Received, StageError> {
        let mut staging = self.staging();
        self.stop.check()?;
        let incoming = staging.incoming.as_mut().filter(|known| known.position == position);
        let incoming = incoming.ok_or(StageError::Unknown)?;
        if *received != incoming.received || incoming.received.complete {
            return Ok(incoming.received.clone());
        }
        let chunk = Chunk::decode(bytes)?;
        if chunk.number != received.chunks {
            return Err(StageError::Misnumbered { wanted: received.chunks, found: chunk.number });
        }
        let length = u32::try_from(bytes.len()).expect("chunks stay far below 4 GiB");
        incoming.file.write_at(incoming.offset, &length.to_be_bytes())?;
        incoming.file.write_at(incoming.offset + LENGTH_BYTES as u64, bytes)?;
        incoming.offset += (LENGTH_BYTES + bytes.len()) as u64;
        incoming.received.add(&chunk);
        let received = incoming.received.clone();
        if chunk.last || incoming.offset - incoming.synced >= UNSYNCED_BYTES_MAX {
            if let Err(error) = incoming.file.sync() {
                let name = incoming.name.clone();
                staging.incoming = None;
                return Err(self.distrust(&name, error).into());
            }
            incoming.synced = incoming.offset;
        }
        Ok(received)
    }

    /// Removes a file whose sync failed: the kernel may have dropped what it could not write, and
    /// would not say so a second time. The transfer begins anew with another file.
    fn distrust(&self, name: &str, error: io::Error) -> io::Error {
        warn!(group = %self.group, name, %error, "a snapshot file could not be made durable");
        self.disk.remove(name).err().unwrap_or(error)
    }

    /// Hands over the file of a completely received snapshot; it is held until it is installed or
    /// released.
    pub(crate) fn staged(&self, position: Option<LogId>) -> Option<String> {
        let mut staging = self.staging();
        let ready = |known: &mut Incoming| known.position == position && known.received.complete;
        let name = staging.incoming.take_if(ready)?.name;
        staging.held.insert(name.clone());
        Some(name)
    }

    /// Takes a file back that was handed over: it is installed, or will not be.
    pub(crate) fn release(&self, name: &str) {
        self.staging().held.remove(name);
    }

    /// Replaces the machine's rows by those of a staged file.
    pub(crate) fn install<M: Machine>(
        &self,
        engine: &Arc<dyn Engine>,
        machine: &M,
        name: &str,
    ) -> io::Result<()> {
        let file = self.make_durable(name)?;
        self.replace(engine, machine, name, &*file)
    }

    /// It may have been made and written by an earlier process, which ended before it synced.
    fn make_durable(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.open(name)?;
        if let Err(error) = file.sync().and_then(|()| self.disk.sync_directory()) {
            self.release(name);
            return Err(self.distrust(name, error));
        }
        Ok(file)
    }

    fn replace<M: Machine>(
        &self,
        engine: &Arc<dyn Engine>,
        machine: &M,
        name: &str,
        file: &dyn DiskFile,
    ) -> io::Result<()> {
        machine.unload();
        let begun = Installer::begin(engine.clone(), self.group, machine.ranges(), name);
        let mut installer = begun.map_err(|fault| storage_error(&fault))?;
        read_chunks(file, |chunk| {
            self.stop.check()?;
            installer.write(chunk).map_err(|fault| storage_error(&fault))
        })?;
        let finished = installer.finish().and_then(|()| machine.reload());
        finished.map_err(|fault| storage_error(&fault))?;
        info!(group = %self.group, name, "installed a snapshot");
        // The state is whole and durable: a file too many does no harm, and the next transfer
        // removes it.
        if let Err(error) = self.disk.remove(name) {
            warn!(group = %self.group, name, %error, "an installed snapshot stays on disk");
        }
        self.release(name);
        Ok(())
    }

    /// Finishes an installation that a crash interrupted.
    ///
    /// Without its file this replica is lost. It cannot start empty and wait for another snapshot:
    /// it voted for, and acknowledged, entries that it could no longer tell a candidate about.
    pub(crate) fn resume<M: Machine>(
        &self,
        engine: &Arc<dyn Engine>,
        machine: &M,
    ) -> Result<(), ResumeError> {
        let name = Installer::interrupted(engine.as_ref(), self.group);
        let Some(name) = name.map_err(|fault| storage_error(&fault))? else { return Ok(()) };
        if !self.is_complete(&name)? {
            return Err(ResumeError::Lost(name));
        }
        warn!(group = %self.group, name, "a snapshot installation was interrupted; starting it over");
        let file = self.disk.open(&name)?;
        Ok(self.replace(engine, machine, &name, &*file)?)
    }

    fn is_complete(&self, name: &str) -> io::Result<bool> {
        match self.disk.open(name) {
            Ok(file) => read_chunks(&*file, |_| Ok(())).map(|(_, received)| received.complete),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes files of snapshots that a replica does without: of positions that it has reached by its log, and the
    /// engine, too, so that no crash takes it back.
    ///
    /// Not while one is being written or read: whoever tidies up has other groups to look after.
    pub(crate) fn tidy(&self, flushed: Option<LogId>) -> io::Result<()> {
        let mut staging = match self.staging.try_lock() {
            Ok(staging) => staging,
            Err(TryLockError::Poisoned(spoilt)) => spoilt.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        self.stop.check()?;
        if staging.is_tidy {
            return Ok(());
        }
        staging.incoming.take_if(|known| known.position <= flushed);
        let (mut left, names) = (0, self.names()?);
        for name in &names {
            if self.position(name) <= flushed && !staging.held.contains(name) {
                self.disk.remove(name)?;
            } else {
                left += 1;
            }
        }
        staging.is_tidy = left == 0;
        Ok(())
    }

    /// The group's files.
    fn names(&self) -> io::Result<Vec<String>> {
        let prefix = format!("{}-", self.group);
        let mut names = self.disk.list()?;
        names.retain(|name| name.starts_with(&prefix));
        Ok(names)
    }

    /// Removes every staged file of a group whose rows were removed. A replica that is being stopped stages none
    /// after that.
    pub(crate) fn clear(&self, engine: &dyn Engine) -> io::Result<()> {
        let _nothing_is_staged_meanwhile = self.staging();
        let names = self.names()?;
        if names.is_empty() {
            return Ok(());
        }
        // A marker that came back after a crash would not find its file.
        engine.flush().map_err(|fault| storage_error(&fault))?;
        names.iter().try_for_each(|name| self.disk.remove(name))
    }
}

/// Reads the sound chunks of a staging file; returns where they end, and what was received with them.
fn read_chunks(
    file: &dyn DiskFile,
    mut each: impl FnMut(Chunk) -> io::Result<()>,
) -> io::Result<(u64, Received)> {
    let (mut offset, mut received) = (0, Received::default());
    let length = file.length()?;
    while !received.complete && offset + (LENGTH_BYTES as u64) < length {
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
        if chunk.number != received.chunks {
            break;
        }
        offset = end;
        received.add(&chunk);
        each(chunk)?;
    }
    Ok((offset, received))
}

/// A view of a machine, being sent. Clones share it.
#[derive(Clone)]
pub(crate) struct Offer {
    pub(crate) progress: Progress,
    exporter: Arc<Exporter>,
    chunk_bytes: usize,
    /// When the receiver last took something of it, if it did.
    taken: Arc<Mutex<Option<Instant>>>,
}

impl Offer {
    pub(crate) fn new<M: Machine>(machine: &M, group: GroupId) -> Self {
        let (view, progress) = machine.view();
        let exporter = Arc::new(Exporter::new(view, group, machine.ranges()));
        Self { progress, exporter, chunk_bytes: CHUNK_BYTES, taken: Arc::default() }
    }

    /// Notes that the receiver has taken something of it.
    pub(crate) fn note_taken(&self) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = Some(clock::monotonic());
    }

    /// Notes that the receiver was asked what it has of it, and did not answer in time; only the first time that
    /// counts as if it had taken something.
    pub(crate) fn note_asked(&self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.get_or_insert_with(clock::monotonic);
    }

    /// True if its receiver has a part of it, and may soon come for the rest.
    fn is_worth_keeping(&self) -> bool {
        let taken = *self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.is_some_and(|taken| clock::monotonic().duration_since(taken) < OFFER_KEPT)
    }

    /// The encoded chunk behind what was received.
    pub(crate) fn chunk(&self, received: &Received) -> Result<Bytes, Fault> {
        let chunk = self.exporter.chunk(received, self.chunk_bytes)?;
        Ok(Bytes::from(chunk.encode()))
    }
}

/// Offers kept for transfers that broke, by receiver, and how many are under way. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Offers {
    kept: Arc<Mutex<BTreeMap<u64, Offer>>>,
    under_way: Arc<AtomicUsize>,
}

/// A transfer that is under way until this is dropped.
pub(crate) struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Offers {
    /// Notes that a transfer has begun.
    pub(crate) fn begin(&self) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(self.under_way.clone())
    }

    /// True while a replica elsewhere is being sent a snapshot, or may soon come for the rest of one.
    pub(crate) fn are_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0 || !self.kept().is_empty()
    }

    /// Those not kept too long: a view keeps the engine from cleaning up.
    fn kept(&self) -> MutexGuard<'_, BTreeMap<u64, Offer>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, offer| offer.is_worth_keeping());
        kept
    }

    /// Takes the offer kept for a receiver.
    pub(crate) fn take(&self, receiver: u64) -> Option<Offer> {
        self.kept().remove(&receiver)
    }

    /// Keeps an offer whose transfer broke.
    pub(crate) fn keep(&self, receiver: u64, offer: Offer) {
        self.kept().insert(receiver, offer);
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod transfers;
