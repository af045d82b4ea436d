//! The requests: built once, signed once, and only patched where they must differ.

use std::net::SocketAddr;
use std::sync::Arc;

use ephemeris_cluster_tests::client::{AccountKey, Container};
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::load::{Connection, Request, Signed, Source};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// Bytes of an item's JSON.
pub(crate) const ITEM_BYTES: usize = 1024;
/// Digits of an id; its end is the item's partition key.
const ID_DIGITS: usize = 16;
/// Digits of a partition key: each has few items.
const KEY_DIGITS: usize = 8;
/// Digits that tell one run of the benchmark, or one worker of it, from the next.
const RUN_DIGITS: usize = 6;

/// Creates items with ids nobody else uses, on one node.
pub(crate) struct Creates {
    bytes: Vec<u8>,
    /// Status of a good answer.
    good: u16,
    /// Where the id stands, and where its end stands as partition key.
    ids: Vec<(usize, usize)>,
    /// Digits all ids of this worker begin with.
    run: u64,
    serial: u64,
}

impl Creates {
    /// A source for one worker.
    pub(crate) fn new(host: SocketAddr, container: &Container, key: &AccountKey, run: u64) -> Self {
        Self::sized(host, container, key, ITEM_BYTES, run)
    }

    /// The same, of items of another size.
    pub(crate) fn sized(
        host: SocketAddr,
        container: &Container,
        key: &AccountKey,
        item_bytes: usize,
        run: u64,
    ) -> Self {
        let item = item_of(item_bytes, &placeholder(ID_DIGITS), &placeholder(KEY_DIGITS), "");
        Self::of(host, container, key, &[], &item, 201, run)
    }

    /// The same in transactional batches: the ids of a batch differ behind what is its own.
    pub(crate) fn batches(
        host: SocketAddr,
        container: &Container,
        key: &AccountKey,
        items: u32,
        run: u64,
    ) -> Self {
        let (id, pk) = (placeholder(ID_DIGITS), placeholder(KEY_DIGITS));
        let create = |number| {
            let item = item(&format!("{id}-{number}"), &pk, "");
            format!("{{\"operationType\":\"Create\",\"resourceBody\":{item}}}")
        };
        let creates: Vec<String> = (0..items).map(create).collect();
        let headers =
            [("x-ms-cosmos-is-batch-request", "True"), ("x-ms-cosmos-batch-atomic", "True")];
        Self::of(host, container, key, &headers, &format!("[{}]", creates.join(",")), 200, run)
    }

    fn of(
        host: SocketAddr,
        container: &Container,
        key: &AccountKey,
        more: &[(&str, &str)],
        body: &str,
        good: u16,
        run: u64,
    ) -> Self {
        let path = container.items();
        let signed = Signed::new(key, "POST", &path, clock::wall());
        let partition_key = format!("[\"{}\"]", placeholder(KEY_DIGITS));
        let mut headers = vec![
            ("x-ms-date", signed.date.as_str()),
            ("authorization", &signed.authorization),
            ("x-ms-version", "2020-07-15"),
            ("content-type", "application/json"),
            ("x-ms-documentdb-partitionkey", &partition_key),
        ];
        headers.extend_from_slice(more);
        let request = Request::new(&format!("POST {path}"), host, &headers, body.as_bytes());
        let bytes = request.bytes().to_vec();
        let ids = placeholders(&bytes);
        Self { bytes, good, ids, run, serial: 0 }
    }

    /// The id of a worker's item, by its number.
    pub(crate) fn id(run: u64, serial: u64) -> String {
        let serial_digits = ID_DIGITS - RUN_DIGITS;
        format!("{run:0RUN_DIGITS$x}{serial:0serial_digits$x}")
    }

    /// The partition key of an item, by its id.
    pub(crate) fn key_of(id: &str) -> &str {
        &id[ID_DIGITS - KEY_DIGITS..ID_DIGITS]
    }
}

impl Source for Creates {
    type Wire = Connection;

    fn next(&mut self) -> (&[u8], u16) {
        let id = Self::id(self.run, self.serial);
        self.serial += 1;
        for (at, digits) in &self.ids {
            let end = &id.as_bytes()[ID_DIGITS - digits..];
            self.bytes[*at..*at + digits].copy_from_slice(end);
        }
        (&self.bytes, self.good)
    }
}

/// An item of `ITEM_BYTES`; `more` is JSON of members, each with a comma behind it.
pub(crate) fn item(id: &str, pk: &str, more: &str) -> String {
    item_of(ITEM_BYTES, id, pk, more)
}

/// The same, of another size, though never of less than the members take.
fn item_of(bytes: usize, id: &str, pk: &str, more: &str) -> String {
    let start = format!("{{\"id\":\"{id}\",\"pk\":\"{pk}\",{more}\"filler\":\"");
    let filler = "x".repeat(bytes.saturating_sub(start.len() + 2));
    format!("{start}{filler}\"}}")
}

/// What stands for so many digits until a request is sent.
fn placeholder(digits: usize) -> String {
    "#".repeat(digits)
}

/// Places and lengths of all placeholders.
fn placeholders(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes[at..].iter().take_while(|byte| **byte == b'#').count();
        if digits > 0 {
            found.push((at, digits));
        }
        at += digits.max(1);
    }
    found
}

/// Point reads, ready to be sent.
#[derive(Clone)]
pub(crate) struct Reads {
    requests: Arc<Vec<Request>>,
    rng: SmallRng,
}

impl Reads {
    /// Reads of these items through one node, in random order.
    pub(crate) fn new(
        host: SocketAddr,
        container: &Container,
        key: &AccountKey,
        ids: &[String],
    ) -> Self {
        let request = |id: &String| read_request(host, container, key, id, Creates::key_of(id));
        Self {
            requests: Arc::new(ids.iter().map(request).collect()),
            rng: SmallRng::seed_from_u64(0),
        }
    }

    /// The same reads in another order.
    pub(crate) fn seeded(&self, seed: u64) -> Self {
        Self { requests: self.requests.clone(), rng: SmallRng::seed_from_u64(seed) }
    }
}

impl Source for Reads {
    type Wire = Connection;

    fn next(&mut self) -> (&[u8], u16) {
        let at = self.rng.random_range(0..self.requests.len());
        (self.requests[at].bytes(), 200)
    }
}

/// The point read of an item with partition key `pk`.
pub(crate) fn read_request(
    host: SocketAddr,
    container: &Container,
    key: &AccountKey,
    id: &str,
    pk: &str,
) -> Request {
    let path = container.item(id);
    let signed = Signed::new(key, "GET", &path, clock::wall());
    let partition_key = format!("[\"{pk}\"]");
    let headers = [
        ("x-ms-date", signed.date.as_str()),
        ("authorization", &signed.authorization),
        ("x-ms-version", "2020-07-15"),
        ("x-ms-documentdb-partitionkey", &partition_key),
    ];
    Request::new(&format!("GET {path}"), host, &headers, b"")
}

/// A query over all partitions of a container.
pub(crate) fn query_request(
    host: SocketAddr,
    container: &Container,
    key: &AccountKey,
    body: &str,
) -> Request {
    let path = container.items();
    let signed = Signed::new(key, "POST", &path, clock::wall());
    let headers = [
        ("x-ms-date", signed.date.as_str()),
        ("authorization", &signed.authorization),
        ("x-ms-version", "2020-07-15"),
        ("content-type", "application/query+json"),
        ("x-ms-documentdb-isquery", "True"),
        ("x-ms-documentdb-query-enablecrosspartition", "True"),
        ("x-ms-max-item-count", "-1"),
    ];
    Request::new(&format!("POST {path}"), host, &headers, body.as_bytes())
}

/// One worker's requests in a run.
pub(crate) struct Mix {
    creates_share: f64,
    creates: Creates,
    reads: Reads,
    rng: SmallRng,
}

impl Mix {
    /// Creates for a part of the requests, from 0 to 1, and reads for the others.
    pub(crate) fn new(creates_share: f64, creates: Creates, reads: Reads, seed: u64) -> Self {
        Self { creates_share, creates, reads, rng: SmallRng::seed_from_u64(seed) }
    }
}

impl Source for Mix {
    type Wire = Connection;

    fn next(&mut self) -> (&[u8], u16) {
        let create = self.rng.random_bool(self.creates_share);
        if create { self.creates.next() } else { self.reads.next() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(request: &[u8]) -> (String, serde_json::Value) {
        let text = std::str::from_utf8(request).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_string(), serde_json::from_str(body).unwrap_or_default())
    }

    #[test]
    fn every_create_is_an_item_of_its_own_under_its_own_key() {
        let container = Container::new("bench", "items");
        let host = "127.0.0.1:1".parse().unwrap();
        let mut creates = Creates::new(host, &container, &AccountKey::emulator(), 0xAB);
        for serial in 0..3 {
            let (request, good) = creates.next();
            let (head, body) = parts(request);
            let id = body["id"].as_str().unwrap();
            assert_eq!((good, id), (201, Creates::id(0xAB, serial).as_str()));
            let pk = body["pk"].as_str().unwrap();
            assert!(id.ends_with(pk), "{id} {pk}");
            assert!(head.contains(&format!("x-ms-documentdb-partitionkey: [\"{pk}\"]")), "{head}");
            assert!(head.contains(&format!("content-length: {ITEM_BYTES}")), "{head}");
        }
    }

    #[test]
    fn a_batch_creates_items_of_its_own_under_one_key() {
        let container = Container::new("bench", "items");
        let host = "127.0.0.1:1".parse().unwrap();
        let mut batches = Creates::batches(host, &container, &AccountKey::emulator(), 3, 0xAB);
        for serial in 0..2 {
            let (request, good) = batches.next();
            assert_eq!(good, 200);
            let (head, body) = parts(request);
            let id = Creates::id(0xAB, serial);
            let pk = &id[ID_DIGITS - KEY_DIGITS..];
            assert!(head.contains(&format!("x-ms-documentdb-partitionkey: [\"{pk}\"]")), "{head}");
            assert!(head.contains("x-ms-cosmos-batch-atomic: True"), "{head}");
            for number in 0..3 {
                let item = &body[number]["resourceBody"];
                assert_eq!(
                    (&item["id"], &item["pk"]),
                    (&format!("{id}-{number}").into(), &pk.into())
                );
                assert_eq!(item.to_string().len(), ITEM_BYTES);
            }
            assert_eq!(body.as_array().unwrap().len(), 3);
        }
    }

    #[test]
    fn reads_name_the_items_that_creates_make() {
        let container = Container::new("bench", "items");
        let host = "127.0.0.1:1".parse().unwrap();
        let id = Creates::id(7, 9);
        let reads =
            Reads::new(host, &container, &AccountKey::emulator(), std::slice::from_ref(&id));
        let (head, _) = parts(reads.seeded(5).next().0);
        assert!(head.starts_with(&format!("GET {} HTTP/1.1", container.item(&id))), "{head}");
        assert!(head.contains(&format!("[\"{}\"]", &id[8..])), "{head}");
    }
}
