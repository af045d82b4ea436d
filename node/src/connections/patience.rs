//! A connection that breaks off once its client keeps it waiting too long.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::Timer;
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
struct Patience {
    limit: Duration,
    /// When the wait that is under way has taken too long.
    end: Option<Instant>,
    alarm: Alarm,
}

impl Patience {
    fn new(limit: Duration) -> Self {
        Self { limit, end: None, alarm: Alarm::default() }
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
        ready!(self.alarm.poll(context, end));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

/// One timer for wait after wait, each of which may end no earlier than the one before: it is set anew only
/// when it runs out, not for each of them.
#[derive(Default)]
struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Ready once `end` has come.
    fn poll(&mut self, context: &mut Context<'_>, end: Instant) -> Poll<()> {
        let timer = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        loop {
            ready!(timer.as_mut().poll(context));
            if clock::monotonic() >= end {
                return Poll::Ready(());
            }
            timer.as_mut().reset(end);
        }
    }
}

/// The timer of a connection over HTTP/1.1, for the heads of its requests: hyper asks for another one when it
/// waits for the next head.
#[derive(Default)]
pub(super) struct HeadTimer(Arc<Mutex<Alarm>>);

/// How long a head may take.
struct HeadDeadline {
    end: Instant,
    alarm: Arc<Mutex<Alarm>>,
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(HeadDeadline { end: deadline.into(), alarm: self.0.clone() })
    }

    fn now(&self) -> std::time::Instant {
        clock::monotonic().into()
    }
}

impl Future for HeadDeadline {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.alarm.lock().unwrap_or_else(PoisonError::into_inner).poll(context, self.end)
    }
}

impl hyper::rt::Sleep for HeadDeadline {}

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
