//! Every operation of a patch, where it succeeds and where it is refused.

use proptest::prelude::*;

use super::*;
use crate::indexing::{self, IndexRules};
use crate::partition_key::{KeyKind, parse_path};

/// Carries a patch out on a body that clients see as `shown`.
fn carried_out(text: &str, body: &[u8], shown: &[u8]) -> Result<Document, PatchFailure> {
    let shown = |needed: &Needed| query::Value::read(shown, needed).unwrap();
    request(text).carry_out(body, shown, &mut { u64::MAX })
}

fn rules() -> DocumentRules {
    let paths = vec![parse_path("/pk").unwrap(), parse_path("/deep/key").unwrap()];
    let key = KeyDefinition { kind: KeyKind::MultiHash, paths };
    DocumentRules::new(key, IndexRules::new(&indexing::complete(None).unwrap()).unwrap())
}

fn request(text: &str) -> PatchRequest {
    PatchRequest { text: text.as_bytes().to_vec(), rules: rules().into() }
}

/// Patches `{"id":"a","pk":1,` + `members` + `}`; the members that result, or why there are none.
fn patched(members: &str, operations: &str) -> Result<String, String> {
    let text = format!(r#"{{"operations":[{operations}]}}"#);
    Patch::parse(text.as_bytes(), &rules()).map_err(|error| error.to_string())?;
    let body = format!(r#"{{"id":"a","pk":1,{members}}}"#);
    let document = carried_out(&text, body.as_bytes(), body.as_bytes())
        .map_err(|failure| failure.to_string())?;
    let body = String::from_utf8(document.body.into()).unwrap();
    let rest = body.strip_prefix(r#"{"id":"a","pk":1"#).unwrap().strip_suffix('}').unwrap();
    Ok(rest.strip_prefix(',').unwrap_or_default().to_string())
}

fn becomes(members: &str, operations: &str, expected: &str) {
    assert_eq!(patched(members, operations).as_deref(), Ok(expected), "{operations}");
}

fn refused(members: &str, operations: &str, reason: &str) {
    let error = patched(members, operations).unwrap_err();
    assert!(error.contains(reason), "{operations}: {error}");
}

/// `serde_json` gives it a meaning of its own with one of its features.
#[test]
fn no_name_of_a_member_means_anything() {
    let x = r#""x":{"$serde_json::private::RawValue":1,"$serde_json::private::Number":"y"}"#;
    let y = r#""$serde_json::private::RawValue":{"$serde_json::private::Number":"1"}"#;
    let operation = format!(r#"{{"op":"set","path":"/y","value":{{{y}}}}}"#);
    becomes(x, &operation, &format!(r#"{x},"y":{{{y}}}"#));
}

#[test]
fn add_sets_members_and_inserts_elements() {
    becomes(r#""x":1"#, r#"{"op":"add","path":"/y","value":{"z":[]}}"#, r#""x":1,"y":{"z":[]}"#);
    becomes(r#""x":1"#, r#"{"op":"Add","path":"/x","value":2}"#, r#""x":2"#);
    becomes(r#""l":[1,2]"#, r#"{"op":"add","path":"/l/0","value":0}"#, r#""l":[0,1,2]"#);
    becomes(r#""l":[1,2]"#, r#"{"op":"add","path":"/l/2","value":3}"#, r#""l":[1,2,3]"#);
    becomes(r#""l":[1,2]"#, r#"{"op":"add","path":"/l/-","value":3}"#, r#""l":[1,2,3]"#);
    refused(r#""l":[1,2]"#, r#"{"op":"add","path":"/l/3","value":3}"#, "behind the end");
    refused(r#""l":[1,2]"#, r#"{"op":"add","path":"/l/x","value":3}"#, "needs an array index");
    refused(r#""l":[1,2]"#, r#"{"op":"add","path":"/l/01","value":3}"#, "needs an array index");
    refused(r#""x":1"#, r#"{"op":"add","path":"/y/z","value":3}"#, "one level at a time");
    refused(r#""x":1"#, r#"{"op":"add","path":"/x/z","value":3}"#, "has no members");
}

#[test]
fn set_replaces_elements_and_creates_members() {
    becomes(r#""l":[1,2]"#, r#"{"op":"set","path":"/l/0","value":0}"#, r#""l":[0,2]"#);
    becomes(r#""l":[1,2]"#, r#"{"op":"set","path":"/l/-","value":3}"#, r#""l":[1,2,3]"#);
    becomes(r#""o":{}"#, r#"{"op":"set","path":"/o/a","value":null}"#, r#""o":{"a":null}"#);
}

#[test]
fn replace_and_remove_need_what_they_change() {
    becomes(r#""x":1"#, r#"{"op":"replace","path":"/x","value":"2"}"#, r#""x":"2""#);
    becomes(r#""l":[1,2]"#, r#"{"op":"replace","path":"/l/1","value":0}"#, r#""l":[1,0]"#);
    refused(r#""x":1"#, r#"{"op":"replace","path":"/y","value":2}"#, "nothing at the path '/y'");
    refused(r#""l":[]"#, r#"{"op":"replace","path":"/l/-","value":2}"#, "nothing at the path");
    becomes(r#""x":1,"y":2"#, r#"{"op":"remove","path":"/x"}"#, r#""y":2"#);
    becomes(r#""l":[1,2]"#, r#"{"op":"remove","path":"/l/0"}"#, r#""l":[2]"#);
    refused(r#""x":1"#, r#"{"op":"remove","path":"/y"}"#, "nothing at the path '/y'");
    refused(r#""l":[1]"#, r#"{"op":"remove","path":"/l/1"}"#, "nothing at the path");
}

#[test]
fn increments_are_exact_between_integers() {
    becomes(r#""n":1"#, r#"{"op":"incr","path":"/n","value":-3}"#, r#""n":-2"#);
    becomes(r#""n":1"#, r#"{"op":"incr","path":"/n","value":0.5}"#, r#""n":1.5"#);
    becomes(r#""x":1"#, r#"{"op":"incr","path":"/n","value":5}"#, r#""x":1,"n":5"#);
    becomes(
        r#""n":9007199254740993"#,
        r#"{"op":"incr","path":"/n","value":1}"#,
        r#""n":9007199254740994"#,
    );
    becomes(
        r#""n":9223372036854775807"#,
        r#"{"op":"incr","path":"/n","value":1}"#,
        r#""n":9.223372036854776e18"#,
    );
    becomes(r#""l":[1]"#, r#"{"op":"incr","path":"/l/0","value":1}"#, r#""l":[2]"#);
    refused(r#""n":"1""#, r#"{"op":"incr","path":"/n","value":1}"#, "not a number");
    refused(r#""n":1"#, r#"{"op":"incr","path":"/n","value":"1"}"#, "needs a number");
    refused(r#""n":1e308"#, r#"{"op":"incr","path":"/n","value":1e308}"#, "too large");
    refused(r#""l":[]"#, r#"{"op":"incr","path":"/l/-","value":1}"#, "nothing at the path");
}

#[test]
fn move_takes_from_one_place_and_adds_to_another() {
    becomes(r#""x":1"#, r#"{"op":"move","from":"/x","path":"/y"}"#, r#""y":1"#);
    becomes(r#""x":1,"l":[0]"#, r#"{"op":"move","from":"/x","path":"/l/0"}"#, r#""l":[1,0]"#);
    refused(r#""x":1"#, r#"{"op":"move","from":"/z","path":"/y"}"#, "nothing at the path '/z'");
    refused(r#""x":{}"#, r#"{"op":"move","from":"/x","path":"/x/y"}"#, "inside its 'from'");
}

#[test]
fn operations_see_what_the_ones_before_them_did() {
    let operations = r#"{"op":"add","path":"/o","value":{}},{"op":"add","path":"/o/a","value":1},
        {"op":"incr","path":"/o/a","value":1},{"op":"move","from":"/o/a","path":"/b"}"#;
    becomes(r#""x":1"#, operations, r#""x":1,"o":{},"b":2"#);
    let failing = r#"{"op":"add","path":"/y","value":1},{"op":"remove","path":"/z"}"#;
    refused(r#""x":1"#, failing, "For operation 2:");
}

#[test]
fn names_are_escaped_as_json_pointers_are() {
    becomes(r#""x":1"#, r#"{"op":"add","path":"/a~1b~0c","value":1}"#, r#""x":1,"a/b~c":1"#);
}

#[test]
fn what_identifies_an_item_cannot_be_patched() {
    for path in ["/id", "/pk", "/pk/x", "/deep", "/deep/key", "/_ts", "/_etag", "/_rid"] {
        refused(
            r#""deep":{}"#,
            &format!(r#"{{"op":"set","path":"{path}","value":1}}"#),
            "cannot be patched",
        );
    }
    refused(r#""x":1"#, r#"{"op":"move","from":"/pk","path":"/y"}"#, "cannot be patched");
    becomes(
        r#""deep":{"other":1}"#,
        r#"{"op":"set","path":"/deep/other","value":2}"#,
        r#""deep":{"other":2}"#,
    );
}

#[test]
fn malformed_requests_say_what_is_wrong() {
    let invalid = |text: &str| Patch::parse(text.as_bytes(), &rules()).unwrap_err().to_string();
    assert!(invalid("{").contains("malformed"));
    assert!(invalid("5").contains("'operations'"));
    assert!(invalid("{}").contains("'operations' must be an array"));
    assert!(invalid(r#"{"operations":[]}"#).contains("at least one"));
    let eleven = [r#"{"op":"remove","path":"/x"}"#; 11].join(",");
    assert!(invalid(&format!(r#"{{"operations":[{eleven}]}}"#)).contains("exceeds the limit"));
    for (operation, reason) in [
        ("5", "text 'path'"),
        (r#"{"op":"add","path":"/x"}"#, "needs a 'value'"),
        (r#"{"op":"copy","path":"/x"}"#, "no operation 'copy'"),
        (r#"{"op":"move","path":"/x"}"#, "text 'from'"),
        (r#"{"op":"add","path":"x","value":1}"#, "must start with /"),
        (r#"{"op":"add","path":"/","value":1}"#, "must start with /"),
        (r#"{"op":"add","path":"","value":1}"#, "must start with /"),
    ] {
        assert!(invalid(&format!(r#"{{"operations":[{operation}]}}"#)).contains(reason));
    }
    let condition = r#"{"operations":[{"op":"remove","path":"/x"}],"condition":"#;
    assert!(invalid(&format!(r"{condition}5}}")).contains("must be a string"));
    assert!(invalid(&format!(r#"{condition}"where where"}}"#)).contains("condition is invalid"));
}

#[test]
fn a_condition_is_judged_on_the_item_as_clients_see_it() {
    let try_with = |condition: &str| {
        let text = format!(
            r#"{{"operations":[{{"op":"remove","path":"/x"}}],"condition":"{condition}"}}"#
        );
        let body = br#"{"id":"a","pk":1,"x":1}"#;
        carried_out(&text, body, br#"{"id":"a","pk":1,"x":1,"_ts":5}"#).map(|_| ())
    };
    assert_eq!(try_with("from c where c.x = 1 and c._ts = 5"), Ok(()));
    assert_eq!(try_with("from c where c.x = 2"), Err(PatchFailure::Condition));
    assert_eq!(try_with("from c where c.missing"), Err(PatchFailure::Condition));
    assert_eq!(try_with("from c"), Ok(()));
}

#[test]
fn the_result_is_read_like_any_other_body() {
    let text = r#"{"operations":[{"op":"set","path":"/ttl","value":60}]}"#;
    let body = br#"{"id":"a","pk":1}"#;
    let document = carried_out(text, body, body).unwrap();
    assert_eq!(document.ttl, rules().parse(br#"{"ttl":60}"#).unwrap().document.ttl);
    assert_eq!(document.indexed_values, 3);
}

/// Any JSON, small; names and paths below are such that they often meet.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((name(), inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn name() -> impl Strategy<Value = String> {
    const NAMES: [&str; 12] =
        ["a", "b", "id", "pk", "deep", "key", "ttl", "_ts", "op", "path", "value", "from"];
    prop::sample::select(&NAMES[..]).prop_map(str::to_string)
}

fn any_operation() -> impl Strategy<Value = Value> {
    let operation = prop::sample::select(
        &["add", "set", "replace", "remove", "incr", "move", "Increment", "copy"][..],
    );
    let step = prop_oneof![4 => name(), 1 => "[0-3-]", 1 => "\\PC{0,3}"];
    let path = prop::collection::vec(step, 1..4).prop_map(|steps| format!("/{}", steps.join("/")));
    (operation, path.clone(), path, any_json()).prop_map(|(operation, path, from, value)| {
        serde_json::json!({ "op": operation, "path": path, "from": from, "value": value })
    })
}

proptest! {
    #[test]
    fn any_bytes_are_a_patch_or_refused(text in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = Patch::parse(&text, &rules());
    }

    #[test]
    fn any_json_is_a_patch_or_refused(request in any_json()) {
        let wrapped = serde_json::json!({ "operations": request });
        for request in [request, wrapped] {
            let _ = Patch::parse(request.to_string().as_bytes(), &rules());
        }
    }

    /// A patch is carried out as a whole or not at all; what results is an item like any other, and
    /// the one it was.
    #[test]
    fn a_patch_makes_an_item_of_an_item_or_is_refused(
        members in prop::collection::vec((name(), any_json()), 0..5),
        operations in prop::collection::vec(any_operation(), 1..5),
    ) {
        let mut body: Map<String, Value> = members.into_iter().collect();
        body.insert("id".to_string(), "a".into());
        let before = rules().parse(Value::Object(body).to_string().as_bytes()).unwrap();
        let text = serde_json::json!({ "operations": operations }).to_string();
        let Ok(patch) = Patch::parse(text.as_bytes(), &rules()) else { return Ok(()) };
        let stored = &before.document.body;
        let carried_out = carried_out(&text, stored, stored);
        let mut one_by_one: Value = serde_json::from_slice(stored).unwrap();
        let each = patch.operations.into_iter().try_for_each(|one| one.carry_out(&mut one_by_one));
        prop_assert_eq!(carried_out.is_ok(), each.is_ok(), "{:?} {:?}", carried_out, each);
        let Ok(document) = carried_out else { return Ok(()) };
        let after = rules().parse(&document.body).unwrap();
        prop_assert_eq!(&after.document, &document, "the result is in normal form");
        prop_assert_eq!(after.key, before.key);
        prop_assert_eq!(after.id, before.id);
    }
}

fn with_condition(condition: &str) -> Vec<u8> {
    let operations = serde_json::json!([{ "op": "remove", "path": "/x" }]);
    serde_json::json!({ "operations": operations, "condition": condition }).to_string().into_bytes()
}

#[test]
fn conditions_of_a_request_must_not_take_long_to_compile() {
    let mut budget = ConditionBudget::REQUEST;
    let mut check = |text: &[u8]| Patch::check(text, &rules(), &mut budget);
    let long = with_condition("FROM c WHERE REGEXMATCH(c.id, '[a-q][a-t]{9000}a')");
    check(&long).unwrap();
    let errors: Vec<_> = (0..20).filter_map(|_| check(&long).err()).collect();
    assert!(errors.len() > 5, "some of twenty fit: {}", errors.len());
    assert!(errors[0].to_string().contains("too long to compile"), "{}", errors[0]);
    let error = check(&with_condition("FROM c WHERE c.x > 1")).unwrap_err();
    assert!(matches!(error, InvalidPatch::LongCondition), "nothing more is compiled: {error}");
    check(br#"[{"op":"remove","path":"/x"}]"#).unwrap();
    let pattern = with_condition("FROM c WHERE REGEXMATCH(c.x, '^[a-z]+@[a-z.]{1,40}$', 'i')");
    let mut budget = ConditionBudget::REQUEST;
    for number in 0..100 {
        let checked = Patch::check(&pattern, &rules(), &mut budget);
        assert!(
            checked.is_ok(),
            "a batch of a hundred may each have an ordinary pattern: {number}"
        );
    }
}

/// Each may have taken long until something was found to be wrong.
#[test]
fn conditions_that_are_none_count_for_some_time() {
    let mut budget = ConditionBudget::REQUEST;
    let invalid = with_condition("FROM c WHERE nothing(c.x)");
    let mut check = || Patch::check(&invalid, &rules(), &mut budget).unwrap_err();
    for _ in 0..20 {
        assert!(matches!(check(), InvalidPatch::Condition(_)));
    }
    assert!(matches!(check(), InvalidPatch::LongCondition));
}

/// Of a shape on the globe it is computed piece by piece, which replicas did not agree to count.
#[test]
fn a_condition_on_an_area_is_refused_and_one_in_the_log_is_applied_as_ever() {
    let text = with_condition("FROM c WHERE ST_AREA(c.x) > 1");
    let mut budget = ConditionBudget::REQUEST;
    let error = Patch::check(&text, &rules(), &mut budget).unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
    Patch::parse(&text, &rules()).unwrap();
}

/// Replicas on other processors would decide otherwise. Applying reads the condition again, and must not
/// panic whatever the log holds.
#[test]
fn a_condition_that_processors_may_differ_on_is_refused_also_while_applying() {
    let point = "{'type': 'Point', 'coordinates': [0, 0]}";
    for call in [format!("ST_DISTANCE(c.x, {point})"), "RAND()".to_string()] {
        let condition = format!("FROM c WHERE {call} < 1");
        let text = format!(
            r#"{{"operations":[{{"op":"remove","path":"/x"}}],"condition":"{condition}"}}"#
        );
        let error = Patch::parse(text.as_bytes(), &rules()).unwrap_err().to_string();
        assert!(error.contains("is not allowed here"), "{call}: {error}");
        let body = br#"{"id":"a","pk":1,"x":{"type":"Point","coordinates":[0,0]}}"#;
        let failure = carried_out(&text, body, body).unwrap_err();
        assert_eq!(failure, PatchFailure::Result(error), "{call}");
    }
    let within = format!("FROM c WHERE ST_WITHIN(c.x, {point})");
    CompiledQuery::condition(&within, rules().index().metric()).unwrap();
}
