//! Large answers on their way to clients, who may be slow to take them.
//!
//! 1. A small answer is handed over whole, and forgotten.
//! 2. A large one is handed over in pieces, each as soon as there is room for some of it on the way to the client,
//!    and counts until the last of them: one byte, so that then there is room for all before it.
//! 3. One that is not taken in time is cut off.
//! 4. While too much waits, requests that may be answered at length are told to come again.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use thiserror::Error;

use super::error::ApiError;
use crate::clock::{self, Instant};

/// Bytes of an answer that are handed over at once, and so may wait uncounted.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes of large answers that may wait for their clients: some 128 pages of the largest kind.
const UNTAKEN_BYTES_MAX: usize = 512 << 20;

/// How long a client may take over a large answer.
const ANSWER_MAX: Duration = Duration::from_mins(5);

/// Why an answer is cut off.
#[derive(Clone, Copy, Debug, Error)]
#[error("the client took too long over the answer")]
pub(super) struct TakenTooSlowly;

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
        let (counted, begun) = (bytes.len(), clock::monotonic());
        Body::new(Pieces { counted, rest: bytes, begun, untaken: self.clone() })
    }
}

/// What is left of a large answer. All of it stays in memory until its last piece is gone.
struct Pieces {
    rest: Bytes,
    counted: usize,
    begun: Instant,
    untaken: Untaken,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = TakenTooSlowly;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TakenTooSlowly>>> {
        let Self { rest, begun, .. } = self.get_mut();
        if begun.elapsed() > ANSWER_MAX {
            return Poll::Ready(Some(Err(TakenTooSlowly)));
        }
        let piece = match rest.len() {
            0 => return Poll::Ready(None),
            // On its own, or what waits on the way would keep all of the answer in memory.
            1 => Bytes::copy_from_slice(&std::mem::take(rest)),
            left => rest.split_to((left - 1).min(PIECE_BYTES)),
        };
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

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_taken_too_slowly_is_cut_off() {
        let untaken = Untaken::default();
        let mut pieces = untaken.body(Bytes::from(vec![b'x'; 3 * PIECE_BYTES])).into_data_stream();
        assert!(pieces.next().await.unwrap().is_ok());
        tokio::time::advance(ANSWER_MAX + Duration::from_millis(1)).await;
        assert!(pieces.next().await.unwrap().is_err());
        drop(pieces);
        assert_eq!(untaken.0.load(Ordering::Relaxed), 0);
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
