//! HTTP/1.1 by hand, for a load generator that leaves the processor to the servers.
//!
//! Requests are bytes made beforehand. Of an answer only status and length are looked at.

use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::SystemTime;

use memchr::memmem::Finder;
use thiserror::Error;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::{AccountKey, http_date};

/// Longest head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Room for an answer of usual size, in bytes.
const BUFFER_BYTES: usize = 8 << 10;

static END_OF_HEAD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\n\r\n"));

/// Why an answer could not be read.
#[derive(Debug, Error)]
pub enum WireError {
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The answer is not HTTP as we expect it.
    #[error("the answer is malformed: {0}")]
    Malformed(&'static str),
}

/// A request, ready to be sent any number of times.
#[derive(Clone, Debug)]
pub struct Request(Vec<u8>);

impl Request {
    /// Builds a request from its head's lines, without host and length, and its body.
    pub fn new(line: &str, host: SocketAddr, headers: &[(&str, &str)], body: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(512 + body.len());
        bytes.extend_from_slice(format!("{line} HTTP/1.1\r\nhost: {host}\r\n").as_bytes());
        for (name, value) in headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(body);
        Self(bytes)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Signs requests of one kind for one link: the signature is good for many.
#[derive(Clone)]
pub struct Signed {
    /// The date it is good for.
    pub date: String,
    /// The `authorization` header.
    pub authorization: String,
}

impl Signed {
    /// A signature for a verb and an encoded path.
    pub fn new(key: &AccountKey, verb: &str, path: &str, at: SystemTime) -> Self {
        let date = http_date(at);
        let authorization = key.authorization(verb, path, &date);
        Self { date, authorization }
    }
}

/// A connection on which one request after the other is answered, in whatever protocol.
pub trait Wire: Sized + Send + 'static {
    /// Connects.
    fn open(address: SocketAddr) -> impl Future<Output = Result<Self, WireError>> + Send;

    /// Sends a request and reads the whole answer; returns its status, in the terms of HTTP.
    fn exchange(&mut self, request: &[u8]) -> impl Future<Output = Result<u16, WireError>> + Send;
}

/// A connection that is kept.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    body_start: usize,
}

impl Wire for Connection {
    async fn open(address: SocketAddr) -> Result<Self, WireError> {
        Self::open(address).await
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<u16, WireError> {
        self.exchange(request).await
    }
}

impl Connection {
    /// Connects.
    pub async fn open(address: SocketAddr) -> Result<Self, WireError> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(BUFFER_BYTES), body_start: 0 })
    }

    /// Sends a request and reads the whole answer; returns its status.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<u16, WireError> {
        self.send(request).await?;
        self.receive().await
    }

    /// Sends a request: the kernel has it when this returns.
    pub async fn send(&mut self, request: &[u8]) -> Result<(), WireError> {
        self.stream.write_all(request).await?;
        Ok(())
    }

    /// Reads a whole answer; returns its status.
    pub async fn receive(&mut self) -> Result<u16, WireError> {
        self.buffer.clear();
        let head_end = self.read_head().await?;
        let head = parse_head(&self.buffer[..head_end])?;
        let end = head_end + head.body_bytes;
        self.body_start = head_end;
        while self.buffer.len() < end {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(WireError::Malformed("the body is cut off"));
            }
        }
        Ok(head.status)
    }

    /// A header of the answer that was received last.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.buffer[..self.body_start], name)
    }

    /// The body of the answer that was received last.
    pub fn body(&self) -> &[u8] {
        &self.buffer[self.body_start..]
    }

    async fn read_head(&mut self) -> Result<usize, WireError> {
        loop {
            let seen = self.buffer.len().saturating_sub(3);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(WireError::Malformed("the connection was closed"));
            }
            if let Some(at) = END_OF_HEAD.find(&self.buffer[seen..]) {
                return Ok(seen + at + 4);
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(WireError::Malformed("the head is too long"));
            }
        }
    }
}

/// What stands behind a name and its colon, if a line begins with them.
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (begin, rest) = line.split_at_checked(name.len())?;
    let value = || rest.split(|byte| *byte == b'\r').next().unwrap_or_default();
    begin.eq_ignore_ascii_case(name).then(value)
}

fn number<N: FromStr>(digits: &[u8]) -> Option<N> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    body_bytes: usize,
}

fn parse_head(head: &[u8]) -> Result<Head, WireError> {
    let status = head.strip_prefix(b"HTTP/1.1 ").and_then(|line| line.get(..3)).and_then(number);
    let status = status.ok_or(WireError::Malformed("there is no status"))?;
    let mut body_bytes = 0;
    for at in memchr::memchr_iter(b'\n', head) {
        let line = &head[at + 1..];
        if let Some(value) = value_of(line, b"content-length:") {
            let length = number(value.trim_ascii());
            body_bytes = length.ok_or(WireError::Malformed("the length is no number"))?;
        } else if value_of(line, b"transfer-encoding:").is_some() {
            return Err(WireError::Malformed("answers have a length"));
        }
    }
    if matches!(status, 204 | 304) {
        body_bytes = 0;
    }
    Ok(Head { status, body_bytes })
}

fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(head).ok()?;
    let mut headers = text.split("\r\n").filter_map(|line| line.split_once(':'));
    let found = headers.find(|(found, _)| found.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_tells_status_and_length() {
        let head = b"HTTP/1.1 201 Created\r\nContent-Length: 12\r\nx: y\r\n\r\n";
        assert_eq!(parse_head(head).unwrap(), Head { status: 201, body_bytes: 12 });
        let head = b"HTTP/1.1 304 Not Modified\r\ncontent-length: 12\r\n\r\n";
        assert_eq!(parse_head(head).unwrap(), Head { status: 304, body_bytes: 0 });
    }

    #[test]
    fn a_header_is_found_however_it_is_written() {
        let head = b"HTTP/1.1 200 OK\r\nETag: \"a:b\"\r\nX: y\r\n\r\n";
        assert_eq!(header(head, "etag"), Some("\"a:b\""));
        assert_eq!(header(head, "x"), Some("y"));
        assert_eq!(header(head, "z"), None);
    }

    #[test]
    fn other_heads_are_refused() {
        let heads: [&[u8]; 4] = [
            b"HTTP/1.0 200 OK\r\n\r\n",
            b"HTTP/1.1 2x0 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        ];
        for head in heads {
            assert!(parse_head(head).is_err(), "{}", String::from_utf8_lossy(head));
        }
    }

    #[test]
    fn a_request_carries_its_length() {
        let host = "127.0.0.1:1".parse().unwrap();
        let request = Request::new("POST /x", host, &[("a", "b")], b"hello");
        let text = std::str::from_utf8(request.bytes()).unwrap();
        let expected =
            "POST /x HTTP/1.1\r\nhost: 127.0.0.1:1\r\na: b\r\ncontent-length: 5\r\n\r\nhello";
        assert_eq!(text, expected);
    }
}
