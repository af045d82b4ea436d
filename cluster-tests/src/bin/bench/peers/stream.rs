//! Bytes of a connection, cut into messages.

use std::net::SocketAddr;

use ephemeris_cluster_tests::load::WireError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Room for a message of usual size, in bytes.
const BUFFER_BYTES: usize = 8 << 10;

/// A connection and what was read of the next messages.
pub(super) struct Stream {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Stream {
    /// Connects.
    pub(super) async fn open(address: SocketAddr) -> Result<Self, WireError> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(BUFFER_BYTES) })
    }

    /// Sends all of it.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        self.stream.write_all(bytes).await?;
        Ok(())
    }

    /// Reads until `parse` finds what it looks for at the beginning, and says how long that is.
    pub(super) async fn receive<T>(
        &mut self,
        parse: impl Fn(&[u8]) -> Option<(T, usize)>,
    ) -> Result<T, WireError> {
        loop {
            if let Some((found, bytes)) = parse(&self.buffer) {
                self.buffer.drain(..bytes);
                return Ok(found);
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(WireError::Malformed("the connection was closed"));
            }
        }
    }
}

/// The first line without its end, and what follows it.
pub(super) fn line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    Some((std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 2..]))
}

/// True if `bytes` hold `part`.
pub(super) fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_an_end() {
        assert_eq!(line(b"+OK\r\n:1\r\n"), Some(("+OK", &b":1\r\n"[..])));
        assert_eq!(line(b"+OK\r"), None);
        assert!(contains(b"abc", b"bc") && !contains(b"abc", b"bd"));
    }
}
