//! Master-key signatures, as Cosmos DB's REST API has them: five lines under an HMAC.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::Sha256;

/// The key that everybody knows.
pub const EMULATOR_KEY: &str =
    "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw==";

/// An account's key.
#[derive(Clone)]
pub struct AccountKey(Hmac<Sha256>);

impl AccountKey {
    /// The key that nodes on loopback use if nobody gives them one.
    pub fn emulator() -> Self {
        Self::parse(EMULATOR_KEY)
    }

    /// A key as people write it, in base64.
    pub fn parse(text: &str) -> Self {
        let bytes = STANDARD.decode(text).expect("account keys are base64");
        Self(Hmac::new_from_slice(&bytes).expect("HMAC takes keys of any length"))
    }

    /// The `authorization` header of a request.
    pub fn authorization(&self, verb: &str, path: &str, ms_date: &str) -> String {
        let (kind, link) = signed_parts(path);
        self.authorization_for(verb, &kind, &link, ms_date)
    }

    /// The `authorization` header for a resource type and link that the caller names.
    pub fn authorization_for(&self, verb: &str, kind: &str, link: &str, ms_date: &str) -> String {
        let (verb, date) = (verb.to_lowercase(), ms_date.to_lowercase());
        let mut mac = self.0.clone();
        mac.update(format!("{verb}\n{kind}\n{link}\n{date}\n\n").as_bytes());
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        let token = format!("type=master&ver=1.0&sig={signature}");
        utf8_percent_encode(&token, NON_ALPHANUMERIC).to_string()
    }
}

/// A date as `x-ms-date` wants it.
pub fn http_date(at: SystemTime) -> String {
    httpdate::fmt_http_date(at)
}

/// Encodes one segment of a path.
pub fn encode_segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Resource type and link of a path.
fn signed_parts(path: &str) -> (String, String) {
    let path = path.split('?').next().unwrap_or_default().trim_matches('/');
    let decode = |segment| percent_decode_str(segment).decode_utf8_lossy().into_owned();
    let segments: Vec<String> = path.split('/').filter(|s| !s.is_empty()).map(decode).collect();
    let texts: Vec<&str> = segments.iter().map(String::as_str).collect();
    if let [owner @ .., "operations", "partitionkeydelete"] = texts.as_slice() {
        return ("colls".to_string(), owner.join("/"));
    }
    match segments.as_slice() {
        [] => (String::new(), String::new()),
        [owner @ .., kind] if segments.len() % 2 == 1 => (kind.clone(), owner.join("/")),
        [.., kind, _] => (kind.clone(), segments.join("/")),
        [_] => unreachable!("one segment is an odd number of them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by the Python SDK 4.17.1.
    #[test]
    fn signatures_are_those_of_the_python_sdk() {
        let date = "Fri, 20 Nov 2026 10:00:00 GMT";
        let made =
            AccountKey::emulator().authorization("GET", "/dbs/Shop/colls/Carts/docs/a%20b/", date);
        let known = "type=master&ver=1.0&sig=HjAbPiR/dMBsY/zzAbynHQcDMKIL7kf0G53yAkchgyU=";
        assert_eq!(percent_decode_str(&made).decode_utf8_lossy(), known);
    }

    #[test]
    fn feeds_are_signed_with_their_owner_and_resources_with_themselves() {
        let parts = |path| signed_parts(path);
        let expect = |kind: &str, link: &str| (kind.to_string(), link.to_string());
        assert_eq!(parts("/"), expect("", ""));
        assert_eq!(parts("/dbs"), expect("dbs", ""));
        assert_eq!(parts("/dbs/d/colls/"), expect("colls", "dbs/d"));
        assert_eq!(parts("/dbs/d/colls/c"), expect("colls", "dbs/d/colls/c"));
        let clearing = "/dbs/d/colls/c/operations/partitionkeydelete";
        assert_eq!(parts(clearing), expect("colls", "dbs/d/colls/c"));
        assert_eq!(parts("/admin/status"), expect("admin", "admin/status"));
    }
}
