//! Users of a database: those to whom permissions are given.

use std::sync::Arc;

use axum::http::StatusCode;
use ephemeris_store::catalog::{CatalogCommand, Created, Database, IfTaken, User, UserChange};
use ephemeris_store::charge::Charge;
use ephemeris_store::ids::{DatabaseNumber, ResourceId, user_link};
use serde_json::{Map, Value, json};

use super::databases::name_in;
use super::error::{ApiError, Failure};
use super::headers::PostKind;
use super::path::UserPath;
use super::reply::{Reply, with_system_properties};
use super::resolve::Purpose;
use super::{Call, Gateway, feed};
use crate::placement::DirectoryView;

/// A user as clients see it.
fn to_json(user: &User) -> Map<String, Value> {
    let rid = ResourceId::User(user.number).to_string();
    let id = Map::from_iter([("id".to_string(), json!(user.name.as_str()))]);
    let (link, resource) = (user_link(user.number), user.resource);
    let mut json = with_system_properties(id, &rid, &link, resource.etag, resource.ts.0);
    json.insert("_permissions".into(), json!("permissions/"));
    json
}

fn reply(status: StatusCode, user: &User, charge: Charge) -> Reply {
    let body = Value::Object(to_json(user)).to_string();
    Reply::json(status, body).etag(user.resource.etag).charge(charge)
}

/// A user by its name, or else by its `_rid`.
fn find<'v>(view: &'v DirectoryView, database: &Database, segment: &str) -> Option<&'v Arc<User>> {
    if let Some(user) = view.state().user_named(database.number, segment) {
        return Some(user);
    }
    match ResourceId::parse(segment) {
        Ok(ResourceId::User(user)) if user.database == database.number => view.state().user(user),
        Ok(_) | Err(_) => None,
    }
}

impl Gateway {
    /// Finds a user, in a copy of the catalog that is up to date.
    pub(super) async fn user(
        &self,
        call: &Call,
        path: &UserPath,
        purpose: Purpose,
    ) -> Result<(Arc<DirectoryView>, Arc<User>), Failure> {
        let (view, database) = self.database(call, &path.database, Purpose::Owner).await?;
        let user = find(&view, &database, &path.user).ok_or_else(|| purpose.missing())?.clone();
        Ok((view, user))
    }
}

/// The user that a change just made or replaced.
fn changed(
    gateway: &Gateway,
    database: DatabaseNumber,
    name: &str,
    status: StatusCode,
) -> Result<Reply, Failure> {
    let view = gateway.node.directory().current();
    let user = view.state().user_named(database, name);
    let user =
        user.ok_or_else(|| ApiError::Timeout("The user was deleted again meanwhile.".to_string()))?;
    Ok(reply(status, user, Charge::METADATA_WRITE))
}

/// What creating something was answered with: 201, or 200 if an upsert replaced it.
pub(super) fn status_of(created: Created) -> StatusCode {
    match created {
        Created::User(_) | Created::Permission(_) => StatusCode::CREATED,
        Created::Nothing
        | Created::Database(_)
        | Created::Container { .. }
        | Created::Offer(_)
        | Created::Script
        | Created::Node(_) => StatusCode::OK,
    }
}

/// `POST /dbs/d/users`
pub(crate) async fn post(
    gateway: &Gateway,
    call: &Call,
    database: &str,
    kind: PostKind,
) -> Result<Reply, Failure> {
    match kind {
        PostKind::Query => list(gateway, call, database).await,
        PostKind::Create => create(gateway, call, database, IfTaken::Refuse).await,
        PostKind::Upsert => create(gateway, call, database, IfTaken::Replace).await,
        PostKind::QueryPlan | PostKind::Batch => Err(not_for_users()),
    }
}

/// The answer to what can be done with items alone.
pub(super) fn not_for_users() -> Failure {
    let message = "Users and permissions can be created, upserted and queried, nothing else.";
    ApiError::BadRequest(message.to_string()).into()
}

async fn create(
    gateway: &Gateway,
    call: &Call,
    database: &str,
    if_taken: IfTaken,
) -> Result<Reply, Failure> {
    let name = name_in(&call.json()?).map_err(Failure::in_body)?;
    let (_, database) = gateway.database(call, database, Purpose::Owner).await?;
    let (database, created) = (database.number, name.to_string());
    let change = UserChange::Create { name, if_taken };
    let outcome =
        gateway.change_catalog(call, CatalogCommand::ChangeUsers { database, change }).await?;
    changed(gateway, database, &created, status_of(outcome))
}

/// `GET /dbs/d/users/u`
pub(crate) async fn read(
    gateway: &Gateway,
    call: &Call,
    path: &UserPath,
) -> Result<Reply, Failure> {
    let (_, user) = gateway.user(call, path, Purpose::Target).await?;
    let reply = reply(StatusCode::OK, &user, Charge::METADATA_READ);
    Ok(reply.unless_known(call.headers.read_condition()?, user.resource.etag))
}

/// `PUT /dbs/d/users/u`
pub(crate) async fn replace(
    gateway: &Gateway,
    call: &Call,
    path: &UserPath,
) -> Result<Reply, Failure> {
    let name = name_in(&call.json()?).map_err(Failure::in_body)?;
    let (_, user) = gateway.user(call, path, Purpose::Target).await?;
    let (database, new_name) = (user.number.database, name.to_string());
    let precondition = call.headers.precondition()?;
    let change = UserChange::Rename { user: user.number, name, precondition };
    gateway.change_catalog(call, CatalogCommand::ChangeUsers { database, change }).await?;
    changed(gateway, database, &new_name, StatusCode::OK)
}

/// `DELETE /dbs/d/users/u`
pub(crate) async fn delete(
    gateway: &Gateway,
    call: &Call,
    path: &UserPath,
) -> Result<Reply, Failure> {
    let (_, user) = gateway.user(call, path, Purpose::Target).await?;
    let database = user.number.database;
    let precondition = call.headers.precondition()?;
    let change = UserChange::Delete { user: user.number, precondition };
    gateway.change_catalog(call, CatalogCommand::ChangeUsers { database, change }).await?;
    Ok(Reply::empty(StatusCode::NO_CONTENT).charge(Charge::METADATA_WRITE))
}

/// `GET /dbs/d/users`, or `POST` with a query
pub(crate) async fn list(gateway: &Gateway, call: &Call, database: &str) -> Result<Reply, Failure> {
    let (view, database) = gateway.database(call, database, Purpose::Owner).await?;
    let rid = ResourceId::Database(database.number).to_string();
    let listed = |user: &Arc<User>| (u64::from(user.number.number), to_json(user));
    feed::answer(gateway, call, (&rid, "Users"), view.state().users(database.number).map(listed))
}
