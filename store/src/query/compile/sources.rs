//! FROM and JOIN: where rows come from, and what they are called.

use super::super::ast::{Collection, PathStep, Query, Source as SourceTree};
use super::super::error::{QueryError, Span};
use super::super::lexer::tokenize;
use super::super::op::{Op, Path, ROOT, Source, Step};
use super::super::value::Value;
use super::groups::has_aggregates;
use super::{Compiler, JOINS_MAX};

impl<'q> Compiler<'q> {
    /// Compiles the sources, filling a slot for each that needs one.
    pub(super) fn sources(&mut self, query: &'q Query) -> Vec<Source> {
        let first_name = self.names.len();
        let room = self.count_joins(query);
        let mut sources = Vec::new();
        for (at, tree) in query.from.iter().take(room).enumerate() {
            let compiled = self.source(tree, at);
            let name = alias(tree);
            if let Some(name) = &name {
                self.check_alias(name, first_name, tree);
            }
            // Another name for what has a slot already needs none of its own.
            if let Source::One(Op::Path(Path { slot, steps })) = &compiled
                && steps.is_empty()
            {
                self.bind(name, *slot);
                continue;
            }
            self.bind(name, self.slots);
            self.slots += 1;
            sources.push(compiled);
        }
        sources
    }

    /// How many of the sources are within the limit of JOINs. What is behind it is not looked at,
    /// so that no other error is told.
    fn count_joins(&mut self, query: &Query) -> usize {
        let room = JOINS_MAX - self.joins + 1;
        if query.from.len() > room {
            let message = format!(
                "The SQL query exceeded the maximum number of joins. The allowed limit is {JOINS_MAX}."
            );
            let whole = Span::whole(self.text);
            self.errors.push_instead(QueryError::coded("SC3002", message, whole));
        }
        self.joins += query.from.len().saturating_sub(1).min(room - 1);
        room
    }

    /// Refuses what would bring together rows of all items, where FROM begins with it: sources are
    /// walked item by item. Of a JOIN it brings together what is in the item, and is right.
    pub(super) fn refuse_gathering(&mut self, outermost: &'q Query) {
        let mut query = outermost;
        while let Some(Collection::Subquery(inner)) = query.from.first().map(|one| &one.collection)
        {
            query = inner;
            if query.distinct.is_some()
                || !query.group_by.is_empty()
                || has_aggregates(&query.select)
            {
                let what = "DISTINCT, GROUP BY or an aggregate in a subquery that FROM begins with";
                self.errors.push(QueryError::unsupported(what, query.span));
                return;
            }
        }
    }

    fn source(&mut self, tree: &'q SourceTree, at: usize) -> Source {
        match &tree.collection {
            Collection::Path { root, steps } => {
                let op = self.collection(root, steps, tree, at);
                if tree.iterates { Source::Elements(op) } else { Source::One(op) }
            }
            Collection::Subquery(query) => {
                let block = self.source_block(query);
                if tree.iterates { Source::RowElements(block) } else { Source::Rows(block) }
            }
        }
    }

    /// The first name of the first source is the container, whatever it is called, unless it is the
    /// name of something around.
    fn collection(&mut self, root: &str, steps: &[PathStep], tree: &SourceTree, at: usize) -> Op {
        let is_container = at == 0 && self.names.is_empty() && self.has_item;
        let slot = match self.lookup(root, tree.span) {
            Some(slot) => slot,
            None if is_container => ROOT,
            None if self.errors.is_full() => return Op::constant(Value::Undefined),
            None => {
                let span = self.root_span(tree);
                return self.refuse(QueryError::unresolved(root, span));
            }
        };
        let steps = steps.iter().map(|step| match step {
            PathStep::Name(name) => Step::Name(name.clone()),
            PathStep::Index(index) => Step::Index(*index as usize),
        });
        self.below(Op::slot(slot), steps.collect())
    }

    /// Where the first name of a source's path stands, which the tree does not say.
    fn root_span(&self, tree: &SourceTree) -> Span {
        let before_root = if tree.iterates { 2 } else { 0 };
        let tokens = tokenize(&tree.span.of(self.text)).unwrap_or_default();
        tokens.get(before_root).map_or(tree.span, |token| token.span.moved(tree.span.start))
    }

    fn check_alias(&mut self, name: &str, first_name: usize, tree: &SourceTree) {
        let taken =
            self.names[first_name..].iter().any(|known| known.name.as_deref() == Some(name));
        if taken {
            let message = format!("The alias '{name}' is given more than once in FROM.");
            self.errors.push(QueryError::at(message, tree.span));
        }
    }
}

/// What a source is called: its alias, else the last name of its path.
fn alias(tree: &SourceTree) -> Option<String> {
    let implied = || match &tree.collection {
        Collection::Subquery(_) => None,
        Collection::Path { root, steps } => {
            let names = steps.iter().rev().find_map(|step| match step {
                PathStep::Name(name) => Some(name.clone()),
                PathStep::Index(_) => None,
            });
            Some(names.unwrap_or_else(|| root.clone()))
        }
    };
    tree.alias.clone().or_else(implied)
}
