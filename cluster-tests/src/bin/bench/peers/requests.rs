//! Creates and reads in a peer's own words.

use std::sync::Arc;

use ephemeris_cluster_tests::load::{Source, Wire};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::sources::{Creates, item};

/// How requests are said.
pub(super) trait Dialect: Clone + Send + Sync + 'static {
    /// What they are sent over.
    type Wire: Wire;

    /// The same for a worker with a number of its own.
    #[must_use]
    fn of_worker(&self, _run: u64) -> Self {
        self.clone()
    }

    /// Appends the request that stores an item under an id that is new; 201 is a good answer.
    fn create(&self, id: &str, item: &str, to: &mut Vec<u8>);

    /// Appends the request that reads an item; 200 is a good answer.
    fn read(&self, id: &str, to: &mut Vec<u8>);
}

/// One worker's requests.
#[derive(Clone)]
pub(super) struct Requests<D> {
    dialect: D,
    /// Items that are read.
    ids: Arc<Vec<String>>,
    creates_share: f64,
    /// Digits all new ids begin with.
    run: u64,
    serial: u64,
    rng: SmallRng,
    bytes: Vec<u8>,
}

impl<D: Dialect> Requests<D> {
    /// Reads of these items.
    pub(super) fn new(dialect: D, ids: Vec<String>) -> Self {
        let (rng, bytes) = (SmallRng::seed_from_u64(0), Vec::new());
        Self { dialect, ids: Arc::new(ids), creates_share: 0.0, run: 0, serial: 0, rng, bytes }
    }

    /// The same for a worker with a number of its own, with creates for a part from 0 to 1.
    pub(super) fn mixed(&self, creates_share: f64, run: u64) -> Self {
        let (dialect, rng) = (self.dialect.of_worker(run), SmallRng::seed_from_u64(run));
        Self { dialect, creates_share, run, rng, ..self.clone() }
    }
}

impl<D: Dialect> Source for Requests<D> {
    type Wire = D::Wire;

    fn next(&mut self) -> (&[u8], u16) {
        self.bytes.clear();
        if self.rng.random_bool(self.creates_share) {
            let id = Creates::id(self.run, self.serial);
            self.serial += 1;
            self.dialect.create(&id, &item(&id, Creates::key_of(&id), ""), &mut self.bytes);
            (&self.bytes, 201)
        } else {
            let id = &self.ids[self.rng.random_range(0..self.ids.len())];
            self.dialect.read(id, &mut self.bytes);
            (&self.bytes, 200)
        }
    }
}
