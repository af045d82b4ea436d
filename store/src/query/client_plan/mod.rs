//! The plan by which a client asks each range for its part of a query and merges the answers.
//!
//! 1. `outline` tells how rows are merged, and refuses what no client could merge.
//! 2. `rewrite` writes the text that every range is sent.
//! 3. `ranges` finds the parts of the hash space that can hold what is asked for.
//! 4. `features` compares what merging takes with what the client says it can do.
//!
//! Names and shapes are those of Cosmos: SDKs read them. Nobody needs a plan here, for the gateway
//! merges by itself; some SDKs ask for one all the same.

mod features;
mod outline;
mod ranges;
mod rewrite;

use serde::{Serialize, Serializer};
use thiserror::Error;

use super::aggregate::AggregateKind;
use super::ast::Sort;
use super::compile::{Purity, Setting, compile};
use super::computed::ComputedProperties;
use super::error::QueryError;
use super::parameters::Parameters;
use super::parser::parse;
use crate::indexing::IndexRules;
use crate::partition_key::KeyDefinition;

pub use features::{Feature, Features};
pub use ranges::QueryRange;

use outline::{Column, Columns, Outline};

/// The version of the form that SDKs know.
const PLAN_VERSION: u32 = 2;

/// How a client carries out a query over several ranges.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientPlan {
    partitioned_query_execution_info_version: u32,
    /// How to merge.
    pub query_info: QueryInfo,
    /// Which parts of the hash space to ask.
    pub query_ranges: Vec<QueryRange>,
    /// Always null: there is no hybrid search.
    hybrid_search_query_info: Option<()>,
}

/// What each range is asked, and how its answers are merged with the others'.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueryInfo {
    /// How the client drops repeated rows.
    pub distinct_type: DistinctType,
    /// How many rows the client takes.
    pub top: Option<u64>,
    /// How many rows the client skips.
    pub offset: Option<u64>,
    /// How many rows the client takes behind those.
    pub limit: Option<u64>,
    /// The direction of each sort key.
    pub order_by: Vec<SortDirection>,
    /// Each sort key as text.
    pub order_by_expressions: Vec<String>,
    /// Each group key as text.
    pub group_by_expressions: Vec<String>,
    /// The names of a row's members, in their order, where groups or aggregates are merged.
    pub group_by_aliases: Vec<String>,
    /// The aggregate of `SELECT VALUE`.
    aggregates: Vec<AggregateKind>,
    /// What each member of a row is an aggregate of; none for a plain one.
    #[serde(serialize_with = "as_map")]
    group_by_alias_to_aggregate_type: Vec<(String, Option<AggregateKind>)>,
    /// What to send to each range; empty means the query as it is.
    pub rewritten_query: String,
    /// `SELECT VALUE`.
    pub has_select_value: bool,
    /// Always null: distinct values are counted by the gateway only.
    d_count_info: Option<()>,
    /// Always false: there is no vector search.
    has_non_streaming_order_by: bool,
}

/// How repeated rows are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum DistinctType {
    /// They are kept.
    None,
    /// They follow each other.
    Ordered,
    /// They may come at any place.
    Unordered,
}

/// The direction of a sort key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum SortDirection {
    Ascending,
    Descending,
}

/// Why there is no plan.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum PlanRefusal {
    /// Something is wrong with the query.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The client could not carry the plan out.
    #[error(
        "Query contains 1 or more unsupported features. Upgrade your SDK to a version that does \
         support the requested features:\n{}", features::by_line(.0)
    )]
    Unsupported(Vec<Feature>),
}

impl ClientPlan {
    /// Plans a query over a container with these index rules, computed properties and partition key,
    /// for a client with these abilities. What cannot be run is refused as if it were to be run.
    pub fn new(
        text: &str,
        parameters: &Parameters,
        index: &IndexRules,
        computed: &ComputedProperties,
        key: &KeyDefinition,
        client: &Features,
    ) -> Result<Self, PlanRefusal> {
        let query = parse(text)?;
        let metric = index.metric();
        let setting = Setting { parameters, computed, purity: Purity::Any, metric };
        let compiled = compile(text, &query, &setting, index)?;
        let query_info = QueryInfo::of(&Outline::of(&query, &compiled)?);
        client.check(&query_info)?;
        Ok(Self {
            partitioned_query_execution_info_version: PLAN_VERSION,
            query_info,
            query_ranges: ranges::of(&compiled, key),
            hybrid_search_query_info: None,
        })
    }
}

impl QueryInfo {
    fn of(outline: &Outline<'_>) -> Self {
        let sorts: &[Sort] = outline.sorts();
        let expressions = sorts.iter().map(|sort| sort.expr.to_string()).collect();
        let kind = |(name, column): &(String, Column<'_>)| (name.clone(), column.aggregate());
        let (aggregates, members) = match &outline.columns {
            Columns::Plain => (Vec::new(), Vec::new()),
            Columns::MergedValue(column) => (column.aggregate().into_iter().collect(), Vec::new()),
            Columns::Merged(members) => (Vec::new(), members.iter().map(kind).collect()),
        };
        let (skip, take) = (outline.window.skip, outline.window.take);
        let skips = outline.query.offset_limit.is_some();
        Self {
            distinct_type: outline.distinct,
            // Where there is OFFSET, too, TOP has gone into LIMIT.
            top: take.filter(|_| !skips),
            offset: skips.then_some(skip),
            limit: take.filter(|_| skips),
            order_by: sorts.iter().map(SortDirection::of).collect(),
            order_by_expressions: expressions,
            group_by_expressions: outline.query.group_by.iter().map(ToString::to_string).collect(),
            group_by_aliases: members.iter().map(|(name, _)| name.clone()).collect(),
            aggregates,
            group_by_alias_to_aggregate_type: members,
            rewritten_query: rewrite::of(outline),
            has_select_value: outline.selects_value(),
            d_count_info: None,
            has_non_streaming_order_by: false,
        }
    }
}

impl SortDirection {
    fn of(sort: &Sort) -> Self {
        if sort.descending { SortDirection::Descending } else { SortDirection::Ascending }
    }
}

fn as_map<S: Serializer>(
    members: &[(String, Option<AggregateKind>)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(members.iter().map(|(name, aggregate)| (name, aggregate)))
}

#[cfg(test)]
mod tests;
