//! Continuation tokens: a place in a result, sealed so that only what we gave out comes back.
//!
//! A token names a position, not an item: what stood there may have expired or moved between pages.
//! It holds for one query over one container, and survives restarts and changes of leader.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ephemeris_store::catalog::ClusterId;
use ephemeris_store::codec;
use ephemeris_store::ids::ItemNumber;
use ephemeris_store::item::ItemKey;
use ephemeris_store::query::SortKey;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::error::ApiError;

/// Longest token we give out, in characters: a header must hold it.
pub(crate) const TOKEN_CHARS_MAX: usize = 6000;
/// Bytes of the seal before the content.
const SEAL_BYTES: usize = 12;

/// A place in a result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Position {
    /// A list of resources: behind the resource with this number.
    Listed(u64),
    /// A walk through the hash space in key order.
    Walk {
        /// Where to go on.
        at: Walk,
        /// What an aggregate has counted so far.
        counted: u64,
    },
    /// A sorted result: behind this row, in every partition.
    Sorted(SortKey, ItemNumber),
}

/// A place in a walk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Walk {
    /// At the beginning of a slot.
    Slot(u16),
    /// Behind an item.
    After(ItemKey),
}

impl Walk {
    /// The slot it lies in.
    pub(crate) fn slot(&self) -> u16 {
        match self {
            Walk::Slot(slot) => *slot,
            Walk::After(key) => u16::from(key.slot()),
        }
    }
}

/// Seals and opens tokens for one result.
pub(crate) struct Tokens {
    mac: Hmac<Sha256>,
}

impl Tokens {
    /// Tokens for the result that `query` describes; nodes of one cluster understand each other's.
    pub(crate) fn new(cluster: Option<ClusterId>, query: &impl Serialize) -> Self {
        let key = cluster.map_or([0; 16], |cluster| cluster.0.to_be_bytes());
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("HMAC takes keys of any length");
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
    pub(crate) fn write(&self, position: &Position) -> Result<String, ApiError> {
        let content = codec::encode(position);
        let mut token = self.seal(&content).to_vec();
        token.extend_from_slice(&content);
        let token = URL_SAFE_NO_PAD.encode(token);
        if token.len() > TOKEN_CHARS_MAX {
            return Err(ApiError::BadRequest(
                "The result does not fit one page, and the value it is sorted by at the end of \
                 the page is too long for a continuation token. Ask for larger pages or sort by a \
                 shorter property."
                    .to_string(),
            ));
        }
        Ok(token)
    }

    /// The position of a token; an error if it is not one of ours for this result.
    pub(crate) fn read(&self, token: &str) -> Result<Position, ApiError> {
        let refuse = || {
            ApiError::BadRequest(
                "The continuation token is not valid for this request.".to_string(),
            )
        };
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| refuse())?;
        let (seal, content) = bytes.split_at_checked(SEAL_BYTES).ok_or_else(refuse)?;
        let mut mac = self.mac.clone();
        mac.update(content);
        mac.verify_truncated_left(seal).map_err(|_| refuse())?;
        codec::decode(content).map_err(|_| refuse())
    }
}

#[cfg(test)]
mod tests {
    use ephemeris_store::query::Value;
    use proptest::prelude::*;

    use super::*;

    fn tokens(query: &str) -> Tokens {
        Tokens::new(Some(ClusterId(7)), &query)
    }

    #[test]
    fn a_token_comes_back_as_the_position_it_was_made_of() {
        let position = Position::Sorted(SortKey(Value::Text("x".into())), ItemNumber(9));
        let token = tokens("a").write(&position).unwrap();
        let Position::Sorted(key, number) = tokens("a").read(&token).unwrap() else {
            panic!("another position came back");
        };
        assert_eq!(number, ItemNumber(9));
        assert!(key.0.sort_compare(&Value::Text("x".into())).is_eq());
    }

    #[test]
    fn a_token_of_another_result_or_cluster_is_refused() {
        let token = tokens("a").write(&Position::Listed(3)).unwrap();
        assert!(tokens("b").read(&token).is_err());
        assert!(Tokens::new(Some(ClusterId(8)), &"a").read(&token).is_err());
        assert!(tokens("a").read(&token).is_ok());
    }

    #[test]
    fn every_changed_character_is_noticed() {
        let token = tokens("a").write(&Position::Listed(3)).unwrap();
        for at in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert!(tokens("a").read(&String::from_utf8(changed).unwrap()).is_err(), "{at}");
        }
    }

    #[test]
    fn a_position_too_long_for_a_header_is_refused() {
        let long = Position::Sorted(SortKey(Value::Text("x".repeat(10_000))), ItemNumber(9));
        assert!(tokens("a").write(&long).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_refused_without_panic(text in "\\PC{0,60}|[A-Za-z0-9_-]{0,60}") {
            prop_assert!(tokens("a").read(&text).is_err());
        }
    }
}
