//! A client that behaves as SDKs do: it goes to the next node, and tells failures that are safe to
//! repeat from those whose outcome is unknown.

use std::time::Duration;

use serde_json::Value;

use super::resources::create_call;
use super::{Client, Container, Fate};
use crate::clock;

/// Pause after an attempt that was not executed.
const PAUSE: Duration = Duration::from_millis(20);

/// Sends to several nodes in turn until one executes the request.
#[derive(Clone)]
pub struct Retrying {
    clients: Vec<Client>,
    /// The one that answered last.
    at: usize,
    deadline: Duration,
}

/// How a create that was tried again and again ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Created {
    /// It is stored: 201, or 409 after an attempt whose outcome was unknown.
    Acknowledged {
        /// Attempts that may have been executed, before.
        unknown: Vec<String>,
    },
    /// It is not known whether it is stored.
    Open {
        /// What was answered.
        unknown: Vec<String>,
    },
    /// It is surely not stored, since nobody executed it in time.
    NotExecuted {
        /// The last reason.
        reason: String,
    },
    /// It was answered as it must not be.
    Wrong {
        /// What was answered.
        answer: String,
    },
}

impl Retrying {
    /// A client of all these nodes that begins with number `first`.
    pub fn new(clients: Vec<Client>, first: usize, deadline: Duration) -> Self {
        assert!(!clients.is_empty(), "there is a node to talk to");
        let at = first % clients.len();
        Self { clients, at, deadline }
    }

    /// Creates an item nobody else creates.
    pub async fn create(&mut self, container: &Container, item: &Value) -> Created {
        let call = create_call(container, item);
        let started = clock::monotonic();
        let mut unknown = Vec::new();
        loop {
            let reason = match Fate::of(self.clients[self.at].send(&call).await) {
                Fate::Done(answer) => match answer.status {
                    201 => return Created::Acknowledged { unknown },
                    409 if !unknown.is_empty() => return Created::Acknowledged { unknown },
                    _ => return Created::Wrong { answer: answer.describe() },
                },
                Fate::NotExecuted(reason) => reason,
                Fate::Unknown(reason) => {
                    unknown.push(reason.clone());
                    reason
                }
            };
            self.at = (self.at + 1) % self.clients.len();
            if started.elapsed() >= self.deadline {
                let open = !unknown.is_empty();
                return if open {
                    Created::Open { unknown }
                } else {
                    Created::NotExecuted { reason }
                };
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
