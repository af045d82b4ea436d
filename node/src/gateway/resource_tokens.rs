//! Resource tokens: what the bearer of a permission shows instead of a key.
//!
//! A token names a permission and the moment until which it holds, under a seal that only a key of
//! the account can make. What it allows stands in the permission, when it is used: who changes or
//! deletes a permission changes or ends what its tokens allow, and a key that is taken out of use
//! takes the tokens it sealed with it.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ephemeris_store::catalog::ClusterId;
use ephemeris_store::ids::{DatabaseNumber, PermissionNumber, UserNumber};
use hmac::Mac as _;

use super::error::ApiError;
use super::mac::{HmacSha256, mac};

/// Derives the sealing key from an account key, which signs requests as well.
const PURPOSE: &[u8] = b"ephemeris resource tokens, version 1";
/// Bytes of what a token says: database, user, permission, and the second in which it ends.
const CONTENT_BYTES: usize = 4 + 4 + 4 + 8;
/// Bytes of the seal behind the content.
const SEAL_BYTES: usize = 32;
/// How long a token holds if nobody says, as in Azure.
const LIFETIME_DEFAULT: Duration = Duration::from_hours(1);
/// The shortest lifetime that can be asked for, in seconds, as in Azure.
const LIFETIME_SECONDS_MIN: u64 = 10;
/// The longest lifetime that can be asked for, in seconds: a day, as in Azure.
const LIFETIME_SECONDS_MAX: u64 = 24 * 60 * 60;

/// Seals and opens tokens.
pub(super) struct Seals {
    /// Ready to seal; the first does, any opens.
    macs: Vec<HmacSha256>,
}

/// Reads `x-ms-documentdb-expiry-seconds`.
pub(super) fn lifetime(header: Option<&str>) -> Result<Duration, ApiError> {
    let Some(text) = header else { return Ok(LIFETIME_DEFAULT) };
    let seconds = text.trim().parse().ok();
    let allowed = LIFETIME_SECONDS_MIN..=LIFETIME_SECONDS_MAX;
    seconds.filter(|seconds| allowed.contains(seconds)).map(Duration::from_secs).ok_or_else(|| {
        ApiError::BadRequest(format!(
            "The value of the header x-ms-documentdb-expiry-seconds must be a number of seconds \
             from {LIFETIME_SECONDS_MIN} to {LIFETIME_SECONDS_MAX}."
        ))
    })
}

impl Seals {
    /// Seals made with these account keys.
    pub(super) fn new(keys: &[Vec<u8>]) -> Self {
        let derived = |key: &Vec<u8>| {
            let mut mac = mac(key);
            mac.update(PURPOSE);
            self::mac(&mac.finalize().into_bytes())
        };
        Self { macs: keys.iter().map(derived).collect() }
    }

    /// A token for a permission, good until `end`.
    pub(super) fn token(
        &self,
        cluster: ClusterId,
        permission: PermissionNumber,
        end: SystemTime,
    ) -> String {
        let content = encode(permission, end);
        let seal = seal(&self.macs[0], cluster, &content).finalize().into_bytes();
        let sealed = URL_SAFE_NO_PAD.encode([&content[..], &seal[..]].concat());
        format!("type=resource&ver=1.0&sig={sealed}")
    }

    /// The permission that a token's `sig` names, if we sealed it and it still holds.
    pub(super) fn open(
        &self,
        cluster: ClusterId,
        sealed: &str,
        now: SystemTime,
    ) -> Result<PermissionNumber, ApiError> {
        let invalid = || ApiError::Unauthorized("The resource token is not valid.".to_string());
        let bytes = URL_SAFE_NO_PAD.decode(sealed).map_err(|_| invalid())?;
        let (content, found) = bytes.split_at_checked(CONTENT_BYTES).ok_or_else(invalid)?;
        let content = content.try_into().expect("it was split there");
        let is_ours = |mac: &HmacSha256| seal(mac, cluster, content).verify_slice(found).is_ok();
        if found.len() != SEAL_BYTES || !self.macs.iter().any(is_ours) {
            return Err(invalid());
        }
        let (permission, end) = decode(content).ok_or_else(invalid)?;
        if now < end {
            return Ok(permission);
        }
        let message = "The resource token has expired: read its permission to get a new one.";
        Err(ApiError::Forbidden(message.to_string()))
    }
}

/// The seal of a content. Clusters may share a key, but never each other's tokens.
fn seal(mac: &HmacSha256, cluster: ClusterId, content: &[u8; CONTENT_BYTES]) -> HmacSha256 {
    let mut mac = mac.clone();
    mac.update(&cluster.0.to_be_bytes());
    mac.update(content);
    mac
}

fn encode(permission: PermissionNumber, end: SystemTime) -> [u8; CONTENT_BYTES] {
    let PermissionNumber { user: UserNumber { database, number: user }, number } = permission;
    let end = end.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |end| end.as_secs());
    let mut content = [0; CONTENT_BYTES];
    content[..4].copy_from_slice(&database.0.to_be_bytes());
    content[4..8].copy_from_slice(&user.to_be_bytes());
    content[8..12].copy_from_slice(&number.to_be_bytes());
    content[12..].copy_from_slice(&end.to_be_bytes());
    content
}

/// None if it ends at a moment that nobody can name, which we never said.
fn decode(content: &[u8; CONTENT_BYTES]) -> Option<(PermissionNumber, SystemTime)> {
    let word = |at: usize| {
        u32::from_be_bytes(content[at..at + 4].try_into().expect("four bytes make a number"))
    };
    let user = UserNumber { database: DatabaseNumber(word(0)), number: word(4) };
    let end = content[12..].try_into().expect("eight bytes make a number");
    let end = Duration::from_secs(u64::from_be_bytes(end));
    let end = SystemTime::UNIX_EPOCH.checked_add(end)?;
    Some((PermissionNumber { user, number: word(8) }, end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLUSTER: ClusterId = ClusterId(7);
    const PERMISSION: PermissionNumber =
        PermissionNumber { user: UserNumber { database: DatabaseNumber(1), number: 2 }, number: 3 };

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)
    }

    fn seals() -> Seals {
        Seals::new(&[vec![1; 32], vec![2; 32]])
    }

    fn token(seals: &Seals, lifetime: u64) -> String {
        let token = seals.token(CLUSTER, PERMISSION, now() + Duration::from_secs(lifetime));
        token.strip_prefix("type=resource&ver=1.0&sig=").unwrap().to_string()
    }

    fn is_unauthorized(result: &Result<PermissionNumber, ApiError>) -> bool {
        matches!(result, Err(ApiError::Unauthorized(_)))
    }

    #[test]
    fn a_token_names_its_permission_until_it_ends() {
        let token = token(&seals(), 10);
        let at = |seconds| seals().open(CLUSTER, &token, now() + Duration::from_secs(seconds));
        assert_eq!(at(0).unwrap(), PERMISSION);
        assert_eq!(at(9).unwrap(), PERMISSION);
        assert!(matches!(at(10), Err(ApiError::Forbidden(_))));
    }

    #[test]
    fn a_token_outlives_the_key_that_sealed_it_as_long_as_that_is_the_second() {
        let old = Seals::new(&[vec![1; 32]]);
        let token = token(&old, 10);
        let rotated = Seals::new(&[vec![9; 32], vec![1; 32]]);
        assert_eq!(rotated.open(CLUSTER, &token, now()).unwrap(), PERMISSION);
        let later = Seals::new(&[vec![9; 32]]);
        assert!(is_unauthorized(&later.open(CLUSTER, &token, now())));
    }

    #[test]
    fn other_clusters_do_not_take_our_tokens() {
        let token = token(&seals(), 10);
        assert!(is_unauthorized(&seals().open(ClusterId(8), &token, now())));
    }

    /// Who knows a key can seal anything.
    #[test]
    fn an_end_beyond_all_time_is_refused() {
        let mut content = encode(PERMISSION, now());
        content[12..].fill(0xFF);
        let seal = seal(&seals().macs[0], CLUSTER, &content).finalize().into_bytes();
        let forged = URL_SAFE_NO_PAD.encode([&content[..], &seal[..]].concat());
        assert!(is_unauthorized(&seals().open(CLUSTER, &forged, now())));
    }

    #[test]
    fn lifetimes_are_bounded() {
        assert_eq!(lifetime(None).unwrap(), Duration::from_hours(1));
        assert_eq!(lifetime(Some(" 10 ")).unwrap(), Duration::from_secs(10));
        assert_eq!(lifetime(Some("86400")).unwrap(), Duration::from_hours(24));
        for wrong in ["", "x", "-1", "0", "9", "1.5", "86401", "99999999999999999999"] {
            assert!(matches!(lifetime(Some(wrong)), Err(ApiError::BadRequest(_))), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_permission_comes_back(database: u32, user: u32, number: u32) {
            let user = UserNumber { database: DatabaseNumber(database), number: user };
            let permission = PermissionNumber { user, number };
            let end = now() + Duration::from_secs(5);
            prop_assert_eq!(decode(&encode(permission, end)), Some((permission, end)));
        }

        #[test]
        fn a_changed_token_opens_nothing(at in any::<prop::sample::Index>(), change in 1..=255_u8) {
            let mut bytes = URL_SAFE_NO_PAD.decode(token(&seals(), 10)).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= change;
            let changed = URL_SAFE_NO_PAD.encode(&bytes);
            prop_assert!(is_unauthorized(&seals().open(CLUSTER, &changed, now())));
        }

        #[test]
        fn any_text_opens_nothing(text in "[A-Za-z0-9_-]{0,90}|\\PC{0,20}") {
            prop_assert!(is_unauthorized(&seals().open(CLUSTER, &text, now())));
        }
    }
}
