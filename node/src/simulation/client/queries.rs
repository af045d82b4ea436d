//! Queries, and what their rows must be.

use std::collections::BTreeMap;

use ephemeris_store::ids::Lsn;
use rand::RngExt as _;
use serde_json::{Value, json};

use super::super::http::Ask;
use super::super::laws::{Known, Span};
use super::{Client, found};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Query {
    /// All items of a logical partition, as they come.
    All,
    /// The same, in the order of an index.
    InOrder,
    /// All items of the client, from all partitions, in the opposite order.
    Everywhere,
    /// One version, by the index.
    Serial(u64),
    /// The number of items of a logical partition.
    Count,
    /// The same, counted in the index.
    CountByIndex,
}

impl Query {
    fn text(self, client: u32) -> String {
        match self {
            Query::All => "SELECT * FROM c".to_string(),
            Query::InOrder => "SELECT * FROM c ORDER BY c.serial".to_string(),
            Query::Everywhere => format!(
                "SELECT c.id, c.serial FROM c WHERE c.client = {client} ORDER BY c.serial DESC"
            ),
            Query::Serial(serial) => format!("SELECT * FROM c WHERE c.serial = {serial}"),
            Query::Count => "SELECT VALUE COUNT(1) FROM c".to_string(),
            Query::CountByIndex => {
                format!("SELECT VALUE COUNT(1) FROM c WHERE c.client = {client}")
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Query::All => "query",
            Query::InOrder => "query in order",
            Query::Everywhere => "query of all partitions",
            Query::Serial(_) => "query by index",
            Query::Count => "count",
            Query::CountByIndex => "count by index",
        }
    }
}

impl Client {
    /// Asks for items of a logical partition or of the whole container, by one index or another, or for
    /// their number.
    pub(super) async fn query(&mut self, which: usize) {
        let query = self.some_query(which);
        let item = &self.items[which];
        let mut headers = vec![
            ("content-type", "application/query+json".to_string()),
            ("x-ms-documentdb-isquery", "true".to_string()),
        ];
        headers.push(match query {
            Query::Everywhere => ("x-ms-documentdb-query-enablecrosspartition", "true".to_string()),
            Query::All | Query::InOrder | Query::Serial(_) | Query::Count | Query::CountByIndex => {
                item.key_header()
            }
        });
        let partition_key = item.partition_key.clone();
        let body = json!({ "query": query.text(self.number), "parameters": [] }).to_string();
        let Some((span, lsn, rows)) = self.pages(query, &headers, &body).await else { return };
        self.world.count(query.name());
        match query {
            Query::All => self.judge_rows(Some(&partition_key), span, lsn, &rows),
            Query::InOrder => {
                assert!(serials(&rows).is_sorted(), "rows are in order");
                self.judge_rows(Some(&partition_key), span, lsn, &rows);
            }
            Query::Everywhere => {
                assert!(serials(&rows).rev().is_sorted(), "rows are in order");
                self.judge_rows(None, span, lsn, &rows);
            }
            Query::Serial(serial) => self.judge_serial(which, span, lsn, serial, &rows),
            Query::Count | Query::CountByIndex => self.judge_count(&partition_key, span, &rows),
        }
    }

    fn some_query(&mut self, which: usize) -> Query {
        match self.rng.random_range(0..6) {
            0 => Query::All,
            1 => Query::InOrder,
            2 => Query::Everywhere,
            3 => Query::Count,
            4 => Query::CountByIndex,
            _ => {
                let serials: Vec<u64> = self.items[which].key.serials().collect();
                // Most often the last one.
                let back = if self.rng.random_bool(0.3) { self.rng.random_range(0..3) } else { 0 };
                serials.iter().rev().nth(back).map_or(Query::All, |serial| Query::Serial(*serial))
            }
        }
    }

    /// All pages of a result, and the entry it is as of, as far as one partition answered; none if one
    /// of them does not come.
    async fn pages(
        &mut self,
        query: Query,
        headers: &[(&'static str, String)],
        body: &str,
    ) -> Option<(Span, Lsn, Vec<Value>)> {
        let path = self.items_path();
        let (mut rows, mut continuation, mut call) = (Vec::new(), None, None);
        loop {
            let mut headers = headers.to_vec();
            headers.extend(continuation.map(|text| ("x-ms-continuation", text)));
            let ask = Ask { verb: "POST", path: &path, headers, body: body.to_string() };
            let (span, answer) = self.ask(ask).await;
            let answer = found(answer)?;
            assert_eq!(answer.status, 200, "a query has an answer, though it may be empty");
            let call = *call.get_or_insert(span.call);
            let page = answer.json();
            rows.extend_from_slice(page["Documents"].as_array().expect("a page has rows"));
            let lsn = match query {
                // What several partitions answered is as of several entries.
                Query::Everywhere => Lsn(u64::MAX),
                Query::All
                | Query::InOrder
                | Query::Serial(_)
                | Query::Count
                | Query::CountByIndex => self.learn(&answer),
            };
            continuation = answer.header("x-ms-continuation").map(String::from);
            if continuation.is_none() {
                return Some((Span { call, ret: span.ret }, lsn, rows));
            }
            assert_eq!(query, Query::Everywhere, "a page holds all there is");
        }
    }

    /// A query for one version: its item, if it is the last one and alive.
    fn judge_serial(&mut self, which: usize, span: Span, lsn: Lsn, serial: u64, rows: &[Value]) {
        let key = &mut self.items[which].key;
        let shown: Vec<u64> = serials(rows).collect();
        match key.known() {
            Known::Version { serial: last, .. } if last == serial => {
                key.read_last(span, lsn, shown.first().copied());
            }
            Known::Version { .. } | Known::Absent => {
                assert!(shown.is_empty(), "{} is not {serial} any more", key.name());
            }
        }
    }

    /// Rows of one logical partition, or of all.
    pub(super) fn judge_rows(&mut self, scope: Option<&str>, span: Span, lsn: Lsn, rows: &[Value]) {
        let mut shown: BTreeMap<&str, u64> = BTreeMap::new();
        for row in rows {
            let id = row["id"].as_str().expect("items have an id");
            let serial = row["serial"].as_u64().expect("items have a serial");
            assert_eq!(shown.insert(id, serial), None, "{id} is there twice");
        }
        for item in self.items.iter_mut().chain(&mut self.retired) {
            let found = shown.remove(item.id.as_str());
            if scope.is_none_or(|scope| item.partition_key == scope) {
                item.key.read_last(span, lsn, found);
            } else {
                assert_eq!(found, None, "{} is in another logical partition", item.id);
            }
        }
        for id in shown.keys() {
            assert!(self.lost.iter().any(|item| item.id == *id), "nobody wrote {id}");
        }
    }

    fn judge_count(&self, partition_key: &str, span: Span, rows: &[Value]) {
        let count = rows[0].as_u64().expect("a number");
        let mut bounds = 0..=0;
        for item in self.items.iter().chain(&self.retired) {
            if item.partition_key == partition_key
                && let Known::Version { expiry, .. } = item.key.known()
            {
                let surely = u64::from(expiry > span.ret);
                let possibly = u64::from(expiry > span.call);
                bounds = bounds.start() + surely..=bounds.end() + possibly;
            }
        }
        let lost = self.lost.iter().filter(|item| item.partition_key == partition_key).count();
        let bounds = *bounds.start()..=bounds.end() + lost as u64;
        assert!(bounds.contains(&count), "{count} items where there are {bounds:?}");
    }
}

/// The serials of rows.
fn serials(rows: &[Value]) -> impl DoubleEndedIterator<Item = u64> {
    rows.iter().map(|row| row["serial"].as_u64().expect("items have a serial"))
}
