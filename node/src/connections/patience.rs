//! A connection that breaks off once its client keeps it waiting too long.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::clock::{self, Instant};

/// A stream with limits to how long it waits for the other side.
pub(super) struct Patient<S> {
    stream: S,
    /// For a word from the client.
    silence: Patience,
    /// For the client to take what it is sent.
    stall: Patience,
}

impl<S> Patient<S> {
    /// Waits for a client no longer than this to say something, and to take something.
    pub(super) fn new(stream: S, silence_max: Duration, stall_max: Duration) -> Self {
        Self { stream, silence: Patience::new(silence_max), stall: Patience::new(stall_max) }
    }

    /// Watches over something that was written, or could not be.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            // Who takes something is alive.
            self.silence.end();
        }
        self.stall.watch(context, polled)
    }
}

/// How long something may take that is waited for again and again.
///
/// One timer serves all waits: it is set anew only when it runs out, not for each of them.
struct Patience {
    limit: Duration,
    /// When the wait that is under way has taken too long.
    end: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    fn new(limit: Duration) -> Self {
        Self { limit, end: None, timer: None }
    }

    fn end(&mut self) {
        self.end = None;
    }

    /// Passes on what became of something, and an error instead of more waiting than allowed.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.end();
            return polled;
        }
        let end = *self.end.get_or_insert_with(|| clock::monotonic() + self.limit);
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        loop {
            ready!(timer.as_mut().poll(context));
            if clock::monotonic() >= end {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            timer.as_mut().reset(end);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        this.silence.watch(context, polled)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.written(context, polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(context, slices);
        this.written(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_flush(context);
        this.stall.watch(context, polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_shutdown(context);
        this.stall.watch(context, polled)
    }
}
