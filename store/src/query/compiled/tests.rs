//! What a compiled query tells whoever runs it.

use super::*;
use crate::query::Course;

fn compile(text: &str) -> CompiledQuery {
    let (parameters, computed) = (Parameters::default(), ComputedProperties::default());
    CompiledQuery::new(text, &parameters, &any_index(), &computed)
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn an_item_selected_as_it_is_can_be_copied() {
    for (text, is_star) in [
        ("SELECT * FROM c", true),
        ("SELECT VALUE r FROM c r WHERE r.a = 1", true),
        ("SELECT VALUE c FROM c JOIN t IN c.t", true),
        ("SELECT DISTINCT * FROM c", false),
        ("SELECT c FROM c", false),
        ("SELECT VALUE c.a FROM c", false),
        ("SELECT * FROM c.a", false),
        ("SELECT VALUE t FROM c JOIN t IN c.t", false),
        ("SELECT VALUE c FROM c GROUP BY c", false),
        ("SELECT VALUE 1", false),
    ] {
        assert_eq!(compile(text).is_star(), is_star, "{text}");
    }
}

#[test]
fn an_aggregate_that_is_part_of_something_composes() {
    for (text, composes, aggregates) in [
        ("SELECT VALUE COUNT(1) FROM c", false, 1),
        ("SELECT MAX(c.a - 1), 5, COUNT(1) AS n FROM c", false, 2),
        ("SELECT MAX(c.a) - 1 FROM c", true, 1),
        ("SELECT VALUE [MIN(c.a), 0] FROM c", true, 1),
        ("SELECT {hi: MAX(c.a)} FROM c", true, 1),
        ("SELECT c.g, MAX(c.a) FROM c GROUP BY c.g", false, 1),
        ("SELECT (SELECT VALUE COUNT(1) FROM t IN c.t) > 2 FROM c", false, 0),
        ("SELECT c.a + 1 FROM c", false, 0),
    ] {
        let query = compile(text);
        assert_eq!(query.composes_aggregates(), composes, "{text}");
        assert_eq!(query.aggregates(), aggregates, "{text}");
    }
}

#[test]
fn groups_and_rows_are_told_apart() {
    let of = |text: &str| {
        let query = compile(text);
        (query.is_aggregate(), query.is_grouped(), query.has_source(), query.course())
    };
    assert_eq!(of("SELECT * FROM c"), (false, false, true, Course::Walk));
    assert_eq!(of("SELECT * FROM c ORDER BY c.a"), (false, false, true, Course::Sorted));
    assert_eq!(of("SELECT VALUE COUNT(1) FROM c"), (true, false, true, Course::Sums));
    assert_eq!(of("SELECT VALUE COUNT(1)"), (true, false, false, Course::Sums));
    assert_eq!(of("SELECT c.a FROM c GROUP BY c.a"), (false, true, true, Course::Keyed));
    assert_eq!(of("SELECT DISTINCT c.a FROM c"), (false, false, true, Course::Keyed));
    assert_eq!(of("SELECT DISTINCT c.a FROM c ORDER BY c.a").3, Course::Sorted);
    assert_eq!(of("SELECT DISTINCT c.a FROM c ORDER BY c.b").3, Course::Unique);
    assert_eq!(of("SELECT 1"), (false, false, false, Course::Walk));
}

#[test]
fn top_comes_before_offset_and_limit() {
    let window = |text: &str| {
        let Window { skip, take } = compile(&format!("SELECT {text}")).window;
        (skip, take)
    };
    assert_eq!(window("* FROM c"), (0, None));
    assert_eq!(window("TOP 5 * FROM c"), (0, Some(5)));
    assert_eq!(window("* FROM c OFFSET 2 LIMIT 3"), (2, Some(3)));
    assert_eq!(window("TOP 4 * FROM c OFFSET 2 LIMIT 3"), (2, Some(2)));
    assert_eq!(window("TOP 2 * FROM c OFFSET 3 LIMIT 3"), (3, Some(0)));
}

#[test]
fn a_condition_sees_nothing_but_the_item() {
    let item = Value::from_json(br#"{"a":1,"t":[1,2]}"#).unwrap();
    let keeps = |text: &str| {
        let condition = CompiledQuery::condition(text, Metric::default());
        condition.map(|condition| condition.keeps(&item, &mut { u64::MAX }))
    };
    assert_eq!(keeps("FROM c WHERE c.a = 1"), Ok(true));
    assert_eq!(keeps("from c where EXISTS(SELECT VALUE t FROM t IN c.t WHERE t > 1)"), Ok(true));
    assert_eq!(keeps("FROM c WHERE c.a"), Ok(false));
    assert_eq!(keeps("FROM c"), Ok(true));
    for refused in [
        "WHERE c.a = 1",
        "FROM c ORDER BY c.a",
        "FROM c GROUP BY c.a",
        "FROM c OFFSET 0 LIMIT 1",
        "FROM c JOIN t IN c.t",
        "FROM c WHERE DOCUMENTID(c) = 1",
        "FROM c WHERE @p = 1",
        "",
    ] {
        assert!(keeps(refused).is_err(), "{refused}");
    }
}

#[test]
fn a_condition_is_not_looked_at_again_for_every_row_of_a_join() {
    let query =
        compile("SELECT VALUE 1 FROM c JOIN t IN c.t JOIN u IN c.t WHERE c.a = 2 AND t > u");
    assert_eq!(query.block.due, [vec![0], vec![], vec![1]]);
    let item = Value::from_json(br#"{"a":1,"t":[1,2,3]}"#).unwrap();
    let run = Run::with_budget(Moment::new(Millis(0), Millis(0), 0), Tariff::Actual, 3, 0);
    let _ =
        query.block.rows(&Row::of(&item, ItemNumber(0)), &run, &mut |_| ControlFlow::Continue(()));
    assert_eq!(run.exceeded(), None, "three operations tell that a is not 2");
}

#[test]
fn errors_are_collected_and_have_their_places() {
    let (parameters, computed) = (Parameters::default(), ComputedProperties::default());
    let text = "SELECT x, f(1) FROM c WHERE y";
    let error = CompiledQuery::new(text, &parameters, &any_index(), &computed).unwrap_err();
    let QueryError::Several(errors) = error else { panic!("{error:?}") };
    let places: Vec<(u32, u32)> = errors
        .iter()
        .map(|error| match error {
            QueryError::At { span, .. } => (span.start, span.end),
            other @ (QueryError::Numbered { .. }
            | QueryError::Plain(_)
            | QueryError::Several(_)) => {
                panic!("{other:?}")
            }
        })
        .collect();
    assert_eq!(places, [(7, 8), (10, 11), (28, 29)]);
}
