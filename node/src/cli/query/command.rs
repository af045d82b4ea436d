//! What can be said in conversation beside queries.

use std::str::FromStr;

use clap::ValueEnum;

/// How rows are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    /// Columns, as wide as the terminal.
    Table,
    /// One row a line as JSON; in conversation over several lines.
    Json,
}

/// How many rows of a result are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    All,
    Rows(u64),
}

/// A line that begins with a dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Use { database: String, container: Option<String> },
    Mode(Mode),
    Limit(Limit),
    Databases,
    Containers,
    Help,
    Quit,
}

pub(super) const HELP: &str = "\
SELECT …;               run a query; an empty line ends it, too
.use DATABASE [CONTAINER]
                        what queries are about
.databases              list databases
.containers             list containers of the database
.mode table|json        how rows are shown
.limit ROWS|all         how many rows of a result are fetched
.help                   this
.quit                   leave, as Ctrl-D does

Ctrl-C gives up what is being typed, or the query that runs.";

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(rows) if rows > 0 => Ok(Limit::Rows(rows)),
            _ if text.eq_ignore_ascii_case("all") => Ok(Limit::All),
            _ => Err("a limit is a number from 1, or 'all'".to_string()),
        }
    }
}

impl Command {
    /// Reads a command without its dot.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words.as_slice() {
            ["use", database] => {
                Ok(Command::Use { database: (*database).to_string(), container: None })
            }
            ["use", database, container] => Ok(Command::Use {
                database: (*database).to_string(),
                container: Some((*container).to_string()),
            }),
            ["mode", mode] => Mode::from_str(mode, true)
                .map(Command::Mode)
                .map_err(|_| "a mode is 'table' or 'json'".to_string()),
            ["limit", limit] => limit.parse().map(Command::Limit),
            ["databases"] => Ok(Command::Databases),
            ["containers"] => Ok(Command::Containers),
            ["help"] => Ok(Command::Help),
            ["quit" | "exit"] => Ok(Command::Quit),
            _ => Err(format!("'.{text}' is no command; .help lists them")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_or_refused() {
        let used = Command::parse("use shop  carts").unwrap();
        let (database, container) = ("shop".to_string(), Some("carts".to_string()));
        assert_eq!(used, Command::Use { database, container });
        assert_eq!(Command::parse("mode JSON"), Ok(Command::Mode(Mode::Json)));
        assert_eq!(Command::parse("limit all"), Ok(Command::Limit(Limit::All)));
        assert_eq!(Command::parse("limit 7"), Ok(Command::Limit(Limit::Rows(7))));
        for wrong in ["", "use", "use a b c", "mode", "mode xml", "limit 0", "limit -1", "drop"] {
            assert!(Command::parse(wrong).is_err(), "{wrong}");
        }
    }
}
