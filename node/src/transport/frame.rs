//! How messages lie on a connection.
//!
//! ```text
//! frame = length u32 · checksum u32 · kind u8 · number u64 · payload
//! ```
//!
//! The length counts everything behind it, the checksum covers everything behind it. Integers are
//! big-endian.

use std::io;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Largest frame that is taken, in bytes: above any append request or snapshot chunk.
const FRAME_BYTES_MAX: usize = 64 << 20;
const PREFIX_BYTES: usize = 8;
const HEADER_BYTES: usize = 9;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first frame of a connection, and its answer.
    Hello,
    /// Wants an answer.
    Request,
    /// Answers the request of the same number.
    Answer,
    /// Refuses the request of the same number; the payload says why, as text.
    Refusal,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Kind::Hello => 0,
            Kind::Request => 1,
            Kind::Answer => 2,
            Kind::Refusal => 3,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Kind::Hello, Kind::Request, Kind::Answer, Kind::Refusal]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) number: u64,
    pub(super) payload: Bytes,
}

impl Frame {
    pub(super) fn write(&self, out: &mut BytesMut) {
        let length = PREFIX_BYTES - 4 + HEADER_BYTES + self.payload.len();
        out.reserve(length + 4);
        out.put_u32(u32::try_from(length).expect("frames stay far below 4 GiB"));
        let checksum_at = out.len();
        out.put_u32(0);
        let body_at = out.len();
        out.put_u8(self.kind.code());
        out.put_u64(self.number);
        out.put_slice(&self.payload);
        let checksum = crc32c::crc32c(&out[body_at..]);
        out[checksum_at..body_at].copy_from_slice(&checksum.to_be_bytes());
    }
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Takes the first frame out of a buffer, if it is complete.
fn take_frame(buffer: &mut BytesMut) -> io::Result<Option<Frame>> {
    if buffer.len() < PREFIX_BYTES {
        return Ok(None);
    }
    let length = (&buffer[..4]).get_u32() as usize;
    if !(PREFIX_BYTES - 4 + HEADER_BYTES..=FRAME_BYTES_MAX).contains(&length) {
        return Err(invalid("a frame of impossible length"));
    }
    if buffer.len() < 4 + length {
        buffer.reserve(4 + length - buffer.len());
        return Ok(None);
    }
    let mut frame = buffer.split_to(4 + length).freeze();
    frame.advance(4);
    let checksum = frame.get_u32();
    if crc32c::crc32c(&frame) != checksum {
        return Err(invalid("a frame with a wrong checksum"));
    }
    let kind = Kind::from_code(frame.get_u8()).ok_or_else(|| invalid("a frame of unknown kind"))?;
    let number = frame.get_u64();
    Ok(Some(Frame { kind, number, payload: frame }))
}

/// Reads frames; can be cancelled between any two bytes without losing its place.
pub(super) struct FrameReader<R> {
    stream: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(stream: R) -> Self {
        Self { stream, buffer: BytesMut::with_capacity(16 << 10) }
    }

    /// The next frame; none when the other side has closed.
    pub(super) async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = take_frame(&mut self.buffer)? {
                return Ok(Some(frame));
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                let clean = self.buffer.is_empty();
                return if clean { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(payload: &[u8]) -> Frame {
        Frame { kind: Kind::Request, number: 7, payload: Bytes::copy_from_slice(payload) }
    }

    #[test]
    fn the_bytes_are_pinned() {
        let mut out = BytesMut::new();
        frame(b"hi").write(&mut out);
        let golden = [0, 0, 0, 15, 0xC9, 0x1C, 0x25, 0x71, 1, 0, 0, 0, 0, 0, 0, 0, 7, b'h', b'i'];
        assert_eq!(out[..4], golden[..4]);
        assert_eq!(out[8..], golden[8..]);
        assert_eq!(take_frame(&mut out).unwrap(), Some(frame(b"hi")));
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let mut good = BytesMut::new();
        frame(b"payload").write(&mut good);
        for bit in 32..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(take_frame(&mut bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn impossible_lengths_are_refused_before_anything_is_reserved() {
        for length in [0_u32, 12, u32::MAX] {
            let mut buffer = BytesMut::new();
            buffer.put_u32(length);
            buffer.put_u32(0);
            assert!(take_frame(&mut buffer).is_err(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused_without_panic(bytes: Vec<u8>) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = take_frame(&mut buffer) {}
        }

        #[test]
        fn frames_come_out_however_they_are_cut(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..10),
            piece in 1_usize..40
        ) {
            let mut all = BytesMut::new();
            for payload in &payloads {
                frame(payload).write(&mut all);
            }
            let mut buffer = BytesMut::new();
            let mut found = Vec::new();
            for piece in all.chunks(piece) {
                buffer.extend_from_slice(piece);
                while let Some(frame) = take_frame(&mut buffer).unwrap() {
                    found.push(frame.payload.to_vec());
                }
            }
            prop_assert_eq!(found, payloads);
        }
    }
}
