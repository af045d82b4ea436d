//! No query text, however hostile, makes the front half panic or recurse without end.

mod length;
mod naive;
mod random;
mod work;

use proptest::prelude::*;

use super::*;
use crate::ids::ItemNumber;
use crate::indexing::{self, IndexRules};
use crate::time::Millis;

fn compile(text: &str) -> Result<CompiledQuery, QueryError> {
    let index = IndexRules::new(&indexing::complete(None).unwrap()).unwrap();
    CompiledQuery::new(text, &Parameters::default(), &index, &ComputedProperties::default())
}

#[test]
fn a_filter_can_pin_the_partition_key() {
    use crate::partition_key::{Component, KeyDefinition, KeyKind};
    let paths = vec![vec!["t".to_string()], vec!["a".to_string(), "b".to_string()]];
    let definition = KeyDefinition { kind: KeyKind::MultiHash, paths };
    let pinned = |filter: &str| {
        let query = compile(&format!("SELECT * FROM c WHERE {filter}")).unwrap();
        query.pinned_key(&definition).map(|key| key.0)
    };
    let both = Some(vec![Component::Text("x".to_string()), Component::Number(5.0)]);
    assert_eq!(pinned("c.t = 'x' AND c.a.b = 5"), both);
    assert_eq!(pinned("c.z > 1 AND 5.0 = c['a'].b AND c.t = 'x'"), both);
    for open in [
        "c.t = 'x'",
        "c.t = 'x' OR c.a.b = 5",
        "c.t = 'x' AND c.a.b > 5",
        "c.t = 'x' AND c.a.b = c.t",
        "c.t = 'x' AND c.a.b = [1]",
        "NOT (c.t = 'x' AND c.a.b = 5)",
        "c.t = 'x' AND c.a = 5",
    ] {
        assert_eq!(pinned(open), None, "{open}");
    }
}

#[test]
fn nesting_is_limited() {
    for (open, close) in [("(", ")"), ("[", "]"), ("-", ""), ("NOT ", ""), ("{a:", "}")] {
        let text = format!("SELECT VALUE {}1{} FROM c", open.repeat(5000), close.repeat(5000));
        assert!(compile(&text).is_err(), "{open}");
    }
}

/// The smallest stack anything of ours runs on is 2 MiB; half of that must do for the deepest query.
#[test]
fn the_deepest_query_needs_little_stack() {
    let nested = |open: &str, close: &str, levels: usize| {
        format!("SELECT VALUE {}c.a{} FROM c", open.repeat(levels), close.repeat(levels))
    };
    let long = |expr: String| format!("SELECT VALUE {expr} FROM c");
    let texts = [
        nested("(", ")", 190),
        nested("[", "]", 190),
        nested("1 + (c.a OR (NOT ", "))", 45),
        nested("c.a OR c.a + (", ")", 95),
        nested("(1 * 2 IN (3, ", "))", 60),
        nested("{a: c.x ? 1 : ", "}", 90),
        nested("(SELECT VALUE ", ")", 60),
        nested("ARRAY(SELECT VALUE x + 1 FROM x IN c.l WHERE EXISTS(SELECT VALUE ", "))", 30),
        nested("IS_DEFINED(", ")", 190),
        long(vec!["c.a.b"; 1900].join(" + ")),
        long(vec!["c.a.b"; 1900].join(" OR ")),
        long(format!("c{}", ".a".repeat(1900))),
        long(format!("[c.a]{}", ".a".repeat(1900))),
        format!("SELECT c.a FROM c WHERE c{} = 1", ".a".repeat(1900)),
        format!("SELECT COUNT(1) FROM c GROUP BY {}", vec!["c.a.b"; 1900].join(" + ")),
        format!("SELECT COUNT(1){} FROM c", " + 1".repeat(1900)),
        format!("SELECT * FROM {}c{}", "(SELECT * FROM ".repeat(190), ")".repeat(190)),
        format!("SELECT * FROM c{}", ".a".repeat(1900)),
        format!("SELECT x{0} FROM c{0} AS x JOIN y IN x{0}", ".a".repeat(1900)),
        format!(
            "SELECT * FROM {}x IN c.l{}",
            "x IN (SELECT VALUE [x] FROM ".repeat(190),
            ")".repeat(190)
        ),
    ];
    with_little_stack(move || {
        let item = Value::from_json(br#"{"a":1,"l":[1,2]}"#).unwrap();
        for text in texts {
            let shown = &text[..100.min(text.len())];
            let query = compile(&text).unwrap_or_else(|error| panic!("{shown}: {error}"));
            let run = Run::new(functions::Moment::new(Millis(0), Millis(0), 0));
            query.select(std::iter::once((ItemNumber(0), item.clone())), &run).unwrap();
        }
    });
}

/// Whatever a query makes is sent between nodes, and dropped on the stack at hand.
#[test]
fn the_deepest_values_are_sent_on_little_stack() {
    let wrapped = |value: &str| format!("{}{value}{}", "[".repeat(160), "]".repeat(160));
    let joined = move |joins: usize| {
        let join =
            |n: usize| format!(" JOIN x{} IN (SELECT VALUE {})", n + 1, wrapped(&format!("x{n}")));
        let sources: String = (0..joins).map(join).collect();
        format!("SELECT DISTINCT VALUE {} FROM x0{sources}", wrapped(&format!("x{joins}")))
    };
    let sourced = |levels: usize| {
        let sources: String =
            (0..levels).map(|_| "(SELECT VALUE [[[[[[[[c]]]]]]]] FROM ").collect();
        format!("SELECT * FROM {sources}c{}", ") c".repeat(levels))
    };
    with_little_stack(move || {
        let item = Value::from_json(br#"{"a":1}"#).unwrap();
        for (text, depth) in [(joined(4), 4 * 159 + 161), (sourced(90), 90 * 8 + 1)] {
            let shown = &text[..100];
            let query = compile(&text).unwrap_or_else(|error| panic!("{shown}: {error}"));
            let run = Run::new(functions::Moment::new(Millis(0), Millis(0), 0));
            let one = std::iter::once((ItemNumber(0), item.clone()));
            let found = query.select(one, &run).unwrap().remove(0).value;
            let again = Value::from_bytes(&found.to_bytes()).unwrap();
            assert!(again.equals(&found) && again.to_json().len() > depth, "{shown}");
        }
        for text in [joined(6), joined(10), sourced(150)] {
            let refused = compile(&text).unwrap_err().to_string();
            assert!(refused.contains("nested more than"), "{refused}");
        }
    });
}

#[test]
fn a_query_nested_too_deep_is_refused_on_little_stack() {
    let texts = [
        "1??1 OR 1 AND 1 BETWEEN 1||1|1^1&1=1<1<<1+1*f(",
        "1??1 OR 1 AND 1||1|1^1&1=1<1<<1+1*(",
        "1 OR NOT 1 LIKE (",
        "-(",
    ];
    with_little_stack(move || {
        for text in texts {
            for levels in [60, 199, 5000] {
                let text = format!("SELECT VALUE {} FROM c", text.repeat(levels));
                assert!(compile(&text).is_err());
            }
        }
    });
}

fn with_little_stack(run: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(1 << 20).spawn(run).unwrap().join().unwrap();
}

#[test]
fn chains_are_limited_but_a_thousand_alternatives_are_fine() {
    let chain = |operator: &str, count| {
        let terms = vec!["c.a = 1"; count].join(operator);
        compile(&format!("SELECT * FROM c WHERE {terms}"))
    };
    assert!(chain(" OR ", 1000).is_ok());
    assert!(chain(" OR ", 3000).is_err());
    assert!(compile(&format!("SELECT VALUE 1{} FROM c", " + 1".repeat(3000))).is_err());
    assert!(compile(&format!("SELECT VALUE c{} FROM c", ".a".repeat(3000))).is_err());
}

#[test]
fn texts_are_limited() {
    let text = format!("SELECT * FROM c --{}", " ".repeat(QUERY_BYTES_MAX));
    let refused = compile(&text).unwrap_err().to_message();
    assert!(
        refused.contains(r#""location":{"start":0,"end":524306},"code":"SC3020""#),
        "{refused}"
    );
}

fn fragment() -> impl Strategy<Value = String> {
    let words = [
        "SELECT",
        "VALUE",
        "*",
        "FROM",
        "c",
        "WHERE",
        "c.a",
        "=",
        "'x'",
        "5",
        "(",
        ")",
        "AND",
        "OR",
        "NOT",
        "IN",
        "BETWEEN",
        "ORDER BY",
        ",",
        "[",
        "]",
        "{",
        "}",
        ":",
        "?",
        "??",
        "-",
        "COUNT(1)",
        "@p",
        "GROUP BY",
        "TOP",
        "JOIN",
        "EXISTS",
        "LIKE",
        "0x1F",
        "1e",
        "\"",
        "--",
        "SELECT VALUE",
        "FROM c",
        "FROM x IN c.l",
        "JOIN y IN x",
        "(SELECT VALUE",
        "ARRAY(SELECT",
        "ALL(SELECT",
        "LAST(SELECT",
        "DISTINCT",
        "SUM(c.a)",
        "MAX(x)",
        "x",
        "y.a",
        "GROUP BY c.a",
        "ORDER BY c.a",
        "OFFSET 1 LIMIT 2",
        "AS",
        "ESCAPE",
        "RANK",
        "udf.f(",
        "IS_DEFINED(",
        "[0]",
        ".b",
        "'%x_'",
        "||",
        "NaN",
        "undefined",
        "DOCUMENTID(c)",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..25)
        .prop_map(|words| words.join(" "))
}

/// Compiles, and runs what compiles.
fn compile_and_run(text: &str) {
    let Ok(query) = compile(text) else { return };
    let item = Value::from_json(br#"{"a":1,"l":[[1,2],{"a":"x"}],"b":"axb"}"#).unwrap();
    let run = Run::new(functions::Moment::new(Millis(0), Millis(0), 0));
    let items = [(ItemNumber(1), item.clone()), (ItemNumber(2), item)];
    let _ = query.select(items.into_iter(), &run);
}

proptest! {
    #[test]
    fn any_text_is_compiled_or_refused(text in ".*") {
        compile_and_run(&text);
        compile_and_run(&format!("SELECT VALUE {text} FROM c"));
    }

    #[test]
    fn any_mix_of_words_is_compiled_or_refused(text in fragment()) {
        compile_and_run(&text);
        compile_and_run(&format!("SELECT {text}"));
        compile_and_run(&format!("SELECT VALUE c FROM c WHERE {text}"));
        compile_and_run(&format!("SELECT {text} FROM c JOIN x IN c.l"));
    }

    #[test]
    fn values_survive_the_round_trip(json in r#"(\[|\]|\{|\}|"a"|:|,|1|-2.5|null|true)*"#) {
        if let Ok(value) = Value::from_json(json.as_bytes()) {
            let again = Value::from_json(&value.to_json()).unwrap();
            prop_assert!(value.equals(&again));
        }
    }
}
