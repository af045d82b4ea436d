//! Reads the source and keeps the walls between the crates that `docs/ARCHITECTURE.md` draws.

use std::fs;
use std::path::{Path, PathBuf};

/// A rule about tokens: where it holds, what must not stand there.
struct Wall {
    why: &'static str,
    /// Paths it holds for, by their beginning; all if there is none.
    within: &'static [&'static str],
    /// Paths it does not hold for, by their beginning.
    except: &'static [&'static str],
    /// Code that must not be there, as sequences of tokens.
    forbidden: &'static [&'static str],
}

const SOURCES: &[&str] = &["store/src/", "raft/src/", "node/src/", "cluster-tests/src/"];

const WALLS: &[Wall] = &[
    Wall {
        why: "store computes: it awaits nothing, reads no clock, draws nothing at random",
        within: &["store/src/"],
        except: &[],
        forbidden: &[
            "tokio",
            "rand",
            "SystemTime",
            "Instant",
            ". await",
            "std :: net",
            "futures_util",
        ],
    },
    Wall {
        why: "openraft is named in raft alone",
        within: &[],
        except: &["raft/"],
        forbidden: &["openraft"],
    },
    Wall {
        why: "the storage engine is named in store::engine alone",
        within: &[],
        except: &["store/src/engine/"],
        forbidden: &["rocksdb"],
    },
    Wall {
        why: "bincode is named in one module, store::codec",
        within: &[],
        except: &["store/src/codec.rs"],
        forbidden: &["bincode"],
    },
    Wall {
        why: "clocks are read in clock modules alone",
        within: SOURCES,
        except: &["node/src/clock/", "raft/src/clock.rs", "cluster-tests/src/clock.rs"],
        forbidden: &["SystemTime :: now", "Instant :: now", "clock_gettime"],
    },
    Wall {
        why: "whether an item exists is asked of partition::liveness alone",
        within: SOURCES,
        except: &["store/src/ttl.rs", "store/src/partition/"],
        forbidden: &["has_expired", "ttl ( ) . judge"],
    },
    Wall {
        why: "every task has an owner",
        within: SOURCES,
        except: &["node/src/supervisor.rs"],
        forbidden: &["tokio :: spawn", "task :: spawn"],
    },
    Wall {
        why: "nothing is left for later, and nothing is left out",
        within: &[],
        except: &[],
        forbidden: &["todo !", "dbg !", "unimplemented !", "# [ ignore"],
    },
];

/// A token and the line it stands in.
type Token<'a> = (usize, &'a str);

impl Wall {
    fn holds_for(&self, path: &str) -> bool {
        let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| path.starts_with(prefix));
        (self.within.is_empty() || begins(self.within)) && !begins(self.except)
    }

    /// The lines where it is broken.
    fn broken_in(&self, tokens: &[Token]) -> Vec<(usize, &'static str)> {
        let mut lines = Vec::new();
        for pattern in self.forbidden {
            let words: Vec<&str> = pattern.split(' ').collect();
            let matches = |window: &&[Token]| window.iter().map(|t| t.1).eq(words.iter().copied());
            lines.extend(tokens.windows(words.len()).filter(matches).map(|w| (w[0].0, *pattern)));
        }
        lines
    }
}

/// Replaces comments and the contents of literals by blanks; lines stay where they are.
fn code_only(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let skipped = comment_bytes(rest).or_else(|| literal_bytes(rest));
        let Some(bytes) = skipped else {
            // An identifier is copied whole, so that its last letter does not begin a raw string.
            let word =
                rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            let bytes = word.max(first.len_utf8());
            code.push_str(&rest[..bytes]);
            rest = &rest[bytes..];
            continue;
        };
        code.push(' ');
        code.extend(rest[..bytes].chars().filter(|c| *c == '\n'));
        rest = &rest[bytes..];
    }
    code
}

/// Bytes of the comment that the text begins with.
fn comment_bytes(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let (mut depth, mut at) = (0_u32, 0);
    while at < text.len() {
        match text.as_bytes().get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return Some(at);
        }
    }
    Some(text.len())
}

/// Bytes of the string or character that the text begins with.
fn literal_bytes(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r", "b", "c"].into_iter().find(|p| text.starts_with(p));
    let prefix = prefix.unwrap_or_default();
    let rest = &text[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = rest.len() - rest.trim_start_matches('#').len();
        let end = format!("\"{}", "#".repeat(hashes));
        let inside = rest[hashes..].strip_prefix('"')?;
        let length = inside.find(&end).map_or(inside.len(), |at| at + end.len());
        return Some(prefix.len() + hashes + 1 + length);
    }
    if let Some(inside) = rest.strip_prefix('"') {
        return Some(prefix.len() + 1 + closed_by(inside, b'"')?);
    }
    let inside = rest.strip_prefix('\'')?;
    let mut chars = inside.chars();
    match (chars.next()?, chars.next()?) {
        ('\\', _) => Some(prefix.len() + 1 + closed_by(inside, b'\'')?),
        (one, '\'') => Some(prefix.len() + 2 + one.len_utf8()),
        // A lifetime.
        _ => None,
    }
}

/// Bytes up to and including the closing quote, past escapes.
fn closed_by(inside: &str, quote: u8) -> Option<usize> {
    let bytes = inside.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let word =
                rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            let bytes = match word {
                0 if rest.starts_with("::") => 2,
                0 => first.len_utf8(),
                bytes => bytes,
            };
            tokens.push((number + 1, &rest[..bytes]));
            rest = rest[bytes..].trim_start();
        }
    }
    tokens
}

/// Everything wrong with one source file.
fn complaints(path: &str, source: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if !source.starts_with("//! ") {
        complaints.push(format!("{path}:1: a file opens with `//!` and why it exists"));
    }
    let code = code_only(source);
    let tokens = tokens(&code);
    for wall in WALLS.iter().filter(|wall| wall.holds_for(path)) {
        for (line, found) in wall.broken_in(&tokens) {
            let found = found.replace(' ', "");
            complaints.push(format!("{path}:{line}: `{found}`: {}", wall.why));
        }
    }
    complaints
}

/// Everything wrong with a crate's manifest.
fn manifest_complaints(path: &str, manifest: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut section = "";
    for (number, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            section = line;
        }
        let depends = section.contains("dependencies") && line.contains('=');
        if depends && !line.contains("workspace = true") {
            let why = "versions stand in the root manifest alone";
            complaints.push(format!("{path}:{}: {why}", number + 1));
        }
        let is_ours = line.starts_with("ephemeris-") || section.contains("dependencies.ephemeris-");
        if depends && path.starts_with("cluster-tests/") && is_ours {
            let why = "cluster-tests sees HTTP, and no other crate of ours";
            complaints.push(format!("{path}:{}: {why}", number + 1));
        }
    }
    complaints
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("the crate lies in the workspace").to_path_buf()
}

/// Every Rust file of the four crates that is ours, with its path below the root.
fn rust_files() -> Vec<(String, PathBuf)> {
    let root = root();
    let mut found = Vec::new();
    let mut directories: Vec<PathBuf> =
        ["store", "raft", "node", "cluster-tests"].map(|name| root.join(name)).to_vec();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("the source is readable") {
            let path = entry.expect("the source is readable").path();
            if path.ends_with("raft/vendor") {
                continue;
            }
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let shown = path.strip_prefix(&root).expect("it was found below the root");
                found.push((shown.display().to_string(), path));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn the_source_keeps_its_walls() {
    let files = rust_files();
    assert!(files.len() > 100, "only {} files were found", files.len());
    let complaints: Vec<String> = files
        .iter()
        .flat_map(|(shown, path)| {
            complaints(shown, &fs::read_to_string(path).expect("the source is readable"))
        })
        .collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn manifests_keep_their_walls() {
    for name in ["store", "raft", "node", "cluster-tests"] {
        let path = format!("{name}/Cargo.toml");
        let manifest = fs::read_to_string(root().join(&path)).expect("each crate has a manifest");
        let complaints = manifest_complaints(&path, &manifest);
        assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
    }
}

#[test]
fn every_wall_fires_on_what_it_forbids() {
    for (path, code) in [
        ("store/src/a.rs", "use tokio::time;"),
        ("store/src/a.rs", "let n: u8 = rand::random();"),
        ("store/src/a.rs", "fn f(at: std::time::SystemTime) {}"),
        ("store/src/a.rs", "fn f(at: Instant) {}"),
        ("store/src/a.rs", "async fn f() { g().await }"),
        ("store/src/a.rs", "use std::net::TcpStream;"),
        ("node/src/a.rs", "use openraft::Raft;"),
        ("store/src/query/a.rs", "rocksdb::DB::open()"),
        ("raft/src/wire.rs", "bincode::decode()"),
        ("node/src/a.rs", "let now = SystemTime::now();"),
        ("raft/src/group.rs", "let now = tokio :: time :: Instant::now();"),
        ("cluster-tests/src/a.rs", "Instant\n    ::now()"),
        ("store/src/query/a.rs", "let is_dead = ttl.has_expired(stamp.ttl, stamp.ts);"),
        ("node/src/a.rs", "match state.ttl().judge(stamp.ttl, stamp.ts, hi) {}"),
        ("node/src/a.rs", "tokio::spawn(async {});"),
        ("raft/src/a.rs", "tokio::task::spawn(async {});"),
        ("store/tests/a.rs", "todo!()"),
        ("raft/tests/a.rs", "dbg!(1)"),
        ("node/tests/a.rs", "unimplemented!(\"later\")"),
        ("cluster-tests/tests/a.rs", "#[ignore = \"slow\"]"),
        ("cluster-tests/tests/a.rs", "#[ignore]"),
    ] {
        let found = complaints(path, &format!("//! Why.\n{code}\n"));
        assert_eq!(found.len(), 1, "{path} {code}: {found:?}");
        assert!(found[0].starts_with(&format!("{path}:2")), "{found:?}");
    }
    assert_eq!(complaints("node/src/a.rs", "use std::io;\n").len(), 1, "no `//!`");
    for manifest in
        ["[dependencies]\nserde = \"1\"\n", "[dependencies]\nephemeris-raft.workspace = true\n"]
    {
        assert_eq!(manifest_complaints("cluster-tests/Cargo.toml", manifest).len(), 1);
    }
}

#[test]
fn no_wall_fires_on_what_is_allowed() {
    for (path, code) in [
        (
            "store/src/a.rs",
            "// tokio would be wrong here\n/* so /* would */ rand */ let operand = 1;",
        ),
        (
            "store/src/a.rs",
            "let text = \"tokio::spawn \\\" rand\"; let c = '\"'; let d = \"rand\";",
        ),
        (
            "store/src/a.rs",
            "let text = r#\"a \" bincode\"#; fn f<'a>(x: &'a str, rocksdb_like: u8) {}",
        ),
        ("store/src/engine/rocks.rs", "use rocksdb::DB;"),
        ("store/src/codec.rs", "bincode::decode()"),
        ("raft/src/a.rs", "use openraft::Raft;"),
        ("raft/tests/common/mod.rs", "tokio::spawn(f()); let now = Instant::now();"),
        ("node/src/clock/mod.rs", "SystemTime::now()"),
        ("node/src/a.rs", "tasks.spawn(\"name\", async {}); std::thread::spawn(f);"),
    ] {
        let found = complaints(path, &format!("//! Why.\n{code}\n"));
        assert!(found.is_empty(), "{found:?}");
    }
}
