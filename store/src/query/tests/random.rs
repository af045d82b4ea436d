//! Random queries over random items: the evaluator and the naive interpreter must agree.

use proptest::prelude::*;

use super::{compile, naive};
use crate::ids::ItemNumber;
use crate::query::functions::Moment;
use crate::query::{Run, Value, parse};
use crate::time::Millis;

/// Makes choices from bytes, so that fewer and smaller bytes make simpler queries.
struct Choices<'b> {
    bytes: std::slice::Iter<'b, u8>,
    /// Names in reach.
    names: Vec<String>,
    named: usize,
}

/// How deep expressions and queries may nest.
const DEPTH_MAX: usize = 5;

impl<'b> Choices<'b> {
    fn new(bytes: &'b [u8]) -> Self {
        Self { bytes: bytes.iter(), names: Vec::new(), named: 0 }
    }

    /// A number below `count`; 0 when nothing is left to choose.
    fn below(&mut self, count: usize) -> usize {
        usize::from(self.bytes.next().copied().unwrap_or(0)) % count
    }

    fn one_of<'w>(&mut self, words: &[&'w str]) -> &'w str {
        words[self.below(words.len())]
    }

    fn item(&mut self, depth: usize) -> String {
        let kinds = if depth >= 3 { 6 } else { 9 };
        match if depth == 0 { 7 } else { self.below(kinds) } {
            0 => "null".into(),
            1 => "true".into(),
            2 => "false".into(),
            3 => self.one_of(&["0", "1", "2", "-3", "2.5"]).into(),
            4 => self.one_of(&["\"\"", "\"a\"", "\"ab\"", "\"b\""]).into(),
            5 => "7".into(),
            6 => {
                let elements: Vec<String> =
                    (0..self.below(4)).map(|_| self.item(depth + 1)).collect();
                format!("[{}]", elements.join(","))
            }
            _ => {
                let names = ["a", "b", "t", "u"];
                let count = if depth == 0 { 4 } else { self.below(3) };
                let members: Vec<String> = names[..count]
                    .iter()
                    .map(|name| format!("\"{name}\":{}", self.item(depth + 1)))
                    .collect();
                format!("{{{}}}", members.join(","))
            }
        }
    }

    fn name(&mut self) -> String {
        if self.names.is_empty() {
            return "1".to_string();
        }
        let at = self.below(self.names.len());
        self.names[self.names.len() - 1 - at].clone()
    }

    fn path(&mut self) -> String {
        let mut path = self.name();
        if path == "1" {
            return path;
        }
        for _ in 0..self.below(3) {
            path += self.one_of(&[".a", ".b", ".t", ".u", "['a']", "[0]", "[1]", "[null]"]);
        }
        path
    }

    fn expr(&mut self, depth: usize) -> String {
        let kinds = if depth >= DEPTH_MAX { 2 } else { 16 };
        let inner = |choices: &mut Self| choices.expr(depth + 1);
        match self.below(kinds) {
            0 => self.path(),
            1 => {
                let words =
                    ["0", "1", "2.5", "'a'", "''", "null", "true", "false", "undefined", "NaN"];
                self.one_of(&words).into()
            }
            2 | 3 => {
                let operators = [
                    "??", "OR", "AND", "||", "|", "^", "&", "=", "!=", "<>", "<", "<=", ">", ">=",
                    "<<", ">>", ">>>", "+", "-", "*", "/", "%",
                ];
                let operator = self.one_of(&operators);
                let (left, right) = (inner(self), inner(self));
                match self.below(2) {
                    0 => format!("({left} {operator} {right})"),
                    _ => format!("{left} {operator} {right}"),
                }
            }
            4 => format!("{} {}", self.one_of(&["-", "+", "~", "NOT", "NOT NOT"]), inner(self)),
            5 => format!("({} ? {} : {})", inner(self), inner(self), inner(self)),
            6 => {
                let not = self.one_of(&["", "NOT "]);
                format!("(({}) {not}BETWEEN ({}) AND ({}))", inner(self), inner(self), inner(self))
            }
            7 => {
                let not = self.one_of(&["", "NOT "]);
                format!("(({}) {not}IN ({}, {}))", inner(self), inner(self), inner(self))
            }
            8 => {
                let not = self.one_of(&["", "NOT "]);
                let pattern = match self.below(3) {
                    0 => format!("({})", inner(self)),
                    _ => self.one_of(&["'a%'", "'%b'", "'_'", "''", "'%a_%'"]).to_string(),
                };
                format!("(({}) {not}LIKE {pattern})", inner(self))
            }
            9 => format!("[{}, {}]", inner(self), inner(self)),
            10 => format!("{{a: {}, b: {}, a: {}}}", inner(self), inner(self), inner(self)),
            11 => format!("{}({})", self.one_of(&["IS_DEFINED", "IS_NULL"]), inner(self)),
            12 => format!("({}).a", inner(self)),
            13 => format!("({})[1]", inner(self)),
            14 => {
                let kind = self.one_of(&["EXISTS", "ARRAY", "ALL", "FIRST", "LAST"]);
                format!("{kind}({})", self.query(depth + 2))
            }
            _ => format!("({})", self.query(depth + 2)),
        }
    }

    fn query(&mut self, depth: usize) -> String {
        let outer = self.names.len();
        let mut from = String::new();
        for at in 0..self.below(3) {
            from += if at == 0 { " FROM " } else { " JOIN " };
            from += &self.source(depth);
        }
        let filter = match self.below(2) {
            0 => String::new(),
            _ => format!(" WHERE {}", self.expr(depth + 1)),
        };
        let distinct = self.one_of(&["", "", "DISTINCT "]);
        let (select, group_by) = self.selection(depth);
        self.names.truncate(outer);
        format!("SELECT {distinct}{select}{from}{filter}{group_by}")
    }

    fn source(&mut self, depth: usize) -> String {
        self.named += 1;
        let alias = format!("n{}", self.named);
        let is_first = self.names.is_empty();
        let source = match self.below(4) {
            0 if is_first => format!("root AS {alias}"),
            1 if is_first => format!("{alias} IN root.t"),
            _ if is_first => format!("root.a {alias}"),
            0 => format!("{alias} IN {}.t", self.name()),
            1 => format!("{}.a AS {alias}", self.name()),
            2 if depth < DEPTH_MAX => format!("({}) {alias}", self.query(depth + 2)),
            3 if depth < DEPTH_MAX => format!("{alias} IN ({})", self.query(depth + 2)),
            _ => format!("{} {alias}", self.name()),
        };
        self.names.push(alias);
        source
    }

    /// What is selected, and by what it is grouped.
    fn selection(&mut self, depth: usize) -> (String, String) {
        let inner = |choices: &mut Self| choices.expr(depth + 1);
        match self.below(6) {
            0 | 1 => (format!("VALUE {}", inner(self)), String::new()),
            2 => (format!("{} AS x, {} AS y", inner(self), inner(self)), String::new()),
            3 => {
                let (one, other) = (self.aggregate(depth), self.aggregate(depth));
                (format!("VALUE [{one}, 1, {{a: {other}}}]"), String::new())
            }
            4 => (format!("VALUE {}", self.aggregate(depth)), String::new()),
            _ => {
                let (key, aggregate) = (format!("({})", self.path()), self.aggregate(depth));
                (format!("VALUE {{k: {key}, n: {aggregate}}}"), format!(" GROUP BY {key}"))
            }
        }
    }

    fn aggregate(&mut self, depth: usize) -> String {
        let names = ["COUNT", "SUM", "AVG", "MIN", "MAX", "COUNTIF", "MAKELIST", "MAKESET"];
        let argument = match self.below(3) {
            0 => "1".to_string(),
            1 => self.path(),
            _ if depth >= DEPTH_MAX => self.path(),
            _ => format!("{} + {}", self.path(), self.path()),
        };
        format!("{}({argument})", self.one_of(&names))
    }
}

/// A query text over `root`, and an item.
fn question(bytes: &[u8]) -> (String, Value) {
    let mut choices = Choices::new(bytes);
    let item = choices.item(0);
    let query = choices.query(0);
    (query, Value::from_json(item.as_bytes()).expect("items are JSON"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn both_interpreters_say_the_same(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (text, item) = question(&bytes);
        // What is refused, for the cardinality of a subquery or a name out of reach, says nothing.
        let Ok(query) = compile(&text) else { return Ok(()) };
        let expected = naive::results(&text, &parse(&text).expect("it compiles"), &item);
        let run = Run::new(Moment::new(Millis(0), Millis(0), 0));
        let found = query.select(std::iter::once((ItemNumber(1), item.clone())), &run);
        let found: Vec<Value> = found.unwrap().into_iter().map(|one| one.value).collect();
        prop_assert_eq!(
            format!("{found:?}"), format!("{expected:?}"), "{} over {:?}", text, item
        );
    }

    /// An item read only as far as the query needs it gives the same.
    #[test]
    fn what_is_not_needed_makes_no_difference(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let (text, item) = question(&bytes);
        let Ok(query) = compile(&text) else { return Ok(()) };
        let part = Value::read(&item.to_json(), query.needed()).unwrap();
        if query.is_star() {
            return Ok(());
        }
        let results = |item: Value| {
            let run = Run::new(Moment::new(Millis(0), Millis(0), 0));
            let found = query.select(std::iter::once((ItemNumber(1), item)), &run).unwrap();
            format!("{:?}", found.into_iter().map(|one| one.value).collect::<Vec<_>>())
        };
        prop_assert_eq!(results(part), results(item.clone()), "{} over {:?}", text, item);
    }
}

/// Most random questions are answered, or the agreement would mean little.
#[test]
fn most_random_queries_compile() {
    let mut state: u64 = 1;
    let mut byte = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    let compiled = (0..1000).filter(|_| {
        let bytes: Vec<u8> = (0..200).map(|_| byte()).collect();
        compile(&question(&bytes).0).is_ok()
    });
    let count = compiled.count();
    assert!(count > 500, "only {count} of 1000 compile");
}
