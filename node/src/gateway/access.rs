//! Authorisation: what a request may do, by what it was signed with.
//!
//! 1. A key that may write allows everything, a read-only key looking at everything but permissions.
//! 2. A token allows what its permission says: looking at a container, and at or into items of it.
//! 3. What the path and headers tell is checked before anything else is done. Names may lead somewhere
//!    else by the time they are followed: `check_container` and `check_item` look again, there.

use std::sync::Arc;
use std::time::Duration;

use ephemeris_store::catalog::{Permission, PermissionMode, ScopePart};
use ephemeris_store::ids::{ContainerNumber, PermissionNumber};
use ephemeris_store::item::ItemKey;
use ephemeris_store::partition_key::KeyDefinition;

use super::auth::Credential;
use super::error::{ApiError, Failure};
use super::headers::PostKind;
use super::items::header_key;
use super::path::{ContainerPath, Target};
use super::resolve::Resolved;
use super::{Call, Gateway, Verb};
use crate::clock::Instant;

/// What a request may do.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// Everything.
    Full,
    /// Look at everything but permissions.
    ReadOnly,
    /// What a permission says.
    Permitted(Arc<Permission>),
}

/// What a request is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intent {
    Read,
    Write,
}

/// What a request is about, within a container.
#[derive(Clone, Copy)]
enum Asked<'t> {
    /// Its definition or its partitions: clients cannot find an item without.
    Definition,
    /// Any of its items.
    Items,
    /// The item that the last segment of the path names.
    Item(&'t str),
    /// Anything else.
    Other,
}

impl Access {
    /// Refuses a container that a permission is not about. Called wherever a path has been followed.
    pub(crate) fn check_container(&self, container: ContainerNumber) -> Result<(), ApiError> {
        match self {
            Access::Permitted(permission) if permission.scope.container != container => {
                Err(forbidden())
            }
            Access::Permitted(_) | Access::Full | Access::ReadOnly => Ok(()),
        }
    }

    /// Refuses an item that a permission is not about. Called where a `_rid` has been turned into a
    /// key, which the path alone does not tell.
    pub(crate) fn check_item(
        &self,
        key: &ItemKey,
        definition: &KeyDefinition,
    ) -> Result<(), ApiError> {
        let Access::Permitted(permission) = self else { return Ok(()) };
        let parts = key.parts(definition.paths.len()).map_err(|_| forbidden())?;
        let has_key = permission.partition_key.as_ref().is_none_or(|granted| *granted == parts.key);
        let has_id = match &permission.scope.part {
            ScopePart::ItemNamed(id) => id.as_str() == parts.id,
            ScopePart::Whole | ScopePart::ItemNumbered(_) | ScopePart::Script(..) => true,
        };
        if has_key && has_id { Ok(()) } else { Err(forbidden()) }
    }
}

impl Intent {
    fn of(call: &Call, target: &Target) -> Self {
        let only_asks = match call.verb {
            Verb::Get => true,
            Verb::Post(PostKind::Query | PostKind::QueryPlan) => answers_queries(target),
            Verb::Post(PostKind::Batch | PostKind::Upsert | PostKind::Create)
            | Verb::Put
            | Verb::Patch
            | Verb::Delete
            | Verb::Other => false,
        };
        if only_asks { Intent::Read } else { Intent::Write }
    }
}

/// True for what a POST may query. Elsewhere the headers that say so mean nothing.
fn answers_queries(target: &Target) -> bool {
    match target {
        Target::Databases
        | Target::Users(_)
        | Target::Permissions(_)
        | Target::Containers(_)
        | Target::Items(_)
        | Target::Conflicts(_)
        | Target::Scripts(..)
        | Target::Offers => true,
        Target::Account
        | Target::Database(_)
        | Target::User(_)
        | Target::Permission(..)
        | Target::Container(_)
        | Target::Item(..)
        | Target::Ranges(_)
        | Target::Clear(_)
        | Target::Script(..)
        | Target::Offer(_)
        | Target::Admin(_)
        | Target::NotServed(_) => false,
    }
}

/// For so long a permission may have been changed that still counts, at a node that has not heard of it.
const PERMISSION_AGE_MAX: Duration = Duration::from_secs(5);

fn forbidden() -> ApiError {
    let message = "Insufficient permissions provided in the authorization header for the \
                   corresponding request. Please retry with another authorization header.";
    ApiError::Forbidden(message.to_string())
}

impl Gateway {
    /// What the bearer of a credential may do.
    pub(crate) async fn access(
        &self,
        credential: Credential,
        deadline: Instant,
    ) -> Result<Access, Failure> {
        match credential {
            Credential::ReadWriteKey => Ok(Access::Full),
            Credential::ReadOnlyKey => Ok(Access::ReadOnly),
            Credential::Token(number) => {
                Box::pin(self.permission(number, deadline)).await.map(Access::Permitted)
            }
        }
    }

    /// The permission that a token names. One that this node has not heard of may be new, and one that it
    /// knows from before it started, or before it was cut off, may be gone.
    async fn permission(
        &self,
        number: PermissionNumber,
        deadline: Instant,
    ) -> Result<Arc<Permission>, Failure> {
        let known = || self.node.directory().current().state().permission(number).cloned();
        if self.node.has_catalog_since(PERMISSION_AGE_MAX)
            && let Some(permission) = known()
        {
            return Ok(permission);
        }
        self.node.catalog_barrier(deadline).await?;
        known().ok_or_else(|| {
            let message = "The permission of the resource token does not exist any more.";
            ApiError::Forbidden(message.to_string()).into()
        })
    }
}

/// Refuses what a request may not do, as far as its path and headers tell.
pub(crate) async fn check(gateway: &Gateway, call: &Call, target: &Target) -> Result<(), Failure> {
    let intent = Intent::of(call, target);
    let allowed = match &call.access {
        Access::Full => true,
        Access::ReadOnly => intent == Intent::Read && !shows_tokens(target),
        Access::Permitted(permission) => {
            Box::pin(permits(gateway, call, permission, intent, target)).await?
        }
    };
    if allowed { Ok(()) } else { Err(forbidden().into()) }
}

/// True for what is answered with tokens that allow more than to read.
fn shows_tokens(target: &Target) -> bool {
    matches!(target, Target::Permissions(_) | Target::Permission(..))
}

async fn permits(
    gateway: &Gateway,
    call: &Call,
    permission: &Permission,
    intent: Intent,
    target: &Target,
) -> Result<bool, Failure> {
    let (path, asked) = match target {
        Target::Account => return Ok(intent == Intent::Read),
        Target::Container(path) | Target::Ranges(path) => (path, Asked::Definition),
        Target::Items(path) | Target::Clear(path) => (path, Asked::Items),
        Target::Item(path, segment) => (path, Asked::Item(segment)),
        Target::Conflicts(path) | Target::Scripts(path, _) => (path, Asked::Other),
        Target::Script(path, kind, name) => match &permission.scope.part {
            ScopePart::Script(granted, id) if granted == kind && id.as_str() == name => {
                (path, Asked::Definition)
            }
            ScopePart::Whole
            | ScopePart::ItemNamed(_)
            | ScopePart::ItemNumbered(_)
            | ScopePart::Script(..) => (path, Asked::Other),
        },
        Target::Databases
        | Target::Database(_)
        | Target::Users(_)
        | Target::User(_)
        | Target::Permissions(_)
        | Target::Permission(..)
        | Target::Containers(_)
        | Target::Offers
        | Target::Offer(_)
        | Target::Admin(_)
        | Target::NotServed(_) => return Ok(false),
    };
    let is_allowed = intent == Intent::Read || permission.mode == PermissionMode::All;
    let Some(resolved) = granted_container(gateway, call, path).await? else {
        return Ok(false);
    };
    let whole = permission.scope.part == ScopePart::Whole;
    Ok(is_allowed
        && match asked {
            Asked::Definition => intent == Intent::Read,
            Asked::Items => whole && names_granted_key(call, &resolved, permission)?,
            Asked::Item(segment) => {
                is_granted_item(permission, &resolved, segment)
                    && names_granted_key(call, &resolved, permission)?
            }
            Asked::Other => whole && permission.partition_key.is_none(),
        })
}

/// The container of a path, if it is the one a permission is about. Whether another one exists is
/// none of the bearer's business.
async fn granted_container(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Option<Resolved>, Failure> {
    match gateway.container(call, path).await {
        Ok(found) => Ok(Some(found)),
        Err(Failure { error: ApiError::OwnerNotFound | ApiError::Forbidden(_), .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// True if a request about items is confined to those a permission is about, by its header.
fn names_granted_key(
    call: &Call,
    resolved: &Resolved,
    permission: &Permission,
) -> Result<bool, ApiError> {
    match &permission.partition_key {
        None => Ok(true),
        Some(granted) => Ok(header_key(call, resolved)?.as_ref() == Some(granted)),
    }
}

fn is_granted_item(permission: &Permission, resolved: &Resolved, segment: &str) -> bool {
    let number = resolved.item_number(segment);
    match &permission.scope.part {
        ScopePart::Whole => true,
        // Which id belongs to a `_rid` is found out later.
        ScopePart::ItemNamed(id) => number.is_some() || id.as_str() == segment,
        ScopePart::ItemNumbered(granted) => number == Some(*granted),
        ScopePart::Script(..) => false,
    }
}
