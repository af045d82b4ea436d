//! Cosmos binary JSON as the Rust SDK writes it: the few forms it uses of many.

use serde_json::{Number, Value};

/// First byte of every body in this format.
const PREAMBLE: u8 = 0x80;
/// Integers up to here are their own marker.
const SMALL_INTEGER_MAX: i64 = 0x1F;
/// Strings up to here have their length in the marker, in bytes.
const SHORT_STRING_MAX: usize = 0x3F;

/// A value as the Rust SDK sends it.
pub fn binary_json(value: &Value) -> Vec<u8> {
    let mut body = vec![PREAMBLE];
    write(&mut body, value);
    body
}

fn write(body: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => body.push(0xD0),
        Value::Bool(false) => body.push(0xD1),
        Value::Bool(true) => body.push(0xD2),
        Value::Number(number) => write_number(body, number),
        Value::String(text) => write_string(body, text),
        Value::Array(items) => {
            let mut content = Vec::new();
            for item in items {
                write(&mut content, item);
            }
            write_framed(body, 0xE5, &content, items.len());
        }
        Value::Object(members) => {
            let mut content = Vec::new();
            for (name, value) in members {
                write_string(&mut content, name);
                write(&mut content, value);
            }
            write_framed(body, 0xED, &content, members.len());
        }
    }
}

fn write_number(body: &mut Vec<u8>, number: &Number) {
    match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(small @ 0..=SMALL_INTEGER_MAX), ..) => body.extend(&small.to_le_bytes()[..1]),
        (Some(integer), ..) => write_marked(body, 0xCB, &integer.to_le_bytes()),
        (None, Some(large), _) => write_marked(body, 0xC7, &large.to_le_bytes()),
        (None, None, float) => {
            let float = float.expect("numbers that are no integers are doubles");
            write_marked(body, 0xCC, &float.to_le_bytes());
        }
    }
}

fn write_marked(body: &mut Vec<u8>, marker: u8, bytes: &[u8]) {
    body.push(marker);
    body.extend_from_slice(bytes);
}

fn write_string(body: &mut Vec<u8>, text: &str) {
    let length = length_bytes(text.len());
    match text.len() {
        0..=SHORT_STRING_MAX => body.push(0x80 | length[0]),
        0x40..=0xFF => write_marked(body, 0xC0, &length[..1]),
        0x100..=0xFFFF => write_marked(body, 0xC1, &length[..2]),
        _ => write_marked(body, 0xC2, &length),
    }
    body.extend_from_slice(text.as_bytes());
}

/// Writes a container with its length and count; `marker` is that of the narrowest form.
fn write_framed(body: &mut Vec<u8>, marker: u8, content: &[u8], count: usize) {
    let (form, width) = match content.len().max(count) {
        ..=0xFF => (0, 1),
        0x100..=0xFFFF => (1, 2),
        _ => (2, 4),
    };
    body.push(marker + form);
    body.extend(&length_bytes(content.len())[..width]);
    body.extend(&length_bytes(count)[..width]);
    body.extend_from_slice(content);
}

fn length_bytes(length: usize) -> [u8; 4] {
    u32::try_from(length).expect("test bodies are small").to_le_bytes()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What `azure_data_cosmos_driver::binary_json::encode` 1.1.0-beta.1 makes of it.
    #[test]
    fn the_bytes_are_those_of_the_rust_sdk() {
        let value = json!({
            "id": "100", "pk": "eur", "n": 10_000_000, "d": 3.3, "ok": true, "none": null,
            "list": [1, 2, []], "sub": {},
        });
        let hex: Vec<String> = binary_json(&value).iter().map(|b| format!("{b:02X}")).collect();
        let expected = "80 ED 42 08 82 69 64 83 31 30 30 82 70 6B 83 65 75 72 81 6E CB 80 96 98 00 \
                        00 00 00 00 81 64 CC 66 66 66 66 66 66 0A 40 82 6F 6B D2 84 6E 6F 6E 65 D0 \
                        84 6C 69 73 74 E5 05 03 01 02 E5 00 00 83 73 75 62 ED 00 00";
        assert_eq!(hex.join(" "), expected);
    }
}
