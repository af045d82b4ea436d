//! Calls of functions: the built-in ones, those that need the compiler, and those that are missing.

use super::super::aggregate::AggregateKind;
use super::super::ast::{Expr, ExprKind};
use super::super::error::{QueryError, Span};
use super::super::functions::regex::{self, Why};
use super::super::functions::{self, Arity, Function};
use super::super::op::{Op, Path, ROOT};
use super::super::value::Value;
use super::{Compiler, Purity, USER_DEFINED_CALLS_MAX};

/// Functions over vectors and full texts, which have no index and no implementation.
const SEARCH_FUNCTIONS: [&str; 4] =
    ["VECTORDISTANCE", "FULLTEXTCONTAINS", "FULLTEXTCONTAINSALL", "FULLTEXTCONTAINSANY"];

impl<'q> Compiler<'q> {
    pub(super) fn call(
        &mut self,
        name: &str,
        user_defined: bool,
        name_span: Span,
        args: &'q [Expr],
        span: Span,
    ) -> Op {
        if user_defined {
            return self.user_defined_call(name, args, name_span);
        }
        if let Some(kind) = AggregateKind::named(name) {
            let message = format!("The aggregate function {} is not allowed here.", kind.name());
            return self.refuse(QueryError::at(message, span));
        }
        let capitals = name.to_ascii_uppercase();
        if capitals == "DOCUMENTID" {
            return self.document_id(args, span);
        }
        if SEARCH_FUNCTIONS.contains(&capitals.as_str()) {
            let what = format!("The function {name}");
            return self.refuse(QueryError::unsupported(&what, name_span));
        }
        if capitals == "FULLTEXTSCORE" {
            let message = "The FullTextScore function is only allowed in the ORDER BY RANK clause.";
            return self.refuse(QueryError::coded("SC2240", message, span));
        }
        let Some(function) = functions::find(name, self.metric) else {
            return self.refuse(QueryError::unknown_function(name, name_span));
        };
        let is_pure = !depends_on_moment(function.name) && function.reproducible();
        if self.purity == Purity::Pure && !is_pure {
            let message = format!("The function {} is not allowed here.", function.name);
            return self.refuse(QueryError::at(message, name_span));
        }
        self.takes_longer |= function.cost_beside.is_some();
        let fits = self.check_arity(function.name, function.arity, args.len(), span);
        let args = self.all(args);
        if !fits {
            return Op::constant(Value::Undefined);
        }
        if function.name == regex::MATCH {
            self.matches(function, args, span)
        } else {
            Op::Call(function, args)
        }
    }

    /// A pattern that is a constant is compiled once, and refused if it cannot be.
    fn matches(&mut self, function: &'static Function, mut args: Vec<Op>, span: Span) -> Op {
        let Some((pattern, modifiers)) = constant_pattern(&args) else {
            return Op::Call(function, args);
        };
        if !self.copies(pattern, span) {
            return Op::Call(function, args);
        }
        let mut result = regex::check(pattern, modifiers).map(|()| None);
        if result.is_ok() && self.pattern_operations > 0 {
            let compiled = regex::compiled(pattern, modifiers);
            self.pattern_operations = self.pattern_operations.saturating_sub(compiled.operations);
            result = compiled.result.map(Some);
        }
        match result {
            Ok(Some(regex)) => Op::Matches(Box::new(args.swap_remove(0)), Box::new(regex)),
            // Of what is no pattern the call makes undefined.
            Ok(None) | Err(Why::Invalid) => Op::Call(function, args),
            Err(Why::Unsupported) => {
                let message = format!("The {} function has {}.", regex::MATCH, Why::Unsupported);
                self.refuse(QueryError::at(message, span))
            }
        }
    }

    /// False, and noted, if a function is called with too few or too many arguments.
    pub(super) fn check_arity(
        &mut self,
        name: &str,
        arity: Arity,
        count: usize,
        span: Span,
    ) -> bool {
        let Arity { least, most } = arity;
        if count >= least && most.is_none_or(|most| count <= most) {
            return true;
        }
        let wanted = match most {
            Some(most) if most == least => format!("{least}"),
            Some(most) => format!("{least} to {most}"),
            None => format!("at least {least}"),
        };
        let message = format!("The {name} function requires {wanted} argument(s).");
        self.errors.push(QueryError::coded("SC2050", message, span));
        false
    }

    fn document_id(&mut self, args: &'q [Expr], span: Span) -> Op {
        self.check_arity("DOCUMENTID", Arity { least: 1, most: Some(1) }, args.len(), span);
        let [arg] = args else { return Op::DocumentId };
        let is_item = matches!(arg.kind, ExprKind::Name(_))
            && matches!(self.op(arg), Op::Path(Path { slot: ROOT, steps }) if steps.is_empty());
        if !is_item || self.purity == Purity::Pure {
            let message = "The DOCUMENTID function takes the alias of the container.";
            return self.refuse(QueryError::at(message, span));
        }
        Op::DocumentId
    }

    fn user_defined_call(&mut self, name: &str, args: &'q [Expr], span: Span) -> Op {
        self.user_defined_calls += 1;
        self.all(args);
        let what = format!("The user-defined function udf.{name}");
        self.refuse(QueryError::unsupported(&what, span))
    }

    /// Too many calls are an error of the whole query, said instead of each call's own.
    pub(super) fn check_user_defined(&mut self, query: Span) {
        if self.user_defined_calls > USER_DEFINED_CALLS_MAX {
            let message = format!(
                "The SQL query exceeded the maximum number of user-defined function calls. The \
                 allowed limit is {USER_DEFINED_CALLS_MAX}."
            );
            self.errors.push_instead(QueryError::coded("SC3005", message, query));
        }
    }
}

/// The pattern and the modifiers of a call, if both are constants.
fn constant_pattern(args: &[Op]) -> Option<(&str, &str)> {
    fn text(op: &Op) -> Option<&str> {
        let Op::Constant(value) = op else { return None };
        if let Value::Text(text) = &**value { Some(text) } else { None }
    }
    let modifiers = args.get(2).map_or(Some(""), text)?;
    Some((text(args.get(1)?)?, modifiers))
}

/// True for functions of time and chance.
pub(super) fn depends_on_moment(function: &str) -> bool {
    let name = function.to_ascii_uppercase();
    name.starts_with("GETCURRENT") || ["RAND", "NOW", "AGO"].contains(&name.as_str())
}
