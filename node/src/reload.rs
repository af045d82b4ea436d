//! Reads the files of keys and certificates again while the node runs, so that they can be changed
//! without a pause.
//!
//! Files are looked at every few seconds, and at once on SIGHUP. What cannot be used is reported
//! once, and everything goes on as it was.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tracing::{info, warn};

use crate::clock;
use crate::gateway::Gateway;
use crate::tls::{PeerKeys, Tls};

/// How often files are looked at: soon enough for people who wait for it.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Runs until the node stops.
pub(crate) async fn keep_up(
    gateway: Gateway,
    tls: Option<Arc<Tls>>,
    peer_keys: Option<Arc<PeerKeys>>,
    mut hangup: Signal,
) {
    let (mut keys, mut certificate) = (Watched::new("keys"), Watched::new("certificate"));
    let mut between_nodes = Watched::new("peer keys");
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            Some(()) = hangup.recv() => info!("SIGHUP: reading keys and certificates again"),
        }
        let looking = gateway.clone();
        keys.report(look(move || looking.reload_keys()).await);
        if let Some(tls) = tls.clone() {
            let reload = move || tls.reload(clock::wall()).map_err(|error| error.to_string());
            certificate.report(look(reload).await);
        }
        if let Some(peer_keys) = peer_keys.clone() {
            let reload = move || peer_keys.reload().map_err(|error| error.to_string());
            between_nodes.report(look(reload).await);
        }
    }
}

/// Looks at files: they may lie on a slow disk.
async fn look(
    looking: impl FnOnce() -> Result<Looked, String> + Send + 'static,
) -> Result<Looked, String> {
    let looked = tokio::task::spawn_blocking(looking).await;
    looked.expect("reading files does not panic")
}

/// What became of files when they were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// They say what they said before.
    Same,
    /// They say something else, which now counts.
    Changed,
}

/// Tells people once what they should know of some files.
struct Watched {
    what: &'static str,
    /// What was wrong when they were last looked at.
    trouble: Option<String>,
}

impl Watched {
    fn new(what: &'static str) -> Self {
        Self { what, trouble: None }
    }

    fn report(&mut self, looked: Result<Looked, String>) {
        let what = self.what;
        let trouble = match looked {
            Ok(Looked::Same) => None,
            Ok(Looked::Changed) => {
                info!(what, "files were changed, and count from now on");
                None
            }
            Err(reason) => {
                if self.trouble.as_ref() != Some(&reason) {
                    warn!(what, reason, "files cannot be used; everything stays as it was");
                }
                Some(reason)
            }
        };
        self.trouble = trouble;
    }
}
