//! Headers of requests, read into types.

use axum::http::header::{AsHeaderName, CONTENT_TYPE, HOST, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName, Uri};
use ephemeris_store::catalog::Throughput;
use ephemeris_store::command::Precondition;
use ephemeris_store::ids::{ContainerNumber, Etag, ResourceId};
use ephemeris_store::partition_key::{Epk, PartitionKey};

use super::error::ApiError;
use crate::consistency::{ConsistencyLevel, RefusedLevel};

/// Rows of a page if the client does not say.
const PAGE_ROWS_DEFAULT: usize = 100;
/// Rows of a page at most; also what -1 means.
pub(crate) const PAGE_ROWS_MAX: usize = 1000;

// Names that every request is asked for are parsed once.
static CONSISTENCY_LEVEL: HeaderName = HeaderName::from_static("x-ms-consistency-level");
static READ_STRATEGY: HeaderName = HeaderName::from_static("x-ms-cosmos-read-consistency-strategy");
static PARTITION_KEY: HeaderName = HeaderName::from_static("x-ms-documentdb-partitionkey");
static IS_QUERY_PLAN: HeaderName = HeaderName::from_static("x-ms-cosmos-is-query-plan-request");
static IS_QUERY: HeaderName = HeaderName::from_static("x-ms-documentdb-isquery");
static IS_BATCH: HeaderName = HeaderName::from_static("x-ms-cosmos-is-batch-request");
static IS_UPSERT: HeaderName = HeaderName::from_static("x-ms-documentdb-is-upsert");

/// What a header is called.
pub(crate) trait Name: AsHeaderName + AsRef<str> + Copy {}

impl Name for &str {}
impl Name for &HeaderName {}

/// The headers of one request.
#[derive(Clone, Debug)]
pub(crate) struct RequestHeaders(HeaderMap);

/// What a POST to a feed means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostKind {
    /// Asks how a query would be spread over partitions.
    QueryPlan,
    /// A query.
    Query,
    /// Several operations at once.
    Batch,
    /// Create or replace.
    Upsert,
    /// Create.
    Create,
}

/// What to send back of an item that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The item.
    Full,
    /// Nothing: `Prefer: return=minimal`, or `minimalReturnPreference` of an operation.
    Minimal,
}

impl Content {
    /// What is sent back where either may ask for nothing.
    pub(crate) fn and(self, other: Self) -> Self {
        if self == Self::Minimal { self } else { other }
    }
}

impl RequestHeaders {
    /// The headers of a request; the host is among them also where HTTP/2 names it in the URI.
    pub(crate) fn new(mut headers: HeaderMap, uri: &Uri) -> Self {
        let authority = uri.authority().map(|authority| authority.as_str().parse());
        if let Some(Ok(host)) = authority {
            headers.entry(HOST).or_insert(host);
        }
        Self(headers)
    }

    /// The headers as they came.
    pub(crate) fn raw(&self) -> &HeaderMap {
        &self.0
    }

    /// A header's text; an error if it is there and no text.
    pub(crate) fn text(&self, name: impl Name) -> Result<Option<&str>, ApiError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let text = std::str::from_utf8(value.as_bytes());
        Ok(Some(text.map_err(|_| malformed(name.as_ref(), "…"))?))
    }

    /// True for `true` and `True`, in which languages write it.
    pub(crate) fn flag(&self, name: impl Name) -> bool {
        self.0.get(name).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
    }

    /// How fresh reads are, at an account with this default.
    pub(crate) fn consistency(
        &self,
        account: ConsistencyLevel,
    ) -> Result<ConsistencyLevel, ApiError> {
        let named = |name| Ok::<_, ApiError>(self.text(name)?.filter(|text| !text.is_empty()));
        match (named(&CONSISTENCY_LEVEL)?, named(&READ_STRATEGY)?) {
            (level, None) => Ok(account.asked_for(level)?),
            (None, Some(strategy)) => Ok(account.by_strategy(strategy)?),
            (Some(_), Some(_)) => Err(RefusedLevel::Both.into()),
        }
    }

    /// What a POST means, told in the order in which the flags count.
    pub(crate) fn post_kind(&self) -> PostKind {
        let query_content = self
            .0
            .get(CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().starts_with(b"application/query+json"));
        if self.flag(&IS_QUERY_PLAN) {
            PostKind::QueryPlan
        } else if self.flag(&IS_QUERY) || query_content {
            PostKind::Query
        } else if self.flag(&IS_BATCH) {
            PostKind::Batch
        } else if self.flag(&IS_UPSERT) {
            PostKind::Upsert
        } else {
            PostKind::Create
        }
    }

    /// What must hold of a version for it to be shown: `If-Match` is about writes, as at the service.
    pub(crate) fn read_condition(&self) -> Result<Precondition, ApiError> {
        Ok(match self.text(&IF_NONE_MATCH)? {
            None => Precondition::None,
            Some("*") => Precondition::IfNoneMatchAny,
            Some(tag) => Precondition::IfNoneMatch(Etag::parse(tag)),
        })
    }

    /// What must hold of the version that a write is about.
    pub(crate) fn precondition(&self) -> Result<Precondition, ApiError> {
        if let Some(tag) = self.text(&IF_MATCH)? {
            return Ok(match tag {
                "*" => Precondition::IfMatchAny,
                tag => Precondition::IfMatch(Etag::parse(tag)),
            });
        }
        self.read_condition()
    }

    /// The partition key value.
    pub(crate) fn partition_key(&self) -> Result<Option<PartitionKey>, ApiError> {
        let header = self.text(&PARTITION_KEY)?;
        header.map(|text| PartitionKey::parse(text).map_err(ApiError::from)).transpose()
    }

    /// How many rows a page may have.
    pub(crate) fn page_rows(&self) -> Result<usize, ApiError> {
        let name = "x-ms-max-item-count";
        let Some(text) = self.text(name)? else { return Ok(PAGE_ROWS_DEFAULT) };
        match text.trim().parse::<i64>() {
            Ok(-1) => Ok(PAGE_ROWS_MAX),
            Ok(rows) if rows > 0 => {
                Ok(usize::try_from(rows).map_or(PAGE_ROWS_MAX, |rows| rows.min(PAGE_ROWS_MAX)))
            }
            Ok(_) | Err(_) => Err(malformed(name, text)),
        }
    }

    /// Where the client wants to go on; an empty text means from the start, like none.
    pub(crate) fn continuation(&self) -> Result<Option<&str>, ApiError> {
        Ok(self.text("x-ms-continuation")?.filter(|token| !token.is_empty()))
    }

    /// True if the client means a query to run over all partitions.
    pub(crate) fn crosses_partitions(&self) -> bool {
        self.flag("x-ms-documentdb-query-enablecrosspartition")
    }

    /// The key range of this container that a request is about: its id, before which some SDKs put the
    /// container's `_rid` and a comma.
    pub(crate) fn range_id(&self, container: ContainerNumber) -> Result<Option<&str>, ApiError> {
        let Some(text) = self.text("x-ms-documentdb-partitionkeyrangeid")? else { return Ok(None) };
        let Some((rid, id)) = text.rsplit_once(',') else { return Ok(Some(text)) };
        if rid == ResourceId::Container(container).to_string() {
            Ok(Some(id))
        } else {
            Err(ApiError::ContainerRecreated)
        }
    }

    /// The interval of effective partition keys a query is about.
    pub(crate) fn epk_range(&self) -> Result<Option<(Epk, Epk)>, ApiError> {
        let (start, end) = (self.text("x-ms-start-epk")?, self.text("x-ms-end-epk")?);
        if start.is_none() && end.is_none() {
            return Ok(None);
        }
        let kind = "x-ms-read-key-type";
        match self.text(kind)? {
            // The second is what older SDKs for Java call it.
            None | Some("EffectivePartitionKeyRange" | "EffectivePartitionKey") => {}
            Some(other) => return Err(malformed(kind, other)),
        }
        let parse = |name: &str, text: Option<&str>, default: Epk| match text {
            None => Ok(default),
            Some(text) => Epk::parse(text).ok_or_else(|| malformed(name, text)),
        };
        let start = parse("x-ms-start-epk", start, Epk::min())?;
        let end = parse("x-ms-end-epk", end, Epk::max())?;
        Ok(Some((start, end)))
    }

    /// Throughput for what is being created.
    pub(crate) fn throughput(&self) -> Result<Option<Throughput>, ApiError> {
        let (manual, autoscale) = ("x-ms-offer-throughput", "x-ms-cosmos-offer-autopilot-settings");
        match (self.text(manual)?, self.text(autoscale)?) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => Err(ephemeris_store::catalog::InvalidThroughput::Both.into()),
            (Some(rate), None) => {
                let rate = rate.trim().parse().map_err(|_| malformed(manual, rate))?;
                Ok(Some(Throughput::manual(rate)?))
            }
            (None, Some(settings)) => {
                let parsed =
                    serde_json::from_str(settings).map_err(|_| malformed(autoscale, settings))?;
                Ok(Some(Throughput::autoscale(&parsed)?))
            }
        }
    }

    /// What to send back of a written item.
    pub(crate) fn content(&self) -> Content {
        let minimal = self.0.get_all("prefer").iter().any(|value| {
            value.as_bytes().to_ascii_lowercase().windows(14).any(|part| part == b"return=minimal")
        });
        if minimal { Content::Minimal } else { Content::Full }
    }
}

/// How much of a wrong header an error message shows, in characters.
const SHOWN_CHARS_MAX: usize = 100;

/// A header whose value means nothing; only its beginning is shown.
pub(super) fn malformed(name: &str, value: &str) -> ApiError {
    let shown: String = value.chars().take(SHOWN_CHARS_MAX).collect();
    ApiError::BadRequest(format!("The value '{shown}' of the header {name} is not valid."))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use ephemeris_store::ids::DatabaseNumber;
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> RequestHeaders {
        let pairs = pairs.iter().map(|(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        RequestHeaders::new(pairs.collect(), &Uri::default())
    }

    #[test]
    fn the_host_is_known_in_every_version_of_http() {
        let host = |headers: HeaderMap, uri: &str| {
            let headers = RequestHeaders::new(headers, &uri.parse().unwrap());
            headers.text("host").unwrap().map(str::to_string)
        };
        let named = HeaderMap::from_iter([(HOST, HeaderValue::from_static("a:1"))]);
        assert_eq!(host(named.clone(), "/dbs").as_deref(), Some("a:1"));
        assert_eq!(host(HeaderMap::new(), "http://b:2/dbs").as_deref(), Some("b:2"));
        assert_eq!(host(named, "http://b:2/dbs").as_deref(), Some("a:1"));
        assert_eq!(host(HeaderMap::new(), "/dbs"), None);
    }

    #[test]
    fn an_empty_continuation_is_none() {
        let continuation = |text| {
            let headers = headers(&[("x-ms-continuation", text)]);
            headers.continuation().unwrap().map(str::to_string)
        };
        assert_eq!(continuation(""), None);
        assert_eq!(continuation("abc").as_deref(), Some("abc"));
        assert_eq!(headers(&[]).continuation().unwrap(), None);
    }

    #[test]
    fn posts_are_told_apart_in_the_order_of_the_protocol() {
        let plan = ("x-ms-cosmos-is-query-plan-request", "True");
        let query = ("x-ms-documentdb-isquery", "true");
        let batch = ("x-ms-cosmos-is-batch-request", "True");
        let upsert = ("x-ms-documentdb-is-upsert", "true");
        assert_eq!(headers(&[query, plan]).post_kind(), PostKind::QueryPlan);
        assert_eq!(headers(&[query, batch, upsert]).post_kind(), PostKind::Query);
        assert_eq!(headers(&[batch, upsert]).post_kind(), PostKind::Batch);
        assert_eq!(headers(&[upsert]).post_kind(), PostKind::Upsert);
        assert_eq!(headers(&[]).post_kind(), PostKind::Create);
        let content = ("content-type", "application/query+json; charset=utf-8");
        assert_eq!(headers(&[content]).post_kind(), PostKind::Query);
    }

    #[test]
    fn a_level_or_a_strategy_says_how_fresh_reads_are() {
        let (level, strategy) = ("x-ms-consistency-level", "x-ms-cosmos-read-consistency-strategy");
        let of = |pairs: &[_]| headers(pairs).consistency(ConsistencyLevel::Session);
        assert_eq!(of(&[]).unwrap(), ConsistencyLevel::Session);
        assert_eq!(of(&[(level, "Eventual")]).unwrap(), ConsistencyLevel::Eventual);
        assert_eq!(of(&[(strategy, "Eventual")]).unwrap(), ConsistencyLevel::Eventual);
        let latest = of(&[(strategy, "LatestCommitted")]).unwrap();
        assert_eq!(latest, ConsistencyLevel::BoundedStaleness);
        let nothing = [(level, "Eventual"), (strategy, "")];
        assert_eq!(of(&nothing).unwrap(), ConsistencyLevel::Eventual);
        for wrong in [
            &[(strategy, "Strong")][..],
            &[(strategy, "GlobalStrong")],
            &[(strategy, "Session"), (level, "Session")],
        ] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn conditions_are_read() {
        let of = |name, value| headers(&[(name, value)]).precondition().unwrap();
        assert_eq!(of("if-match", "*"), Precondition::IfMatchAny);
        assert_eq!(of("if-none-match", "*"), Precondition::IfNoneMatchAny);
        assert_eq!(of("if-match", "unheard of"), Precondition::IfMatch(None));
        let tag = "\"00000000-0000-0000-e384-28095c1a01da\"";
        assert_eq!(of("if-match", tag), Precondition::IfMatch(Etag::parse(tag)));
        assert_eq!(headers(&[]).precondition().unwrap(), Precondition::None);
        let of_read = |pairs: &[_]| headers(pairs).read_condition().unwrap();
        assert_eq!(of_read(&[("if-match", tag)]), Precondition::None);
        let both = [("if-match", "*"), ("if-none-match", tag)];
        assert_eq!(of_read(&both), Precondition::IfNoneMatch(Etag::parse(tag)));
    }

    #[test]
    fn page_sizes_are_checked() {
        let rows = |value| headers(&[("x-ms-max-item-count", value)]).page_rows();
        assert_eq!(rows("5").unwrap(), 5);
        assert_eq!(rows("-1").unwrap(), PAGE_ROWS_MAX);
        assert_eq!(rows("1000000").unwrap(), PAGE_ROWS_MAX);
        assert_eq!(headers(&[]).page_rows().unwrap(), PAGE_ROWS_DEFAULT);
        for wrong in ["0", "-2", "many", "", "1.5"] {
            assert!(rows(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_key_range_may_be_named_with_its_container() {
        let container = ContainerNumber { database: DatabaseNumber(1), number: 2 };
        let rid = ResourceId::Container(container).to_string();
        let id = |text: &str| {
            let headers = headers(&[("x-ms-documentdb-partitionkeyrangeid", text)]);
            headers.range_id(container).map(|id| id.map(str::to_string))
        };
        assert_eq!(id("3").unwrap().as_deref(), Some("3"));
        assert_eq!(id(&format!("{rid},3")).unwrap().as_deref(), Some("3"));
        assert_eq!(headers(&[]).range_id(container).unwrap(), None);
        let other = ResourceId::Container(ContainerNumber { number: 3, ..container });
        for wrong in [format!("{other},3"), format!("{rid},1,3"), "x,3".into(), ",3".into()] {
            assert!(matches!(id(&wrong), Err(ApiError::ContainerRecreated)), "{wrong}");
        }
    }

    #[test]
    fn throughput_is_one_of_two_kinds() {
        let manual = ("x-ms-offer-throughput", "400");
        let autoscale = ("x-ms-cosmos-offer-autopilot-settings", r#"{"maxThroughput":4000}"#);
        let of = |pairs: &[_]| headers(pairs).throughput();
        assert_eq!(of(&[manual]).unwrap(), Some(Throughput::Manual(400)));
        assert_eq!(of(&[autoscale]).unwrap().map(Throughput::maximum), Some(4000));
        assert_eq!(of(&[]).unwrap(), None);
        assert!(of(&[manual, autoscale]).is_err());
        for wrong in ["", "401", "x", "-400"] {
            assert!(of(&[("x-ms-offer-throughput", wrong)]).is_err(), "{wrong}");
        }
        for wrong in ["", "{}", "[]", r#"{"maxThroughput":"4000"}"#] {
            assert!(of(&[("x-ms-cosmos-offer-autopilot-settings", wrong)]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn content_may_be_declined() {
        assert_eq!(headers(&[("prefer", "return=minimal")]).content(), Content::Minimal);
        assert_eq!(headers(&[("prefer", "wait=5, Return=Minimal")]).content(), Content::Minimal);
        assert_eq!(headers(&[("prefer", "return=representation")]).content(), Content::Full);
        assert_eq!(headers(&[]).content(), Content::Full);
    }

    proptest! {
        #[test]
        fn any_values_are_read_or_refused(
            name in prop::sample::select(vec![
                "if-match", "if-none-match", "x-ms-documentdb-partitionkey",
                "x-ms-max-item-count", "x-ms-start-epk", "x-ms-end-epk", "x-ms-read-key-type",
                "x-ms-offer-throughput", "x-ms-cosmos-offer-autopilot-settings", "prefer",
                "x-ms-consistency-level", "x-ms-cosmos-read-consistency-strategy",
            ]),
            value: Vec<u8>,
        ) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                let mut map = HeaderMap::new();
                map.insert(name, value);
                let headers = RequestHeaders::new(map, &Uri::default());
                let _ = (headers.precondition(), headers.partition_key(), headers.page_rows());
                let _ = (headers.epk_range(), headers.throughput(), headers.content());
                let _ = headers.consistency(ConsistencyLevel::Session);
            }
        }
    }
}
