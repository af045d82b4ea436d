//! Patterns: what they match, and what is refused instead of matched wrongly.

use super::super::tests::laws;
use super::*;

fn compile(pattern: &str, modifiers: &str) -> Result<Regex, Why> {
    super::compile(pattern, modifiers).result
}

/// Checks one pattern against texts that match and texts that do not.
fn check(pattern: &str, modifiers: &str, matching: &[&str], others: &[&str]) {
    let regex = compile(pattern, modifiers).unwrap_or_else(|why| panic!("{pattern}: {why}"));
    for text in matching {
        assert_eq!(regex.is_match(text), Some(true), "{pattern:?} matches {text:?}: {regex:?}");
    }
    for text in others {
        assert_eq!(
            regex.is_match(text),
            Some(false),
            "{pattern:?} does not match {text:?}: {regex:?}"
        );
    }
}

#[test]
fn calls() {
    laws(
        r#"
        RegexMatch("abcd", "ABC") -> false
        RegexMatch("abcd", "ABC", "i") -> true
        RegexMatch("abcd", "ab.", "") -> true
        RegexMatch("abcd", "ab c", "x") -> true
        RegexMatch("abcd", "aB c", "ix") -> true
        RegexMatch("03a", "[0-9]") -> true
        RegexMatch("salt3824908", "salt{1}") -> true
        RegexMatch("shame", "s....", "i") -> true
        RegexMatch("abc", "") -> true
        RegexMatch("abc", "(") -> undefined
        RegexMatch("abc", "a", "q") -> undefined
        RegexMatch("abc", "a", "I") -> undefined
        RegexMatch("abc", "a", null) -> undefined
        RegexMatch("abc", null) -> undefined
        RegexMatch(5, "5") -> undefined
        RegexMatch(undefined, "a") -> undefined
        RegexMatch("aa", "(a)\\1") -> undefined
        RegexMatch("aa", "a(?=a)") -> undefined
        "#,
    );
}

#[test]
fn many_patterns_pass_through_the_cache() {
    for round in 0..3 {
        for number in 0..20 {
            laws(&format!("RegexMatch(\"x{number}y\", \"x{number}y\") -> true"));
            laws(&format!("RegexMatch(\"x{round}\", \"x{number}y\") -> false"));
        }
    }
    laws("RegexMatch(\"A\", \"a\") -> false\nRegexMatch(\"A\", \"a\", \"i\") -> true");
}

#[test]
fn literals_and_escapes() {
    check(r"a\.b", "", &["a.b"], &["axb"]);
    check(r"\Qa.b\E*", "", &["a.b", "a."], &["axb"]);
    check(r"\Qa\b", "", &[r"a\b"], &["a"]);
    check("a-b&&c~d#", "", &["a-b&&c~d#"], &["ab"]);
    check("}]", "", &["}]"], &["}"]);
    check(r"\t\n\r\f\a\e\0\012\o{101}\x41\x{1F600}", "", &["\t\n\r\x0C\x07\x1B\0\nAA😀"], &[]);
    check(r"\x4g", "", &["\x04g"], &[]);
    check(r"\cA\cz", "", &["\x01\x1A"], &[]);
    check(r"\/\-\_\ é", "", &["/-_ é"], &[]);
    check("é{2}", "", &["éé"], &["é"]);
}

#[test]
fn classes_know_ascii_only() {
    check(r"^\d+$", "", &["123"], &["١٢٣", "x"]);
    check(r"^\w+$", "", &["aZ_9"], &["é", "-"]);
    check(r"^\W$", "", &["é", "-", "\n"], &["a"]);
    check(r"^\s\S$", "", &[" x", "\x0Bx", "\n\u{a0}"], &["\u{a0}x"]);
    check(r"\bfoo\b", "", &["a foo.", "éfooé"], &["food"]);
    check(r"^\h\v\H\V$", "", &["\u{2003}\u{2028}xx"], &["x\n\n\n"]);
    check(r"^\N$", "s", &["x", "é"], &["\n"]);
    check(r"^\p{Lu}\pL\P{L}\p{^Lu}\p{Greek}$", "", &["Éx1xα"], &["éx1xα", "Éx1xa"]);
}

#[test]
fn sets_of_characters() {
    check("^[abc]$", "", &["a"], &["d", "ab"]);
    check("^[^a-c]$", "", &["d", "\n", "😀"], &["b"]);
    check("^[]a]$", "", &["]", "a"], &["b"]);
    check("^[^]a]$", "", &["b"], &["]", "a"]);
    check("^[a-]$", "", &["-", "a"], &["b"]);
    check(r"^[\d-z]$", "", &["5", "-", "z"], &["y"]);
    check("^[a&&b]$", "", &["a", "&", "b"], &["c"]);
    check("^[+--b~~c]$", "", &["+", ",", "-", "b", "~"], &[".", "d"]);
    check("^[[]$", "", &["["], &["]"]);
    check("^[[a]$", "", &["[", "a"], &["b"]);
    check(r"^[\]\\\b\n\x41-\x43]$", "", &["]", "\\", "\x08", "\n", "B"], &["b"]);
    check("^[[:alpha:][:digit:]_]$", "", &["a", "5", "_"], &["é", "-"]);
    check("^[[:^alpha:]]$", "", &["5", "é"], &["a"]);
    check("^[[:x]$", "", &["[", ":", "x"], &["y"]);
    check("^[^[:space:]]$", "", &["a"], &[" ", "\n"]);
    check("^[$.*+?(){}|^]$", "", &["$", ".", "^"], &["a"]);
    check("^[ab c]$", "x", &["a", " "], &["d"]);
}

#[test]
fn case_is_folded_but_in_types() {
    check("^straße$", "i", &["STRAßE", "straẞe"], &["STRASSE"]);
    check("^[a-c]$", "i", &["B"], &["d"]);
    check("^[^a-c]$", "i", &["d"], &["B"]);
    check(r"^\w$", "i", &["K"], &["\u{212A}", "ſ"]);
    check(r"^[\w.]$", "i", &["K", "."], &["\u{212A}"]);
    check(r"^[^\w.]$", "i", &["\u{212A}"], &["K", "."]);
    check("^[[:upper:]]$", "i", &["a", "A"], &["1"]);
    check(r"^\p{Lu}$", "i", &["A"], &["a"]);
    check(r"^[\p{Lu}b]$", "i", &["A", "B", "b"], &["a"]);
    check("a(?i)b(?-i)c", "", &["aBc"], &["aBC", "ABc"]);
    check("a(?i:b|c)d", "", &["aCd"], &["aCD"]);
    check("(a(?i)b)c", "", &["aBc"], &["aBC"]);
    check("a(?i)b|c", "", &["C", "aB"], &["A"]);
    check("(?-i)a", "i", &["a"], &["A"]);
    check("(?-i:a)b", "i", &["aB"], &["Ab"]);
}

#[test]
fn lines_and_ends() {
    check("^b", "", &["b"], &["a\nb"]);
    check("^b", "m", &["a\nb"], &["ab"]);
    check("a$", "", &["a", "a\n"], &["a\n\n", "ab", "a\nb"]);
    check("a$", "m", &["a\nb"], &["ab"]);
    check(r"a\z", "", &["a"], &["a\n"]);
    check(r"a\Z", "", &["a", "a\n"], &["a\n\n"]);
    check(r"\Ab", "m", &["b"], &["a\nb"]);
    check(r"\Gb", "", &["b"], &["ab"]);
    check("a.b", "", &["a b", "a\rb"], &["a\nb"]);
    check("a.b", "s", &["a\nb"], &["ab"]);
    check("a(?s).b", "", &["a\nb"], &[]);
    check("a(?s:.)b.", "", &["a\nbx"], &["a\nb\n"]);
    check("(a$|b)", "", &["a\n", "b"], &["ac"]);
    check("(?:(x$))", "", &["x\n"], &["xy"]);
    check("^(?m)b$", "", &["b\nc"], &["a\nb"]);
    check(r"a\Kb", "", &["ab"], &["a"]);
}

#[test]
fn groups_and_quantifiers() {
    check("^(ab)+$", "", &["abab"], &["aba"]);
    check("^(?:a|b){2,3}$", "", &["ab", "aba"], &["a", "abab"]);
    check("^(?<n>a)(?P<m>b)(?'o'c)$", "", &["abc"], &["ab"]);
    check("^(?|a|b)$", "", &["a"], &["c"]);
    check("^a{2}b{1,}c{0,1}$", "", &["aab", "aabbc"], &["ab"]);
    check("a{,", "", &["a{,"], &["a"]);
    check("a{b}", "", &["a{b}"], &["a"]);
    check("a{", "", &["a{"], &["a"]);
    check("x{1,2", "", &["x{1,2"], &["x"]);
    check("^a+?b*?c??d{2,3}?$", "", &["add", "aabcddd"], &["ad"]);
    check("a(?#comment)b", "", &["ab"], &["a"]);
    check("()|a", "", &[""], &[]);
    check("a||b", "", &["z"], &[]);
    check("(?U)a+(?n)b", "", &["aab"], &["a"]);
    check("a b # comment\n c", "x", &["abc"], &["a b c"]);
    check(r"a\ b[ ]c", "x", &["a b c"], &["abc"]);
    check("a (?-x) b", "x", &["a b"], &["ab"]);
    check("(?x) a +", "", &["aaa"], &["b"]);
}

#[test]
fn what_is_no_pattern_is_invalid() {
    for pattern in [
        "(",
        ")",
        "a)",
        "(a",
        "[",
        "[a",
        "[]",
        "[^]",
        "*a",
        "+",
        "a|*",
        "(?",
        "(?<",
        "(?<n",
        "(?<1a>x)",
        "(?<n>a)(?<n>b)",
        "(?<a-b>x)",
        "(?P",
        "(?Px)",
        "(?q)",
        "(?i",
        "(?i-",
        "(?#",
        "\\",
        "[\\",
        "a{3,2}",
        "a{70000}",
        "{2}",
        "[z-a]",
        "[a--b]",
        "[[:foo:]]",
        "[[.a.]]",
        "[a-\\d]",
        "\\x{110000}",
        "\\x{D800}",
        "\\x{",
        "\\x{}",
        "\\x{g}",
        "\\o7",
        "\\o{8}",
        "\\c",
        "\\cé",
        "\\p",
        "\\p{L",
        "\\y",
        "\\u0041",
        "\\L",
        "[\\R]",
        "[\\B]",
        "(?i)*",
    ] {
        assert_eq!(compile(pattern, "").err(), Some(Why::Invalid), "{pattern}");
    }
    for modifiers in ["a", "I", "ii!", " ", "g"] {
        assert_eq!(compile("a", modifiers).err(), Some(Why::Invalid), "{modifiers}");
    }
}

#[test]
fn what_the_engine_cannot_run_is_unsupported() {
    for pattern in [
        "(a)\\1",
        "\\g1",
        "\\k<n>",
        "(?P=n)",
        "(?P>n)",
        "(?&n)",
        "(?R)",
        "(?1)",
        "(?-1)",
        "(?+1)",
        "(?=a)",
        "(?!a)",
        "(?<=a)",
        "(?<!a)",
        "(?>a)",
        "(?(1)a)",
        "(?C1)",
        "(*ACCEPT)",
        "(?^)",
        "a++",
        "a*+",
        "a?+",
        "a{2}+",
        "a**",
        "a{2}{3}",
        "^*",
        "\\b+",
        "\\R",
        "\\X",
        "\\C",
        "\\N{U+41}",
        "\\p{L&}",
        "\\p{No_Such_Script}",
        "\\p{}",
        "a$b",
        "(a$)b",
        "(a|b$)c",
        "(a$)*",
        "a$$",
        "a{,3}",
        "(?xx)a",
        "(?J)a",
        "[\\Qa\\E]",
        "[\\1]",
    ] {
        assert_eq!(compile(pattern, "").err(), Some(Why::Unsupported), "{pattern}");
    }
    assert_eq!(compile(r"[^\p{Lu}b]", "i").err(), Some(Why::Unsupported));
}

#[test]
fn patterns_have_limits() {
    let unsupported = Some(Why::Unsupported);
    assert_eq!(compile(&"a".repeat(PATTERN_BYTES_MAX + 1), "").err(), unsupported);
    assert_eq!(compile("((((a{100}){100}){100}){100}){100}", "").err(), unsupported);
    assert_eq!(
        compile(&format!("{}a{}", "(".repeat(1000), ")".repeat(1000)), "").err(),
        unsupported
    );
    assert!(compile(&format!("{}a{}", "(".repeat(100), ")".repeat(100)), "").is_ok());
    assert!(compile(r"^[\w.+-]+@\w+\.\w{2,}$", "i").is_ok());
    assert!(compile(r"^\p{L}{1,20}$", "").is_ok());
}

#[test]
fn the_time_to_match_is_linear_and_limited() {
    let matches = |pattern, text: &str| compile(pattern, "").expect(pattern).is_match(text);
    let long = "a".repeat(2 << 20);
    assert_eq!(matches("(a|a)*(a|a)*(a|a)*b", &long), Some(false));
    assert_eq!(matches("^[a-t]{1,100}$", &long), Some(false));
    // Large patterns are for short texts.
    assert_eq!(matches("[a-q][a-t]{5000}x", &long), None);
    assert_eq!(matches("[a-q][a-t]{5000}x", &long[..10_000]), Some(false));
    laws("RegexMatch(\"aaa\", \"[a-q][a-t]{5000}x\") -> false");
    let args = [Value::from(long), "[a-q][a-t]{5000}x".into()];
    assert!(!super::super::tests::apply("REGEXMATCH", &args).is_defined());
}
