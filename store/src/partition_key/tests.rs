//! Effective partition keys against values published for Cosmos, and the laws of keys and slots.

use proptest::prelude::*;

use super::*;

fn definition(kind: KeyKind) -> KeyDefinition {
    KeyDefinition { kind, paths: vec![vec!["pk".to_string()]] }
}

fn epk(kind: KeyKind, key: &str) -> String {
    definition(kind).place(&PartitionKey::parse(key).unwrap()).epk.to_string()
}

#[test]
fn epks_match_the_published_values() {
    let published = [
        (r#"[""]"#, "32E9366E637A71B4E710384B2F4970A0", "05C1CF33970FF80800"),
        (r#"["a"]"#, "3A5381E1114EB8D3FCC90795045B49B7", "05C1D78593652C086200"),
        (r#"["hello"]"#, "0A8B5792B7BA3C7C47B0D1305A3C6F8A", "05C1EFF74961FE0869666D6D7000"),
        ("[null]", "378867E4430E67857ACE5C908374FE16", "05C1ED45D7475601"),
        ("[true]", "0E711127C5B5A8E4726AC6DD306A3E59", "05C1D7C5A903D803"),
        ("[false]", "2FE1BE91E90A3439635E0E9E37361EF2", "05C1DB857D857C02"),
        ("[0]", "155B95BEDAC4B1E9EC1CDC9BB0DDDE58", "05C1BF6DA11560058000"),
        ("[5]", "19C08621B135968252FB34B4CF66F811", "05C1D9C1C5517C05C014"),
        ("[5.0]", "19C08621B135968252FB34B4CF66F811", "05C1D9C1C5517C05C014"),
        ("[5.5]", "0E2EE47829D1AF775EEFB6540FD1D0ED", "05C1D7A771716C05C016"),
        ("[{}]", "11622DAA78F835834610ABE56EFF5CB5", "05C1D529E345DC00"),
        ("[]", "", ""),
    ];
    for (key, v2, v1) in published {
        assert_eq!(epk(KeyKind::HashV2, key), v2, "V2 of {key}");
        assert_eq!(epk(KeyKind::HashV1, key), v1, "V1 of {key}");
    }
    assert_eq!(
        epk(KeyKind::MultiHash, r#"["x","y"]"#),
        "11E3F358618BE9AA5BAFF4C7C74F07161880C5B898FDA99DA53B2ABCC61E625C"
    );
}

/// The public conformance cases of the crate `azure_data_cosmos_driver`; see the file for sources.
#[test]
fn epks_pass_the_public_conformance_file() {
    let file: serde_json::Value =
        serde_json::from_str(include_str!("../../tests/data/epk_conformance.json")).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() >= 42, "the file holds all cases");
    for case in cases {
        let kind = match (case["kind"].as_str().unwrap(), case["version"].as_u64().unwrap()) {
            ("hash", 1) => KeyKind::HashV1,
            ("hash", 2) => KeyKind::HashV2,
            ("multi_hash", 2) => KeyKind::MultiHash,
            other => panic!("unknown kind {other:?}"),
        };
        let components = case["values"].as_array().unwrap().iter().map(conformance_component);
        let place = definition(kind).place(&PartitionKey(components.collect()));
        assert_eq!(place.epk.to_string(), case["expected_epk"].as_str().unwrap(), "{}", case["id"]);
    }
}

fn conformance_component(value: &serde_json::Value) -> Component {
    let text = || value["value"].as_str().unwrap();
    match value["type"].as_str().unwrap() {
        "string" => Component::Text(text().to_string()),
        "repeated_string" => {
            let count = usize::try_from(value["count"].as_u64().unwrap()).unwrap();
            Component::Text(text().repeat(count))
        }
        "number" => Component::Number(text().parse().unwrap()),
        "bool" => Component::Bool(value["value"].as_bool().unwrap()),
        "null" => Component::Null,
        "undefined" => Component::Undefined,
        other => panic!("unknown type {other}"),
    }
}

#[test]
fn slots_tile_the_hash_space_in_epk_order() {
    for kind in [KeyKind::HashV1, KeyKind::HashV2, KeyKind::MultiHash] {
        let definition = definition(kind);
        assert_eq!(definition.slot_start(0), Epk::min());
        assert_eq!(definition.slot_start(SLOTS), Epk::max());
        for slot in 0..SLOTS {
            assert!(
                definition.slot_start(slot) < definition.slot_start(slot + 1),
                "{kind:?} {slot}"
            );
        }
    }
    let half = definition(KeyKind::HashV2).slot_start(128);
    assert_eq!(half.to_string(), "20000000000000000000000000000000");
}

#[test]
fn ranges_split_evenly_and_completely() {
    for count in [1, 2, 3, 5, 7, 100, 256] {
        let ranges = SlotRange::split_all(count);
        assert_eq!(ranges.len(), usize::from(count));
        assert_eq!((ranges[0].start, ranges.last().unwrap().end), (0, SLOTS));
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        let sizes = ranges.iter().map(|range| range.end - range.start);
        assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
    }
}

#[test]
fn paths_take_quoted_names() {
    let path = |text: &str| parse_path(text).map(|names| names.join("|"));
    assert_eq!(path("/pk").unwrap(), "pk");
    assert_eq!(path("/address/state").unwrap(), "address|state");
    assert_eq!(path(r#"/"level' 1*()"/"le/vel2""#).unwrap(), "level' 1*()|le/vel2");
    assert_eq!(path(r#"/'level" 1*()'/'le/vel2'"#).unwrap(), "level\" 1*()|le/vel2");
    for wrong in ["", "pk", "/", "//a", "/a/", "/\"open", "/\"a\"b"] {
        assert!(path(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn header_values_are_checked() {
    assert_eq!(PartitionKey::parse("[{}]").unwrap().0, [Component::Undefined]);
    assert_eq!(PartitionKey::parse("[1e2]").unwrap().0, [Component::Number(100.0)]);
    assert_eq!(PartitionKey::parse("\"a\""), Err(InvalidKey::NotAnArray));
    assert_eq!(PartitionKey::parse("[[1]]"), Err(InvalidKey::Component));
    assert_eq!(PartitionKey::parse(r#"[{"a":1}]"#), Err(InvalidKey::Component));
    let long = format!("[\"{}\"]", "x".repeat(VALUE_BYTES_MAX + 1));
    assert_eq!(PartitionKey::parse(&long), Err(InvalidKey::TooLong));
}

/// Bodies store `-0.0` as `0`, so both must be one key: in the header, in queries, as bytes.
#[test]
fn negative_zero_is_zero() {
    let (negative, positive) = ("[-0.0]", "[0]");
    for kind in [KeyKind::HashV1, KeyKind::HashV2, KeyKind::MultiHash] {
        assert_eq!(epk(kind, negative), epk(kind, positive), "{kind:?}");
    }
    let encoded = |text| crate::codec::encode(&PartitionKey::parse(text).unwrap());
    assert_eq!(encoded(negative), encoded(positive));
    assert_eq!(encoded("[-0]"), encoded(positive));
    assert_eq!(encoded("[-1e-400]"), encoded(positive));
}

#[test]
fn epk_bounds_compare_without_their_trailing_zeros() {
    let parse = |hex: &str| Epk::parse(hex).unwrap();
    assert_eq!(parse("20"), parse("2000000000000000"));
    assert!(parse("1FFF") < parse("20"));
    assert!(parse("ff") > parse("3FFF"));
    assert_eq!(Epk::parse("2"), None);
    assert_eq!(Epk::parse("zz"), None);
    assert_eq!(Epk::parse("éé"), None);
}

fn component() -> impl Strategy<Value = Component> {
    prop_oneof![
        Just(Component::Undefined),
        Just(Component::Null),
        any::<bool>().prop_map(Component::Bool),
        any::<f64>().prop_filter("NaN is no JSON", |n| !n.is_nan()).prop_map(Component::Number),
        ".{0,150}".prop_map(Component::Text),
    ]
}

proptest! {
    #[test]
    fn values_survive_the_round_trip_through_a_key(
        parts in prop::collection::vec(component(), 1..4)
    ) {
        let mut key = Vec::new();
        let value = PartitionKey(parts);
        value.put(&mut key);
        let mut reader = KeyReader::new(&key);
        prop_assert_eq!(PartitionKey::read(&mut reader, value.0.len()).unwrap(), value);
        prop_assert!(reader.rest().is_empty());
    }

    /// Wherever a key comes from: two items could have one key and one id otherwise.
    #[test]
    fn equal_values_have_one_place_and_one_form(
        parts in prop::collection::vec(component(), 0..3),
        at in any::<prop::sample::Index>(),
    ) {
        let with = |zero: f64| {
            let mut parts = parts.clone();
            parts.insert(at.index(parts.len() + 1), Component::Number(zero));
            PartitionKey(parts)
        };
        let (negative, positive) = (with(-0.0), with(0.0));
        prop_assert_eq!(&negative, &positive);
        for kind in [KeyKind::HashV1, KeyKind::HashV2, KeyKind::MultiHash] {
            let definition = definition(kind);
            prop_assert_eq!(definition.place(&negative), definition.place(&positive));
        }
        let form = |key: &PartitionKey| {
            let mut form = Vec::new();
            key.put(&mut form);
            form
        };
        prop_assert_eq!(form(&negative), form(&positive));
    }

    #[test]
    fn every_value_lies_in_its_slot(parts in prop::collection::vec(component(), 1..2)) {
        for kind in [KeyKind::HashV1, KeyKind::HashV2, KeyKind::MultiHash] {
            let definition = definition(kind);
            let place = definition.place(&PartitionKey(parts.clone()));
            let slot = u16::from(place.slot);
            prop_assert!(definition.slot_start(slot) <= place.epk);
            prop_assert!(place.epk < definition.slot_start(slot + 1));
        }
    }
}

#[test]
fn items_without_a_key_of_the_users_lie_where_the_empty_key_does() {
    for (system, plain) in
        [(KeyKind::SystemV1, KeyKind::HashV1), (KeyKind::SystemV2, KeyKind::HashV2)]
    {
        let (system, plain) = (definition(system), definition(plain));
        let [none, missing, text] =
            ["[]", "[{}]", "[\"a\"]"].map(|key| PartitionKey::parse(key).unwrap());
        assert_eq!(system.meant(none.clone()), missing);
        assert_eq!(plain.meant(none.clone()), none);
        assert_eq!(system.place(&missing), Place { epk: Epk::min(), slot: 0 });
        assert_ne!(plain.place(&missing), system.place(&missing));
        assert_eq!(system.place(&text), plain.place(&text));
        assert_eq!(system.slot_start(7), plain.slot_start(7));
    }
}
