//! Counts the instructions of some work: the test that asks runs once more, under callgrind, and what it
//! counts must be near what the table says.
//!
//! Instructions do not depend on how busy or fast the machine is. They do depend on the compiler, on the
//! libraries, and a little on what the processor can: hence the tolerance.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// How far a count may be from the table's, of 100.
const TOLERANCE_PERCENT: u64 = 10;
/// Set in the process that is counted, to the test's name.
const COUNTED: &str = "EPHEMERIS_COUNTED";
/// Set to write what was counted into the table: as for golden files.
const UPDATE: &str = "UPDATE_GOLDENFILES";

/// Checks the instructions of `work` on what `setup` makes. Neither that nor freeing what there is in the end counts: how
/// much that takes depends on where the allocator happened to put it. `test` is the whole name of the test that calls
/// this; `table` is the file of expected counts.
pub(crate) fn check<S, R>(
    table: &Path,
    test: &str,
    setup: impl FnOnce() -> S,
    work: impl FnOnce(&mut S) -> R,
) {
    if std::env::var_os(COUNTED).is_some_and(|counted| counted == test) {
        let mut input = black_box(setup());
        black_box(counted_work(&mut input, work));
        return;
    }
    let found = count(test);
    if std::env::var_os(UPDATE).is_some() {
        return update(table, test, found);
    }
    let expected = read(table).get(test).copied();
    let expected = expected.unwrap_or_else(|| panic!("{} lacks {test}", table.display()));
    assert!(
        found.abs_diff(expected) * 100 <= expected * TOLERANCE_PERCENT,
        "{test} takes {found} instructions, {} says {expected} ± {TOLERANCE_PERCENT} %. If that is \
         meant: {UPDATE}=1",
        table.display(),
    );
}

/// What callgrind looks for: it counts from here to the return.
#[inline(never)]
fn counted_work<S, R>(input: &mut S, work: impl FnOnce(&mut S) -> R) -> R {
    black_box(work(input))
}

/// Runs this executable's test under callgrind.
fn count(test: &str) -> u64 {
    let me = std::env::current_exe().expect("a process knows its executable");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.args(["--collect-atstart=no", "--toggle-collect=*counted_work*"]);
    command.arg(me).args([test, "--exact", "--test-threads=1"]).env(COUNTED, test);
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("valgrind is not installed: .ci/install installs what tests need")
        }
        output => output.expect("valgrind can be executed"),
    };
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test} under valgrind: {report}");
    let line = report.lines().find_map(|line| line.split_once("Collected :"));
    let found = line.and_then(|(_, number)| number.trim().parse().ok());
    let found = found.unwrap_or_else(|| panic!("callgrind says how many: {report}"));
    assert!(found > 0, "{test} was not found: is that its whole name?");
    found
}

/// Names and counts, one to a line.
fn read(table: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(table).unwrap_or_default();
    let entry = |line: &str| {
        let (name, count) = line.split_once(' ').expect("a line is a name and a count");
        (name.to_string(), count.trim().parse().expect("a count is a number"))
    };
    text.lines().map(entry).collect()
}

/// Other tests may do the same meanwhile.
fn update(table: &Path, test: &str, found: u64) {
    let lock = File::open(table.parent().expect("it is in a directory")).expect("which is there");
    lock.lock().expect("a directory can be locked");
    let mut expected = read(table);
    expected.insert(test.to_string(), found);
    let mut lines = String::new();
    for (name, count) in expected {
        writeln!(lines, "{name} {count}").expect("text takes every write");
    }
    fs::write(table, lines).expect("the table can be written");
}
