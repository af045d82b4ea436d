//! Applying changes of users and permissions.

use std::sync::Arc;

use super::apply::{Draft, Result, check};
use super::command::{CatalogRefusal, Created, IfTaken, UserChange};
use super::permission::PermissionDefinition;
use super::state::{Permission, User};
use crate::command::Precondition;
use crate::engine::Fault;
use crate::ids::{DatabaseNumber, PermissionNumber, ResourceName, UserNumber};

/// Most users and permissions of the account together: every node has all of them in memory.
const GRANTS_MAX: usize = 20_000;

impl Draft {
    /// A refusal inside, a fault outside.
    pub(super) fn change_users(
        &mut self,
        database: DatabaseNumber,
        change: UserChange,
    ) -> Result<Result<Created>, Fault> {
        Ok(match change {
            UserChange::Create { name, if_taken } => self.create_user(database, name, if_taken),
            UserChange::Rename { user, name, precondition } => {
                self.rename_user(user, name, precondition)
            }
            UserChange::Delete { user, precondition } => self.delete_user(user, precondition),
            UserChange::CreatePermission { user, definition, if_taken } => {
                let definition = parse(&definition)?;
                self.create_permission(user, definition, if_taken)
            }
            UserChange::ReplacePermission { permission, definition, precondition } => {
                let definition = parse(&definition)?;
                self.replace_permission(permission, definition, precondition)
            }
            UserChange::DeletePermission { permission, precondition } => {
                self.delete_permission(permission, precondition)
            }
        })
    }

    fn check_room_for_grants(&self) -> Result<()> {
        if self.state.users.len() + self.state.permissions.len() < GRANTS_MAX {
            return Ok(());
        }
        let limit = format!("The account holds {GRANTS_MAX} users and permissions.");
        Err(CatalogRefusal::Limit(limit))
    }

    fn put_user(&mut self, user: User) {
        self.put(&user);
        self.state.users.insert(user.number, Arc::new(user));
    }

    fn create_user(
        &mut self,
        database: DatabaseNumber,
        name: ResourceName,
        if_taken: IfTaken,
    ) -> Result<Created> {
        if !self.state.databases.contains_key(&database) {
            return Err(CatalogRefusal::OwnerNotFound);
        }
        if let Some(known) = self.state.user_named(database, name.as_str()).cloned() {
            return match if_taken {
                IfTaken::Refuse => Err(CatalogRefusal::Conflict),
                IfTaken::Replace => self.rename_user(known.number, name, Precondition::None),
            };
        }
        self.check_room_for_grants()?;
        let number = UserNumber { database, number: self.new_number() };
        self.put_user(User { number, name, resource: self.resource(0) });
        Ok(Created::User(number))
    }

    fn user(&self, number: UserNumber, precondition: Precondition) -> Result<Arc<User>> {
        let user = self.state.users.get(&number).ok_or(CatalogRefusal::NotFound)?;
        check(precondition, user.resource)?;
        Ok(user.clone())
    }

    fn rename_user(
        &mut self,
        number: UserNumber,
        name: ResourceName,
        precondition: Precondition,
    ) -> Result<Created> {
        self.user(number, precondition)?;
        let bearer = self.state.user_named(number.database, name.as_str());
        if bearer.is_some_and(|bearer| bearer.number != number) {
            return Err(CatalogRefusal::Conflict);
        }
        self.put_user(User { number, name, resource: self.resource(0) });
        Ok(Created::Nothing)
    }

    fn delete_user(&mut self, number: UserNumber, precondition: Precondition) -> Result<Created> {
        self.user(number, precondition)?;
        self.remove_user(number);
        Ok(Created::Nothing)
    }

    /// Removes a user that exists, and all it was permitted.
    pub(super) fn remove_user(&mut self, number: UserNumber) {
        let permissions: Vec<_> = self.state.permissions(number).cloned().collect();
        for permission in permissions {
            self.delete(permission.as_ref());
            self.state.permissions.remove(&permission.number);
        }
        let user = self.state.users.remove(&number).expect("the user exists");
        self.delete(user.as_ref());
    }

    fn create_permission(
        &mut self,
        user: UserNumber,
        definition: PermissionDefinition,
        if_taken: IfTaken,
    ) -> Result<Created> {
        if !self.state.users.contains_key(&user) {
            return Err(CatalogRefusal::OwnerNotFound);
        }
        let known = self.state.permission_named(user, definition.name.as_str());
        if let Some(known) = known.map(|known| known.number) {
            return match if_taken {
                IfTaken::Refuse => Err(CatalogRefusal::Conflict),
                IfTaken::Replace => self.replace_permission(known, definition, Precondition::None),
            };
        }
        self.check_room_for_grants()?;
        let number = PermissionNumber { user, number: self.new_number() };
        self.put_permission(number, definition)?;
        Ok(Created::Permission(number))
    }

    fn put_permission(
        &mut self,
        number: PermissionNumber,
        definition: PermissionDefinition,
    ) -> Result<()> {
        let scope = definition.link.scope(&self.state).ok_or(CatalogRefusal::NotFound)?;
        let permission = Permission {
            number,
            json: definition.json().to_string(),
            name: definition.name,
            mode: definition.mode,
            scope,
            partition_key: definition.partition_key,
            resource: self.resource(0),
        };
        self.put(&permission);
        self.state.permissions.insert(number, Arc::new(permission));
        Ok(())
    }

    fn replace_permission(
        &mut self,
        number: PermissionNumber,
        definition: PermissionDefinition,
        precondition: Precondition,
    ) -> Result<Created> {
        let known = self.state.permissions.get(&number).ok_or(CatalogRefusal::NotFound)?;
        check(precondition, known.resource)?;
        let bearer = self.state.permission_named(number.user, definition.name.as_str());
        if bearer.is_some_and(|bearer| bearer.number != number) {
            return Err(CatalogRefusal::Conflict);
        }
        self.put_permission(number, definition)?;
        Ok(Created::Nothing)
    }

    fn delete_permission(
        &mut self,
        number: PermissionNumber,
        precondition: Precondition,
    ) -> Result<Created> {
        let known = self.state.permissions.get(&number).ok_or(CatalogRefusal::NotFound)?.clone();
        check(precondition, known.resource)?;
        self.delete(known.as_ref());
        self.state.permissions.remove(&number);
        Ok(Created::Nothing)
    }
}

/// The proposer checked the definition, so one that does not parse is a fault, not an answer.
fn parse(json: &str) -> Result<PermissionDefinition, Fault> {
    let value = serde_json::from_str(json).map_err(|error| Fault::corrupt("log entry", error))?;
    PermissionDefinition::parse(&value).map_err(|error| Fault::corrupt("log entry", error))
}
