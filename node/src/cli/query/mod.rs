//! `ephemeris query`: statements in, rows out. They come from the command line, from standard
//! input, or in conversation.

mod command;
mod complaint;
mod conversation;
mod pages;
mod session;
mod statements;
mod table;

use std::io::{self, IsTerminal as _, Read as _};
use std::process::ExitCode;

use clap::Args;

use super::client::Client;
use super::{Connection, is_broken_pipe, one_line};
use command::{Limit, Mode};
use session::{Flow, Place, Session};
use statements::Statements;

/// Rows shown in conversation, unless more are asked for.
const CONVERSATION_ROWS: u64 = 100;

#[derive(Args)]
pub(super) struct QueryArgs {
    /// Statements to run. Without them they are read from standard input.
    statements: Option<String>,
    /// The database.
    #[arg(long, short)]
    database: Option<String>,
    /// The container.
    #[arg(long, short, requires = "database")]
    container: Option<String>,
    /// How rows are shown [default: table on a terminal, json elsewhere].
    #[arg(long)]
    mode: Option<Mode>,
    /// How many rows of a result are fetched, or "all" [default: 100 in conversation, else all].
    #[arg(long, value_name = "ROWS")]
    limit: Option<Limit>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  ephemeris query                          a conversation; .help tells what can be said
  ephemeris query -d shop -c carts \"SELECT c.id, c.total FROM c WHERE c.total > 100\"
  ephemeris query -d shop -c carts --mode json \"SELECT * FROM c\" | jq .id
  ephemeris query -d shop -c carts < report.sql

A statement ends with a semicolon or an empty line. Lines that begin with a dot are commands:
  .use shop carts    .databases    .containers    .mode json    .limit all    .help    .quit

A query runs over all partitions of the container, page by page. Rows go to standard output, what
they cost and errors to standard error; after the first error the exit code is 1.";

/// Runs statements, or has a conversation.
pub(super) fn run(args: QueryArgs) -> anyhow::Result<ExitCode> {
    let QueryArgs { statements, database, container, mode, limit, connection } = args;
    let on_terminal = io::stdout().is_terminal();
    let converses = statements.is_none() && on_terminal && io::stdin().is_terminal();
    let default_limit = if converses { Limit::Rows(CONVERSATION_ROWS) } else { Limit::All };
    let session = Session {
        client: Client::new(&connection)?,
        place: Place { database, container },
        mode: mode.unwrap_or(if on_terminal { Mode::Table } else { Mode::Json }),
        limit: limit.unwrap_or(default_limit),
        converses,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if converses {
        return conversation::hold(session, &runtime);
    }
    let text = match statements {
        Some(text) => text,
        None => read_standard_input()?,
    };
    runtime.block_on(run_all(session, &text))
}

fn read_standard_input() -> anyhow::Result<String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

async fn run_all(mut session: Session, text: &str) -> anyhow::Result<ExitCode> {
    let mut statements = Statements::default();
    let mut all: Vec<_> = text.lines().flat_map(|line| statements.push(line)).collect();
    all.extend(statements.finish());
    for statement in all {
        match session.run(&statement, &mut io::stdout().lock()).await {
            Ok(Flow::GoOn) => {}
            Ok(Flow::Quit) => break,
            // Whoever reads has enough.
            Err(error) if is_broken_pipe(&error) => break,
            Err(error) => {
                eprintln!("ephemeris: {}", told(&error));
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What a node complains of may have several lines; an error and its causes stand in one.
fn told(error: &anyhow::Error) -> String {
    if error.chain().count() == 1 { error.to_string() } else { one_line(error) }
}
