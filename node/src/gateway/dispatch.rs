//! Finds who answers a request: a line for each thing that can be done.

use ephemeris_store::catalog::ScriptKind;

use super::error::{ApiError, Failure};
use super::headers::PostKind::{Batch, Create, Query, QueryPlan, Upsert};
use super::path::Target;
use super::reply::Reply;
use super::{
    Call, Gateway, Verb, account, batch, change_feed, conflicts, containers, databases, items,
    partition_ranges, permissions, query, query_plan, scripts, throughput, users,
};
use crate::admin;

/// The answer of whoever can give it.
pub(super) async fn dispatch(
    gateway: &Gateway,
    call: &Call,
    target: &Target,
) -> Result<Reply, Failure> {
    use Verb::{Delete, Get, Patch, Post, Put};
    // What is large is boxed, or every request would take as much room.
    match (target, call.verb) {
        (Target::Items(path), Get) => match call.headers.text("a-im")? {
            Some(feed) => Box::pin(change_feed::read(gateway, call, path, feed)).await,
            None => Box::pin(query::read_feed(gateway, call, path)).await,
        },
        (Target::Items(path), Post(Query)) => Box::pin(query::query(gateway, call, path)).await,
        (Target::Items(path), Post(QueryPlan)) => query_plan::plan(gateway, call, path).await,
        (Target::Items(path), Post(Create)) => items::create(gateway, call, path).await,
        (Target::Items(path), Post(Upsert)) => items::upsert(gateway, call, path).await,
        (Target::Items(path), Post(Batch)) => Box::pin(batch::execute(gateway, call, path)).await,
        (Target::Item(path, id), Get) => items::read(gateway, call, path, id).await,
        (Target::Item(path, id), Put) => items::replace(gateway, call, path, id).await,
        (Target::Item(path, id), Patch) => items::patch(gateway, call, path, id).await,
        (Target::Item(path, id), Delete) => items::delete(gateway, call, path, id).await,
        (Target::Clear(path), Post(_)) => items::clear(gateway, call, path).await,

        (Target::Account, Get) => Ok(account::read(gateway, call)),
        (Target::Databases, Get | Post(Query)) => databases::list(gateway, call).await,
        (Target::Databases, Post(Create)) => databases::create(gateway, call).await,
        (Target::Database(name), Get) => databases::read(gateway, call, name).await,
        (Target::Database(name), Delete) => databases::delete(gateway, call, name).await,

        (Target::Containers(database), Get | Post(Query)) => {
            containers::list(gateway, call, database).await
        }
        (Target::Containers(database), Post(Create)) => {
            containers::create(gateway, call, database).await
        }
        (Target::Container(path), Get) => containers::read(gateway, call, path).await,
        (Target::Container(path), Put) => containers::replace(gateway, call, path).await,
        (Target::Container(path), Delete) => containers::delete(gateway, call, path).await,
        (Target::Ranges(path), Get) => partition_ranges::list(gateway, call, path).await,
        (Target::Conflicts(path), Get | Post(Query)) => conflicts::list(gateway, call, path).await,
        (Target::Conflicts(_), Post(Create)) => Err(not_served("Creating conflicts")),

        (Target::Scripts(path, kind), Get | Post(Query)) => {
            scripts::list(gateway, call, path, *kind).await
        }
        (Target::Scripts(path, kind), Post(Create)) => {
            scripts::create(gateway, call, path, *kind).await
        }
        (Target::Script(path, kind, name), Get) => {
            scripts::read(gateway, call, path, *kind, name).await
        }
        (Target::Script(path, kind, name), Put) => {
            scripts::replace(gateway, call, path, *kind, name).await
        }
        (Target::Script(path, kind, name), Delete) => {
            scripts::delete(gateway, call, path, *kind, name).await
        }
        (Target::Script(_, ScriptKind::StoredProcedure, _), Post(_)) => {
            Err(not_served("Running a stored procedure"))
        }

        (Target::Users(database), Get) => users::list(gateway, call, database).await,
        (Target::Users(database), Post(kind)) => users::post(gateway, call, database, kind).await,
        (Target::User(path), Get) => users::read(gateway, call, path).await,
        (Target::User(path), Put) => users::replace(gateway, call, path).await,
        (Target::User(path), Delete) => users::delete(gateway, call, path).await,
        (Target::Permissions(path), Get) => permissions::list(gateway, call, path).await,
        (Target::Permissions(path), Post(kind)) => {
            permissions::post(gateway, call, path, kind).await
        }
        (Target::Permission(path, name), Get) => permissions::read(gateway, call, path, name).await,
        (Target::Permission(path, name), Put) => {
            permissions::replace(gateway, call, path, name).await
        }
        (Target::Permission(path, name), Delete) => {
            permissions::delete(gateway, call, path, name).await
        }

        (Target::Offers, Get | Post(_)) => throughput::list(gateway, call).await,
        (Target::Offer(name), Get) => throughput::read(gateway, call, name).await,
        (Target::Offer(name), Put) => throughput::replace(gateway, call, name).await,

        (Target::Admin(what), _) => admin::answer(gateway, call, what).await,
        (Target::NotServed(what), _) => Err(not_served(what)),
        (
            Target::Databases | Target::Containers(_) | Target::Conflicts(_) | Target::Scripts(..),
            Post(Upsert | QueryPlan | Batch),
        ) => {
            let message = "This resource can be created and queried, nothing else.";
            Err(ApiError::BadRequest(message.to_string()).into())
        }
        (target, _) => Err(call.not_allowed(methods(target))),
    }
}

/// The methods that a resource has.
fn methods(target: &Target) -> &'static str {
    match target {
        Target::Account | Target::Ranges(_) => "GET",
        Target::Databases
        | Target::Containers(_)
        | Target::Items(_)
        | Target::Conflicts(_)
        | Target::Scripts(..)
        | Target::Users(_)
        | Target::Permissions(_)
        | Target::Offers => "GET, POST",
        Target::Item(..) => "GET, PUT, PATCH, DELETE",
        Target::Clear(_) => "POST",
        Target::Database(_) => "GET, DELETE",
        Target::Script(_, ScriptKind::StoredProcedure, _) => "GET, PUT, POST, DELETE",
        Target::Container(_) | Target::Script(..) | Target::User(_) | Target::Permission(..) => {
            "GET, PUT, DELETE"
        }
        Target::Offer(_) => "GET, PUT",
        Target::Admin(_) | Target::NotServed(_) => unreachable!("these answer whatever is asked"),
    }
}

fn not_served(what: &str) -> Failure {
    ApiError::NotSupported(what.to_string()).into()
}
