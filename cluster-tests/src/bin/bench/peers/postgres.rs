//! `PostgreSQL`: a primary and two standbys, a table of documents (`jsonb`) by id.
//!
//! A create is answered once the primary and one of the standbys have synced it (`synchronous_commit = on`,
//! `synchronous_standby_names = 'ANY 1 (…)'`). A read is what the primary has, whether or not it still is
//! the primary. Statements are prepared once for each connection, which is a process of the primary.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use ephemeris_cluster_tests::load::{Wire, WireError};
use rustix::process::{Signal, geteuid};

use super::Started;
use super::daemon::{Daemons, Owner, find, version};
use super::requests::Dialect;
use super::stream::Stream;

/// Standbys beside the primary.
const STANDBYS: usize = 2;
/// The account that makes the database, and its name.
const USER: &str = "bench";
/// Who its processes are of, where this one is root: `PostgreSQL` refuses to be.
const OWNER: &str = "postgres";
/// The version of its protocol: 3.0.
const PROTOCOL: i32 = 3 << 16;
/// The statements each connection prepares.
const CREATE: &str = "INSERT INTO items VALUES ($1, $2)";
const READ: &str = "SELECT body FROM items WHERE id = $1";

/// Starts a primary and its standbys, and makes the table.
pub(super) async fn start() -> anyhow::Result<Started<Postgres>> {
    let owner = if geteuid().is_root() { Some(Owner::named(OWNER)?) } else { None };
    let programs = Programs::find()?;
    let mut daemons = Daemons::new(owner)?;
    let primary = daemons.port();
    let directory = daemons.directory("primary")?;
    let (data, user) = (directory.display().to_string(), format!("--username={USER}"));
    daemons.run(&programs.initdb, &["-D", &data, &user, "--auth=trust", "--encoding=UTF8"])?;
    configure(&directory, primary, "wal_level = replica")?;
    daemons.spawn(&programs.postgres, &["-D", &data], Signal::QUIT)?;
    daemons.until("PostgreSQL's primary", async || run(primary, "SELECT 1").await).await?;
    let names: Vec<String> = (1..=STANDBYS).map(|number| format!("s{number}")).collect();
    for name in &names {
        let address = daemons.port();
        let directory = daemons.directory(name)?;
        let data = directory.display().to_string();
        let (port, user) = (primary.port().to_string(), format!("--username={USER}"));
        let from = ["-D", &data, "-h", "127.0.0.1", "-p", &port, &user, "--checkpoint=fast"];
        daemons.run(&programs.basebackup, &from)?;
        let connection = format!(
            "primary_conninfo = 'host=127.0.0.1 port={port} user={USER} application_name={name}'"
        );
        configure(&directory, address, &connection)?;
        std::fs::write(directory.join("standby.signal"), "")?;
        daemons.spawn(&programs.postgres, &["-D", &data], Signal::QUIT)?;
    }
    let synchronous = format!("synchronous_standby_names = 'ANY 1 ({})'", names.join(", "));
    append(&directory, &synchronous)?;
    run(primary, "SELECT pg_reload_conf()").await?;
    let online = "DO $$ BEGIN ASSERT (SELECT count(*) = 2 FROM pg_stat_replication \
                  WHERE state = 'streaming' AND sync_state = 'quorum'); END $$";
    daemons.until("PostgreSQL's standbys", async || run(primary, online).await).await?;
    run(primary, "CREATE TABLE items (id text PRIMARY KEY, body jsonb NOT NULL)").await?;
    Ok(Started {
        daemons,
        dialect: Postgres,
        target: primary,
        version: version(&programs.postgres, "--version")?,
        promise: "a primary and one of two standbys sync every create; reads are the primary's"
            .to_string(),
    })
}

struct Programs {
    postgres: PathBuf,
    initdb: PathBuf,
    basebackup: PathBuf,
}

impl Programs {
    fn find() -> anyhow::Result<Self> {
        // They stand beside each other; the one found may be a link.
        let postgres = std::fs::canonicalize(find("postgres")?)?;
        let beside = |name| postgres.with_file_name(name);
        Ok(Self { initdb: beside("initdb"), basebackup: beside("pg_basebackup"), postgres })
    }
}

/// What a primary or a standby has beside its defaults.
fn configure(directory: &Path, address: SocketAddr, more: &str) -> anyhow::Result<()> {
    let (host, port) = (address.ip(), address.port());
    append(
        directory,
        &format!(
            "listen_addresses = '{host}'\nport = {port}\nunix_socket_directories = ''\n\
             max_connections = 400\nfsync = on\nsynchronous_commit = on\nhot_standby = on\n\
             max_wal_size = 4GB\nsynchronous_standby_names = ''\n{more}"
        ),
    )
}

fn append(directory: &Path, lines: &str) -> anyhow::Result<()> {
    let file = directory.join("postgresql.conf");
    let mut file = std::fs::OpenOptions::new().append(true).open(file)?;
    writeln!(file, "{lines}")?;
    Ok(())
}

/// Runs a statement whose rows nobody wants.
async fn run(address: SocketAddr, statement: &str) -> anyhow::Result<()> {
    let mut session = Session::connect(address).await?;
    let mut request = Vec::new();
    message(b'Q', &[statement.as_bytes(), b"\0"], &mut request);
    let answer = session.ask(&request).await?;
    ensure!(answer.error.is_none(), "{statement}: {}", answer.error.unwrap_or_default());
    Ok(())
}

/// Requests by the extended protocol.
#[derive(Clone)]
pub(super) struct Postgres;

impl Dialect for Postgres {
    type Wire = Session;

    fn create(&self, id: &str, item: &str, to: &mut Vec<u8>) {
        execute("create", &[id, item], to);
    }

    fn read(&self, id: &str, to: &mut Vec<u8>) {
        execute("read", &[id], to);
    }
}

/// Binds a prepared statement's parameters, runs it, and wants an end of the answer.
fn execute(statement: &str, parameters: &[&str], to: &mut Vec<u8>) {
    let mut bind = Vec::with_capacity(2 << 10);
    bind.extend_from_slice(b"\0");
    bind.extend_from_slice(statement.as_bytes());
    // All parameters are text.
    bind.extend_from_slice(b"\0\0\0");
    bind.extend_from_slice(&count(parameters.len()));
    for parameter in parameters {
        bind.extend_from_slice(&length(parameter.len()));
        bind.extend_from_slice(parameter.as_bytes());
    }
    // And so are all columns.
    bind.extend_from_slice(b"\0\0");
    message(b'B', &[&bind], to);
    message(b'E', &[b"\0\0\0\0\0"], to);
    message(b'S', &[], to);
}

fn message(kind: u8, parts: &[&[u8]], to: &mut Vec<u8>) {
    to.push(kind);
    to.extend_from_slice(&length(4 + parts.iter().map(|part| part.len()).sum::<usize>()));
    for part in parts {
        to.extend_from_slice(part);
    }
}

fn length(bytes: usize) -> [u8; 4] {
    i32::try_from(bytes).expect("messages are short").to_be_bytes()
}

fn count(things: usize) -> [u8; 2] {
    i16::try_from(things).expect("there are few").to_be_bytes()
}

/// A connection.
pub(super) struct Session(Stream);

/// What came until the server was ready for the next request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    rows: usize,
    /// What was done, as `INSERT 0 1`.
    done: String,
    error: Option<String>,
}

impl Session {
    async fn connect(address: SocketAddr) -> Result<Self, WireError> {
        let mut stream = Stream::open(address).await?;
        let mut hello = PROTOCOL.to_be_bytes().to_vec();
        hello.extend_from_slice(format!("user\0{USER}\0database\0postgres\0\0").as_bytes());
        let mut request = length(4 + hello.len()).to_vec();
        request.extend_from_slice(&hello);
        stream.send(&request).await?;
        let mut session = Self(stream);
        match session.receive().await?.error {
            None => Ok(session),
            Some(_) => Err(WireError::Malformed("the server lets nobody in")),
        }
    }

    async fn ask(&mut self, request: &[u8]) -> Result<Answer, WireError> {
        self.0.send(request).await?;
        self.receive().await
    }

    async fn receive(&mut self) -> Result<Answer, WireError> {
        self.0.receive(answer).await
    }
}

impl Wire for Session {
    async fn open(address: SocketAddr) -> Result<Self, WireError> {
        let mut session = Self::connect(address).await?;
        let mut request = Vec::new();
        for (name, text) in [("create", CREATE), ("read", READ)] {
            let parts = [name, "\0", text, "\0\0\0"].map(str::as_bytes);
            message(b'P', &parts, &mut request);
        }
        message(b'S', &[], &mut request);
        match session.ask(&request).await?.error {
            None => Ok(session),
            Some(_) => Err(WireError::Malformed("the statements cannot be prepared")),
        }
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<u16, WireError> {
        Ok(status(&self.ask(request).await?))
    }
}

fn status(answer: &Answer) -> u16 {
    match (&answer.error, answer.done.as_str()) {
        (Some(_), _) => 500,
        (None, "INSERT 0 1") => 201,
        (None, "SELECT 1") => 200,
        (None, _) => 404,
    }
}

/// Messages up to the one that says the server is ready, and the bytes they take. While it greets, an
/// error is the end.
fn answer(bytes: &[u8]) -> Option<(Answer, usize)> {
    let (mut answer, mut at) = (Answer::default(), 0);
    loop {
        let head = bytes.get(at..at + 5)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let body = bytes.get(at + 5..at + 1 + length)?;
        at += 1 + length;
        let text = || String::from_utf8_lossy(body).replace('\0', " ").trim().to_string();
        match head[0] {
            b'Z' => return Some((answer, at)),
            b'D' => answer.rows += 1,
            b'C' => answer.done = text(),
            b'E' => answer.error = Some(text()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_until_the_server_is_ready() {
        let mut bytes = Vec::new();
        message(b'2', &[], &mut bytes);
        message(b'D', &[b"row"], &mut bytes);
        message(b'C', &[b"SELECT 1\0"], &mut bytes);
        assert_eq!(answer(&bytes), None);
        message(b'Z', &[b"I"], &mut bytes);
        let (found, used) = answer(&bytes).unwrap();
        assert_eq!((status(&found), found.rows, used), (200, 1, bytes.len()));
    }

    #[test]
    fn an_error_is_no_good_answer() {
        let mut bytes = Vec::new();
        message(b'E', &[b"SERROR\0C23505\0\0"], &mut bytes);
        message(b'Z', &[b"I"], &mut bytes);
        assert_eq!(status(&answer(&bytes).unwrap().0), 500);
    }

    #[test]
    fn a_request_binds_runs_and_ends() {
        let mut bytes = Vec::new();
        Postgres.read("ab", &mut bytes);
        let bind = b"B\0\0\0\x16\0read\0\0\0\0\x01\0\0\0\x02ab\0\0";
        assert!(bytes.starts_with(bind), "{bytes:?}");
        assert!(bytes.ends_with(b"S\0\0\0\x04"));
    }
}
