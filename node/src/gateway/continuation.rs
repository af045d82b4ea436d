//! Continuation tokens: a place in a result, sealed so that only what we gave out comes back.
//!
//! A token names a position, not an item: what stood there may have expired or moved between pages.
//! It holds for one query over one container, and survives restarts and changes of leader.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ephemeris_store::catalog::ClusterId;
use ephemeris_store::codec;
use hmac::Mac as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use super::error::ApiError;
use super::mac::{HmacSha256, mac};

/// Longest token we give out, in characters: SDKs ask for less than 1 KB.
const TOKEN_CHARS_MAX: usize = 1000;
/// Bytes of the seal before the content.
const SEAL_BYTES: usize = 12;

/// Seals and opens tokens for one result.
pub(crate) struct Tokens {
    mac: HmacSha256,
}

impl Tokens {
    /// Tokens for the result that `query` describes; nodes of one cluster understand each other's.
    pub(crate) fn new(cluster: ClusterId, query: &impl Serialize) -> Self {
        let mut mac = mac(&cluster.0.to_be_bytes());
        mac.update(&Sha256::digest(codec::encode(query)));
        Self { mac }
    }

    fn seal(&self, content: &[u8]) -> [u8; SEAL_BYTES] {
        let mut mac = self.mac.clone();
        mac.update(content);
        let full = mac.finalize().into_bytes();
        full[..SEAL_BYTES].try_into().expect("the digest is longer")
    }

    /// The token of a position.
    pub(crate) fn write(&self, position: &impl Serialize) -> Result<String, ApiError> {
        let content = codec::encode(position);
        let mut token = self.seal(&content).to_vec();
        token.extend_from_slice(&content);
        let token = URL_SAFE_NO_PAD.encode(token);
        if token.len() > TOKEN_CHARS_MAX {
            return Err(ApiError::BadRequest(
                "The result does not fit one page, and what was found so far is too long for a \
                 continuation token. Make the filter narrower."
                    .to_string(),
            ));
        }
        Ok(token)
    }

    /// The position of a token; an error if it is not one of ours for this result.
    pub(crate) fn read<P: DeserializeOwned>(&self, token: &str) -> Result<P, ApiError> {
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| Self::refusal())?;
        let (seal, content) = bytes.split_at_checked(SEAL_BYTES).ok_or_else(Self::refusal)?;
        let mut mac = self.mac.clone();
        mac.update(content);
        mac.verify_truncated_left(seal).map_err(|_| Self::refusal())?;
        codec::decode(content).map_err(|_| Self::refusal())
    }

    /// What is said of a token that is none of ours for this result.
    pub(crate) fn refusal() -> ApiError {
        ApiError::BadRequest("The continuation token is not valid for this request.".to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(query: &str) -> Tokens {
        Tokens::new(ClusterId(7), &query)
    }

    fn read(query: &str, token: &str) -> Result<u64, ApiError> {
        tokens(query).read(token)
    }

    #[test]
    fn a_token_comes_back_as_the_position_it_was_made_of() {
        let token = tokens("a").write(&("x".to_string(), 9_u64)).unwrap();
        let position: (String, u64) = tokens("a").read(&token).unwrap();
        assert_eq!(position, ("x".to_string(), 9));
    }

    #[test]
    fn a_token_of_another_result_or_cluster_is_refused() {
        let token = tokens("a").write(&3_u64).unwrap();
        assert!(read("b", &token).is_err());
        assert!(Tokens::new(ClusterId(8), &"a").read::<u64>(&token).is_err());
        assert!(read("a", &token).is_ok());
    }

    #[test]
    fn every_changed_character_is_noticed() {
        let token = tokens("a").write(&3_u64).unwrap();
        for at in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert!(read("a", &String::from_utf8(changed).unwrap()).is_err(), "{at}");
        }
    }

    #[test]
    fn a_position_too_long_for_a_header_is_refused() {
        assert!(tokens("a").write(&"x".repeat(10_000)).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_refused_without_panic(text in "\\PC{0,60}|[A-Za-z0-9_-]{0,60}") {
            prop_assert!(read("a", &text).is_err());
        }
    }
}
