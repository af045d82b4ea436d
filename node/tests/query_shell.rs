//! `ephemeris query` against a node, as scripts use it: rows on standard output, all else on
//! standard error, and an exit code that tells.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a node may take to be ready.
const READY_DEADLINE: Duration = Duration::from_secs(30);
/// How often it is started, if it ends by itself.
const STARTS_MAX: usize = 3;

/// A node with an empty directory; gone when the test is over.
struct Node {
    process: Child,
    url: String,
    _data: TempDir,
}

impl Node {
    fn start() -> Self {
        // Somebody may take the port before the node does.
        (0..STARTS_MAX).find_map(|_| Self::try_start()).expect("the node starts")
    }

    /// None if it ended by itself.
    fn try_start() -> Option<Self> {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("it is bound").to_string();
        drop(free);
        let data = tempfile::tempdir().expect("a temporary directory");
        let process = command(&["start-single-node", "--http", &address, "--data-dir", "."])
            .current_dir(data.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut node = Self { process, url: format!("http://{address}"), _data: data };
        let started = Instant::now();
        while !node.ephemeris(&["healthcheck"]).status.success() {
            if node.process.try_wait().expect("it is our own").is_some() {
                return None;
            }
            assert!(started.elapsed() < READY_DEADLINE, "the node becomes ready");
        }
        // Another node may have answered.
        node.process.try_wait().expect("it is our own").is_none().then_some(node)
    }

    /// A node with two items in shop/carts.
    fn with_carts() -> Self {
        let node = Self::start();
        node.post("/dbs", r#"{"id":"shop"}"#, &[]);
        let container = r#"{"id":"carts","partitionKey":{"paths":["/pk"],"kind":"Hash"}}"#;
        node.post("/dbs/shop/colls", container, &[]);
        for item in [r#"{"id":"a","pk":"k","total":5}"#, r#"{"id":"b","pk":"k","total":7.5}"#] {
            let key = ["--header", r#"x-ms-documentdb-partitionkey: ["k"]"#];
            node.post("/dbs/shop/colls/carts/docs", item, &key);
        }
        node
    }

    fn post(&self, path: &str, body: &str, more: &[&str]) {
        let output = self.ephemeris(&[&["request", "POST", path, "--body", body], more].concat());
        assert!(output.status.success(), "{path}: {}", shown(&output));
    }

    fn ephemeris(&self, args: &[&str]) -> Output {
        command(args).env("EPHEMERIS_URL", &self.url).output().expect("the program starts")
    }

    /// `ephemeris query` in shop/carts.
    fn query(&self, args: &[&str]) -> Output {
        self.ephemeris(&[&["query", "-d", "shop", "-c", "carts"], args].concat())
    }

    /// `ephemeris query` with statements on standard input.
    fn read(&self, statements: &str) -> Output {
        let mut process = command(&["query"])
            .env("EPHEMERIS_URL", &self.url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut input = process.stdin.take().expect("it is piped");
        input.write_all(statements.as_bytes()).expect("the program reads");
        drop(input);
        process.wait_with_output().expect("the program ends")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ephemeris"));
    command.args(args).env_clear();
    command
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", shown(output));
    String::from_utf8(output.stdout.clone()).expect("rows are text")
}

fn shown(output: &Output) -> String {
    let [out, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{}\n{out}{errors}", output.status)
}

#[test]
fn rows_are_lines_of_json_and_the_cost_stands_elsewhere() {
    let node = Node::with_carts();
    let output = node.query(&["SELECT c.id, c.total FROM c ORDER BY c.total DESC"]);
    assert_eq!(out(&output), "{\"id\":\"b\",\"total\":7.5}\n{\"id\":\"a\",\"total\":5}\n");
    let summary = String::from_utf8_lossy(&output.stderr).to_string();
    assert!(summary.starts_with("2 rows, ") && summary.contains(" RU, "), "{summary}");
}

#[test]
fn rows_can_be_a_table() {
    let node = Node::with_carts();
    let output = node.query(&["--mode", "table", "SELECT c.id, c.total FROM c ORDER BY c.total"]);
    let expected = "\
┌────┬───────┐
│ id ┆ total │
╞════╪═══════╡
│ a  ┆     5 │
│ b  ┆   7.5 │
└────┴───────┘
";
    assert_eq!(out(&output), expected);
}

#[test]
fn statements_and_commands_come_from_standard_input() {
    let node = Node::with_carts();
    let output = node.read(
        ".databases\n.use shop\n.containers\n.use shop carts\n\
         SELECT VALUE c.id\nFROM c -- ; not here\nORDER BY c.id;\n\n\
         .limit 1\nSELECT VALUE c.total FROM c ORDER BY c.total\n\n.quit\nSELECT nonsense",
    );
    assert_eq!(out(&output), "shop\ncarts\n\"a\"\n\"b\"\n5\n");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("raise the limit"),
        "{}",
        shown(&output)
    );
}

#[test]
fn a_wrong_query_is_shown_where_it_is_wrong_and_ends_the_script() {
    let node = Node::with_carts();
    let output = node.query(&["SELECT VALUE 1 FROM c; SELECT * FORM c; SELECT VALUE 2 FROM c"]);
    assert_eq!(output.status.code(), Some(1), "{}", shown(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n1\n");
    let errors = String::from_utf8_lossy(&output.stderr).to_string();
    assert!(errors.contains("SC1001") && errors.contains("  SELECT * FORM c\n"), "{errors}");
    assert!(errors.contains("\n           ^^^^"), "{errors}");
}

#[test]
fn what_is_missing_is_named_with_a_remedy() {
    let node = Node::with_carts();
    let refusal = |args: &[&str]| {
        let output = node.ephemeris(&[&["query"], args].concat());
        assert_eq!(output.status.code().unwrap_or_default().min(1), 1, "{}", shown(&output));
        String::from_utf8_lossy(&output.stderr).to_string()
    };
    assert!(refusal(&["SELECT VALUE 1 FROM c"]).contains("--database"));
    assert!(refusal(&["-c", "carts", "SELECT VALUE 1 FROM c"]).contains("--database"));
    assert!(refusal(&[".containers"]).contains(".use"));
    assert!(refusal(&[".drop"]).contains(".help"));
    assert!(refusal(&[".use nowhere"]).to_lowercase().contains("not found"));
    assert!(refusal(&["--limit", "0", "SELECT"]).contains("limit"));
    let elsewhere = ["--http", "http://127.0.0.1:1", ".databases"];
    assert!(refusal(&elsewhere).contains("is a node running there?"));
}

#[test]
fn help_teaches() {
    let output = command(&["query", "--help"]).output().expect("the program starts");
    let help = out(&output);
    for part in ["Examples:", "--database", ".use shop carts", "semicolon", "--limit"] {
        assert!(help.contains(part), "help tells of {part}:\n{help}");
    }
}
