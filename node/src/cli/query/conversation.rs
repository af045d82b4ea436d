//! A conversation at a terminal: lines that can be edited, and a history that is kept.

use std::path::PathBuf;
use std::process::ExitCode;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use tokio::runtime::Runtime;

use super::session::{Flow, Session};
use super::statements::{Statement, Statements};
use super::told;

/// Statements the history keeps.
const HISTORY_MAX: usize = 1000;

type Lines = Editor<(), FileHistory>;

/// Talks until the user leaves.
pub(super) fn hold(mut session: Session, runtime: &Runtime) -> anyhow::Result<ExitCode> {
    let mut lines = no_lines()?;
    let history = history_file();
    if let Some(file) = &history {
        // The first time there is none.
        let _ = lines.load_history(file);
    }
    eprintln!(
        "Queries go to {}. Statements end with ';'; .help tells more.",
        session.client.base()
    );
    talk(&mut session, runtime, &mut lines)?;
    if let Some(file) = &history
        && let Err(error) = lines.save_history(file)
    {
        eprintln!("ephemeris: the history cannot be kept in {}: {error}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// An editor that remembers nothing yet.
fn no_lines() -> rustyline::Result<Lines> {
    let config = Config::builder().max_history_size(HISTORY_MAX)?.auto_add_history(false).build();
    Lines::with_config(config)
}

fn talk(session: &mut Session, runtime: &Runtime, lines: &mut Lines) -> anyhow::Result<()> {
    let mut statements = Statements::default();
    loop {
        let name = session.place.name();
        let prompt = if statements.is_open() {
            format!("{:>1$}> ", "...", name.chars().count())
        } else {
            format!("{name}> ")
        };
        let line = match lines.readline(&prompt) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                statements.clear();
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for statement in statements.push(&line) {
            lines.add_history_entry(as_typed(&statement))?;
            if runtime.block_on(carry_out(session, &statement)) == Flow::Quit {
                return Ok(());
            }
        }
    }
}

/// Carries out a statement, unless the user gives it up. What goes wrong is told, and is no reason
/// to leave.
async fn carry_out(session: &mut Session, statement: &Statement) -> Flow {
    let mut out = std::io::stdout();
    tokio::select! {
        result = session.run(statement, &mut out) => result.unwrap_or_else(|error| {
            eprintln!("{}", told(&error));
            Flow::GoOn
        }),
        _ = tokio::signal::ctrl_c() => {
            eprintln!("given up");
            Flow::GoOn
        }
    }
}

fn as_typed(statement: &Statement) -> String {
    match statement {
        Statement::Command(text) => format!(".{text}"),
        Statement::Query(text) => format!("{text};"),
    }
}

/// Where programs keep such things.
fn history_file() -> Option<PathBuf> {
    let directory = match std::env::var_os("XDG_STATE_HOME").filter(|value| !value.is_empty()) {
        Some(state) => PathBuf::from(state),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".local/state"),
    };
    let directory = directory.join("ephemeris");
    std::fs::create_dir_all(&directory).ok()?;
    Some(directory.join("query_history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_remembered_whole_and_as_they_were_typed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("query_history");
        let mut lines = no_lines().expect("an editor");
        let mut statements = Statements::default();
        for line in [".use shop carts", "SELECT VALUE c.id", "FROM c", "WHERE c.n = ';' ;"] {
            for statement in statements.push(line) {
                lines.add_history_entry(as_typed(&statement)).expect("memory");
            }
        }
        lines.save_history(&file).expect("a file");

        let mut again = no_lines().expect("an editor");
        again.load_history(&file).expect("it was saved");
        let remembered: Vec<String> = again.history().iter().cloned().collect();
        let query = "SELECT VALUE c.id\nFROM c\nWHERE c.n = ';';";
        assert_eq!(remembered, [".use shop carts", query]);
    }
}
