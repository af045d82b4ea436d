//! Processes of a peer: started in a temporary directory, ended with this value.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::cluster::Port;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use thiserror::Error;

/// How long a peer may take until it is ready.
const READY_MAX: Duration = Duration::from_mins(1);
/// How long one look whether it is may take, and the pause between two.
const LOOK_MAX: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a process may take to end before it is killed.
const END_MAX: Duration = Duration::from_secs(10);
/// Where Debian puts servers, beside `PATH`.
const MORE_PATHS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
/// Where Debian puts `PostgreSQL`: a directory for each version.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";

/// A program that is not on this machine.
#[derive(Debug, Error)]
#[error("there is no {0}")]
pub(super) struct Missing(&'static str);

/// Finds a program.
pub(super) fn find(name: &'static str) -> Result<PathBuf, Missing> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir(POSTGRES_VERSIONS).into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    versions.sort();
    // The newest version goes first.
    let directories = std::env::split_paths(&path)
        .chain(MORE_PATHS.map(PathBuf::from))
        .chain(versions.into_iter().rev());
    directories
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
        .ok_or(Missing(name))
}

/// What a program says of its version, in one line.
pub(super) fn version(program: &Path, argument: &str) -> anyhow::Result<String> {
    let output = Command::new(program).arg(argument).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().trim().to_string())
}

/// Whose rights a process has: who it is of and its group.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    user: u32,
    group: u32,
}

impl Owner {
    /// An account of this machine.
    pub(super) fn named(name: &str) -> anyhow::Result<Self> {
        let accounts = fs::read_to_string("/etc/passwd")?;
        let mut accounts = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let account = accounts.find(|fields| fields.first() == Some(&name));
        let account = account.with_context(|| format!("there is no user {name}"))?;
        let number = |at: usize| -> anyhow::Result<u32> {
            Ok(account.get(at).context("a line of /etc/passwd is cut off")?.parse()?)
        };
        Ok(Self { user: number(2)?, group: number(3)? })
    }
}

/// The processes of one peer.
pub(crate) struct Daemons {
    /// Ended before the directory goes.
    processes: Vec<Process>,
    directory: TempDir,
    /// Held so that nobody else takes them.
    ports: Vec<Port>,
    owner: Option<Owner>,
}

struct Process {
    child: Child,
    log: PathBuf,
    end: Signal,
}

impl Daemons {
    /// None yet; `owner` is who they will be of, if not of who starts them.
    pub(super) fn new(owner: Option<Owner>) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("ephemeris-peer-").tempdir()?;
        // The owner must get through.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711))?;
        Ok(Self { processes: Vec::new(), directory, ports: Vec::new(), owner })
    }

    /// A port that stays free until it is used.
    pub(super) fn port(&mut self) -> SocketAddr {
        let port = Port::take();
        let address = port.address();
        self.ports.push(port);
        address
    }

    /// A directory for one of them.
    pub(super) fn directory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.directory.path().join(name);
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
        if let Some(Owner { user, group }) = self.owner {
            std::os::unix::fs::chown(&path, Some(user), Some(group))?;
        }
        Ok(path)
    }

    /// A command that runs as their owner.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Some(Owner { user, group }) = self.owner {
            command.uid(user).gid(group);
        }
        command.current_dir(self.directory.path()).env_clear().stdin(Stdio::null());
        command
    }

    /// Runs a program to its end.
    pub(super) fn run(&self, program: &Path, arguments: &[&str]) -> anyhow::Result<()> {
        let output = self.command(program).args(arguments).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", program.display(), errors.trim());
        Ok(())
    }

    /// Starts a process that goes on, and ends by `end`.
    pub(super) fn spawn(
        &mut self,
        program: &Path,
        arguments: &[&str],
        end: Signal,
    ) -> anyhow::Result<()> {
        let log = self.directory.path().join(format!("log{}.txt", self.processes.len()));
        let file = File::create(&log)?;
        let mut command = self.command(program);
        command.args(arguments).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("{}", program.display()))?;
        self.processes.push(Process { child, log, end });
        Ok(())
    }

    /// Looks again and again until there is something.
    pub(super) async fn until<T>(
        &mut self,
        what: &str,
        mut look: impl AsyncFnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let begun = clock::monotonic();
        loop {
            let error = match tokio::time::timeout(LOOK_MAX, look()).await {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(error)) => error,
                // Servers that are not ready may leave a question unanswered.
                Err(_) => anyhow!("there is no answer within {LOOK_MAX:?}"),
            };
            for process in &mut self.processes {
                ensure!(!process.has_ended(), "it ended before {what}:\n{}", process.log());
            }
            if begun.elapsed() > READY_MAX {
                let logs: Vec<String> = self.processes.iter().map(Process::log).collect();
                bail!("waited in vain for {what}: {error:#}\n{}", logs.join("\n"));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Their process numbers.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.processes.iter().map(|process| process.child.id()).collect()
    }
}

impl Process {
    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(id) = id.filter(|_| !self.has_ended()) {
            // It may have ended by itself; either way nothing is left behind.
            let _ = kill_process(id, self.end);
        }
        let begun = clock::monotonic();
        while !self.has_ended() && begun.elapsed() < END_MAX {
            std::thread::sleep(LOOK_EVERY / 10);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_or_named() {
        assert!(find("sh").is_ok());
        assert_eq!(find("no-such-server").unwrap_err().to_string(), "there is no no-such-server");
    }

    #[test]
    fn an_account_has_numbers() {
        let root = Owner::named("root").unwrap();
        assert_eq!((root.user, root.group), (0, 0));
        assert!(Owner::named("nobody here").is_err());
    }

    #[tokio::test]
    async fn a_process_that_ends_ends_the_wait() {
        let mut daemons = Daemons::new(None).unwrap();
        daemons.spawn(&find("sh").unwrap(), &["-c", "echo why; exit 1"], Signal::KILL).unwrap();
        let waited = daemons.until("the moon", async || -> anyhow::Result<()> { bail!("not yet") });
        let error = waited.await.unwrap_err().to_string();
        assert!(error.contains("why"), "{error}");
    }

    #[test]
    fn processes_end_with_the_value() {
        let mut daemons = Daemons::new(None).unwrap();
        daemons.spawn(&find("sleep").unwrap(), &["1000"], Signal::KILL).unwrap();
        let id = daemons.ids()[0];
        drop(daemons);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }
}
