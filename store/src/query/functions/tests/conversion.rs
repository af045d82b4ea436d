//! Text of values, values of text; objects as arrays.

use super::laws;

#[test]
fn values_as_text() {
    laws(
        r#"
        ToString("Hello") -> "Hello"
        ToString(125) -> "125"
        ToString(9007199254740993) -> "9007199254740993"
        ToString(0.1234) -> "0.1234"
        ToString(29.0) -> "29"
        ToString(-0.0) -> "0"
        ToString(1e300) -> "1e300"
        ToString(false) -> "false"
        ToString(null) -> "null"
        ToString([1, "a", [null]]) -> "[1,\"a\",[null]]"
        ToString({"a": {"b": 1}}) -> "{\"a\":{\"b\":1}}"
        ToString(NaN) -> "NaN"
        ToString(Infinity) -> "Infinity"
        ToString(-Infinity) -> "-Infinity"
        ToString(undefined) -> undefined
        "#,
    );
}

#[test]
fn text_as_values() {
    laws(
        r#"
        StringToNumber("100") -> 100
        StringToNumber("3.14") -> 3.14
        StringToNumber(" \t60\n ") -> 60
        StringToNumber("-1.79769e+308") -> -1.79769e308
        StringToNumber("9007199254740993") -> 9007199254740993
        StringToNumber("1e999") -> undefined
        StringToNumber("0xF") -> undefined
        StringToNumber("+1") -> undefined
        StringToNumber("01") -> undefined
        StringToNumber("1 2") -> undefined
        StringToNumber("") -> undefined
        StringToNumber("NaN") -> undefined
        StringToNumber("\"1\"") -> undefined
        StringToNumber(1) -> undefined
        StringToBoolean("true") -> true
        StringToBoolean(" false ") -> false
        StringToBoolean("True") -> undefined
        StringToBoolean("1") -> undefined
        StringToBoolean(true) -> undefined
        StringToNull("null") -> null
        StringToNull("\tnull") -> null
        StringToNull("NULL") -> undefined
        StringToNull(null) -> undefined
        StringToArray("[1, \"a\", {\"b\": []}]") -> [1, "a", {"b": []}]
        StringToArray("[]") -> []
        StringToArray("['a']") -> undefined
        StringToArray("[1,]") -> undefined
        StringToArray("{}") -> undefined
        StringToArray(undefined) -> undefined
        StringToObject("{\"a\": [1, 2], \"b\": null}") -> {"a": [1, 2], "b": null}
        StringToObject("{\"a\": 1, \"b\": 2, \"a\": 3}") -> {"a": 3, "b": 2}
        StringToObject("{a: 1}") -> undefined
        StringToObject("[]") -> undefined
        StringToObject("{}") -> {}
        "#,
    );
}

#[test]
fn nesting_beyond_what_items_may_have_is_no_value() {
    let nested = |depth: usize| {
        let text = "[".repeat(depth) + &"]".repeat(depth);
        super::apply("StringToArray", &[text.into()]).is_defined()
    };
    assert!(nested(100));
    assert!(!nested(1000));
}

#[test]
fn objects_as_arrays() {
    laws(
        r#"
        ObjectToArray({"b": 1, "a": [2]}) -> [{"k": "b", "v": 1}, {"k": "a", "v": [2]}]
        ObjectToArray({"b": 1}, "name") -> [{"name": "b", "v": 1}]
        ObjectToArray({"b": 1}, "name", "value") -> [{"name": "b", "value": 1}]
        ObjectToArray({"b": 1}, "x", "x") -> [{"x": 1}]
        ObjectToArray({}) -> []
        ObjectToArray([]) -> undefined
        ObjectToArray({"b": 1}, null) -> undefined
        ObjectToArray({"b": 1}, "k", 5) -> undefined
        ObjectToArray(undefined) -> undefined
        "#,
    );
    let wide = (0..1000).map(|n| (n.to_string(), super::Value::Null)).collect();
    let args = [super::Value::Object(wide), "n".repeat(10_000).into()];
    assert!(!super::apply("ObjectToArray", &args).is_defined(), "beyond a page");
}

#[test]
fn choices() {
    laws(
        r#"
        IIF(true, 1, 2) -> 1
        IIF(false, 1, 2) -> 2
        IIF(1, 1, 2) -> 2
        IIF("true", 1, 2) -> 2
        IIF(null, 1, 2) -> 2
        IIF(undefined, 1, 2) -> 2
        IIF(true, undefined, 2) -> undefined
        IIF(true, 1, undefined) -> 1
        CHOOSE(1, "a", "b") -> "a"
        CHOOSE(2, "a", "b") -> "b"
        CHOOSE(2.0, undefined, "b") -> "b"
        CHOOSE(1, undefined, "b") -> undefined
        CHOOSE(3, "a", "b") -> undefined
        CHOOSE(0, "a", "b") -> undefined
        CHOOSE(-1, "a", "b") -> undefined
        CHOOSE(1.5, "a", "b") -> undefined
        CHOOSE(1e300, "a", "b") -> undefined
        CHOOSE("1", "a", "b") -> undefined
        CHOOSE(null, "a", "b") -> undefined
        "#,
    );
}
