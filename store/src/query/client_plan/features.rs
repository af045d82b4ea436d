//! What a client must be able to do to carry out a plan, and what it says it can.

use std::collections::BTreeSet;
use std::fmt;

use super::{DistinctType, PlanRefusal, QueryInfo};
use crate::query::aggregate::AggregateKind;

/// One way of merging, by the name that clients give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the protocol")]
pub enum Feature {
    Aggregate,
    Distinct,
    GroupBy,
    MultipleAggregates,
    MultipleOrderBy,
    OffsetAndLimit,
    OrderBy,
    Top,
    NonValueAggregate,
    ListAndSetAggregate,
    CountIf,
}

const ALL: [Feature; 11] = [
    Feature::Aggregate,
    Feature::Distinct,
    Feature::GroupBy,
    Feature::MultipleAggregates,
    Feature::MultipleOrderBy,
    Feature::OffsetAndLimit,
    Feature::OrderBy,
    Feature::Top,
    Feature::NonValueAggregate,
    Feature::ListAndSetAggregate,
    Feature::CountIf,
];

/// What a client can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features(BTreeSet<Feature>);

impl Features {
    /// Reads names with commas between; unknown ones are of no use here.
    pub fn parse(names: &str) -> Self {
        let find = |name: &str| {
            ALL.into_iter().find(|feature| feature.to_string().eq_ignore_ascii_case(name))
        };
        Self(names.split(',').map(str::trim).filter_map(find).collect())
    }

    /// Everything there is.
    pub fn all() -> Self {
        Self(ALL.into_iter().collect())
    }

    /// Refuses a plan that takes more.
    pub(super) fn check(&self, info: &QueryInfo) -> Result<(), PlanRefusal> {
        let missing: Vec<_> =
            needed(info).into_iter().filter(|feature| !self.0.contains(feature)).collect();
        if missing.is_empty() { Ok(()) } else { Err(PlanRefusal::Unsupported(missing)) }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

pub(super) fn by_line(features: &[Feature]) -> String {
    let line = |feature: &Feature| {
        format!("Query contained {feature}, which the calling client does not support.")
    };
    features.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// What carrying out a plan takes, as .NET's SDK sees it.
fn needed(info: &QueryInfo) -> BTreeSet<Feature> {
    let members = info.group_by_alias_to_aggregate_type.iter();
    let aggregates: Vec<AggregateKind> = info
        .aggregates
        .iter()
        .copied()
        .chain(members.filter_map(|(_, aggregate)| *aggregate))
        .collect();
    let has = |wanted: &[AggregateKind]| aggregates.iter().any(|found| wanted.contains(found));
    let is_aggregate = !aggregates.is_empty();
    [
        (Feature::Aggregate, is_aggregate && info.has_select_value),
        (Feature::NonValueAggregate, is_aggregate && !info.has_select_value),
        (Feature::MultipleAggregates, aggregates.len() > 1),
        (Feature::ListAndSetAggregate, has(&[AggregateKind::List, AggregateKind::Set])),
        (Feature::CountIf, has(&[AggregateKind::CountIf])),
        (Feature::Distinct, info.distinct_type != DistinctType::None),
        (Feature::GroupBy, !info.group_by_expressions.is_empty()),
        (Feature::OffsetAndLimit, info.offset.is_some() || info.limit.is_some()),
        (Feature::OrderBy, info.order_by.len() == 1),
        (Feature::MultipleOrderBy, info.order_by.len() > 1),
        (Feature::Top, info.top.is_some()),
    ]
    .into_iter()
    .filter_map(|(feature, is_needed)| is_needed.then_some(feature))
    .collect()
}
