//! Text.

use super::{RESULT_BYTES_MAX, Value, apply, laws};

#[test]
fn concatenation() {
    laws(
        r#"
        CONCAT("a", "b") -> "ab"
        CONCAT("a", "", "b", "c") -> "abc"
        CONCAT("a", null) -> undefined
        CONCAT("a", "b", undefined) -> undefined
        CONCAT("a", 1) -> undefined
        "#,
    );
}

#[test]
fn searching_for_a_part() {
    laws(
        r#"
        CONTAINS("AdventureWorks", "Works") -> true
        CONTAINS("AdventureWorks", "works") -> false
        CONTAINS("AdventureWorks", "works", false) -> false
        CONTAINS("AdventureWorks", "works", true) -> true
        CONTAINS("abc", "") -> true
        CONTAINS("", "") -> true
        STARTSWITH("AdventureWorks", "Adv") -> true
        STARTSWITH("AdventureWorks", "adv") -> false
        STARTSWITH("AdventureWorks", "adv", true) -> true
        STARTSWITH("abc", "") -> true
        ENDSWITH("AdventureWorks", "Works") -> true
        ENDSWITH("AdventureWorks", "wORKS", true) -> true
        ENDSWITH("AdventureWorks", "Work") -> false
        ENDSWITH("abc", "") -> true
        STRINGEQUALS("abc", "abc") -> true
        STRINGEQUALS("abc", "aBC") -> false
        STRINGEQUALS("abc", "aBC", true) -> true
        STRINGEQUALS("abc", "") -> false
        STRINGEQUALS("STRASSE", "straße", true) -> false
        STRINGEQUALS("ΣΑΣ", "σας", true) -> true
        "#,
    );
    for name in ["CONTAINS", "STARTSWITH", "ENDSWITH", "STRINGEQUALS"] {
        laws(&format!(
            r#"
            {name}("a", undefined) -> undefined
            {name}(undefined, "a") -> undefined
            {name}(null, "a") -> undefined
            {name}("a", 1) -> undefined
            {name}("a", "a", null) -> undefined
            {name}("a", "a", undefined) -> undefined
            {name}("a", "a", 1) -> undefined
            "#
        ));
    }
}

#[test]
fn searching_for_several_parts_follows_the_truth_tables() {
    laws(
        r#"
        CONTAINS_ANY_CS("Have a nice day!", "had", "nice") -> true
        CONTAINS_ANY_CS("Have a nice day!", "had", "NICE") -> false
        CONTAINS_ANY_CS("Have a nice day!", undefined, "nice") -> true
        CONTAINS_ANY_CS("Have a nice day!", undefined, "had") -> undefined
        CONTAINS_ANY_CS("ab", "b", undefined) -> true
        CONTAINS_ANY_CI("Have a nice day!", "had", "NICE") -> true
        CONTAINS_ANY_CI("Have a nice day!", 5, "had") -> undefined
        CONTAINS_ALL_CS("Have a nice day!", "Have", "nice", "day!") -> true
        CONTAINS_ALL_CS("Have a nice day!", "HAVE", "nice", "day!") -> false
        CONTAINS_ALL_CS("Have a nice day!", undefined, "nice") -> undefined
        CONTAINS_ALL_CS("Have a nice day!", undefined, "had") -> false
        CONTAINS_ALL_CS("ab", "b", undefined) -> undefined
        CONTAINS_ALL_CI("Have a nice day!", "HAVE", "NICE") -> true
        CONTAINS_ALL_CI("Have a nice day!", null, "had") -> false
        CONTAINS_ANY_CI(undefined, "a") -> undefined
        CONTAINS_ALL_CS(5, "a") -> undefined
        ContainsAnyCi("ab", "B") -> true
        ContainsAnyCs("ab", "B") -> false
        ContainsAllCi("ab", "B", "A") -> true
        ContainsAllCs("ab", "b", "A") -> false
        "#,
    );
}

#[test]
fn positions() {
    laws(
        r#"
        INDEX_OF("abc", "ab") -> 0
        INDEX_OF("abc", "c") -> 2
        INDEX_OF("abc", "d") -> -1
        INDEX_OF("AdventureWorks", "Works", 5) -> 9
        INDEX_OF("AdventureWorks", "Adventure", 5) -> -1
        INDEX_OF("aaa", "a", 2) -> 2
        INDEX_OF("aaa", "a", 3) -> -1
        INDEX_OF("aaa", "", 3) -> 3
        INDEX_OF("aaa", "", 4) -> -1
        INDEX_OF("aaa", "a", 1e300) -> -1
        INDEX_OF("aaa", "a", -5) -> 0
        INDEX_OF("aaa", "a", 0.5) -> undefined
        INDEX_OF("aaa", "a", NaN) -> undefined
        INDEX_OF("aaa", "a", null) -> undefined
        INDEX_OF("aaa", 1) -> undefined
        INDEX_OF(undefined, "a") -> undefined
        LASTINDEXOF("abcdeabc", "abc") -> 5
        LASTINDEXOF("abcdeabc", "abc", 6) -> 0
        LASTINDEXOF("abcdeabc", "abc", 7) -> 5
        LASTINDEXOF("abcdeabc", "abc", 100) -> 5
        LASTINDEXOF("abcdeabc", "abc", 9223372036854775807) -> 5
        LASTINDEXOF("abcdeabc", "abc", 1) -> -1
        LASTINDEXOF("abcdeabc", "a", 0) -> 0
        LASTINDEXOF("abcdeabc", "a", -1) -> -1
        LASTINDEXOF("abcdeabc", "fg") -> -1
        LASTINDEXOF("abc", "c", 1.5) -> undefined
        LASTINDEXOF("abc", null) -> undefined
        "#,
    );
}

#[test]
fn positions_count_utf16_code_units() {
    laws(
        r#"
        LENGTH("abc") -> 3
        LENGTH("") -> 0
        LENGTH("é") -> 1
        LENGTH("a😀b") -> 4
        LENGTH([1]) -> undefined
        LENGTH(5) -> undefined
        LENGTH(null) -> undefined
        LENGTH(undefined) -> undefined
        INDEX_OF("a😀b", "b") -> 3
        INDEX_OF("a😀b", "😀", 1) -> 1
        INDEX_OF("a😀b", "😀", 2) -> -1
        INDEX_OF("a😀b", "b", 2) -> 3
        LASTINDEXOF("a😀b", "b") -> 3
        LASTINDEXOF("a😀b", "😀", 1) -> -1
        LASTINDEXOF("a😀b", "😀", 2) -> 1
        LEFT("a😀b", 2) -> "a�"
        LEFT("a😀b", 3) -> "a😀"
        RIGHT("a😀b", 2) -> "�b"
        RIGHT("a😀b", 3) -> "😀b"
        SUBSTRING("a😀b", 1, 2) -> "😀"
        SUBSTRING("a😀b", 1, 1) -> "�"
        SUBSTRING("a😀b", 2, 2) -> "�b"
        SUBSTRING("a😀b", 2, 1) -> "�"
        "#,
    );
}

#[test]
fn parts_of_text() {
    laws(
        r#"
        LEFT("AdventureWorks", 5) -> "Adven"
        LEFT("abc", 0) -> ""
        LEFT("abc", -1) -> ""
        LEFT("abc", 100) -> "abc"
        LEFT("abc", 1e300) -> "abc"
        LEFT("abc", -1e300) -> ""
        LEFT("abc", 1.5) -> undefined
        LEFT("abc", Infinity) -> undefined
        LEFT("abc", null) -> undefined
        LEFT(null, 1) -> undefined
        RIGHT("abc", 1) -> "c"
        RIGHT("abc", 0) -> ""
        RIGHT("abc", -3) -> ""
        RIGHT("abc", 100) -> "abc"
        RIGHT("abc", undefined) -> undefined
        SUBSTRING("river", 1, 99) -> "iver"
        SUBSTRING("river", 1, 2) -> "iv"
        SUBSTRING("river", 0, 5) -> "river"
        SUBSTRING("river", -1, 3) -> ""
        SUBSTRING("river", 5, 1) -> ""
        SUBSTRING("river", 2, 0) -> ""
        SUBSTRING("river", 2, -1) -> ""
        SUBSTRING("river", 2, 0.5) -> undefined
        SUBSTRING("river", "2", 1) -> undefined
        SUBSTRING(5, 2, 1) -> undefined
        "#,
    );
}

#[test]
fn case_and_space() {
    laws(
        r#"
        LOWER("AbC") -> "abc"
        LOWER("ÀΣ") -> "àσ"
        LOWER("İ") -> "İ"
        LOWER(1) -> undefined
        UPPER("aBc") -> "ABC"
        UPPER("ß") -> "ß"
        UPPER("àσς") -> "ÀΣΣ"
        UPPER(undefined) -> undefined
        TRIM(" \t\n a b \u00a0\u3000") -> "a b"
        LTRIM("   abc  ") -> "abc  "
        RTRIM("   abc  ") -> "   abc"
        TRIM("xyaxb", "xy") -> "axb"
        TRIM("-_-AdventureWorks-_-", "-_") -> "AdventureWorks"
        TRIM("-- AdventureWorks --", "-") -> " AdventureWorks "
        TRIM(" a ", "") -> " a "
        TRIM("😀a😀", "😀") -> "a"
        LTRIM("xxaxx", "x") -> "axx"
        RTRIM("xxaxx", "x") -> "xxa"
        TRIM(null) -> undefined
        TRIM("a", null) -> undefined
        LTRIM("a", 1) -> undefined
        RTRIM(undefined) -> undefined
        "#,
    );
}

#[test]
fn making_text_of_text() {
    laws(
        r#"
        REPLACE("This is a test", "is", "at") -> "That at a test"
        REPLACE("aaa", "a", "") -> ""
        REPLACE("abc", "x", "y") -> "abc"
        REPLACE("abc", "", "y") -> undefined
        REPLACE("abc", "a", null) -> undefined
        REPLICATE("ab", 3) -> "ababab"
        REPLICATE("ab", 2.9) -> "abab"
        REPLICATE("ab", 0) -> ""
        REPLICATE("ab", -0.5) -> ""
        REPLICATE("ab", -1) -> undefined
        REPLICATE("ab", NaN) -> undefined
        REPLICATE("ab", Infinity) -> undefined
        REPLICATE("ab", 5001) -> undefined
        REPLICATE("ab", 1e300) -> undefined
        REPLICATE("", 1e300) -> ""
        REPLICATE("ab", "2") -> undefined
        REVERSE("abc") -> "cba"
        REVERSE("a😀b") -> "b😀a"
        REVERSE([1]) -> undefined
        StringJoin(["p", "q"], "-") -> "p-q"
        StringJoin(["6", "7", "4"], "") -> "674"
        StringJoin([], "-") -> ""
        StringJoin(["p", 1], "-") -> undefined
        StringJoin(["p", null], "-") -> undefined
        StringJoin(["p"], undefined) -> undefined
        StringJoin("p", "-") -> undefined
        StringSplit("p,,q", ",") -> ["p", "", "q"]
        StringSplit("xenmoun mountain bike", "moun") -> ["xen", " ", "tain bike"]
        StringSplit("Helmet", "") -> ["Helmet"]
        StringSplit("", "") -> [""]
        StringSplit("", ",") -> [""]
        StringSplit(",", ",") -> ["", ""]
        StringSplit("a", undefined) -> undefined
        StringSplit(null, ",") -> undefined
        "#,
    );
}

#[test]
fn replication_ends_at_ten_thousand_code_units() {
    let longest = apply("REPLICATE", &["ab".into(), 5000_i64.into()]);
    assert!(longest.equals(&"ab".repeat(5000).into()));
    assert!(!apply("REPLICATE", &["😀".into(), 5001_i64.into()]).is_defined());
    assert!(apply("REPLICATE", &["😀".into(), 5000_i64.into()]).is_defined());
}

#[test]
fn results_beyond_a_page_are_undefined() {
    let half = Value::from("a".repeat(RESULT_BYTES_MAX / 2));
    assert!(apply("CONCAT", &[half.clone(), half.clone()]).is_defined());
    assert!(!apply("CONCAT", &[half.clone(), half.clone(), "a".into()]).is_defined());
    let long = "b".repeat(1000).into();
    assert!(!apply("REPLACE", &[half.clone(), "a".into(), long]).is_defined());
    assert!(!apply("STRINGSPLIT", &[half.clone(), "a".into()]).is_defined());
    assert!(apply("STRINGSPLIT", &[half.clone(), "b".into()]).is_defined());
    let pieces = Value::Array(vec!["".into(); 1000]);
    assert!(!apply("STRINGJOIN", &[pieces.clone(), half]).is_defined());
    let pair = Value::Array(vec![pieces.clone(), pieces]);
    assert!(apply("ARRAY_CONCAT", &[pair.clone(), pair]).is_defined());
}
