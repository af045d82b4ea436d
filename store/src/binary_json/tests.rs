//! The published vectors, every way of being malformed, and random bodies in every form there is.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::marker::{Marker, SYSTEM_STRINGS};
use super::*;

/// A body from its bytes behind the preamble.
fn text_of(payload: &[u8]) -> Result<String> {
    let body = [&[PREAMBLE], payload].concat();
    decode(&body).map(|text| String::from_utf8(text).expect("text is UTF-8"))
}

fn refusal(payload: &[u8]) -> InvalidBinaryJson {
    text_of(payload).expect_err("the body is malformed")
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

#[test]
fn the_published_vectors_are_decoded() {
    let vectors = include_str!("../../tests/data/binary_json_vectors.json");
    let vectors: Vec<Value> = serde_json::from_str(vectors).unwrap();
    assert_eq!(vectors.len(), 87);
    for vector in vectors {
        let body = bytes(vector["binary"].as_str().unwrap());
        let text = decode(&body).unwrap_or_else(|error| panic!("{}: {error}", vector["name"]));
        let value: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(value, vector["json"], "{}", vector["name"]);
    }
}

#[test]
fn what_the_rust_sdk_sends_is_decoded() {
    // Made by `azure_data_cosmos_driver::binary_json::encode` 1.1.0-beta.1.
    let sent = bytes(
        "80 ED 42 08 82 69 64 83 31 30 30 82 70 6B 83 65 75 72 81 6E CB 80 96 98 00 00 00 00 00 \
         81 64 CC 66 66 66 66 66 66 0A 40 82 6F 6B D2 84 6E 6F 6E 65 D0 84 6C 69 73 74 E5 05 03 01 \
         02 E5 00 00 83 73 75 62 ED 00 00",
    );
    let text = String::from_utf8(decode(&sent).unwrap()).unwrap();
    let expected = concat!(
        r#"{"id":"100","pk":"eur","n":10000000,"d":3.3,"ok":true,"none":null,"#,
        r#""list":[1,2,[]],"sub":{}}"#,
    );
    assert_eq!(text, expected);
}

#[test]
fn numbers_take_the_form_they_have_in_text() {
    let double = |number: f64| text_of(&[&[0xCC][..], &number.to_le_bytes()].concat()).unwrap();
    assert_eq!([double(3.0), double(-0.0), double(0.1), double(1e300)], ["3", "0", "0.1", "1e300"]);
    assert_eq!(text_of(&bytes("CB 00 00 00 00 00 00 00 80")).unwrap(), i64::MIN.to_string());
    assert_eq!(text_of(&bytes("C7 FF FF FF FF FF FF FF FF")).unwrap(), u64::MAX.to_string());
}

#[test]
fn text_is_escaped_as_json_needs() {
    assert_eq!(text_of(b"\x83\"\\\n").unwrap(), r#""\"\\\n""#);
    assert_eq!(text_of("\u{82}\u{e9}".as_bytes()[1..].as_ref()).unwrap(), "\"é\"");
}

#[test]
fn repeated_names_stay_for_the_normaliser() {
    assert_eq!(text_of(&bytes("EA 04 2C 00 2C 01")).unwrap(), r#"{"id":0,"id":1}"#);
}

#[test]
fn text_is_no_binary_json() {
    for body in [&b""[..], b"{}", b"\x81", b" \x80\xD0"] {
        assert!(!is_binary(body));
        assert_eq!(decode(body), Err(InvalidBinaryJson::NoPreamble));
    }
}

#[test]
fn markers_that_start_nothing_are_refused() {
    let invalid = (0x68..=0x70).chain([0xCF]).chain(0xD4..=0xD6).chain(0xF4..=0xFF);
    for marker in invalid {
        assert_eq!(Marker::of(marker), None);
        assert_eq!(refusal(&[marker, 0, 0]), InvalidBinaryJson::Marker { at: 1, marker });
    }
}

#[test]
fn user_strings_are_refused() {
    for marker in 0x40..=0x67 {
        assert_eq!(refusal(&[marker, 0]), InvalidBinaryJson::UserString { at: 1 });
    }
}

#[test]
fn names_are_strings() {
    for (name, marker) in [("00", 0x00), ("D0", 0xD0), ("E0", 0xE0), ("DD 00", 0xDD), ("FF", 0xFF)]
    {
        let object = bytes(&format!("E9 {name} D0"));
        assert_eq!(refusal(&object), InvalidBinaryJson::Marker { at: 2, marker });
    }
}

#[test]
fn lengths_and_counts_agree_with_what_is_there() {
    let length = InvalidBinaryJson::Length { at: 1 };
    for wrong_count in
        ["E5 01 00 00", "E5 01 02 00", "ED 02 02 2C 00", "E7 01 00 00 00 02 00 00 00 00"]
    {
        assert_eq!(refusal(&bytes(wrong_count)), length, "{wrong_count}");
    }
    for beyond_its_container in
        ["E2 01 82 61 61", "E2 01 C9 00 00", "EA 01 2C 00", "E2 01 E2 01 00"]
    {
        let refusal = refusal(&bytes(beyond_its_container));
        assert_eq!(refusal, InvalidBinaryJson::Truncated { at: 4 }, "{beyond_its_container}");
    }
    // A name without a value, and a container longer than the body.
    assert_eq!(refusal(&bytes("EA 01 2C")), InvalidBinaryJson::Truncated { at: 4 });
    assert_eq!(refusal(&bytes("E2 02 00")), InvalidBinaryJson::Truncated { at: 4 });
    assert_eq!(refusal(&bytes("E4 FF FF FF FF 00")), InvalidBinaryJson::Truncated { at: 7 });
    assert_eq!(refusal(&bytes("C2 FF FF FF FF 00")), InvalidBinaryJson::Truncated { at: 7 });
}

#[test]
fn nothing_follows_the_value() {
    assert_eq!(refusal(&bytes("D0 D0")), InvalidBinaryJson::Trailing { at: 2 });
    assert_eq!(refusal(&[]), InvalidBinaryJson::Truncated { at: 1 });
}

#[test]
fn strings_that_are_no_text_are_refused() {
    let not_text = InvalidBinaryJson::NotText { at: 1 };
    for wrong in ["81 FF", "82 C3 28", "83 ED A0 80", "C0 01 80", "7C 01 78 1F", "7D 01 FF 00"] {
        assert_eq!(refusal(&bytes(wrong)), not_text, "{wrong}");
    }
}

#[test]
fn compressed_strings_leave_nothing_over() {
    assert_eq!(refusal(&bytes("78 01 1F")), InvalidBinaryJson::Length { at: 1 });
    for padding in ["71 00 01", "71 01 80 41", "71 00 FD", "73 01 FC 41"] {
        assert_eq!(refusal(&bytes(padding)), InvalidBinaryJson::Length { at: 1 }, "{padding}");
    }
    assert_eq!(text_of(&bytes("71 00 00")).unwrap(), "\"\"");
}

#[test]
fn references_lead_to_earlier_strings() {
    let at = 5;
    // The preamble, itself, the reference before it, what follows, a number, the middle of the string.
    for (target, refusal_expected) in [
        (0, InvalidBinaryJson::Reference { at }),
        (5, InvalidBinaryJson::Reference { at }),
        (9, InvalidBinaryJson::Reference { at }),
        (2, InvalidBinaryJson::Reference { at }),
        (4, InvalidBinaryJson::UserString { at: 4 }),
    ] {
        let array = [0xE2, 0x04, 0x81, b'A', 0xC3, target];
        assert_eq!(refusal(&array), refusal_expected, "{target}");
    }
    let to_a_reference = bytes("E2 06 81 41 C3 03 C3 05");
    assert_eq!(refusal(&to_a_reference), InvalidBinaryJson::Reference { at: 7 });
    // What stands at 4 looks like a string that would end inside of the reference.
    let overlapping = bytes("E2 04 81 7E C3 04");
    assert_eq!(refusal(&overlapping), InvalidBinaryJson::Truncated { at: 5 });
}

#[test]
fn numbers_are_finite() {
    for wrong in ["CC 00 00 00 00 00 00 F0 7F", "CE 00 00 00 00 00 00 F8 7F", "CD 00 00 80 FF"] {
        assert_eq!(refusal(&bytes(wrong)), InvalidBinaryJson::NotFinite { at: 1 });
    }
}

#[test]
fn arrays_of_numbers_hold_numbers() {
    for (wrong, at, marker) in [
        ("F0 C8 01 00", 2, 0xC8),
        ("F0 D0 01 00", 2, 0xD0),
        ("F0 CF 00", 2, 0xCF),
        ("F2 F1 D7 00 00", 2, 0xF1),
        ("F3 F0 D7 00 00 00 00", 2, 0xF0),
        ("F2 F0 F0 00 00", 3, 0xF0),
    ] {
        assert_eq!(refusal(&bytes(wrong)), InvalidBinaryJson::Marker { at, marker }, "{wrong}");
    }
    assert_eq!(refusal(&bytes("F0 D7 02 00")), InvalidBinaryJson::Truncated { at: 5 });
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth| [vec![0xE1; depth], vec![0x00]].concat();
    assert!(text_of(&nested(DEPTH_MAX)).is_ok());
    let too_deep = InvalidBinaryJson::TooDeep { at: 1 + DEPTH_MAX };
    assert_eq!(refusal(&nested(DEPTH_MAX + 1)), too_deep);
    assert_eq!(refusal(&nested(1 << 20)), too_deep);
    let objects = [[0xE9, 0x2C].repeat(DEPTH_MAX + 1), vec![0x00]].concat();
    assert!(matches!(refusal(&objects), InvalidBinaryJson::TooDeep { .. }));
}

#[test]
fn references_cannot_blow_a_body_up() {
    let string = [&[0xC1, 0xFF, 0xFF][..], &vec![b'a'; 0xFFFF]].concat();
    let references = [0xC4, 0x06, 0x00].repeat(1000);
    let length = u32::try_from(string.len() + references.len()).unwrap();
    let array = [&[0xE4][..], &length.to_le_bytes(), &string, &references].concat();
    assert_eq!(refusal(&array), InvalidBinaryJson::TooLarge);
}

#[test]
fn empty_arrays_cannot_blow_a_body_up() {
    let arrays = bytes("F3 F1 D7 00 00 FF FF").repeat(1000);
    let length = u32::try_from(arrays.len()).unwrap();
    let array = [&[0xE4][..], &length.to_le_bytes(), &arrays].concat();
    assert_eq!(refusal(&array), InvalidBinaryJson::TooLarge);
}

/// Writes values in forms that a run of numbers chooses.
struct Encoder<'c> {
    choices: std::iter::Cycle<std::slice::Iter<'c, u8>>,
}

impl Encoder<'_> {
    fn choose(&mut self, count: usize) -> usize {
        usize::from(*self.choices.next().expect("choices are never empty")) % count
    }

    fn value(&mut self, value: &Value) -> Vec<u8> {
        match value {
            Value::Null => vec![0xD0],
            Value::Bool(truth) => vec![0xD1 + u8::from(*truth)],
            Value::Number(number) => self.number(number),
            Value::String(text) => self.string(text),
            Value::Array(items) => {
                let encoded: Vec<_> = items.iter().map(|item| self.value(item)).collect();
                self.container(0xE0, &encoded)
            }
            Value::Object(members) => {
                let member = |(name, value): (&String, &Value)| {
                    [self.string(name), self.value(value)].concat()
                };
                let encoded: Vec<_> = members.iter().map(member).collect();
                self.container(0xE8, &encoded)
            }
        }
    }

    fn number(&mut self, number: &serde_json::Number) -> Vec<u8> {
        let Some(integer) = number.as_i64() else {
            return match number.as_u64() {
                Some(large) => [&[0xC7][..], &large.to_le_bytes()].concat(),
                None => [&[0xCC][..], &number.as_f64().unwrap().to_le_bytes()].concat(),
            };
        };
        let eight = integer.to_le_bytes();
        let mut forms = vec![[&[0xCB][..], &eight].concat(), [&[0xDB][..], &eight].concat()];
        let mut add = |fits: bool, markers: &[u8], width: usize| {
            let form = |marker: &u8| [&[*marker][..], &eight[..width]].concat();
            forms.extend(markers.iter().map(form).filter(|_| fits));
        };
        add(u8::try_from(integer).is_ok_and(|small| small < 32), &[eight[0]], 0);
        add(u8::try_from(integer).is_ok(), &[0xC8, 0xD7], 1);
        add(i8::try_from(integer).is_ok(), &[0xD8], 1);
        add(i16::try_from(integer).is_ok(), &[0xC9, 0xD9], 2);
        add(i32::try_from(integer).is_ok(), &[0xCA, 0xDA], 4);
        add(u32::try_from(integer).is_ok(), &[0xDC], 4);
        let choice = self.choose(forms.len());
        forms.swap_remove(choice)
    }

    fn string(&mut self, text: &str) -> Vec<u8> {
        let length = u32::try_from(text.len()).unwrap().to_le_bytes();
        let mut forms = vec![[&[0xC2][..], &length, text.as_bytes()].concat()];
        if text.len() < 64 {
            forms.push([&[0x80 | length[0]], text.as_bytes()].concat());
        }
        if text.len() < 1 << 8 {
            forms.push([&[0xC0, length[0]], text.as_bytes()].concat());
            if text.is_ascii() {
                forms.push([vec![0x7E, length[0]], seven_bits(text)].concat());
            }
        }
        if text.len() < 1 << 16 {
            forms.push([&[0xC1, length[0], length[1]], text.as_bytes()].concat());
        }
        if let Some(number) = (0x20..).zip(SYSTEM_STRINGS).find(|(_, known)| *known == text) {
            forms.push(vec![number.0]);
        }
        let choice = self.choose(forms.len());
        forms.swap_remove(choice)
    }

    fn container(&mut self, first_marker: u8, items: &[Vec<u8>]) -> Vec<u8> {
        let count = u32::try_from(items.len()).unwrap();
        let content = items.concat();
        let length = u32::try_from(content.len()).unwrap();
        let mut forms = Vec::new();
        for (offset, width) in [(2, 1), (3, 2), (4, 4)] {
            if u64::from(length.max(count)) >= 1 << (8 * width) {
                continue;
            }
            let length = &length.to_le_bytes()[..width];
            let count = &count.to_le_bytes()[..width];
            forms.push([&[first_marker + offset][..], length, &content].concat());
            forms.push([&[first_marker + offset + 3][..], length, count, &content].concat());
        }
        if count < 2 {
            let marker = first_marker + u8::from(count == 1);
            forms.push([vec![marker], content].concat());
        }
        let choice = self.choose(forms.len());
        forms.swap_remove(choice)
    }
}

fn seven_bits(text: &str) -> Vec<u8> {
    let bits = text.bytes().flat_map(|byte| (0..7).map(move |bit| (byte >> bit) & 1));
    let bits: Vec<u8> = bits.collect();
    let byte = |bits: &[u8]| (0..8).zip(bits).fold(0, |byte, (at, bit)| byte | (bit << at));
    bits.chunks(8).map(byte).collect()
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-300..300_i64).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter_map("finite", |n| (n.fract() != 0.0).then(|| json!(n))),
        "\\PC{0,80}".prop_map(Value::from),
        prop::sample::select(&SYSTEM_STRINGS[..]).prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 60, 8, |inner| {
        let name = prop_oneof!["[a-z]{0,3}", Just("id".to_string()), ".{0,2}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::vec((name, inner), 0..8)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn encode(value: &Value, choices: &[u8]) -> Vec<u8> {
    let value = Encoder { choices: choices.iter().cycle() }.value(value);
    [vec![PREAMBLE], value].concat()
}

fn any_choices() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 1..40)
}

proptest! {
    #[test]
    fn a_value_in_any_form_is_read_back(value in any_value(), choices in any_choices()) {
        let text = decode(&encode(&value, &choices)).unwrap();
        prop_assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn no_prefix_of_a_body_is_a_body(value in any_value(), choices in any_choices()) {
        let body = encode(&value, &choices);
        for length in 1..body.len() {
            prop_assert!(decode(&body[..length]).is_err());
        }
        let longer = [body.as_slice(), &[0x00]].concat();
        prop_assert_eq!(decode(&longer), Err(InvalidBinaryJson::Trailing { at: body.len() }));
    }

    #[test]
    fn a_damaged_body_is_refused_or_stands_for_some_json(
        value in any_value(),
        choices in any_choices(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut body = encode(&value, &choices);
        for (place, byte) in damage {
            let place = place.index(body.len());
            body[place] = byte;
        }
        if let Ok(text) = decode(&body) {
            prop_assert!(text.len() <= TEXT_BYTES_MAX);
            prop_assert!(serde_json::from_slice::<Value>(&text).is_ok(), "{body:02X?}");
        }
    }

    #[test]
    fn any_bytes_are_refused_or_stand_for_some_json(payload: Vec<u8>) {
        if let Ok(text) = text_of(&payload) {
            prop_assert!(serde_json::from_str::<Value>(&text).is_ok(), "{payload:02X?}");
        }
    }
}
