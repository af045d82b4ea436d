//! Carries statements out, one after the other, over one connection to a node.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::command::{Command, HELP, Limit, Mode};
use super::pages::{self, Pages, Request};
use super::statements::Statement;
use super::table;
use crate::cli::client::Client;
use crate::clock;

/// What queries are about, how much of their results is fetched, and how it is shown.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) place: Place,
    pub(super) mode: Mode,
    pub(super) limit: Limit,
    /// True if somebody sits there and reads.
    pub(super) converses: bool,
}

/// A container, or part of the way to one.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub(super) database: Option<String>,
    pub(super) container: Option<String>,
}

/// What comes after a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    GoOn,
    Quit,
}

impl Session {
    /// Carries out one statement.
    pub(super) async fn run(
        &mut self,
        statement: &Statement,
        out: &mut impl Write,
    ) -> anyhow::Result<Flow> {
        match statement {
            Statement::Query(text) => {
                let (database, container) = self.place.container()?;
                let request = Request::query(database, container, text);
                self.show(request, out).await?;
            }
            Statement::Command(text) => {
                let command = Command::parse(text).map_err(anyhow::Error::msg)?;
                return self.obey(command, out).await;
            }
        }
        Ok(Flow::GoOn)
    }

    async fn obey(&mut self, command: Command, out: &mut impl Write) -> anyhow::Result<Flow> {
        match command {
            Command::Use { database, container } => self.go_to(database, container).await?,
            Command::Mode(mode) => self.mode = mode,
            Command::Limit(limit) => self.limit = limit,
            Command::Databases => self.list(Request::databases(), out).await?,
            Command::Containers => {
                self.list(Request::containers(self.place.database()?), out).await?;
            }
            Command::Help => writeln!(out, "{HELP}")?,
            Command::Quit => return Ok(Flow::Quit),
        }
        Ok(Flow::GoOn)
    }

    /// Takes up a database or container that exists.
    async fn go_to(&mut self, database: String, container: Option<String>) -> anyhow::Result<()> {
        let path = match &container {
            Some(container) => pages::container_path(&database, container),
            None => pages::database_path(&database),
        };
        let answer = self.client.send("GET", &path, None, &[]).await?;
        pages::check(&answer, None)?;
        self.place = Place { database: Some(database), container };
        Ok(())
    }

    /// Prints the names of what there is.
    async fn list(&self, request: Request, out: &mut impl Write) -> anyhow::Result<()> {
        let mut pages = Pages::new(&self.client, request);
        while pages.has_more() {
            for row in pages.next(u64::MAX).await? {
                writeln!(out, "{}", row["id"].as_str().unwrap_or_default())?;
            }
        }
        Ok(())
    }

    /// Prints rows, and what they cost.
    async fn show(&self, request: Request, out: &mut impl Write) -> anyhow::Result<()> {
        let started = clock::monotonic();
        let mut pages = Pages::new(&self.client, request);
        let mut kept = Vec::new();
        let (mut rows, limit) = (0, self.limit.rows());
        while pages.has_more() && rows < limit {
            let page = pages.next(limit - rows).await?;
            rows += page.len() as u64;
            match self.mode {
                Mode::Json => self.print_json(&page, out)?,
                // How wide columns are is known when all rows are there.
                Mode::Table => kept.extend(page),
            }
        }
        if !kept.is_empty() {
            writeln!(out, "{}", table::of(&kept, width()))?;
        }
        let more = pages.has_more();
        eprintln!("{}", summary(rows, pages.charge, started.elapsed(), more));
        Ok(())
    }

    fn print_json(&self, rows: &[Value], out: &mut impl Write) -> anyhow::Result<()> {
        for row in rows {
            if self.converses {
                writeln!(out, "{row:#}")?;
            } else {
                writeln!(out, "{row}")?;
            }
        }
        Ok(())
    }
}

/// How wide the terminal is, if there is one.
fn width() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok()?;
    Some(size.ws_col).filter(|width| *width > 0)
}

impl Place {
    fn database(&self) -> anyhow::Result<&str> {
        self.database.as_deref().context("which database? Say --database, or .use DATABASE")
    }

    fn container(&self) -> anyhow::Result<(&str, &str)> {
        match (self.database.as_deref(), self.container.as_deref()) {
            (Some(database), Some(container)) => Ok((database, container)),
            (None, _) | (_, None) => {
                bail!("which container? Say --database and --container, or .use DATABASE CONTAINER")
            }
        }
    }

    /// What stands before a prompt.
    pub(super) fn name(&self) -> String {
        match (&self.database, &self.container) {
            (Some(database), Some(container)) => format!("{database}/{container}"),
            (Some(database), None) => database.clone(),
            (None, _) => "ephemeris".to_string(),
        }
    }
}

impl Limit {
    fn rows(self) -> u64 {
        match self {
            Limit::All => u64::MAX,
            Limit::Rows(rows) => rows,
        }
    }
}

fn summary(rows: u64, charge: f64, elapsed: Duration, more: bool) -> String {
    let noun = if rows == 1 { "row" } else { "rows" };
    let more = if more { "; there may be more: raise the limit" } else { "" };
    format!("{rows} {noun}, {charge:.2} RU, {} ms{more}", elapsed.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_tells_rows_cost_and_time() {
        let time = Duration::from_millis(14);
        assert_eq!(summary(1, 2.954, time, false), "1 row, 2.95 RU, 14 ms");
        let cut = summary(100, 12.0, time, true);
        assert_eq!(cut, "100 rows, 12.00 RU, 14 ms; there may be more: raise the limit");
    }

    #[test]
    fn a_query_needs_a_container() {
        let place = Place { database: Some("shop".to_string()), container: None };
        assert_eq!((place.name().as_str(), place.database().unwrap()), ("shop", "shop"));
        assert!(place.container().unwrap_err().to_string().contains(".use"));
        assert!(Place::default().database().unwrap_err().to_string().contains("--database"));
    }
}
