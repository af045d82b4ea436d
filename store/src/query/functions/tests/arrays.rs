//! Arrays and sets.

use super::{Value, apply, laws};

#[test]
fn making_arrays_of_arrays() {
    laws(
        r#"
        ARRAY_CONCAT([1], [], [2, "a"]) -> [1, 2, "a"]
        ARRAY_CONCAT([1], null) -> undefined
        ARRAY_CONCAT([1], undefined) -> undefined
        ARRAY_CONCAT([1], 2) -> undefined
        ARRAY_LENGTH([1, null, [3]]) -> 3
        ARRAY_LENGTH([]) -> 0
        ARRAY_LENGTH("abc") -> undefined
        ARRAY_LENGTH({}) -> undefined
        ARRAY_LENGTH(null) -> undefined
        ARRAY_SLICE([10, 20, 30, 40], 1) -> [20, 30, 40]
        ARRAY_SLICE([10, 20, 30, 40], -3, 2) -> [20, 30]
        ARRAY_SLICE([10, 20, 30, 40], -9, 2) -> [10, 20]
        ARRAY_SLICE([10, 20, 30, 40], -1) -> [40]
        ARRAY_SLICE([10, 20, 30, 40], 3, 12) -> [40]
        ARRAY_SLICE([10, 20, 30, 40], 4) -> []
        ARRAY_SLICE([10, 20, 30, 40], 1e300) -> []
        ARRAY_SLICE([10, 20, 30, 40], -1e300) -> [10, 20, 30, 40]
        ARRAY_SLICE([10, 20, 30, 40], 0, 0) -> []
        ARRAY_SLICE([10, 20, 30, 40], 0, -1) -> []
        ARRAY_SLICE([10, 20, 30, 40], 0.5) -> undefined
        ARRAY_SLICE([10, 20, 30, 40], 0, null) -> undefined
        ARRAY_SLICE("abc", 0) -> undefined
        "#,
    );
}

#[test]
fn containing() {
    laws(
        r#"
        ARRAY_CONTAINS(["coats", "jackets"], "coats") -> true
        ARRAY_CONTAINS(["coats", "jackets"], "hoodies") -> false
        ARRAY_CONTAINS([1, 2], 2.0) -> true
        ARRAY_CONTAINS([null], null) -> true
        ARRAY_CONTAINS([[1, 2]], [1, 2]) -> true
        ARRAY_CONTAINS([[1, 2]], [2, 1]) -> false
        ARRAY_CONTAINS([{"a": 1, "b": 2}], {"b": 2, "a": 1}) -> true
        ARRAY_CONTAINS([{"a": 1, "b": 2}], {"a": 1}) -> false
        ARRAY_CONTAINS([{"a": 1, "b": 2}], {"a": 1}, false) -> false
        ARRAY_CONTAINS([{"a": 1, "b": 2}], {"a": 1}, undefined) -> false
        ARRAY_CONTAINS([1, 2], 1, undefined) -> true
        ARRAY_CONTAINS([{"a": 1, "b": 2}], {"a": 1}, true) -> true
        ARRAY_CONTAINS([{"a": 1, "b": 2}], {"a": 2}, true) -> false
        ARRAY_CONTAINS([{"a": 1, "b": 2}], {}, true) -> true
        ARRAY_CONTAINS([{"a": {"x": 1, "y": 2}}], {"a": {"y": 2}}, true) -> true
        ARRAY_CONTAINS([{"a": [{"x": 1, "y": 2}, 3]}], {"a": [{"x": 1}, 3]}, true) -> true
        ARRAY_CONTAINS([{"a": [{"x": 1}, 3]}], {"a": [{"x": 1}]}, true) -> false
        ARRAY_CONTAINS([5], {"a": 1}, true) -> false
        ARRAY_CONTAINS([5], 5, true) -> true
        ARRAY_CONTAINS([1], 1, null) -> undefined
        ARRAY_CONTAINS([1], 1, "true") -> undefined
        ARRAY_CONTAINS([1], undefined) -> undefined
        ARRAY_CONTAINS(undefined, 1) -> undefined
        ARRAY_CONTAINS(null, 1) -> undefined
        ARRAY_CONTAINS("abc", "a") -> undefined
        ARRAY_CONTAINS([NaN], NaN) -> false
        "#,
    );
}

#[test]
fn containing_several_follows_the_truth_tables() {
    laws(
        r#"
        ARRAY_CONTAINS_ANY([1, true, "3", [1, 2]], [1, 2]) -> true
        ARRAY_CONTAINS_ANY([1, 2, 3, 4], 4, 5) -> true
        ARRAY_CONTAINS_ANY([1, 2, 3, 4], 5, 6) -> false
        ARRAY_CONTAINS_ANY([8], 8, undefined) -> true
        ARRAY_CONTAINS_ANY([8], 9, undefined) -> undefined
        ARRAY_CONTAINS_ANY([], 1) -> false
        ARRAY_CONTAINS_ANY("8", 8) -> undefined
        ARRAY_CONTAINS_ALL([1, true, "3", [1, 2]], 1, [1, 2], true) -> true
        ARRAY_CONTAINS_ALL([1, 2, 3, 4], 4, 5) -> false
        ARRAY_CONTAINS_ALL([8], 8, undefined) -> undefined
        ARRAY_CONTAINS_ALL([8], 9, undefined) -> false
        ARRAY_CONTAINS_ALL([], null) -> false
        ARRAY_CONTAINS_ALL(undefined, 8) -> undefined
        "#,
    );
}

#[test]
fn numbers_in_arrays() {
    laws(
        r#"
        ARRAY_SUM([1, 2, 3.5]) -> 6.5
        ARRAY_SUM([]) -> 0
        ARRAY_SUM([1, null]) -> undefined
        ARRAY_SUM([1, "2"]) -> undefined
        ARRAY_SUM(5) -> undefined
        ARRAY_AVG([1, 2, 3, 4]) -> 2.5
        ARRAY_AVG([1, -2.7, 3, -4]) -> -0.675
        ARRAY_AVG([]) -> undefined
        ARRAY_AVG([true]) -> undefined
        ARRAY_MEDIAN([4, 1, 3, 2]) -> 2.5
        ARRAY_MEDIAN([1.0, 2.0, 3.3, 4.7, 7.8]) -> 3.3
        ARRAY_MEDIAN([1, -2.7, 3, -4]) -> -0.8500000000000001
        ARRAY_MEDIAN([5]) -> 5
        ARRAY_MEDIAN([1, NaN, 3]) -> NaN
        ARRAY_MEDIAN([]) -> undefined
        ARRAY_MEDIAN(["a"]) -> undefined
        ARRAY_MEDIAN(null) -> undefined
        "#,
    );
}

#[test]
fn least_and_greatest_go_by_type_first() {
    laws(
        r#"
        ARRAY_MIN([3, 1, 2]) -> 1
        ARRAY_MAX([3, 1, 2]) -> 3
        ARRAY_MIN([12, "abc", true, false, null]) -> null
        ARRAY_MAX([12, "abc", true, false, null]) -> "abc"
        ARRAY_MIN(["b", "B"]) -> "B"
        ARRAY_MAX([9007199254740992, 9007199254740993]) -> 9007199254740993
        ARRAY_MAX(["\uFFFF", "😀"]) -> "\uFFFF"
        ARRAY_MIN([1, []]) -> undefined
        ARRAY_MAX([1, {}]) -> undefined
        ARRAY_MIN([]) -> undefined
        ARRAY_MAX([]) -> undefined
        ARRAY_MAX(5) -> undefined
        "#,
    );
}

#[test]
fn arrays_as_sets() {
    laws(
        r#"
        SetUnion([1, 2, "A", "B"], ["A", 1, 3, 3]) -> [1, 2, "A", "B", 3]
        SetUnion([1, 1.0, 2], []) -> [1, 2]
        SetUnion([{"a": 1, "b": [2]}], [{"b": [2], "a": 1.0}]) -> [{"a": 1, "b": [2]}]
        SetUnion(["1", 1, true, null, [], {}], [null, "null"]) -> ["1", 1, true, null, [], {}, "null"]
        SetUnion([NaN, NaN], [NaN]) -> [NaN, NaN, NaN]
        SetIntersect([7, 8, 9], [9, 7]) -> [9, 7]
        SetIntersect([1, 2, 3, 4], [1, 1, 1]) -> [1]
        SetIntersect([1], ["1"]) -> []
        SetIntersect([NaN], [NaN]) -> []
        SetDifference([3, 1, 2, 3, 1], [1]) -> [3, 2]
        SetDifference([NaN], [NaN]) -> [NaN]
        SetDifference([], [1]) -> []
        SetEqual([1, 2], [2, 1, 1.0]) -> true
        SetEqual([1, 2], [1]) -> false
        SetEqual([], []) -> true
        SetEqual([NaN], [NaN]) -> false
        SetEqual([9007199254740992], [9007199254740993]) -> false
        "#,
    );
    for name in ["SetUnion", "SetIntersect", "SetDifference", "SetEqual"] {
        laws(&format!(
            r#"
            {name}([], undefined) -> undefined
            {name}(null, []) -> undefined
            {name}([], "a") -> undefined
            "#
        ));
    }
}

#[test]
fn long_sets_and_wide_objects_take_no_square_time() {
    let numbers = |from: i64| Value::Array((from..from + 200_000).map(Value::from).collect());
    let union = apply("SetUnion", &[numbers(0), numbers(100_000)]);
    assert!(union.equals(&Value::Array((0..300_000_i64).map(Value::from).collect())));
    let member = |n: i64| (n.to_string(), Value::from(n));
    let wide = Value::Object((0..100_000).map(member).collect());
    let turned = Value::Object((0..100_000).rev().map(member).collect());
    for partial in [true, false] {
        let args = [Value::Array(vec![wide.clone()]), turned.clone(), partial.into()];
        assert!(apply("ARRAY_CONTAINS", &args).is_true());
    }
}
