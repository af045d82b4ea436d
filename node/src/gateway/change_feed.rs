//! `GET …/docs` with `A-IM`: the change feed, of latest versions or of all versions and deletes. The etag
//! is the continuation: on every page, and on the 304 that says there is nothing new.

use std::sync::Arc;
use std::time::SystemTime;

use axum::http::{StatusCode, header};
use ephemeris_store::catalog::PartitionRecord;
use ephemeris_store::change_feed::{FeedStart, HistoryStart, RowForm};
use ephemeris_store::charge::Charge;
use ephemeris_store::ids::{Lsn, ResourceId};
use ephemeris_store::query::{PageLimits, Scope};
use ephemeris_store::time::Seconds;
use ephemeris_store::timeline::FeedPosition;

use super::error::{ApiError, Failure};
use super::headers::RequestHeaders;
use super::path::ContainerPath;
use super::query::{ITEMS_MAX, PAGE_BYTES_MAX, key_scope};
use super::reply::{Reply, envelope};
use super::resolve::Resolved;
use super::session::Freshness;
use super::{Call, Gateway};
use crate::partition::{ChangesRequest, Feed, PartitionRequest, PartitionResponse, ReadLevel};

/// The feed of last versions.
const LATEST_VERSION: &str = "Incremental Feed";
/// The feed of all versions and deletes.
const ALL_VERSIONS: &str = "Full-Fidelity Feed";
/// The form of its rows, and of those of the other where clients ask for it: the Rust SDK always does.
const WIRE_FORMAT: &str = "2021-09-15";
const FORMAT_HEADER: &str = "x-ms-cosmos-changefeed-wire-format-version";

/// Answers with a page of changes of one partition.
pub(crate) async fn read(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
    mode: &str,
) -> Result<Reply, Failure> {
    let feed = feed(mode, &call.headers)?;
    let freshness = Freshness::of(call)?;
    let resolved = gateway.container(call, path).await?;
    let scope = Scope { key: key_scope(call, &resolved)?, epks: call.headers.epk_range()? };
    let partition = partition(&call.headers, &resolved, &scope)?;
    let limits =
        PageLimits { rows: call.headers.page_rows()?, bytes: PAGE_BYTES_MAX, items: ITEMS_MAX };
    let (group, level) = (partition.group, level(freshness.at(&gateway.node, &partition), feed));
    let request = PartitionRequest::Changes(Box::new(ChangesRequest { feed, scope, limits }));
    let response = gateway.node.read_partition(group, request, level, call.deadline).await?;
    if let PartitionResponse::ChangesRefused(refusal) = response {
        return Err(ApiError::BadRequest(refusal.to_string()).into());
    }
    let PartitionResponse::Changes { lsn, page } = response else {
        unreachable!("`ask_partition` checks what is answered");
    };
    let mut work = page.work;
    work.first_page = true;
    let reply = if page.rows.is_empty() {
        Reply::empty(StatusCode::NOT_MODIFIED)
    } else {
        let rid = ResourceId::Container(resolved.container.number).to_string();
        let rows = &page.rows;
        Reply::json(StatusCode::OK, envelope(&rid, "Documents", rows)).page(rows.len(), None)
    };
    let reply = reply.header(header::ETAG, format!("\"{}\"", page.through));
    let headers = resolved.headers().at(partition.range, lsn);
    Ok(reply.charge(Charge::query_page(&work)).data(headers))
}

/// The feed that the client reads, and where it is.
fn feed(mode: &str, headers: &RequestHeaders) -> Result<Feed, ApiError> {
    if mode.eq_ignore_ascii_case(LATEST_VERSION) {
        return Ok(Feed::LatestVersion(start(headers)?, row_form(headers)?));
    }
    if !mode.eq_ignore_ascii_case(ALL_VERSIONS) {
        return Err(malformed("a-im", mode));
    }
    match row_form(headers)? {
        RowForm::Apart => Ok(Feed::AllVersions(history_start(headers)?)),
        RowForm::Flat => Err(ApiError::BadRequest(format!(
            "The change feed mode All Versions and Deletes has one wire format: send {WIRE_FORMAT} \
             in the header {FORMAT_HEADER}."
        ))),
    }
}

/// What the rows shall look like.
fn row_form(headers: &RequestHeaders) -> Result<RowForm, ApiError> {
    match headers.text(FORMAT_HEADER)? {
        None | Some("") => Ok(RowForm::Flat),
        Some(WIRE_FORMAT) => Ok(RowForm::Apart),
        Some(other) => Err(malformed(FORMAT_HEADER, other)),
    }
}

fn malformed(name: &str, text: &str) -> ApiError {
    ApiError::BadRequest(format!("The value '{text}' of the header {name} is not valid."))
}

/// Where a client wants to go on that is told of all versions: from now on, or where it was.
fn history_start(headers: &RequestHeaders) -> Result<HistoryStart, ApiError> {
    let Some(tag) = headers.text("if-none-match")? else {
        return Err(ApiError::BadRequest(
            "The change feed mode All Versions and Deletes begins now or with a continuation, not \
             in the past: send If-None-Match with * or with an etag of this feed."
                .to_string(),
        ));
    };
    match tag.trim_matches('"') {
        "*" => Ok(HistoryStart::Now),
        place => match FeedPosition::parse(place) {
            Some(place) => Ok(HistoryStart::After(place)),
            None => Err(malformed("if-none-match", tag)),
        },
    }
}

/// Where the client wants to go on. A time keeps being sent along with the tag that replaces it.
fn start(headers: &RequestHeaders) -> Result<FeedStart, ApiError> {
    if let Some(tag) = headers.text("if-none-match")? {
        return match tag.trim_matches('"') {
            "*" => Ok(FeedStart::Now),
            lsn => match lsn.parse() {
                Ok(lsn) => Ok(FeedStart::After(Lsn(lsn))),
                Err(_) => Err(malformed("if-none-match", tag)),
            },
        };
    }
    let Some(text) = headers.text("if-modified-since")? else { return Ok(FeedStart::Beginning) };
    let time = httpdate::parse_http_date(text).map_err(|_| malformed("if-modified-since", text))?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(FeedStart::At(Seconds(since)))
}

/// How fresh a replica must be to go on from there. One that has not come as far as the client would
/// send it back, and "now" is what the leader says.
fn level(asked_for: ReadLevel, feed: Feed) -> ReadLevel {
    match feed {
        Feed::LatestVersion(FeedStart::Beginning | FeedStart::At(_), _) => asked_for,
        Feed::LatestVersion(FeedStart::After(lsn), _)
        | Feed::AllVersions(HistoryStart::After(FeedPosition { lsn, .. })) => {
            asked_for.and_at_least(lsn)
        }
        Feed::LatestVersion(FeedStart::Now, _) | Feed::AllVersions(HistoryStart::Now) => {
            ReadLevel::Linearizable
        }
    }
}

/// The partition that is asked: a tag is good for one of them.
fn partition(
    headers: &RequestHeaders,
    resolved: &Resolved,
    scope: &Scope,
) -> Result<Arc<PartitionRecord>, ApiError> {
    let partitions = resolved.partitions();
    if let Some(range) = headers.range_id(resolved.container.number)? {
        let found = partitions.iter().find(|partition| partition.range.to_string() == range);
        return found.cloned().ok_or_else(|| ApiError::RangeGone(range.to_string()));
    }
    if let Some(key) = &scope.key {
        let slot = resolved.container.definition.key().place(key).slot;
        return resolved.partition(slot).cloned();
    }
    match partitions {
        [only] => Ok(only.clone()),
        _ => Err(ApiError::BadRequest(
            "The change feed of a container with several partition key ranges is read range by \
             range: name one in the header x-ms-documentdb-partitionkeyrangeid."
                .to_string(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
    use ephemeris_store::partition_key::{Epk, PartitionKey};

    use super::super::resolve;
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> RequestHeaders {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        RequestHeaders::new(pairs.collect::<HeaderMap>(), &Uri::default())
    }

    fn start_of(pairs: &[(&'static str, &'static str)]) -> Result<FeedStart, ApiError> {
        start(&headers(pairs))
    }

    /// The range that is asked, of a container with so many partitions.
    fn asked(
        partitions: usize,
        pairs: &[(&'static str, &'static str)],
        scope: &Scope,
    ) -> Result<u32, ApiError> {
        let resolved = resolve::tests::container(partitions, &["/pk"]);
        partition(&headers(pairs), &resolved, scope).map(|partition| partition.range.0)
    }

    fn key(text: &str) -> Scope {
        Scope { key: Some(PartitionKey::parse(text).unwrap()), epks: None }
    }

    #[test]
    fn the_range_that_is_named_is_asked() {
        let range = |id| [("x-ms-documentdb-partitionkeyrangeid", id)];
        let everything = Scope::default();
        assert_eq!(asked(3, &range("0"), &everything).unwrap(), 0);
        assert_eq!(asked(3, &range("2"), &everything).unwrap(), 2);
        for gone in ["3", "-1", "", "00", "x"] {
            let error = asked(3, &range(gone), &everything).unwrap_err();
            assert!(matches!(error, ApiError::RangeGone(id) if id == gone), "{gone}");
        }
        assert_eq!(asked(3, &range("1"), &key("[\"a\"]")).unwrap(), 1, "the client knows best");
    }

    #[test]
    fn a_partition_key_leads_to_its_range() {
        // V2 hashes: 3A53… lies at the end of the space, which ends with 3FFF…, and 0A8B… in its
        // first third.
        assert_eq!(asked(3, &[], &key("[\"a\"]")).unwrap(), 2);
        assert_eq!(asked(3, &[], &key("[\"hello\"]")).unwrap(), 0);
        assert_eq!(asked(1, &[], &key("[\"a\"]")).unwrap(), 0);
    }

    #[test]
    fn without_either_there_must_be_only_one_range() {
        assert_eq!(asked(1, &[], &Scope::default()).unwrap(), 0);
        let epks = Some((Epk::min(), Epk::parse("01").unwrap()));
        for scope in [Scope::default(), Scope { key: None, epks }] {
            let error = asked(2, &[], &scope).unwrap_err();
            assert!(error.to_string().contains("x-ms-documentdb-partitionkeyrangeid"), "{error}");
        }
    }

    #[test]
    fn a_feed_never_goes_back() {
        let latest = |start| Feed::LatestVersion(start, RowForm::Flat);
        let after = latest(FeedStart::After(Lsn(7)));
        assert_eq!(level(ReadLevel::Any, after), ReadLevel::AtLeast(Lsn(7)));
        assert_eq!(level(ReadLevel::AtLeast(Lsn(9)), after), ReadLevel::AtLeast(Lsn(9)));
        assert_eq!(level(ReadLevel::AtLeast(Lsn(5)), after), ReadLevel::AtLeast(Lsn(7)));
        assert_eq!(level(ReadLevel::Linearizable, after), ReadLevel::Linearizable);
        let inside = Feed::AllVersions(HistoryStart::After(FeedPosition::parse("7.2").unwrap()));
        assert_eq!(level(ReadLevel::Any, inside), ReadLevel::AtLeast(Lsn(7)));
        let beginning = latest(FeedStart::Beginning);
        assert_eq!(level(ReadLevel::Any, beginning), ReadLevel::Any);
        for now in [latest(FeedStart::Now), Feed::AllVersions(HistoryStart::Now)] {
            assert_eq!(level(ReadLevel::Any, now), ReadLevel::Linearizable);
        }
    }

    #[test]
    fn a_tag_wins_over_a_time_and_nothing_means_the_beginning() {
        let time = ("if-modified-since", "Thu, 01 Jan 1970 00:01:40 GMT");
        assert_eq!(start_of(&[]).unwrap(), FeedStart::Beginning);
        assert_eq!(start_of(&[time]).unwrap(), FeedStart::At(Seconds(100)));
        assert_eq!(start_of(&[time, ("if-none-match", "*")]).unwrap(), FeedStart::Now);
        let tag = ("if-none-match", "\"7\"");
        assert_eq!(start_of(&[time, tag]).unwrap(), FeedStart::After(Lsn(7)));
        assert!(start_of(&[("if-none-match", "\"x\"")]).is_err());
        assert!(start_of(&[("if-modified-since", "yesterday")]).is_err());
    }

    #[test]
    fn rows_have_the_form_that_is_asked_for() {
        let form = |format| {
            let feed = super::feed(LATEST_VERSION, &headers(&[(FORMAT_HEADER, format)]))?;
            let Feed::LatestVersion(FeedStart::Beginning, form) = feed else { panic!("{feed:?}") };
            Ok::<_, ApiError>(form)
        };
        assert_eq!(form(WIRE_FORMAT).unwrap(), RowForm::Apart);
        assert_eq!(form("").unwrap(), RowForm::Flat);
        assert!(form("2022-01-01").is_err(), "rows of another form are not sent");
        let without = super::feed(LATEST_VERSION, &headers(&[])).unwrap();
        assert_eq!(without, Feed::LatestVersion(FeedStart::Beginning, RowForm::Flat));
    }

    #[test]
    fn all_versions_are_told_from_now_on_or_from_where_a_reader_was() {
        let format = (FORMAT_HEADER, WIRE_FORMAT);
        let feed_of = |pairs: &[(&'static str, &'static str)]| {
            super::feed(ALL_VERSIONS, &headers(&[pairs, &[format]].concat()))
        };
        let after =
            |place| Feed::AllVersions(HistoryStart::After(FeedPosition::parse(place).unwrap()));
        let time = ("if-modified-since", "Thu, 01 Jan 1970 00:01:40 GMT");
        let now = feed_of(&[("if-none-match", "*")]).unwrap();
        assert_eq!(now, Feed::AllVersions(HistoryStart::Now));
        assert_eq!(feed_of(&[("if-none-match", "\"7\"")]).unwrap(), after("7"));
        assert_eq!(feed_of(&[time, ("if-none-match", "\"7.2\"")]).unwrap(), after("7.2"));
        for wrong in [&[][..], &[time], &[("if-none-match", "\"x\"")], &[("if-none-match", "7.x")]]
        {
            assert!(feed_of(wrong).is_err(), "{wrong:?}");
        }
        let unformatted = super::feed(ALL_VERSIONS, &headers(&[("if-none-match", "*")]));
        assert!(unformatted.is_err(), "rows of another form are not sent");
        assert!(super::feed("Any Feed", &headers(&[])).is_err());
        assert!(super::feed("incremental feed", &headers(&[])).is_ok());
    }
}
