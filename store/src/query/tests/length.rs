//! The longest texts, of all kinds, are compiled or refused in a time that grows with their length,
//! not with its square.

use super::client_plan::{ClientPlan, Features};
use super::*;
use crate::partition_key::{KeyDefinition, KeyKind};

/// As many pieces as a text may have, with what stands around them.
fn longest(before: &str, piece: impl Fn(usize) -> String, separator: &str, after: &str) -> String {
    let mut text = before.to_string();
    let end = QUERY_BYTES_MAX - after.len();
    for number in 0.. {
        let next = piece(number);
        if text.len() + separator.len() + next.len() > end {
            break;
        }
        if number > 0 {
            text.push_str(separator);
        }
        text.push_str(&next);
    }
    text + after
}

#[test]
fn the_longest_lists_compile() {
    let name = |number: usize| format!("a{number}:1");
    for text in [
        longest("SELECT ", |n| format!("1 AS a{n}"), ",", " FROM c"),
        longest("SELECT VALUE {", name, ",", "} FROM c"),
        longest("SELECT VALUE [", |_| "1".to_string(), ",", "] FROM c"),
        longest("SELECT ", |_| "COUNT(1)".to_string(), ",", " FROM c"),
        longest("SELECT ", |n| format!("{n}+MAX(c.a) AS a{n}"), ",", " FROM c GROUP BY c.a"),
        longest("SELECT * FROM c WHERE c.a IN (", |n| n.to_string(), ",", ")"),
        longest("SELECT * FROM c WHERE CONCAT(", |n| format!("c.a{n}"), ",", ") = 'x'"),
    ] {
        compile(&text).unwrap_or_else(|error| panic!("{}: {error}", &text[..80]));
    }
}

#[test]
fn a_long_way_is_refused_wherever_it_stands() {
    let way = ".a".repeat(200_000);
    for text in [
        format!("SELECT c{way} FROM c"),
        format!("SELECT * FROM c{way}"),
        format!("SELECT * FROM c JOIN x IN c{way}"),
        format!("SELECT * FROM c WHERE EXISTS(SELECT 1 FROM x IN c{way})"),
    ] {
        let refused = compile(&text).unwrap_err().to_string();
        assert!(refused.contains("path steps in a row"), "{refused}");
    }
}

#[test]
fn a_long_computed_property_is_looked_at_once_however_often_it_is_named() {
    let members = vec!["c.a"; 100_000].join(",");
    let property = format!("SELECT VALUE [{members}] FROM c");
    let definition = serde_json::json!([{ "name": "p", "query": property }]);
    let computed = ComputedProperties::parse(Some(&definition)).unwrap();
    let index = IndexRules::new(&indexing::complete(None).unwrap()).unwrap();
    for text in [
        longest("SELECT VALUE [", |_| "c.p".to_string(), ",", "] FROM c"),
        longest("SELECT * FROM c WHERE c.a IN (", |_| "c.p".to_string(), ",", ")"),
        format!("SELECT x FROM c JOIN x IN c.l WHERE {}", vec!["c.p = x"; 1900].join(" AND ")),
    ] {
        CompiledQuery::new(&text, &Parameters::default(), &index, &computed).unwrap();
    }
}

#[test]
fn the_longest_list_of_aggregates_has_a_plan() {
    let text = longest("SELECT ", |n| format!("COUNT(1) AS a{n}"), ",", " FROM c");
    let index = IndexRules::new(&indexing::complete(None).unwrap()).unwrap();
    let (parameters, computed) = (Parameters::default(), ComputedProperties::default());
    let key = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["a".to_string()]] };
    let all = Features::all();
    ClientPlan::new(&text, &parameters, &index, &computed, &key, &all).unwrap();
}

#[test]
fn no_more_than_a_hundred_errors_are_told() {
    for text in [
        longest("SELECT ", |n| format!("x{n}"), ",", ""),
        longest("SELECT ", |_| "c.b".to_string(), ",", " FROM c GROUP BY c.a"),
        longest("SELECT VALUE [", |_| "(SELECT 1 FROM x)".to_string(), ",", "] FROM c"),
    ] {
        let refused = compile(&text).unwrap_err();
        let QueryError::Several(errors) = refused else { panic!("{}", &text[..80]) };
        assert_eq!(errors.len(), 100, "{}", &text[..80]);
    }
}

#[test]
fn too_many_joins_are_one_error() {
    let text = longest("SELECT * FROM c ", |n| format!("JOIN t{n} IN x.t"), " ", "");
    let refused = compile(&text).unwrap_err();
    assert!(matches!(&refused, QueryError::At { .. }), "{refused}");
    assert!(refused.to_message().contains("SC3002"), "{refused}");
}

#[test]
fn comparing_with_the_keys_of_groups_is_limited() {
    let many = longest("SELECT 1 FROM c GROUP BY ", |n| format!("c.a{n}"), ",", "");
    compile(&many).unwrap();
    let half = |n: usize| format!("c.a{n}");
    let few = "SELECT c.a1, c.a9 + MAX(c.x) AS most FROM c GROUP BY c.a0, c.a1, c.a9";
    compile(few).unwrap();
    let keys: Vec<String> = (0..20_000).map(half).collect();
    let keys = keys.join(",");
    let long = "[1,".to_string() + &"1,".repeat(20_000) + "c.a]";
    for text in [
        format!("SELECT {keys} FROM c GROUP BY {keys}"),
        longest("SELECT ", |_| "[1]".to_string(), ",", &format!(" FROM c GROUP BY {long}")),
    ] {
        let refused = compile(&text).unwrap_err().to_string();
        assert!(refused.contains("too many expressions"), "{refused}");
    }
}
