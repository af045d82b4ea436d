//! Authentication: with whose word a request comes.
//!
//! Who knows a key of the account signs each request with it. The signed text is five lines: verb,
//! resource type, resource link, `x-ms-date`, `date`. Who was given a permission shows a token.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use axum::http::header::{AUTHORIZATION, DATE};
use axum::http::{HeaderMap, HeaderName};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ephemeris_store::catalog::ClusterId;
use ephemeris_store::ids::PermissionNumber;
use hmac::Mac as _;

use super::error::ApiError;
use super::mac::{HmacSha256, mac};
use super::path::{Segments, percent_decoded};
use super::resource_tokens::Seals;
use crate::config::AccountKeys;
use crate::reload::Looked;

static MS_DATE: HeaderName = HeaderName::from_static("x-ms-date");

/// How far a request's date may be from ours.
const SKEW_MAX: Duration = Duration::from_mins(15);
/// Bytes of what is signed, or a few less: room for them is taken at once.
const PAYLOAD_ROOM: usize = 128;

/// What a request was signed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    /// A key that may do everything.
    ReadWriteKey,
    /// A key that may look at everything but permissions.
    ReadOnlyKey,
    /// A token, which may do what a permission says.
    Token(PermissionNumber),
}

/// Checks signatures and tokens against the account's keys, which may change meanwhile.
pub(crate) struct Verifier {
    keys: ArcSwap<Keys>,
}

/// Keys, ready to check with.
struct Keys {
    account: AccountKeys,
    read_write: Vec<HmacSha256>,
    read_only: Vec<HmacSha256>,
    seals: Seals,
}

/// The `authorization` header, taken apart.
struct Presented<'t> {
    kind: PresentedKind,
    signature: &'t str,
}

#[derive(Clone, Copy)]
enum PresentedKind {
    Master,
    Resource,
}

impl Keys {
    fn new(account: AccountKeys) -> Self {
        let macs = |keys: &[Vec<u8>]| keys.iter().map(|key| mac(key)).collect();
        Self {
            read_write: macs(&account.read_write),
            read_only: macs(&account.read_only),
            seals: Seals::new(&account.read_write),
            account,
        }
    }
}

impl Verifier {
    /// A verifier for these keys.
    pub(crate) fn new(keys: AccountKeys) -> Self {
        Self { keys: ArcSwap::from_pointee(Keys::new(keys)) }
    }

    /// Goes by these keys from the next request on; tells whether they are others.
    pub(crate) fn replace_keys(&self, account: AccountKeys) -> Looked {
        if self.keys.load().account == account {
            return Looked::Same;
        }
        self.keys.store(Keys::new(account).into());
        Looked::Changed
    }

    /// Finds what a request was signed with, not long ago.
    pub(crate) fn verify(
        &self,
        verb: &str,
        segments: &Segments<'_>,
        headers: &HeaderMap,
        cluster: Option<ClusterId>,
        now: SystemTime,
    ) -> Result<Credential, ApiError> {
        let keys = self.keys.load();
        let token = token_in(headers)?;
        let Presented { kind, signature } = Presented::parse(&token)?;
        match kind {
            PresentedKind::Resource => {
                let cluster = cluster.ok_or_else(ApiError::unknown_cluster)?;
                keys.seals.open(cluster, signature, now).map(Credential::Token)
            }
            PresentedKind::Master => {
                let signature = STANDARD.decode(signature).map_err(|_| malformed())?;
                keys.verify_signature(verb, segments, headers, &signature, now)
            }
        }
    }

    /// A token for a permission, good until `end`.
    pub(crate) fn token(
        &self,
        cluster: ClusterId,
        permission: PermissionNumber,
        end: SystemTime,
    ) -> String {
        self.keys.load().seals.token(cluster, permission, end)
    }
}

impl Keys {
    fn verify_signature(
        &self,
        verb: &str,
        segments: &Segments<'_>,
        headers: &HeaderMap,
        signature: &[u8],
        now: SystemTime,
    ) -> Result<Credential, ApiError> {
        let text = |name| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.filter(|date| !date.is_empty())
        };
        let (ms_date, date) = (text(&MS_DATE), text(&DATE));
        check_date(ms_date.or(date), now)?;
        // Who sends both dates signs one of them, as the service has it, and some clients sign both.
        let both = [ms_date, date].map(Option::unwrap_or_default);
        let dates = if ms_date.is_some() { [both[0], ""] } else { both };
        let (kind, link) = segments.signed();
        let signed_with = |dates| {
            let by_name = self.credential(&payload(verb, kind, link, dates), signature);
            // Few clients sign what a resource is called inside.
            by_name.or_else(|| {
                let by_rid = payload(verb, kind, &[segments.signed_by_rid()], dates);
                self.credential(&by_rid, signature)
            })
        };
        let credential = signed_with(dates);
        let credential =
            if dates == both { credential } else { credential.or_else(|| signed_with(both)) };
        credential.ok_or_else(|| {
            ApiError::Unauthorized(format!(
                "The input authorization token can't serve the request. The wrong key is being \
                 used or the expected payload is not built as per the protocol. Server used the \
                 following payload to sign: '{}'",
                payload(verb, kind, link, dates)
            ))
        })
    }

    /// With which key a payload was signed.
    fn credential(&self, payload: &str, signature: &[u8]) -> Option<Credential> {
        if matches(&self.read_write, payload, signature) {
            Some(Credential::ReadWriteKey)
        } else if matches(&self.read_only, payload, signature) {
            Some(Credential::ReadOnlyKey)
        } else {
            None
        }
    }
}

/// What is signed: five lines; verb and dates in lower case.
fn payload(verb: &str, kind: &str, link: &[impl AsRef<str>], [ms_date, date]: [&str; 2]) -> String {
    let mut text = String::with_capacity(PAYLOAD_ROOM);
    push_lower(&mut text, verb);
    text.push_str(kind);
    text.push('\n');
    for (at, segment) in link.iter().enumerate() {
        if at > 0 {
            text.push('/');
        }
        text.push_str(segment.as_ref());
    }
    text.push('\n');
    push_lower(&mut text, ms_date);
    push_lower(&mut text, date);
    text
}

/// Appends a line in lower case.
fn push_lower(text: &mut String, line: &str) {
    let start = text.len();
    text.push_str(line);
    text[start..].make_ascii_lowercase();
    text.push('\n');
}

/// Compares in constant time.
fn matches(macs: &[HmacSha256], payload: &str, signature: &[u8]) -> bool {
    macs.iter().any(|mac| {
        let mut mac = mac.clone();
        mac.update(payload.as_bytes());
        mac.verify_slice(signature).is_ok()
    })
}

/// The `authorization` header of a request with this `x-ms-date`, as a client makes it.
pub(crate) fn sign(key: &[u8], verb: &str, segments: &Segments<'_>, ms_date: &str) -> String {
    let (kind, link) = segments.signed();
    let mut mac = mac(key);
    mac.update(payload(verb, kind, link, [ms_date, ""]).as_bytes());
    let signature = STANDARD.encode(mac.finalize().into_bytes());
    let token = format!("type=master&ver=1.0&sig={signature}");
    percent_encoding::utf8_percent_encode(&token, percent_encoding::NON_ALPHANUMERIC).to_string()
}

fn malformed() -> ApiError {
    refuse("The authorization header is malformed.")
}

fn refuse(reason: &str) -> ApiError {
    ApiError::Unauthorized(reason.to_string())
}

/// The `authorization` header, decoded.
fn token_in(headers: &HeaderMap) -> Result<Cow<'_, str>, ApiError> {
    let header = headers.get(AUTHORIZATION).ok_or_else(|| {
        refuse(
            "Required Header authorization is missing. Ensure a valid Authorization token is \
             passed.",
        )
    })?;
    let header = header.to_str().map_err(|_| malformed())?;
    percent_decoded(header).ok_or_else(malformed)
}

impl<'t> Presented<'t> {
    fn parse(token: &'t str) -> Result<Self, ApiError> {
        let (mut kind, mut signature) = (None, None);
        for part in token.split('&') {
            match part.split_once('=') {
                Some(("type", value)) => kind = Some(value),
                Some(("sig", value)) => signature = Some(value),
                Some(_) | None => {}
            }
        }
        let kind = match kind {
            Some("master") => PresentedKind::Master,
            Some("resource") => PresentedKind::Resource,
            Some("aad") => {
                let message = "Tokens of Microsoft Entra ID are not accepted: sign with a key of \
                               the account, or show a resource token.";
                return Err(refuse(message));
            }
            Some(_) | None => return Err(malformed()),
        };
        Ok(Self { kind, signature: signature.ok_or_else(malformed)? })
    }
}

/// A date that cannot be told is 401; one that is told, and is not of now, 403, as at the service.
fn check_date(date: Option<&str>, now: SystemTime) -> Result<(), ApiError> {
    let date = date.ok_or_else(|| {
        ApiError::Unauthorized("One of the headers x-ms-date and date is required.".to_string())
    })?;
    let date = parse_date(date).ok_or_else(|| {
        ApiError::Unauthorized(format!("'{date}' is not a date of the form RFC 1123 gives it."))
    })?;
    let skew = now.duration_since(date).unwrap_or_else(|error| error.duration());
    if skew <= SKEW_MAX {
        return Ok(());
    }
    Err(ApiError::Forbidden(format!(
        "The authorization token is not valid at the current time. The request's date is {}, the \
         server's is {}.",
        httpdate::fmt_http_date(date),
        httpdate::fmt_http_date(now)
    )))
}

/// Parses `Fri, 20 Nov 2026 10:00:00 GMT`, in whatever case it comes, and with `UTC`, as the SDK for Go ends it.
pub(crate) fn parse_date(text: &str) -> Option<SystemTime> {
    httpdate::parse_http_date(text).ok().or_else(|| parse_date_in_any_case(text))
}

fn parse_date_in_any_case(text: &str) -> Option<SystemTime> {
    let text = text.to_ascii_lowercase();
    let mut normal = String::with_capacity(text.len());
    for (at, word) in text.split(' ').enumerate() {
        if at > 0 {
            normal.push(' ');
        }
        match word.split_at_checked(1) {
            _ if ["gmt", "utc"].contains(&word) => normal.push_str("GMT"),
            Some((first, rest)) => {
                normal.push_str(&first.to_ascii_uppercase());
                normal.push_str(rest);
            }
            None => {}
        }
    }
    httpdate::parse_http_date(&normal).ok()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use proptest::prelude::*;

    use super::*;
    use crate::config::EMULATOR_KEY;

    const CLUSTER: ClusterId = ClusterId(7);
    const DATE: &str = "Fri, 20 Nov 2026 10:00:00 GMT";

    #[test]
    fn dates_are_read_as_sdks_write_them() {
        for date in ["Fri, 20 Nov 2026 10:00:00 UTC", "fri, 20 nov 2026 10:00:00 gmt"] {
            assert_eq!(parse_date(date), parse_date(DATE), "{date}");
        }
        for wrong in ["Fri, 20 Nov 2026 10:00:00 CET", "Fri, 20 Nov 2026 10:00:00", "UTC", ""] {
            assert_eq!(parse_date(wrong), None, "{wrong}");
        }
    }

    fn emulator_key() -> Vec<u8> {
        STANDARD.decode(EMULATOR_KEY).unwrap()
    }

    fn headers(date: &str, authorization: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-ms-date", HeaderValue::from_str(date).unwrap());
        headers.insert("authorization", HeaderValue::from_str(authorization).unwrap());
        headers
    }

    fn verifier(read_write: &[Vec<u8>], read_only: &[Vec<u8>]) -> Verifier {
        let (read_write, read_only) = (read_write.to_vec(), read_only.to_vec());
        Verifier::new(AccountKeys { read_write, read_only, emulator: false })
    }

    fn ask(verifier: &Verifier, path: &str, headers: &HeaderMap) -> Result<Credential, ApiError> {
        let now = parse_date(DATE).unwrap() + Duration::from_mins(1);
        verifier.verify("GET", &Segments::parse(path).unwrap(), headers, Some(CLUSTER), now)
    }

    fn check(keys: &[Vec<u8>], path: &str, headers: &HeaderMap) -> Result<Credential, ApiError> {
        ask(&verifier(keys, &[]), path, headers)
    }

    fn signed(key: &[u8], path: &str) -> HeaderMap {
        headers(DATE, &sign(key, "GET", &Segments::parse(path).unwrap(), DATE))
    }

    /// Both made by the Python SDK 4.17.1 with the emulator key.
    #[test]
    fn signatures_of_the_python_sdk_are_accepted() {
        for (path, signature) in [
            (
                "/dbs/Shop/colls/Carts/docs/a%20b/",
                "HjAbPiR%2FdMBsY%2FzzAbynHQcDMKIL7kf0G53yAkchgyU",
            ),
            ("/dbs/SnxPAA==/colls/", "IcwfnCU4%2Bz%2F%2FMertilAEhHxBVumXAyftCInYPOQYUNg"),
        ] {
            let token = format!("type%3Dmaster%26ver%3D1.0%26sig%3D{signature}%3D");
            assert!(check(&[emulator_key()], path, &headers(DATE, &token)).is_ok(), "{path}");
        }
    }

    #[test]
    fn what_we_sign_we_accept() {
        for path in ["/", "/dbs", "/dbs/D/colls/C/docs/I/", "/offers"] {
            let headers = signed(&emulator_key(), path);
            assert!(check(&[emulator_key()], path, &headers).is_ok(), "{path}");
        }
    }

    #[test]
    fn either_key_is_enough_and_others_are_not() {
        let keys = [vec![1; 32], vec![2; 32]];
        for key in &keys {
            assert!(check(&keys, "/dbs", &signed(key, "/dbs")).is_ok());
        }
        let error = check(&keys, "/dbs", &signed(&[3; 32], "/dbs")).unwrap_err();
        assert!(error.to_string().contains("'get\ndbs\n\n"), "{error}");
    }

    #[test]
    fn a_key_tells_what_it_may_do() {
        let verifier = verifier(&[vec![1; 32]], &[vec![2; 32], vec![3; 32]]);
        let credential = |key: u8| ask(&verifier, "/dbs", &signed(&[key; 32], "/dbs")).ok();
        assert_eq!(credential(1), Some(Credential::ReadWriteKey));
        assert_eq!(credential(2), Some(Credential::ReadOnlyKey));
        assert_eq!(credential(3), Some(Credential::ReadOnlyKey));
        assert_eq!(credential(4), None);
    }

    #[test]
    fn replaced_keys_count_from_the_next_request_on() {
        let verifier = verifier(&[vec![1; 32]], &[vec![2; 32]]);
        let (read_write, read_only) = (vec![vec![3; 32], vec![1; 32]], Vec::new());
        let keys = AccountKeys { read_write, read_only, emulator: false };
        assert!(matches!(verifier.replace_keys(keys.clone()), Looked::Changed));
        assert!(matches!(verifier.replace_keys(keys), Looked::Same));
        let is_taken = |key: u8| ask(&verifier, "/dbs", &signed(&[key; 32], "/dbs")).is_ok();
        assert_eq!([1, 2, 3].map(is_taken), [true, false, true]);
    }

    #[test]
    fn a_token_needs_no_date_and_is_read_encoded_or_not() {
        let verifier = verifier(&[vec![1; 32]], &[vec![2; 32]]);
        let user = ephemeris_store::ids::UserNumber {
            database: ephemeris_store::ids::DatabaseNumber(1),
            number: 2,
        };
        let permission = PermissionNumber { user, number: 3 };
        let token = verifier.token(CLUSTER, permission, parse_date(DATE).unwrap() + SKEW_MAX);
        let encoded = token.replace('=', "%3D").replace('&', "%26");
        for authorization in [&token, &encoded] {
            let mut headers = headers(DATE, authorization);
            headers.remove("x-ms-date");
            let credential = ask(&verifier, "/dbs/any/colls/one", &headers).unwrap();
            assert_eq!(credential, Credential::Token(permission));
        }
        let as_master = token.replace("resource", "master");
        assert!(ask(&verifier, "/dbs", &headers(DATE, &as_master)).is_err());
    }

    #[test]
    fn a_signature_is_good_for_its_own_path_only() {
        let keys = [emulator_key()];
        let headers = signed(&keys[0], "/dbs/a");
        assert!(check(&keys, "/dbs/b", &headers).is_err());
        assert!(check(&keys, "/dbs", &headers).is_err());
    }

    /// Clients and proxies add a `Date`, whether it was signed or not.
    #[test]
    fn a_second_date_may_be_signed_or_not() {
        let keys = [emulator_key()];
        let segments = Segments::parse("/dbs").unwrap();
        let other = "Fri, 20 Nov 2026 10:00:01 GMT";
        let signature = |dates: [&str; 2]| {
            let (kind, link) = segments.signed();
            let mut mac = mac(&keys[0]);
            mac.update(payload("GET", kind, link, dates).as_bytes());
            format!("type=master&ver=1.0&sig={}", STANDARD.encode(mac.finalize().into_bytes()))
        };
        let check = |ms_date: Option<&str>, date: &str, dates| {
            let mut headers = headers(ms_date.unwrap_or_default(), &signature(dates));
            headers.insert("date", HeaderValue::from_str(date).unwrap());
            if ms_date.is_none() {
                headers.remove(&MS_DATE);
            }
            check(&keys, "/dbs", &headers).is_ok()
        };
        assert!(check(Some(DATE), other, [DATE, ""]));
        assert!(check(Some(DATE), other, [DATE, other]));
        assert!(check(None, other, ["", other]));
        assert!(check(Some(""), other, ["", other]));
        assert!(!check(Some(DATE), other, ["", other]), "the first counts");
        assert!(!check(Some(DATE), other, [other, ""]));
    }

    #[test]
    fn old_and_future_dates_are_refused() {
        let keys = [emulator_key()];
        let segments = Segments::parse("/dbs").unwrap();
        for date in ["Fri, 20 Nov 2026 09:40:00 GMT", "Fri, 20 Nov 2026 10:20:00 GMT"] {
            let headers = headers(date, &sign(&keys[0], "GET", &segments, date));
            let refused = check(&keys, "/dbs", &headers);
            assert!(matches!(refused, Err(ApiError::Forbidden(_))), "{date}");
        }
        let lower = DATE.to_lowercase();
        let headers = headers(&lower, &sign(&keys[0], "GET", &segments, &lower));
        assert!(check(&keys, "/dbs", &headers).is_ok());
    }

    #[test]
    fn malformed_headers_are_refused() {
        let keys = [emulator_key()];
        for authorization in [
            "",
            "x",
            "type=master",
            "type=master&ver=1.0&sig=!",
            "type=resource",
            "type=resource&sig=!",
            "type=resource&sig=",
            "type=aad&sig=x",
            "%FF",
            "sig=",
        ] {
            let headers = headers(DATE, authorization);
            let result = check(&keys, "/dbs", &headers);
            assert!(matches!(result, Err(ApiError::Unauthorized(_))), "{authorization}");
        }
        let mut headers = signed(&keys[0], "/dbs");
        headers.remove("x-ms-date");
        assert!(check(&keys, "/dbs", &headers).is_err());
        headers.insert("x-ms-date", HeaderValue::from_static("yesterday"));
        assert!(check(&keys, "/dbs", &headers).is_err());
    }

    proptest! {
        #[test]
        fn any_header_is_refused_without_panic(authorization in "\\PC{0,60}", date in "\\PC{0,40}") {
            if let (Ok(authorization), Ok(date)) =
                (HeaderValue::from_str(&authorization), HeaderValue::from_str(&date))
            {
                let mut headers = HeaderMap::new();
                headers.insert("x-ms-date", date);
                headers.insert("authorization", authorization);
                prop_assert!(check(&[emulator_key()], "/dbs", &headers).is_err());
            }
        }
    }
}
