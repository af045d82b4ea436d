//! One node: a process, its data directory and its log.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::Resource::Nofile;
use rustix::process::{Pid, Rlimit, Signal, getrlimit, kill_process, prlimit};

use super::disk::Disk;
use super::node::{Node, Resource};
use super::ports::Port;

/// More than a node ever logs in a test.
const LOG_BYTES_MAX: u64 = 256 << 20;

/// A node that may be running.
#[derive(Debug)]
pub(super) struct Process {
    /// The node's directory: its data and its log.
    directory: PathBuf,
    /// A disk of its own for its data, if it has one.
    disk: Option<Disk>,
    http: Port,
    peer: Port,
    program: Program,
    /// What it is started with, beside its own addresses.
    arguments: Vec<String>,
    child: Option<Child>,
    /// Most descriptors it may have, if not as many as this process.
    descriptors_max: Option<u64>,
}

impl Process {
    pub(super) fn new(directory: PathBuf, http: Port, peer: Port) -> Self {
        fs::create_dir_all(&directory).expect("the temporary directory is writable");
        let (program, arguments) = (Program::Ephemeris, Vec::new());
        let (disk, child, descriptors_max) = (None, None, None);
        Self { directory, disk, http, peer, program, arguments, child, descriptors_max }
    }

    /// Makes a disk for its data. Needs root.
    pub(super) fn make_disk(&self) -> anyhow::Result<Disk> {
        Disk::make(&self.directory.join("disk"))
    }

    /// Lets it keep its data there, from its first start on.
    pub(super) fn set_disk(&mut self, disk: Disk) {
        assert!(!self.data().exists(), "the node was never started");
        self.disk = Some(disk);
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer.address()
    }

    pub(super) fn set_arguments(&mut self, arguments: Vec<String>) {
        self.arguments = arguments;
    }

    /// Runs the node on a machine that lies as it is told, from its next start on.
    pub(super) fn set_faulty(&mut self) {
        self.program = Program::Faulty;
    }

    /// Runs the node from another executable, from its next start on.
    pub(super) fn set_binary(&mut self, binary: &Path) {
        self.program = Program::Other(binary.to_path_buf());
    }

    /// Says what is wrong with the machine, in JSON: see `ephemeris-faulty`. One that runs needs a moment until it
    /// `has_seen_faults`.
    pub(super) fn set_faults(&self, faults: &str) {
        assert!(self.program == Program::Faulty, "the machine can lie");
        // Nobody reads half of it.
        let new = self.directory.join("faults.new");
        fs::write(&new, faults).expect("the temporary directory is writable");
        fs::rename(new, self.faults_file()).expect("a file can be renamed");
    }

    /// True once the machine lies as it was told last, which takes a node that runs.
    pub(super) fn has_seen_faults(&self) -> bool {
        let told = fs::read(self.faults_file()).expect("somebody has told it");
        fs::read(self.directory.join("faults.seen")).is_ok_and(|seen| seen == told)
    }

    fn faults_file(&self) -> PathBuf {
        self.directory.join("faults.json")
    }

    /// Below a disk, not where it is mounted: that could not be removed.
    pub(super) fn data(&self) -> PathBuf {
        self.disk.as_ref().map_or(self.directory.as_path(), Disk::path).join("data")
    }

    fn log_file(&self) -> PathBuf {
        self.directory.join("log.txt")
    }

    /// The process number.
    pub(super) fn id(&self) -> u32 {
        self.child.as_ref().expect("the node is running").id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("our own child can be signalled");
    }

    fn pid(&self) -> Pid {
        pid(self.child.as_ref().expect("the node is running"))
    }

    /// From its next start on it may have so many files and connections open.
    pub(super) fn set_descriptors_max(&mut self, most: u64) {
        self.descriptors_max = Some(most);
    }

    /// How many it may have open from now on.
    fn limit_descriptors(&self, current: Option<u64>) {
        let maximum = getrlimit(Nofile).maximum;
        let limit = Rlimit { current, maximum };
        prlimit(Some(self.pid()), Nofile, limit).expect("our own child can be limited");
    }

    /// Ends it at once, if it has not ended, and tells how it did.
    fn end(&mut self) -> Option<ExitStatus> {
        let mut child = self.child.take()?;
        child.kill().expect("our own child can be killed");
        Some(child.wait().expect("our own child can be waited for"))
    }

    /// Throws all data away.
    pub(super) fn wipe(&self) {
        assert!(self.child.is_none(), "the node is not running");
        fs::remove_dir_all(self.data()).expect("the data directory can be removed");
    }
}

impl Node for Process {
    fn http(&self) -> SocketAddr {
        self.http.address()
    }

    fn start(&mut self) {
        assert!(self.child.is_none(), "the node is not running");
        let log = OpenOptions::new().create(true).append(true).open(self.log_file());
        let log = log.expect("the log file can be opened");
        let errors = log.try_clone().expect("a file handle can be copied");
        let mut command = match self.descriptors_max {
            None => command(&self.program),
            Some(most) => limited(&self.program, most),
        };
        command.env("EPHEMERIS_FAULTS", self.faults_file());
        command.args(&self.arguments);
        command.arg("--http").arg(self.http().to_string());
        command.arg("--data-dir").arg(self.data());
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.child = Some(command.spawn().expect("the binary can be executed"));
    }

    fn is_running(&self) -> bool {
        self.child.is_some()
    }

    fn kill(&mut self) {
        if let Some(status) = self.end() {
            let is_killed = status.signal() == Some(Signal::KILL.as_raw());
            assert!(is_killed, "the node had ended by itself: {status}");
        }
    }

    fn kill_without_power(&mut self) {
        self.end();
    }

    fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn pause(&self) {
        self.signal(Signal::STOP);
    }

    fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        let child = self.child.as_mut().expect("the node was running");
        let status = child.try_wait().expect("our own child can be waited for")?;
        self.child = None;
        Some(status)
    }

    fn log(&self) -> String {
        let mut bytes = Vec::new();
        if let Ok(file) = File::open(self.log_file()) {
            // A test may have put a device there that never ends.
            let _ = file.take(LOG_BYTES_MAX).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    fn hold_for_power_loss(&self) -> Option<u32> {
        Some(self.id())
    }

    fn exhaust(&mut self, resource: Resource) {
        match resource {
            Resource::Disk => self.set_faults(r#"{ "log": "full" }"#),
            Resource::Memory | Resource::Processor => panic!("a process has no limit of its own"),
            Resource::Descriptors => self.limit_descriptors(Some(0)),
        }
    }

    fn relieve(&mut self, resource: Resource) {
        match resource {
            Resource::Disk => self.set_faults("{}"),
            Resource::Memory | Resource::Processor => panic!("a process has no limit of its own"),
            // With its end the limit was gone.
            Resource::Descriptors if self.child.is_none() => {}
            Resource::Descriptors => self.limit_descriptors(getrlimit(Nofile).maximum),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // It may have ended by itself; either way nothing is left behind. What a node counts for a profile
        // (`.ci/profile`) is written only when it ends in order.
        let _ = match env::var_os("LLVM_PROFILE_FILE") {
            Some(_) => kill_process(pid(&child), Signal::TERM).map_err(Into::into),
            None => child.kill(),
        };
        let _ = child.wait();
    }
}

fn pid(child: &Child) -> Pid {
    let id = i32::try_from(child.id()).expect("process numbers are small");
    Pid::from_raw(id).expect("process numbers are not zero")
}

/// Runs the program with other arguments, to its end.
pub(super) fn run(arguments: &[&str]) -> Output {
    command(&Program::Ephemeris).args(arguments).output().expect("the binary can be executed")
}

/// What a node is a process of.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Program {
    Ephemeris,
    /// The same, on a machine that lies.
    Faulty,
    /// Another build.
    Other(PathBuf),
}

impl Program {
    fn path(&self) -> PathBuf {
        match self {
            Program::Ephemeris => binary(),
            Program::Faulty => binary().with_file_name("ephemeris-faulty"),
            Program::Other(path) => path.clone(),
        }
    }
}

fn command(program: &Program) -> Command {
    without_settings(Command::new(program.path()))
}

/// The program, which may have so many files and connections open.
fn limited(program: &Program, most: u64) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -n {most} && exec \"$0\" \"$@\"")).arg(program.path());
    without_settings(shell)
}

/// A command without settings that the developer's own environment may hold.
fn without_settings(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EPHEMERIS_") {
            command.env_remove(name);
        }
    }
    command
}

/// Where the program is: `EPHEMERIS_BIN`, or what `cargo build` left beside this executable.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("EPHEMERIS_BIN") {
        let path = PathBuf::from(path);
        assert!(path.is_file(), "EPHEMERIS_BIN is {}, which is no file", path.display());
        return path;
    }
    let me = std::env::current_exe().expect("a process knows its executable");
    let beside = me.ancestors().skip(1).take(2).map(|directory| directory.join("ephemeris"));
    match beside.into_iter().find(|path| path.is_file()) {
        Some(path) => path,
        None => panic!("{}", missing(&me)),
    }
}

fn missing(me: &Path) -> String {
    format!(
        "there is no ephemeris binary near {}. Run `cargo build -p ephemeris-node` first, or set \
         EPHEMERIS_BIN to its path",
        me.display()
    )
}
