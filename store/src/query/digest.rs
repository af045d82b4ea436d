//! Digests of values: one for all values that `=` calls equal, another for each other one.

use sha2::{Digest as _, Sha256};

use super::value::Value;

/// The digest of some values, one after the other.
pub(crate) fn of_all<'v>(values: impl IntoIterator<Item = &'v Value>) -> u128 {
    let mut hash = Sha256::new();
    values.into_iter().for_each(|value| hash.update(value.key()));
    let digest = hash.finalize();
    let (first, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
    u128::from_be_bytes(*first)
}

/// The digest of a value.
pub(super) fn of(value: &Value) -> u128 {
    of_all([value])
}

/// A short digest of bytes.
pub(super) fn of_bytes(bytes: &[u8]) -> u64 {
    let digest = Sha256::digest(bytes);
    let (first, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
    u64::from_be_bytes(*first)
}
