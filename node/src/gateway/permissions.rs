//! Permissions of users. Each answer that shows one carries a new token for it.

use std::sync::Arc;
use std::time::SystemTime;

use axum::http::StatusCode;
use ephemeris_store::catalog::{
    CatalogCommand, ClusterId, IfTaken, Permission, PermissionDefinition, User, UserChange,
};
use ephemeris_store::charge::Charge;
use ephemeris_store::ids::{ResourceId, permission_link};
use ephemeris_store::partition_key::PATHS_MAX;
use serde_json::{Map, Value, json};

use super::error::{ApiError, Failure};
use super::headers::PostKind;
use super::path::UserPath;
use super::reply::{Reply, with_system_properties};
use super::resolve::Purpose;
use super::users::{not_for_users, status_of};
use super::{Call, Gateway, feed, resource_tokens};

/// Shows permissions with tokens that end at one moment.
struct Presenter<'g> {
    gateway: &'g Gateway,
    cluster: ClusterId,
    tokens_end: SystemTime,
}

impl<'g> Presenter<'g> {
    /// One for tokens that live as long as the request asks for.
    fn new(gateway: &'g Gateway, call: &Call) -> Result<Self, ApiError> {
        let header = call.headers.text("x-ms-documentdb-expiry-seconds")?;
        let tokens_end = gateway.node.date() + resource_tokens::lifetime(header)?;
        Ok(Self { gateway, cluster: gateway.cluster()?, tokens_end })
    }

    /// A permission as clients see it.
    fn to_json(&self, permission: &Permission) -> Map<String, Value> {
        let rid = ResourceId::Permission(permission.number).to_string();
        let body: Value = serde_json::from_str(&permission.json).expect("it was checked");
        let body = body.as_object().cloned().unwrap_or_default();
        let (link, resource) = (permission_link(permission.number), permission.resource);
        let mut json = with_system_properties(body, &rid, &link, resource.etag, resource.ts.0);
        let verifier = &self.gateway.verifier;
        let token = verifier.token(self.cluster, permission.number, self.tokens_end);
        json.insert("_token".into(), json!(token));
        json
    }

    fn reply(&self, status: StatusCode, permission: &Permission, charge: Charge) -> Reply {
        let body = Value::Object(self.to_json(permission)).to_string();
        Reply::json(status, body).etag(permission.resource.etag).charge(charge)
    }

    /// The permission that a change just made or replaced.
    fn changed(&self, user: &User, name: &str, status: StatusCode) -> Result<Reply, Failure> {
        let view = self.gateway.node.directory().current();
        let permission = view.state().permission_named(user.number, name);
        let permission = permission.ok_or_else(|| {
            ApiError::Timeout("The permission was deleted again meanwhile.".to_string())
        })?;
        Ok(self.reply(status, permission, Charge::METADATA_WRITE))
    }
}

/// The definition in a body, checked.
fn definition(call: &Call) -> Result<PermissionDefinition, Failure> {
    let definition = PermissionDefinition::parse(&call.json()?).map_err(Failure::in_body)?;
    // No item has a longer key. Replicas accept what they have always accepted.
    if definition.partition_key.as_ref().is_some_and(|key| key.0.len() > PATHS_MAX) {
        let message = format!(
            "The permission is not valid: 'resourcePartitionKey' has more than {PATHS_MAX} values."
        );
        return Err(Failure::in_body(ApiError::BadRequest(message)));
    }
    Ok(definition)
}

impl Gateway {
    /// Finds a permission by its name, or else by its `_rid`, in an up-to-date copy of the catalog.
    async fn named_permission(
        &self,
        call: &Call,
        path: &UserPath,
        segment: &str,
    ) -> Result<(Arc<User>, Arc<Permission>), Failure> {
        let (view, user) = self.user(call, path, Purpose::Owner).await?;
        let by_rid = || match ResourceId::parse(segment) {
            Ok(ResourceId::Permission(number)) if number.user == user.number => {
                view.state().permission(number)
            }
            Ok(_) | Err(_) => None,
        };
        let found = view.state().permission_named(user.number, segment).or_else(by_rid).cloned();
        Ok((user, found.ok_or_else(|| Purpose::Target.missing())?))
    }
}

/// `POST …/permissions`
pub(crate) async fn post(
    gateway: &Gateway,
    call: &Call,
    path: &UserPath,
    kind: PostKind,
) -> Result<Reply, Failure> {
    match kind {
        PostKind::Query => list(gateway, call, path).await,
        PostKind::Create => create(gateway, call, path, IfTaken::Refuse).await,
        PostKind::Upsert => create(gateway, call, path, IfTaken::Replace).await,
        PostKind::QueryPlan | PostKind::Batch => Err(not_for_users()),
    }
}

async fn create(
    gateway: &Gateway,
    call: &Call,
    path: &UserPath,
    if_taken: IfTaken,
) -> Result<Reply, Failure> {
    let presenter = Presenter::new(gateway, call)?;
    let definition = definition(call)?;
    let (_, user) = gateway.user(call, path, Purpose::Owner).await?;
    let database = user.number.database;
    let (name, definition) = (definition.name.clone(), definition.json().to_string());
    let change = UserChange::CreatePermission { user: user.number, definition, if_taken };
    let outcome =
        gateway.change_catalog(call, CatalogCommand::ChangeUsers { database, change }).await?;
    presenter.changed(&user, name.as_str(), status_of(outcome))
}

/// `GET …/permissions/p`
pub(crate) async fn read(
    gateway: &Gateway,
    call: &Call,
    path: &UserPath,
    segment: &str,
) -> Result<Reply, Failure> {
    let presenter = Presenter::new(gateway, call)?;
    let (_, permission) = gateway.named_permission(call, path, segment).await?;
    Ok(presenter.reply(StatusCode::OK, &permission, Charge::METADATA_READ))
}

/// `PUT …/permissions/p`
pub(crate) async fn replace(
    gateway: &Gateway,
    call: &Call,
    path: &UserPath,
    segment: &str,
) -> Result<Reply, Failure> {
    let presenter = Presenter::new(gateway, call)?;
    let definition = definition(call)?;
    let (user, permission) = gateway.named_permission(call, path, segment).await?;
    let database = user.number.database;
    let (name, definition) = (definition.name.clone(), definition.json().to_string());
    let (permission, precondition) = (permission.number, call.headers.precondition()?);
    let change = UserChange::ReplacePermission { permission, definition, precondition };
    gateway.change_catalog(call, CatalogCommand::ChangeUsers { database, change }).await?;
    presenter.changed(&user, name.as_str(), StatusCode::OK)
}

/// `DELETE …/permissions/p`
pub(crate) async fn delete(
    gateway: &Gateway,
    call: &Call,
    path: &UserPath,
    segment: &str,
) -> Result<Reply, Failure> {
    let (user, permission) = gateway.named_permission(call, path, segment).await?;
    let database = user.number.database;
    let (permission, precondition) = (permission.number, call.headers.precondition()?);
    let change = UserChange::DeletePermission { permission, precondition };
    gateway.change_catalog(call, CatalogCommand::ChangeUsers { database, change }).await?;
    Ok(Reply::empty(StatusCode::NO_CONTENT).charge(Charge::METADATA_WRITE))
}

/// `GET …/permissions`, or `POST` with a query
pub(crate) async fn list(
    gateway: &Gateway,
    call: &Call,
    path: &UserPath,
) -> Result<Reply, Failure> {
    let presenter = Presenter::new(gateway, call)?;
    let (view, user) = gateway.user(call, path, Purpose::Owner).await?;
    let rid = ResourceId::User(user.number).to_string();
    let listed = |permission: &Arc<Permission>| {
        (u64::from(permission.number.number), presenter.to_json(permission))
    };
    let permissions = view.state().permissions(user.number).map(listed);
    feed::answer(gateway, call, (&rid, "Permissions"), permissions)
}
