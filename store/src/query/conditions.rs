//! What a filter demands of single paths: the conditions that an index can answer.
//!
//! Every item the filter keeps has an entry in the ranges of each condition; the filter itself is
//! still asked about every item found. So a condition may be wider than what it stands for, never
//! narrower. Conditions are numbered in the order of the text: the same for every page and replica.
#![expect(clippy::wildcard_enum_match_arm, reason = "asks for some forms and passes all others by")]

use std::cell::Cell;
use std::sync::Arc;

use super::ast::{BinaryOp, Collection, Expr, ExprKind, Query, UnaryOp};
use super::compile::{Setting, compile_over_item};
use super::evaluate::Row;
use super::functions::Metric;
use super::functions::spatial::{DISTANCE, INTERSECTS, Region, WITHIN};
use super::like::LikePattern;
use super::names::last_of_each;
use super::op::{Op, ROOT};
use super::parameters::Parameters;
use super::run::Run;
use super::value::{Members, Number, Value};
use crate::ids::ItemNumber;
use crate::indexing::{IndexPath, IndexRange, Step};

/// Legs of one condition at most: with more of them a scan is as good.
const LEGS_MAX: usize = 64;
/// Values of a list at most.
const LIST_MAX: usize = 1000;
/// Ranges of what an OR joins at most.
const RANGES_MAX: usize = 4000;
/// Conditions looked for among what an AND joins: a text may join thousands, and one is followed.
const CONDITIONS_MAX: usize = 64;
/// Bytes of parameters' values that conditions hold at most: what demands more of them is looked
/// for by the filter alone.
const VALUE_BYTES_MAX: usize = 4 << 20;
/// Conditions with a test at most: each is compiled by itself.
const TESTS_MAX: usize = 4;
/// Functions of a text and constants, for which every text of a path is looked at.
const TESTS: [&str; 5] = ["CONTAINS", "ENDSWITH", "REGEXMATCH", "STARTSWITH", "STRINGEQUALS"];

/// Values of a path.
#[derive(Clone, Debug)]
pub(super) enum ValueRange {
    /// Equal to this.
    Equal(Value),
    /// Of the type of the bounds, and between them.
    Between(Option<Bound>, Option<Bound>),
    /// Text that starts so.
    StartsWith(String),
    /// Of the same type as this value.
    TypeOf(Value),
    /// Any value.
    Defined,
    /// In one range of each of these.
    InEach(Vec<Vec<ValueRange>>),
    /// A shape that may be in this region: its entries are cells, and not values.
    In(Arc<Region>),
}

impl ValueRange {
    /// The entries of a path with these values, and perhaps some more.
    fn entries(&self, path: &IndexPath) -> Vec<IndexRange> {
        let by = path.clone();
        vec![match self {
            ValueRange::Equal(value) => IndexRange::equal(by, value),
            ValueRange::Between(low, high) => {
                IndexRange::between(by, end_of(low.as_ref()), end_of(high.as_ref()))
            }
            ValueRange::StartsWith(prefix) => IndexRange::beginning(by, prefix),
            ValueRange::TypeOf(value) => IndexRange::types(by, value.rank()..=value.rank()),
            ValueRange::Defined => IndexRange::defined(by),
            ValueRange::In(region) => return IndexRange::region(path, region),
            ValueRange::InEach(demands) => {
                let each = demands.iter().map(|ranges| any_entries(ranges, path));
                return each.reduce(IndexRange::common).unwrap_or_default();
            }
        }]
    }

    /// How many ranges it is made of.
    fn count(&self) -> usize {
        match self {
            ValueRange::InEach(demands) => demands.iter().flatten().map(ValueRange::count).sum(),
            ValueRange::Equal(_)
            | ValueRange::Between(..)
            | ValueRange::StartsWith(_)
            | ValueRange::TypeOf(_)
            | ValueRange::Defined => 1,
            ValueRange::In(region) => region.cells().len() + region.enclosing().len(),
        }
    }

    /// True if it is a single value.
    fn is_one_value(&self) -> bool {
        match self {
            ValueRange::Equal(_) => true,
            ValueRange::InEach(demands) => {
                demands.iter().any(|ranges| ranges.iter().all(ValueRange::is_one_value))
            }
            ValueRange::Between(..)
            | ValueRange::StartsWith(_)
            | ValueRange::TypeOf(_)
            | ValueRange::Defined
            | ValueRange::In(_) => false,
        }
    }
}

/// The entries in any of these ranges, in order and apart.
fn any_entries(ranges: &[ValueRange], path: &IndexPath) -> Vec<IndexRange> {
    IndexRange::without_overlaps(ranges.iter().flat_map(|range| range.entries(path)).collect())
}

fn end_of(bound: Option<&Bound>) -> std::ops::Bound<&Value> {
    match bound {
        None => std::ops::Bound::Unbounded,
        Some(Bound { value, is_inside: true }) => std::ops::Bound::Included(value),
        Some(Bound { value, is_inside: false }) => std::ops::Bound::Excluded(value),
    }
}

/// One end of a range of values.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    /// The value.
    pub(super) value: Value,
    /// True if it belongs to the range.
    pub(super) is_inside: bool,
}

/// What the entries of a path are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// The values there.
    Values,
    /// Where the shapes there are, if coordinates mean this.
    Shapes(Metric),
}

/// Ranges of one path.
#[derive(Clone, Debug)]
pub(super) struct Leg {
    /// The path, from the item.
    pub(super) path: Vec<Step>,
    /// Which of its entries are asked for.
    pub(super) entered: Entered,
    /// One of these holds the value; they may overlap.
    pub(super) ranges: Vec<ValueRange>,
}

impl Leg {
    /// The entries of its path, in order and apart.
    pub(super) fn entries(&self, path: &IndexPath) -> Vec<IndexRange> {
        any_entries(&self.ranges, path)
    }
}

/// What is asked of every value in a condition's ranges.
#[derive(Clone, Debug)]
pub(super) struct ValueTest(Op);

impl ValueTest {
    /// The test that an expression is, if it is one of a path and constants.
    fn new(op: Op) -> Option<Self> {
        let value = || Op::slot(ROOT);
        let is_constant = |op: &Op| matches!(op, Op::Constant(_));
        match op {
            Op::Like(text, pattern) if matches!(*text, Op::Path(_)) => {
                Some(Self(Op::Like(Box::new(value()), pattern)))
            }
            Op::Matches(text, regex) if matches!(*text, Op::Path(_)) => {
                Some(Self(Op::Matches(Box::new(value()), regex)))
            }
            Op::Call(function, mut args) => match args.split_first_mut()? {
                (path @ Op::Path(_), constants) if constants.iter().all(is_constant) => {
                    *path = value();
                    Some(Self(Op::Call(function, args)))
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// True if a value passes.
    pub(super) fn admits(&self, value: &Value, run: &Run) -> bool {
        run.refill();
        self.0.evaluate(&Row::of(value, ItemNumber(0)), run).is_true()
    }
}

/// What the filter demands: an entry in one of the legs.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    /// One of these is followed by every item.
    pub(super) legs: Vec<Leg>,
    /// True if the condition is met by nothing but what its ranges hold, so that entries can be
    /// counted instead of items.
    pub(super) is_exact: bool,
    /// What the values must pass, beside. Then there is one leg.
    pub(super) test: Option<ValueTest>,
}

impl Condition {
    fn new(leg: Leg) -> Self {
        Self { legs: vec![leg], is_exact: true, test: None }
    }

    /// How many ranges of entries it asks for.
    pub(super) fn ranges(&self) -> usize {
        self.legs.iter().flat_map(|leg| &leg.ranges).map(ValueRange::count).sum()
    }

    /// True if it asks for single values.
    pub(super) fn is_seek(&self) -> bool {
        self.legs.iter().flat_map(|leg| &leg.ranges).all(ValueRange::is_one_value)
    }

    /// True if both are about the one value at the same path, so that it must meet both.
    fn is_of_path_of(&self, other: &Self) -> bool {
        let [a, b] = [self, other].map(|one| match (one.legs.as_slice(), &one.test) {
            ([leg], None) if !one.may_repeat() => Some(&leg.path),
            _ => None,
        });
        a.is_some() && a == b
    }

    /// True if an item may have several entries in its ranges.
    pub(super) fn may_repeat(&self) -> bool {
        let has_elements = |leg: &Leg| leg.path.contains(&Step::Elements);
        self.legs.len() > 1 || self.legs.iter().any(has_elements) || self.is_of_space()
    }

    /// True if it is about where shapes are.
    pub(super) fn is_of_space(&self) -> bool {
        self.legs.iter().any(|leg| leg.entered != Entered::Values)
    }
}

/// The conditions of a query's filter, joined by AND, and whether they are all there is to it.
pub(super) fn of(text: &str, query: &Query, setting: &Setting<'_>) -> (Vec<Condition>, bool) {
    let (Some(filter), Some(root)) = (&query.filter, root_of(query)) else {
        return (Vec::new(), query.filter.is_none());
    };
    let reader = Reader {
        root,
        parameters: setting.parameters,
        metric: setting.metric,
        bytes_left: Cell::new(VALUE_BYTES_MAX),
    };
    let mut conjuncts = Vec::new();
    flatten(filter, BinaryOp::And, &mut conjuncts);
    let mut compiled = 0;
    let condition = |expr: &&Expr| {
        let known = reader.condition(expr);
        if known.as_ref().is_some_and(|known| known.is_exact) || compiled == TESTS_MAX {
            return known;
        }
        let Some(texts) = reader.tested_texts(expr) else { return known };
        compiled += 1;
        let op = compile_over_item(text, root, expr, setting).ok();
        let passed = op.and_then(ValueTest::new);
        if passed.is_none() {
            return known;
        }
        Some(Condition { test: passed, is_exact: true, ..known.unwrap_or(texts) })
    };
    let found: Vec<_> = conjuncts.iter().take(CONDITIONS_MAX).filter_map(condition).collect();
    let is_all = found.len() == conjuncts.len() && found.iter().all(|one| one.is_exact);
    (brought_together(found), is_all)
}

/// The same conditions, those of one path made one.
fn brought_together(found: Vec<Condition>) -> Vec<Condition> {
    let mut apart: Vec<Condition> = Vec::with_capacity(found.len());
    for mut condition in found {
        let same = apart.iter_mut().find(|known| known.is_of_path_of(&condition));
        match (same, condition.legs.as_mut_slice()) {
            (Some(known), [leg]) => {
                let (ranges, demanded) =
                    (&mut known.legs[0].ranges, std::mem::take(&mut leg.ranges));
                // Beside the others, not around them: however many there are, they nest no deeper.
                if let [ValueRange::InEach(demands)] = ranges.as_mut_slice() {
                    demands.push(demanded);
                } else {
                    let demands = vec![std::mem::take(ranges), demanded];
                    ranges.push(ValueRange::InEach(demands));
                }
                known.is_exact &= condition.is_exact;
            }
            _ => apart.push(condition),
        }
    }
    apart
}

/// The name of the item, if the first source is the item itself.
fn root_of(query: &Query) -> Option<&str> {
    let source = query.from.first()?;
    match &source.collection {
        Collection::Path { root, steps } if steps.is_empty() && !source.iterates => {
            Some(source.alias.as_ref().unwrap_or(root))
        }
        Collection::Path { .. } | Collection::Subquery(_) => None,
    }
}

/// The operands of a chain of ANDs or ORs.
fn flatten<'e>(expr: &'e Expr, operator: BinaryOp, operands: &mut Vec<&'e Expr>) {
    let mut left = expr;
    let mut right = Vec::new();
    // Chains lean to the left and may be long: no recursion along them.
    while let ExprKind::Binary(found, a, b) = &left.kind
        && *found == operator
    {
        right.push(b.as_ref());
        left = a;
    }
    operands.push(left);
    for operand in right.into_iter().rev() {
        match &operand.kind {
            ExprKind::Binary(found, ..) if *found == operator => {
                flatten(operand, operator, operands);
            }
            _ => operands.push(operand),
        }
    }
}

struct Reader<'q> {
    root: &'q str,
    parameters: &'q Parameters,
    metric: Metric,
    /// What is left for copies of parameters' values.
    bytes_left: Cell<usize>,
}

impl Reader<'_> {
    fn condition(&self, expr: &Expr) -> Option<Condition> {
        match &expr.kind {
            ExprKind::Binary(BinaryOp::Or, ..) => self.any_of(expr),
            ExprKind::Binary(operator, a, b) => self.comparison(*operator, a, b),
            ExprKind::Between { value, low, high, negated: false } => {
                if let Some(near) = self.near(value, high) {
                    return Some(near);
                }
                let end =
                    |expr: &Expr| Some(Bound { value: self.constant(expr)?, is_inside: true });
                self.leg(value, vec![between(Some(end(low)?), Some(end(high)?))?])
            }
            ExprKind::In { value, list, negated: false } if list.len() <= LIST_MAX => {
                let values = list.iter().map(|entry| self.constant(entry));
                let values = values.collect::<Option<Vec<_>>>()?;
                let defined = values.into_iter().filter(Value::is_defined);
                self.leg(value, defined.map(ValueRange::Equal).collect())
            }
            ExprKind::Like { value, pattern, escape, negated: false } => {
                let Value::Text(pattern) = self.constant(pattern)? else { return None };
                let (prefix, rest) = LikePattern::new(&pattern, *escape).prefix();
                let range = match rest {
                    Some(false) => ValueRange::Equal(Value::Text(prefix)),
                    Some(true) | None => ValueRange::StartsWith(prefix),
                };
                let mut found = self.leg(value, vec![range])?;
                found.is_exact = rest.is_some();
                Some(found)
            }
            ExprKind::Call { name, user_defined: false, args, .. } => self.call(name, args),
            ExprKind::Member(..) | ExprKind::Index(..) => {
                self.leg(expr, vec![ValueRange::Equal(Value::Bool(true))])
            }
            _ => None,
        }
    }

    fn any_of(&self, expr: &Expr) -> Option<Condition> {
        let mut branches = Vec::new();
        flatten(expr, BinaryOp::Or, &mut branches);
        let mut all = Condition { legs: Vec::new(), is_exact: true, test: None };
        let mut ranges = 0;
        for branch in branches {
            // Of a branch that is an AND any one condition will do.
            let mut conjuncts = Vec::new();
            flatten(branch, BinaryOp::And, &mut conjuncts);
            let some = conjuncts.iter().take(CONDITIONS_MAX);
            let found: Vec<_> = some.filter_map(|one| self.condition(one)).collect();
            let is_whole = found.len() == conjuncts.len();
            let found = brought_together(found);
            let is_whole = is_whole && found.len() == 1;
            let best = found.iter().position(Condition::is_seek).unwrap_or(0);
            let best = found.into_iter().nth(best)?;
            all.is_exact &= is_whole && best.is_exact;
            ranges += best.ranges();
            for leg in best.legs {
                let is_same =
                    |known: &&mut Leg| (&known.path, known.entered) == (&leg.path, leg.entered);
                match all.legs.iter_mut().find(is_same) {
                    Some(known) => known.ranges.extend(leg.ranges),
                    None => all.legs.push(leg),
                }
            }
            if ranges > RANGES_MAX || all.legs.len() > LEGS_MAX {
                return None;
            }
        }
        // Entries of several paths are not items that can be counted.
        all.is_exact &= all.legs.len() == 1;
        Some(all)
    }

    fn comparison(&self, operator: BinaryOp, a: &Expr, b: &Expr) -> Option<Condition> {
        let near = match operator {
            BinaryOp::Less | BinaryOp::LessOrEqual => self.near(a, b),
            BinaryOp::Greater | BinaryOp::GreaterOrEqual => self.near(b, a),
            _ => None,
        };
        if near.is_some() {
            return near;
        }
        let (path, value, operator) = match (self.constant(a), self.constant(b)) {
            (None, Some(value)) => (a, value, operator),
            (Some(value), None) => (b, value, mirrored(operator)),
            _ => return None,
        };
        let range = match operator {
            BinaryOp::Equal => vec![ValueRange::Equal(value)],
            BinaryOp::NotEqual => vec![ValueRange::Defined],
            BinaryOp::Less => vec![between(None, Some(Bound { value, is_inside: false }))?],
            BinaryOp::LessOrEqual => vec![between(None, Some(Bound { value, is_inside: true }))?],
            BinaryOp::Greater => vec![between(Some(Bound { value, is_inside: false }), None)?],
            BinaryOp::GreaterOrEqual => {
                vec![between(Some(Bound { value, is_inside: true }), None)?]
            }
            _ => return None,
        };
        let mut found = self.leg(path, range)?;
        found.is_exact &= operator != BinaryOp::NotEqual;
        Some(found)
    }

    fn call(&self, name: &str, args: &[Expr]) -> Option<Condition> {
        let of_type = |value: Value| self.leg(args.first()?, vec![ValueRange::TypeOf(value)]);
        match (name.to_ascii_uppercase().as_str(), args) {
            ("IS_DEFINED", [path]) => self.leg(path, vec![ValueRange::Defined]),
            ("IS_NULL", [_]) => of_type(Value::Null),
            ("IS_BOOL", [_]) => of_type(Value::Bool(true)),
            ("IS_NUMBER", [_]) => of_type(Value::Number(Number::Int(0))),
            ("IS_STRING", [_]) => of_type(Value::Text(String::new())),
            ("IS_ARRAY", [_]) => of_type(Value::Array(Vec::new())),
            ("IS_OBJECT", [_]) => of_type(Value::Object(Members::default())),
            ("STARTSWITH", [path, prefix]) => match self.constant(prefix)? {
                Value::Text(prefix) => self.leg(path, vec![ValueRange::StartsWith(prefix)]),
                _ => None,
            },
            ("ARRAY_CONTAINS", [path, value]) => {
                let value = self.constant(value).filter(is_scalar)?;
                let mut steps = self.path(path)?;
                steps.push(Step::Elements);
                let ranges = vec![ValueRange::Equal(value)];
                Some(Condition::new(Leg { path: steps, entered: Entered::Values, ranges }))
            }
            (WITHIN | INTERSECTS, [a, b]) => self.meeting(a, b, 0.0),
            _ => None,
        }
    }

    fn leg(&self, path: &Expr, ranges: Vec<ValueRange>) -> Option<Condition> {
        let path = self.path(path)?;
        // The whole item is in no index.
        let entered = Entered::Values;
        (!path.is_empty()).then(|| Condition::new(Leg { path, entered, ranges }))
    }

    /// A distance from a constant shape that is below a constant.
    fn near(&self, distance: &Expr, limit: &Expr) -> Option<Condition> {
        match &distance.kind {
            ExprKind::Call { name, user_defined: false, args, .. }
                if name.eq_ignore_ascii_case(DISTANCE) =>
            {
                let ([a, b], Value::Number(limit)) = (args.as_slice(), self.constant(limit)?)
                else {
                    return None;
                };
                self.meeting(a, b, limit.as_f64())
            }
            _ => None,
        }
    }

    /// Shapes at a path that are not so far from a constant one. All that spatial functions ask for are
    /// found among those.
    fn meeting(&self, a: &Expr, b: &Expr, distance: f64) -> Option<Condition> {
        let (path, shape) = match (self.path(a), self.path(b)) {
            (Some(path), None) => (path, self.json(b)?),
            (None, Some(path)) => (path, self.json(a)?),
            _ => return None,
        };
        let region = Region::around(&shape, distance, self.metric)?;
        let ranges = vec![ValueRange::In(Arc::new(region))];
        let leg = Leg { path, entered: Entered::Shapes(self.metric), ranges };
        Some(Condition { is_exact: false, ..Condition::new(leg) })
    }

    /// All texts of the path that a function or a pattern asks about.
    fn tested_texts(&self, expr: &Expr) -> Option<Condition> {
        let path = match &expr.kind {
            ExprKind::Like { value, negated: false, .. } => value,
            ExprKind::Call { name, user_defined: false, args, .. }
                if TESTS.iter().any(|test| name.eq_ignore_ascii_case(test)) =>
            {
                args.first()?
            }
            _ => return None,
        };
        self.leg(path, vec![ValueRange::TypeOf(Value::Text(String::new()))])
    }

    /// The path an expression follows from the item.
    fn path(&self, expr: &Expr) -> Option<Vec<Step>> {
        match &expr.kind {
            ExprKind::Name(name) if name == self.root => Some(Vec::new()),
            ExprKind::Member(inner, name) => {
                let mut path = self.path(inner)?;
                path.push(Step::Member(name.clone()));
                Some(path)
            }
            ExprKind::Index(inner, index) => {
                let mut path = self.path(inner)?;
                match self.constant(index)? {
                    Value::Text(name) => path.push(Step::Member(name)),
                    _ => return None,
                }
                Some(path)
            }
            _ => None,
        }
    }

    /// The same, with arrays and objects: GeoJSON in the text of a query.
    fn json(&self, expr: &Expr) -> Option<Value> {
        Some(match &expr.kind {
            ExprKind::Array(elements) => {
                let elements = elements.iter().map(|element| self.json(element));
                Value::Array(elements.collect::<Option<_>>()?)
            }
            ExprKind::Object(members) => {
                let named = members.iter().map(|(name, value)| (name.clone(), value)).collect();
                let members = last_of_each(named).into_iter();
                let member = |(name, value)| Some((name, self.json(value)?));
                Value::Object(members.map(member).collect::<Option<_>>()?)
            }
            _ => return self.constant(expr),
        })
    }

    /// The value of an expression without names and functions.
    fn constant(&self, expr: &Expr) -> Option<Value> {
        match &expr.kind {
            ExprKind::Literal(literal) => Some(literal.into()),
            ExprKind::Parameter(name) => {
                let given = self.parameters.get(name)?;
                self.bytes_left.set(self.bytes_left.get().checked_sub(given.size)?);
                Some(Value::clone(&given.value))
            }
            ExprKind::Unary(UnaryOp::Minus, operand) => match self.constant(operand)? {
                Value::Number(Number::Int(number)) => {
                    number.checked_neg().map(|number| Value::Number(Number::Int(number)))
                }
                Value::Number(Number::Float(number)) => Some(Value::float(-number)),
                _ => None,
            },
            _ => None,
        }
    }
}

/// A range between values of one type; none if no order is defined there.
fn between(low: Option<Bound>, high: Option<Bound>) -> Option<ValueRange> {
    let rank_of = |bound: &Option<Bound>| bound.as_ref().map(|bound| bound.value.rank());
    let (low_rank, high_rank) = (rank_of(&low), rank_of(&high));
    let rank = low_rank.or(high_rank)?;
    let is_ordered = (1..=4).contains(&rank) && high_rank.is_none_or(|other| other == rank);
    is_ordered.then_some(ValueRange::Between(low, high))
}

fn is_scalar(value: &Value) -> bool {
    (1..=4).contains(&value.rank())
}

/// The comparison with its sides exchanged.
fn mirrored(operator: BinaryOp) -> BinaryOp {
    match operator {
        BinaryOp::Less => BinaryOp::Greater,
        BinaryOp::LessOrEqual => BinaryOp::GreaterOrEqual,
        BinaryOp::Greater => BinaryOp::Less,
        BinaryOp::GreaterOrEqual => BinaryOp::LessOrEqual,
        other => other,
    }
}
