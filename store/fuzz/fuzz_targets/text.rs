//! Any bytes as a query text.
#![no_main]

use ephemeris_store::query::Value;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let item = Value::from_json(br#"{"id":"1","a":5,"b":{"c":"x"},"tags":[1,"two",null]}"#);
        ephemeris_store_fuzz::check(text, &item.expect("it is JSON"));
    }
});
