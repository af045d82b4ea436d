//! The keyed hash under whatever is signed or sealed here.

use hmac::{Hmac, KeyInit as _};
use sha2::Sha256;

pub(super) type HmacSha256 = Hmac<Sha256>;

/// That of a key, of nothing yet.
pub(super) fn mac(key: &[u8]) -> HmacSha256 {
    HmacSha256::new_from_slice(key).expect("HMAC takes keys of any length")
}
