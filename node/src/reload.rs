//! Reads the files of keys and certificates again while the node runs, so that they can be changed
//! without a pause.
//!
//! Files are looked at every few seconds, and at once on SIGHUP. What cannot be used is reported
//! once, and everything goes on as it was.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tracing::{info, warn};

/// How often files are looked at: soon enough for people who wait for it.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What became of files when they were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// They say what they said before.
    Same,
    /// They say something else, which now counts.
    Changed,
}

/// Files that are looked at again and again.
pub(crate) struct Watched {
    what: &'static str,
    reload: Arc<dyn Fn() -> Result<Looked, String> + Send + Sync>,
    /// What was wrong when they were last looked at.
    trouble: Option<String>,
}

impl Watched {
    /// Files that `reload` reads.
    pub(crate) fn new<E: Display>(
        what: &'static str,
        reload: impl Fn() -> Result<Looked, E> + Send + Sync + 'static,
    ) -> Self {
        let reload = Arc::new(move || reload().map_err(|error| error.to_string()));
        Self { what, reload, trouble: None }
    }

    /// Looks at the files every now and then, for ever.
    pub(crate) async fn keep_up(mut self, mut hangup: Signal) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                Some(()) = hangup.recv() => info!(what = self.what, "SIGHUP: reading files again"),
            }
            self.look().await;
        }
    }

    /// Looks at the files, and tells people once what they should know of them.
    async fn look(&mut self) {
        let reload = self.reload.clone();
        // They may lie on a slow disk.
        let looked = tokio::task::spawn_blocking(move || reload()).await;
        let what = self.what;
        self.trouble = match looked.expect("reading files does not panic") {
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
    }
}
