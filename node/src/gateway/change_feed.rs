//! `GET …/docs` with `A-IM`: the change feed, of latest versions or of all versions and deletes. The etag
//! is the continuation: on every page, and on the 304 that says there is nothing new. A page is empty if
//! what is asked for did not come before the request's time was up.

use std::sync::Arc;
use std::time::SystemTime;

use axum::http::{StatusCode, header};
use ephemeris_store::catalog::PartitionRecord;
use ephemeris_store::change_feed::{FeedPage, FeedStart, HistoryStart, RowForm};
use ephemeris_store::charge::Charge;
use ephemeris_store::ids::{Lsn, ResourceId};
use ephemeris_store::query::{PageLimits, Scope};
use ephemeris_store::time::Seconds;
use ephemeris_store::timeline::FeedPosition;

use super::auth::parse_date;
use super::error::{ApiError, Failure};
use super::headers::{RequestHeaders, malformed};
use super::path::ContainerPath;
use super::query::{ITEMS_MAX, PAGE_BYTES_MAX, TIME_PART, key_scope};
use super::reply::{Reply, envelope};
use super::resolve::Resolved;
use super::session::Freshness;
use super::{Call, Gateway};
use crate::clock;
use crate::partition::{ChangesRequest, Feed, PartitionRequest, PartitionResponse, ReadLevel};
use crate::requests::RequestError;

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
    let freshness = freshness.at(&gateway.node, &partition);
    let time_is_up = clock::monotonic() + gateway.timeout() / TIME_PART;
    let mut reading = Reading::new(ChangesRequest { feed, scope, limits });
    let (lsn, page, charge) = loop {
        let (group, level) = (partition.group, level(freshness, reading.request.feed));
        let request = PartitionRequest::Changes(Box::new(reading.request.clone()));
        let response = gateway.node.read_partition(group, request, level, call.deadline).await;
        if let Some(end) = reading.take(response, clock::monotonic() >= time_is_up)? {
            break end;
        }
    };
    let reply = if has_news(&page) {
        let rid = ResourceId::Container(resolved.container.number).to_string();
        let body = envelope(&rid, "Documents", &page.rows);
        Reply::json(StatusCode::OK, body).page(page.rows.len(), None)
    } else {
        Reply::empty(StatusCode::NOT_MODIFIED)
    };
    let reply = reply.header(header::ETAG, format!("\"{}\"", page.through));
    Ok(reply.charge(charge).data(resolved.headers().at(partition.range, lsn)))
}

/// One page after the other, until there is something to show, nothing more to see, or time is up: then
/// the page is empty, and its place further on.
struct Reading {
    /// What is asked for next.
    request: ChangesRequest,
    /// What the pages so far cost.
    charge: Charge,
    /// The last of them.
    reached: Option<(Lsn, FeedPage)>,
}

impl Reading {
    fn new(request: ChangesRequest) -> Self {
        Self { request, charge: Charge::ZERO, reached: None }
    }

    /// Takes up what a partition answered: the page that the client gets, or none yet.
    fn take(
        &mut self,
        response: Result<PartitionResponse, RequestError>,
        is_time_up: bool,
    ) -> Result<Option<(Lsn, FeedPage, Charge)>, Failure> {
        let (lsn, page) = match (response, self.reached.take()) {
            (Ok(PartitionResponse::Changes { lsn, page }), _) => (lsn, page),
            (Ok(PartitionResponse::ChangesRefused(refusal)), _) => {
                return Err(ApiError::BadRequest(refusal.to_string()).into());
            }
            (Ok(_), _) => unreachable!("a partition answers what it is asked"),
            // What was paid for already is not thrown away.
            (Err(RequestError::Throttled { .. }), Some((lsn, page))) => {
                return Ok(Some((lsn, page, self.charge)));
            }
            (Err(error), _) => return Err(error.into()),
        };
        self.charge += Charge::query_page(&page.work);
        if !page.rows.is_empty() || !page.more || is_time_up {
            return Ok(Some((lsn, page, self.charge)));
        }
        self.request.feed = self.request.feed.behind(page.through);
        self.reached = Some((lsn, page));
        Ok(None)
    }
}

/// True unless the reader has seen everything: an empty page may have more behind it.
fn has_news(page: &FeedPage) -> bool {
    !page.rows.is_empty() || page.more
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
    let time = parse_date(text).ok_or_else(|| malformed("if-modified-since", text))?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // SDKs call it exclusive, and `_ts` is rounded up: what was written in the second that begins then has the next one.
    Ok(FeedStart::At(Seconds(since + 1)))
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
    use std::time::Duration;

    use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
    use ephemeris_store::charge::QueryWork;
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
        assert_eq!(start_of(&[time]).unwrap(), FeedStart::At(Seconds(101)));
        assert_eq!(start_of(&[time, ("if-none-match", "*")]).unwrap(), FeedStart::Now);
        let tag = ("if-none-match", "\"7\"");
        assert_eq!(start_of(&[time, tag]).unwrap(), FeedStart::After(Lsn(7)));
        assert!(start_of(&[("if-none-match", "\"x\"")]).is_err());
        assert!(start_of(&[("if-modified-since", "yesterday")]).is_err());
    }

    /// What partitions answer with a page that ends there.
    fn answer(through: u64, rows: usize, more: bool) -> PartitionResponse {
        let work = QueryWork { first_page: true, ..QueryWork::default() };
        let rows = vec![b"{}".to_vec().into(); rows];
        let page = FeedPage { rows, through: FeedPosition::end_of(Lsn(through)), more, work };
        PartitionResponse::Changes { lsn: Lsn(9), page }
    }

    /// A reader at the beginning.
    fn reading() -> Reading {
        let feed = Feed::LatestVersion(FeedStart::Beginning, RowForm::Flat);
        let limits = PageLimits { rows: 1, bytes: 1, items: 1 };
        Reading::new(ChangesRequest { feed, scope: Scope::default(), limits })
    }

    /// What so many pages without rows cost.
    fn price(pages: usize) -> Charge {
        let work = QueryWork { first_page: true, ..QueryWork::default() };
        std::iter::repeat_n(Charge::query_page(&work), pages).sum()
    }

    #[test]
    fn pages_without_what_is_asked_for_are_passed() {
        let mut reading = reading();
        for through in [3, 5] {
            assert!(reading.take(Ok(answer(through, 0, true)), false).unwrap().is_none());
            let after = FeedStart::After(Lsn(through));
            assert_eq!(reading.request.feed, Feed::LatestVersion(after, RowForm::Flat));
        }
        let (lsn, page, charge) = reading.take(Ok(answer(7, 1, true)), false).unwrap().unwrap();
        assert_eq!((lsn, page.through), (Lsn(9), FeedPosition::end_of(Lsn(7))));
        assert_eq!((page.rows.len(), charge), (1, price(3)));
    }

    #[test]
    fn only_who_has_seen_everything_is_told_that_there_is_nothing_new() {
        for (more, is_time_up) in [(false, false), (false, true), (true, true)] {
            let page = reading().take(Ok(answer(7, 0, more)), is_time_up).unwrap();
            assert_eq!(has_news(&page.unwrap().1), more, "{more}, {is_time_up}");
        }
    }

    #[test]
    fn a_page_that_ran_out_of_time_or_request_units_tells_how_far_it_came() {
        let throttled = || Err(RequestError::Throttled { retry_after: Duration::ZERO });
        for (last, is_time_up, reached, pages) in
            [(Ok(answer(5, 0, true)), true, 5, 2), (throttled(), false, 3, 1)]
        {
            let mut reading = reading();
            assert!(reading.take(Ok(answer(3, 0, true)), false).unwrap().is_none());
            let (_, page, charge) = reading.take(last, is_time_up).unwrap().unwrap();
            assert_eq!(page.through, FeedPosition::end_of(Lsn(reached)));
            assert!(has_news(&page), "there is more");
            assert_eq!(charge, price(pages));
        }
        assert!(reading().take(throttled(), false).is_err(), "nothing was reached");
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
