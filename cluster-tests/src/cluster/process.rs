//! One node: a process, its data directory and its log.

use std::fs::{self, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::node::{Node, Resource};
use super::ports::Port;

/// A node that may be running.
#[derive(Debug)]
pub(super) struct Process {
    /// The node's directory: its data and its log.
    directory: PathBuf,
    http: Port,
    peer: Port,
    program: Program,
    /// What it is started with, beside its own addresses.
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Process {
    pub(super) fn new(directory: PathBuf, http: Port, peer: Port) -> Self {
        fs::create_dir_all(&directory).expect("the temporary directory is writable");
        let (program, arguments) = (Program::Ephemeris, Vec::new());
        Self { directory, http, peer, program, arguments, child: None }
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

    /// Says what is wrong with the machine, in JSON: see `ephemeris-faulty`.
    pub(super) fn set_faults(&self, faults: &str) {
        assert!(self.program == Program::Faulty, "the machine can lie");
        // Nobody reads half of it.
        let new = self.directory.join("faults.new");
        fs::write(&new, faults).expect("the temporary directory is writable");
        fs::rename(new, self.faults_file()).expect("a file can be renamed");
    }

    fn faults_file(&self) -> PathBuf {
        self.directory.join("faults.json")
    }

    pub(super) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn log_file(&self) -> PathBuf {
        self.directory.join("log.txt")
    }

    /// The process number.
    pub(super) fn id(&self) -> u32 {
        self.child.as_ref().expect("the node is running").id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.id()).expect("process numbers are small");
        let id = Pid::from_raw(id).expect("process numbers are not zero");
        kill_process(id, signal).expect("our own child can be signalled");
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
        let mut command = command(self.program);
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
        if let Some(mut child) = self.child.take() {
            child.kill().expect("our own child can be killed");
            child.wait().expect("our own child can be waited for");
        }
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
        let bytes = fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn exhaust(&mut self, resource: Resource) {
        match resource {
            Resource::Disk => self.set_faults(r#"{ "log": "full" }"#),
            Resource::Memory => panic!("a process has no limit of its own"),
        }
    }

    fn relieve(&mut self, _resource: Resource) {
        self.set_faults("{}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself; either way nothing is left behind.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the program with other arguments, to its end.
pub(super) fn run(arguments: &[&str]) -> Output {
    command(Program::Ephemeris).args(arguments).output().expect("the binary can be executed")
}

/// What a node is a process of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Ephemeris,
    /// The same, on a machine that lies.
    Faulty,
}

/// The program, without settings that the developer's own environment may hold.
fn command(program: Program) -> Command {
    let mut command = Command::new(match program {
        Program::Ephemeris => binary(),
        Program::Faulty => binary().with_file_name("ephemeris-faulty"),
    });
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EPHEMERIS_") {
            command.env_remove(name);
        }
    }
    command
}

/// Where the program is: `EPHEMERIS_BIN`, or what `cargo build` left beside this executable.
fn binary() -> PathBuf {
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
