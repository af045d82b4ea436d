//! Feeds of resources that are not items: listed, paged, and queried by the same engine as items.

use axum::http::StatusCode;
use ephemeris_store::charge::Charge;
use ephemeris_store::ids::ItemNumber;
use ephemeris_store::indexing::{self, IndexRules};
use ephemeris_store::query::{CompiledQuery, ComputedProperties, Moment, Run, Value};
use ephemeris_store::time::Millis;
use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::continuation::Tokens;
use super::error::{ApiError, Failure};
use super::query::{PAGE_BYTES_MAX, QuerySpec};
use super::reply::{Reply, envelope};
use super::{Call, Gateway, Verb};

/// A resource of a feed: its number, by which the feed is ordered, and its JSON.
pub(crate) type Listed = (u64, Map<String, serde_json::Value>);

/// Answers with a feed as it is, or with what a query in the body finds in it. Of a feed as it is, resources behind the
/// page are not asked for.
pub(crate) fn answer(
    gateway: &Gateway,
    call: &Call,
    (rid, name): (&str, &str),
    resources: impl IntoIterator<Item = Listed>,
) -> Result<Reply, Failure> {
    let spec = match call.verb {
        Verb::Post(_) => Some(QuerySpec::parse(&call.body)?),
        Verb::Get | Verb::Put | Verb::Patch | Verb::Delete | Verb::Other => None,
    };
    if spec.as_ref().is_some_and(|spec| spec.resume.is_some()) {
        let message = "A list is not resumed by a resumeFilter, but by its continuation.";
        return Err(ApiError::BadRequest(message.to_string()).into());
    }
    let rows = match &spec {
        Some(spec) => Rows::selected(spec, resources, gateway.node.now().interval.hi())?,
        None => Rows::listed(resources),
    };
    let tokens = Tokens::new(gateway.cluster()?, &(rid, name, spec.as_ref()));
    let after = call.headers.continuation()?.map(|token| tokens.read(token)).transpose()?;
    let (rows, next) = rows.page(after, call.headers.page_rows()?)?;
    let next = next.map(|position| tokens.write(&position)).transpose()?;
    let reply = Reply::json(StatusCode::OK, envelope(rid, name, &rows));
    Ok(reply.charge(Charge::METADATA_READ).page(rows.len(), next.as_deref()))
}

/// Where a page of a feed ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Place {
    /// Behind the resource with this number.
    Listed(u64),
    /// Behind so many rows of a query's result, which every page computes anew.
    Row(u64),
}

/// Everything a request asks for, in order; what it gets are pages of it.
enum Rows<'r> {
    Listed(Box<dyn Iterator<Item = Listed> + 'r>),
    Selected(Vec<Vec<u8>>),
}

fn text(resource: &Map<String, serde_json::Value>) -> Vec<u8> {
    serde_json::to_vec(resource).expect("JSON serialises")
}

impl<'r> Rows<'r> {
    /// The resources as they are.
    fn listed(resources: impl IntoIterator<Item = Listed, IntoIter: 'r>) -> Self {
        Self::Listed(Box::new(resources.into_iter()))
    }

    /// What a query makes of the resources.
    fn selected(
        spec: &QuerySpec,
        resources: impl IntoIterator<Item = Listed>,
        now: Millis,
    ) -> Result<Self, ApiError> {
        let policy = indexing::complete(None).expect("the default policy is valid");
        let index = IndexRules::new(&policy).expect("the default policy is valid");
        let computed = ComputedProperties::default();
        let query = CompiledQuery::new(&spec.text, &spec.parameters, &index, &computed)?;
        let values = resources.into_iter().map(|(number, resource)| {
            let value = Value::from_json(&text(&resource)).expect("it was just written");
            (ItemNumber(number), value)
        });
        let run = Run::undivided(Moment::new(now, now, rand::random()));
        let selected = query.select(values, &run)?;
        Ok(Self::Selected(selected.into_iter().map(|row| row.value.to_json()).collect()))
    }

    /// The page behind a place, and the place of its last row if there are more.
    fn page(
        self,
        after: Option<Place>,
        limit: usize,
    ) -> Result<(Vec<Vec<u8>>, Option<Place>), ApiError> {
        match (self, after) {
            (Rows::Listed(resources), None | Some(Place::Listed(_))) => {
                let placed = resources.map(|(number, resource)| (Place::Listed(number), resource));
                let rest = placed.filter(|(place, _)| Some(*place) > after);
                Ok(cut(rest.map(|(place, resource)| (place, text(&resource))), limit))
            }
            (Rows::Selected(rows), None | Some(Place::Row(_))) => {
                let placed = (1..).map(Place::Row).zip(rows);
                Ok(cut(placed.filter(|(place, _)| Some(*place) > after), limit))
            }
            (Rows::Listed(_) | Rows::Selected(_), Some(_)) => {
                let message = "The continuation token is of another kind.";
                Err(ApiError::BadRequest(message.into()))
            }
        }
    }
}

/// The first rows, one at least and as many as a page may hold, and the place of the last if there are
/// more.
fn cut(
    rows: impl Iterator<Item = (Place, Vec<u8>)>,
    limit: usize,
) -> (Vec<Vec<u8>>, Option<Place>) {
    let (mut page, mut bytes, mut last) = (Vec::new(), 0, None);
    for (place, row) in rows {
        bytes += row.len();
        if last.is_some() && (page.len() == limit || bytes > PAGE_BYTES_MAX) {
            return (page, last);
        }
        page.push(row);
        last = Some(place);
    }
    (page, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Databases with every second number, as if half of them had been deleted.
    fn databases(count: u64) -> Vec<Listed> {
        let database = |number: u64| {
            let json = serde_json::json!({ "id": format!("d{number}"), "third": number % 3 });
            (number * 2, json.as_object().unwrap().clone())
        };
        (0..count).map(database).collect()
    }

    fn pages(text: Option<&str>, limit: usize) -> Vec<Vec<String>> {
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let rows = match text {
                None => Rows::listed(databases(7)),
                Some(text) => {
                    let body = serde_json::json!({ "query": text }).to_string();
                    let spec = QuerySpec::parse(body.as_bytes()).unwrap();
                    Rows::selected(&spec, databases(7), Millis(0)).unwrap()
                }
            };
            let (rows, next) = rows.page(after, limit).unwrap();
            let text = |row: Vec<u8>| String::from_utf8(row).unwrap().replace('"', "");
            pages.push(rows.into_iter().map(text).collect());
            match next {
                None => return pages,
                next => after = next,
            }
        }
    }

    #[test]
    fn a_count_is_about_everything() {
        assert_eq!(pages(Some("SELECT VALUE COUNT(1) FROM c"), 2), [["7"]]);
    }

    #[test]
    fn a_filter_fills_its_pages() {
        let text = "SELECT VALUE c.id FROM c WHERE c.third = 0";
        assert_eq!(pages(Some(text), 2), [vec!["d0", "d3"], vec!["d6"]]);
        assert_eq!(pages(Some(text), 3), [["d0", "d3", "d6"]]);
        assert_eq!(pages(Some("SELECT * FROM c WHERE c.id = 'd6'"), 1).len(), 1);
    }

    #[test]
    fn a_sorted_result_is_sorted_over_all_its_pages() {
        let ascending = [vec!["d0", "d3"], vec!["d6", "d1"], vec!["d4", "d2"], vec!["d5"]];
        assert_eq!(pages(Some("SELECT VALUE c.id FROM c ORDER BY c.third"), 2), ascending);
        let descending = [vec!["d5", "d2", "d4"], vec!["d1", "d6", "d3"], vec!["d0"]];
        assert_eq!(pages(Some("SELECT VALUE c.id FROM c ORDER BY c.third DESC"), 3), descending);
    }

    #[test]
    fn a_query_has_one_budget_for_the_whole_list() {
        let long = vec!["REPLICATE(c.id, 1000)"; 500].join(",");
        let body = format!(r#"{{"query":"SELECT VALUE LENGTH(CONCAT({long})) FROM c"}}"#);
        let spec = QuerySpec::parse(body.as_bytes()).unwrap();
        assert!(Rows::selected(&spec, databases(10), Millis(0)).is_ok());
        assert!(Rows::selected(&spec, databases(40), Millis(0)).is_err());
    }

    #[test]
    fn a_page_ends_where_it_would_be_too_large() {
        let large = |number: u64, bytes: usize| {
            let json = serde_json::json!({ "id": "x".repeat(bytes) });
            (number, json.as_object().unwrap().clone())
        };
        let half = PAGE_BYTES_MAX / 2 - 100;
        let sizes = [half, half, half, PAGE_BYTES_MAX, 1];
        let mut shown = Vec::new();
        let (mut after, mut pages) = (None, Vec::new());
        loop {
            let resources = (1..).zip(sizes).map(|(number, bytes)| {
                shown.push(number);
                large(number, bytes)
            });
            let (rows, next) = Rows::listed(resources).page(after, 100).unwrap();
            pages.push(rows.len());
            if next.is_none() {
                break;
            }
            after = next;
        }
        assert_eq!(pages, [2, 1, 1, 1]);
        assert_eq!(shown[..3], [1, 2, 3], "one behind the page shows that there are more");
        let rows = sizes.map(|bytes| vec![b'x'; bytes]).to_vec();
        let (page, next) = Rows::Selected(rows).page(Some(Place::Row(1)), 100).unwrap();
        assert_eq!((page.len(), next), (2, Some(Place::Row(3))));
    }

    #[test]
    fn a_list_is_cut_into_pages_that_deletions_do_not_shift() {
        assert_eq!(pages(None, 3).concat().len(), 7);
        let mut left = databases(4);
        left.remove(1);
        let (rows, next) = Rows::listed(left).page(Some(Place::Listed(2)), 1).unwrap();
        assert_eq!(rows.concat(), br#"{"id":"d2","third":2}"#);
        assert!(next == Some(Place::Listed(4)));
    }
}
