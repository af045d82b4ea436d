//! How many instructions a request takes before and after what it asks for, by callgrind: see
//! `docs/BENCHMARKS.md`.

#[path = "../../../store/tests/support/instructions.rs"]
mod support;

use std::path::Path;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ephemeris_store::charge::Charge;
use ephemeris_store::ids::{Lsn, RangeId};

use super::auth::{Credential, Verifier, parse_date, sign};
use super::path::Segments;
use super::reply::{DataHeaders, Reply};
use super::untaken::Untaken;
use crate::config::{AccountKeys, EMULATOR_KEY};
use crate::placement::Links;

const PATH: &str = "/dbs/shop/colls/carts/docs/order-000007";
const DATE: &str = "Fri, 20 Nov 2026 10:00:00 GMT";
/// Bytes of an answer's body.
const BODY_BYTES: usize = 1024;

fn check<S, R>(test: &str, setup: impl FnOnce() -> S, work: impl FnOnce(&mut S) -> R) {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gateway/instructions.txt");
    support::check(&table, &format!("gateway::instructions::{test}"), setup, work);
}

#[test]
fn check_a_signature() {
    let setup = || {
        let key = STANDARD.decode(EMULATOR_KEY).unwrap();
        let signature = sign(&key, "GET", &Segments::parse(PATH).unwrap(), DATE);
        let mut headers = HeaderMap::new();
        headers.insert("x-ms-date", HeaderValue::from_static(DATE));
        headers.insert("authorization", HeaderValue::from_str(&signature).unwrap());
        let keys = AccountKeys { read_write: vec![key], read_only: Vec::new(), emulator: true };
        (Verifier::new(keys), headers)
    };
    check("check_a_signature", setup, |(verifier, headers)| {
        let (segments, now) = (Segments::parse(PATH).unwrap(), parse_date(DATE).unwrap());
        let credential = verifier.verify("GET", &segments, headers, None, now);
        assert!(matches!(credential, Ok(Credential::ReadWriteKey)));
    });
}

#[test]
fn build_the_headers_of_an_answer() {
    let setup = || {
        let by_name = HeaderValue::from_static("dbs/shop/colls/carts");
        let links = Links { by_name, rid: HeaderValue::from_static("SnxPAOy1RLk=") };
        let data = DataHeaders::new(links.into());
        (
            data,
            vec![b'x'; BODY_BYTES],
            HeaderValue::from_static("5f3c1a5e-0000-4000-8000-000000000000"),
            Untaken::default(),
        )
    };
    check("build_the_headers_of_an_answer", setup, |(data, body, activity, untaken)| {
        let data = data.clone().at(RangeId(0), Lsn(123_456)).item(Lsn(123_400));
        let body = std::mem::take(body);
        let reply = Reply::json(StatusCode::OK, body).charge(Charge::ZERO).data(data);
        reply.into_response(activity, Duration::from_micros(420), untaken)
    });
}
