//! Type tests.

use super::laws;

#[test]
fn type_tests_are_true_of_their_type_and_false_of_all_else() {
    let values = ["undefined", "null", "true", "1", "2.5", "NaN", "Infinity", "\"a\"", "[]", "{}"];
    for (name, members) in [
        ("IS_DEFINED", "null true 1 2.5 NaN Infinity \"a\" [] {}"),
        ("IS_NULL", "null"),
        ("IS_BOOL", "true"),
        ("IS_NUMBER", "1 2.5 NaN Infinity"),
        ("IS_STRING", "\"a\""),
        ("IS_ARRAY", "[]"),
        ("IS_OBJECT", "{}"),
        ("IS_PRIMITIVE", "null true 1 2.5 NaN Infinity \"a\""),
        ("IS_FINITE_NUMBER", "1 2.5"),
        ("IS_INTEGER", "1"),
        ("IS_DATETIME", ""),
    ] {
        for value in values {
            let belongs = members.split(' ').any(|member| member == value);
            laws(&format!("{name}({value}) -> {belongs}"));
        }
    }
}

#[test]
fn integers_are_whole_and_have_64_bits() {
    laws(
        r"
        IS_INTEGER(3454.123) -> false
        IS_INTEGER(4.0) -> true
        IS_INTEGER(4.25) -> false
        IS_INTEGER(-9223372036854775808) -> true
        IS_INTEGER(9223372036854775807) -> true
        IS_INTEGER(9223372036854775808) -> false
        IS_INTEGER(18446744073709551615) -> false
        IS_INTEGER(2e19) -> false
        IS_INTEGER(1e300) -> false
        IS_INTEGER(-Infinity) -> false
        ",
    );
}
