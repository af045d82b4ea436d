//! The program as users start it: help that teaches, and refusals that say what to do next.

use std::process::{Command, Output};

fn ephemeris(args: &[&str], environment: &[(&str, &str)]) -> Output {
    let directory = tempfile::tempdir().expect("a temporary directory");
    Command::new(env!("CARGO_BIN_EXE_ephemeris"))
        .args(args)
        .env_clear()
        .envs(environment.iter().copied())
        .current_dir(directory.path())
        .output()
        .expect("the program starts")
}

/// Runs what must be refused, and returns what it says.
fn refusal(args: &[&str], environment: &[(&str, &str)]) -> String {
    let output = ephemeris(args, environment);
    assert!(!output.status.success(), "{args:?} must be refused");
    String::from_utf8(output.stderr).expect("messages are text")
}

#[test]
fn help_shows_the_first_steps() {
    let output = ephemeris(&["--help"], &[]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).expect("help is text");
    for part in ["start-single-node", "status", "healthcheck", "EPHEMERIS_DATA_DIR", "First steps"]
    {
        assert!(help.contains(part), "help tells of {part}:\n{help}");
    }
    let output = ephemeris(&["start", "--help"], &[]);
    let help = String::from_utf8(output.stdout).expect("help is text");
    for flag in ["--node-id", "--data-dir", "--http", "--peer", "--cluster", "--advertise"] {
        assert!(help.contains(flag), "help tells of {flag}:\n{help}");
    }
}

#[test]
fn the_emulator_key_is_refused_where_others_can_reach_the_node() {
    let message = refusal(&["start-single-node", "--http", "0.0.0.0:0"], &[]);
    for remedy in ["EPHEMERIS_KEY", "--key-file", "--allow-emulator-key"] {
        assert!(message.contains(remedy), "the message names {remedy}: {message}");
    }
}

#[test]
fn a_key_by_flag_wins_over_the_environment_and_a_file_that_holds_none_is_named() {
    let environment = [("EPHEMERIS_KEY", "not base64!")];
    let status = |args: &[&str], environment: &[(&str, &str)]| {
        refusal(&[&["status", "--http", "http://127.0.0.1:9"], args].concat(), environment)
    };
    assert!(status(&[], &environment).contains("the account key is not base64"));
    let message = status(&["--key-file", "/nowhere/key"], &environment);
    assert!(message.contains("/nowhere/key"), "{message}");
    let message = status(&["--key", "AAAA"], &[("EPHEMERIS_KEY_FILE", "/nowhere/key")]);
    assert!(message.contains("no answer from"), "{message}");
    let both = [("EPHEMERIS_KEY", "AAAA"), ("EPHEMERIS_KEY_FILE", "/nowhere/key")];
    assert!(status(&[], &both).contains("both set"));
    let empty = tempfile::NamedTempFile::new().expect("a temporary file");
    let empty = empty.path().to_str().expect("text");
    for args in [["status", "--key-file", empty], ["start-single-node", "--key-file", empty]] {
        let message = refusal(&args, &[]);
        assert!(message.contains(empty) && message.contains("empty"), "{message}");
    }
}

#[test]
fn a_node_of_a_cluster_says_what_it_is_missing() {
    assert!(refusal(&["start"], &[]).contains("--node-id"));
    assert!(refusal(&["start", "--node-id", "1"], &[]).contains("--peer"));
    let peer = ["start", "--node-id", "4", "--peer", "127.0.0.1:0"];
    assert!(refusal(&peer, &[]).contains("--cluster"));
    let cluster = [&peer[..], &["--cluster", "1=a:7000,2=b:7000,3=c:7000"]].concat();
    assert!(refusal(&cluster, &[]).contains("node 4 is not in --cluster"));
}

#[test]
fn settings_that_cannot_be_used_are_named() {
    let single = |flag: &str, value: &str| refusal(&["start-single-node", flag, value], &[]);
    assert!(single("--http", "nowhere").contains("--http"));
    assert!(single("--config", "no-such-file.toml").contains("no-such-file.toml"));
    assert!(single("--key", "###").contains("base64"));
    let message = refusal(&["start-single-node"], &[("EPHEMERIS_PEER", "127.0.0.1:7000")]);
    assert!(
        message.contains("EPHEMERIS_PEER") && message.contains("`ephemeris start`"),
        "{message}"
    );
    let message = refusal(&["start-single-node"], &[("EPHEMERIS_REQUEST_TIMEOUT_MS", "soon")]);
    assert!(message.to_lowercase().contains("request_timeout_ms"), "{message}");
}

#[test]
fn a_reason_not_to_start_is_told_once_in_one_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().expect("it is bound").to_string();
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let file = file.path().display().to_string();
    let http = ["start-single-node", "--http", &taken];
    let data = ["start-single-node", "--http", "127.0.0.1:0", "--data-dir", &file];
    for (args, names) in [(&http[..], &taken), (&data[..], &file)] {
        let message = refusal(args, &[]);
        let told: Vec<_> = message.lines().filter(|line| line.contains(names)).collect();
        let [line] = told[..] else { panic!("told in one line: {message}") };
        assert!(line.starts_with("ephemeris: "), "{line}");
        assert_eq!(line.matches("(os error").count(), 1, "told once: {line}");
        let message = refusal(&[args, &["--log-format", "json"]].concat(), &[]);
        for line in message.lines() {
            serde_json::from_str::<serde_json::Value>(line).expect("every line is JSON");
        }
        assert!(message.contains(names), "{message}");
    }
}

#[test]
fn a_node_that_is_not_there_is_unhealthy() {
    let output = ephemeris(&["healthcheck", "--http", "http://127.0.0.1:1"], &[]);
    assert_eq!(output.status.code(), Some(1));
}
