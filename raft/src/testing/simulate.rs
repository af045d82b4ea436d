//! Runs a simulation: one thread, time that stands still unless everybody waits, one seed.

#[cfg(all(test, not(tokio_unstable)))]
compile_error!(
    "simulations need `--cfg tokio_unstable`, which .cargo/config.toml sets: unset RUSTFLAGS, which \
     silently replaces it"
);

/// Runs a future in simulated time; every choice that tokio, openraft and this crate make follows
/// from the seed. Tasks that are not `Send` may be spawned with `spawn_local`.
///
/// Without `--cfg tokio_unstable` it is not there, for tokio would make choices of its own.
#[cfg(tokio_unstable)]
pub fn simulate<T>(seed: u64, future: impl Future<Output = T>) -> T {
    crate::runtime::seed_randomness(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_be_bytes()))
        .build()
        .expect("a runtime on one thread needs nothing");
    tokio::task::LocalSet::new().block_on(&runtime, future)
}
