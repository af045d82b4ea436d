//! Large answers on their way to clients, who may be slow to take them.
//!
//! 1. A small answer is handed over whole, and forgotten.
//! 2. A large one is handed over in pieces, each as soon as there is room for it on the way to the client,
//!    and counts until the last of them.
//! 3. While too much of it waits, requests are told to come again.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use super::error::ApiError;

/// Bytes of an answer that are handed over at once, and so may wait uncounted.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes of large answers that may wait for their clients: some 250 pages of the largest kind.
const UNTAKEN_BYTES_MAX: usize = 1 << 30;

/// Counts the bytes of large answers that clients have not taken. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Untaken(Arc<AtomicUsize>);

impl Untaken {
    /// Refuses a request while too much waits.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        if self.0.load(Ordering::Relaxed) <= UNTAKEN_BYTES_MAX {
            return Ok(());
        }
        Err(ApiError::NotExecuted("too many answers wait for their clients".to_string()))
    }

    /// The body of an answer.
    pub(super) fn body(&self, bytes: Bytes) -> Body {
        if bytes.len() <= PIECE_BYTES {
            return Body::from(bytes);
        }
        self.0.fetch_add(bytes.len(), Ordering::Relaxed);
        Body::new(Pieces { counted: bytes.len(), rest: bytes, untaken: self.clone() })
    }
}

/// What is left of a large answer. All of it stays in memory until its last piece is gone.
struct Pieces {
    rest: Bytes,
    counted: usize,
    untaken: Untaken,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let rest = &mut self.get_mut().rest;
        if rest.is_empty() {
            return Poll::Ready(None);
        }
        let piece = rest.split_to(rest.len().min(PIECE_BYTES));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.untaken.0.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn a_large_answer_counts_until_all_of_it_was_taken() {
        let untaken = Untaken::default();
        let count = || untaken.0.load(Ordering::Relaxed);
        let text = Bytes::from(vec![b'x'; 2 * PIECE_BYTES + 1]);
        let body = untaken.body(text.clone());
        assert_eq!(body.size_hint().exact(), Some(text.len() as u64));
        let (mut pieces, mut taken) = (body.into_data_stream(), Vec::new());
        for left in [PIECE_BYTES + 1, 1, 0] {
            assert_eq!(count(), text.len());
            taken.extend_from_slice(&pieces.next().await.unwrap().unwrap());
            assert_eq!(text.len() - taken.len(), left);
        }
        assert!(pieces.next().await.is_none());
        assert_eq!(taken, text);
        drop(pieces);
        assert_eq!(count(), 0);
        drop(untaken.body(text));
        assert_eq!(count(), 0, "who goes away takes nothing along");
    }

    #[test]
    fn while_too_much_waits_requests_are_put_off() {
        let untaken = Untaken::default();
        let small = untaken.body(Bytes::from(vec![b'x'; PIECE_BYTES]));
        assert_eq!(untaken.0.load(Ordering::Relaxed), 0, "small ones are not counted");
        drop(small);
        untaken.0.store(UNTAKEN_BYTES_MAX, Ordering::Relaxed);
        assert!(untaken.check().is_ok());
        let large = untaken.body(Bytes::from(vec![b'x'; PIECE_BYTES + 1]));
        assert!(matches!(untaken.check(), Err(ApiError::NotExecuted(_))));
        drop(large);
        assert!(untaken.check().is_ok());
    }
}
