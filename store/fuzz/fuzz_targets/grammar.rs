//! Queries and conditions of the grammar, over items that fit them.
#![no_main]

use arbitrary::Unstructured;
use ephemeris_store::query::Value;
use ephemeris_store_fuzz::{check, grammar};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Unstructured::new(bytes);
    let Ok(item) = grammar::item(&mut bytes) else { return };
    let item = Value::from_json(item.as_bytes()).expect("items are JSON");
    if let Ok(condition) = grammar::condition(&mut bytes) {
        check(&condition, &item);
    }
    if let Ok(query) = grammar::query(&mut bytes) {
        check(&query, &item);
    }
});
