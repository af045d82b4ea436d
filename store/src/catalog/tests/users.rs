//! Users and permissions: names are unique, what is granted stays what it was, deletion cascades.

use serde_json::{Value, json};

use super::*;
use crate::ids::{ItemId, ItemNumber, Lsn, PermissionNumber, ResourceId, UserNumber};
use crate::partition_key::PartitionKey;

const DATABASE: DatabaseNumber = DatabaseNumber(1);

impl Fixture {
    /// With the database "db" and the container "c" in it.
    fn with_container() -> Self {
        let mut fixture = Self::new();
        fixture.create_database("db").unwrap();
        fixture.create_container("c", 1).unwrap();
        fixture
    }

    fn change(&mut self, change: UserChange) -> Result<Created, CatalogRefusal> {
        self.apply(CatalogCommand::ChangeUsers { database: DATABASE, change })
    }

    fn create_user(&mut self, name: &str, if_taken: IfTaken) -> Result<Created, CatalogRefusal> {
        self.change(UserChange::Create { name: resource_name(name), if_taken })
    }

    fn new_user(&mut self, name: &str) -> UserNumber {
        match self.create_user(name, IfTaken::Refuse) {
            Ok(Created::User(user)) => user,
            other => panic!("no user was created: {other:?}"),
        }
    }

    fn permit(&mut self, user: UserNumber, extra: &Value) -> Result<Created, CatalogRefusal> {
        let (definition, if_taken) = (permission(extra), IfTaken::Refuse);
        self.change(UserChange::CreatePermission { user, definition, if_taken })
    }

    fn new_permission(&mut self, user: UserNumber, extra: &Value) -> PermissionNumber {
        match self.permit(user, extra) {
            Ok(Created::Permission(permission)) => permission,
            other => panic!("no permission was created: {other:?}"),
        }
    }

    fn scope(&self, permission: PermissionNumber) -> Scope {
        self.catalog.state().permission(permission).unwrap().scope.clone()
    }
}

fn permission(extra: &Value) -> String {
    let mut body = json!({ "id": "p", "permissionMode": "Read", "resource": "dbs/db/colls/c" });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    PermissionDefinition::parse(&body).unwrap().json().to_string()
}

#[test]
fn names_of_users_are_unique_in_their_database() {
    let mut f = Fixture::with_container();
    let user = f.new_user("u");
    assert_eq!(f.create_user("u", IfTaken::Refuse), Err(CatalogRefusal::Conflict));
    let tag = |f: &Fixture| f.catalog.state().user(user).unwrap().resource.etag;
    let before = tag(&f);
    assert_eq!(f.create_user("u", IfTaken::Replace), Ok(Created::Nothing));
    assert_ne!(tag(&f), before, "an upsert writes");
    let other = f.new_user("v");
    assert_ne!(user, other);
    let database = DatabaseNumber(9);
    let (name, if_taken) = (resource_name("u"), IfTaken::Refuse);
    let change = UserChange::Create { name, if_taken };
    let nowhere = f.apply(CatalogCommand::ChangeUsers { database, change });
    assert_eq!(nowhere, Err(CatalogRefusal::OwnerNotFound));
    f.reopen();
}

#[test]
fn a_user_keeps_its_number_under_another_name() {
    let mut f = Fixture::with_container();
    let (user, other) = (f.new_user("u"), f.new_user("v"));
    f.new_permission(user, &json!({}));
    let rename = |f: &mut Fixture, user, name: &str, precondition| {
        f.change(UserChange::Rename { user, name: resource_name(name), precondition })
    };
    assert_eq!(rename(&mut f, user, "v", Precondition::None), Err(CatalogRefusal::Conflict));
    let never = Precondition::IfMatch(None);
    assert_eq!(rename(&mut f, user, "w", never), Err(CatalogRefusal::PreconditionFailed));
    rename(&mut f, user, "w", Precondition::None).unwrap();
    assert_eq!(f.catalog.state().user_named(DATABASE, "w").unwrap().number, user);
    assert!(f.catalog.state().user_named(DATABASE, "u").is_none());
    assert_eq!(f.catalog.state().permissions(user).count(), 1);
    f.change(UserChange::Delete { user: other, precondition: Precondition::None }).unwrap();
    assert_eq!(rename(&mut f, other, "x", Precondition::None), Err(CatalogRefusal::NotFound));
    f.reopen();
}

#[test]
fn permissions_go_with_their_user_and_users_with_their_database() {
    let mut f = Fixture::with_container();
    let (user, other) = (f.new_user("u"), f.new_user("v"));
    let number = f.new_permission(user, &json!({}));
    f.new_permission(other, &json!({}));
    let precondition = Precondition::None;
    f.change(UserChange::Delete { user, precondition }).unwrap();
    assert!(f.catalog.state().permission(number).is_none());
    assert_eq!(f.permit(user, &json!({})), Err(CatalogRefusal::OwnerNotFound));
    let again = f.new_user("u");
    assert_ne!(again, user, "numbers are never reused");
    f.reopen();
    f.apply(CatalogCommand::DeleteDatabase { database: DATABASE, precondition }).unwrap();
    assert_eq!(f.catalog.state().users(DATABASE).count(), 0);
    assert_eq!(f.catalog.state().permissions(other).count(), 0);
    f.reopen();
}

#[test]
fn names_of_permissions_are_unique_for_their_user() {
    let mut f = Fixture::with_container();
    let (user, other) = (f.new_user("u"), f.new_user("v"));
    let first = f.new_permission(user, &json!({}));
    f.new_permission(other, &json!({}));
    assert_eq!(f.permit(user, &json!({})), Err(CatalogRefusal::Conflict));
    let second = f.new_permission(user, &json!({ "id": "q" }));
    let replace = |f: &mut Fixture, permission, extra: &Value, precondition| {
        let definition = self::permission(extra);
        f.change(UserChange::ReplacePermission { permission, definition, precondition })
    };
    let taken = replace(&mut f, second, &json!({}), Precondition::None);
    assert_eq!(taken, Err(CatalogRefusal::Conflict));
    let never = replace(&mut f, second, &json!({ "id": "r" }), Precondition::IfMatch(None));
    assert_eq!(never, Err(CatalogRefusal::PreconditionFailed));
    let all = json!({ "id": "r", "permissionMode": "All" });
    replace(&mut f, second, &all, Precondition::None).unwrap();
    let state = f.catalog.state();
    assert_eq!(state.permission_named(user, "r").unwrap().mode, PermissionMode::All);
    assert!(state.permission_named(user, "q").is_none());
    assert_eq!(state.permission(first).unwrap().mode, PermissionMode::Read);
    f.reopen();
}

#[test]
fn an_upsert_creates_a_permission_once() {
    let mut f = Fixture::with_container();
    let user = f.new_user("u");
    let upsert = |f: &mut Fixture, mode: &str| {
        let definition = permission(&json!({ "permissionMode": mode }));
        let if_taken = IfTaken::Replace;
        f.change(UserChange::CreatePermission { user, definition, if_taken })
    };
    assert!(matches!(upsert(&mut f, "Read"), Ok(Created::Permission(_))));
    assert_eq!(upsert(&mut f, "All"), Ok(Created::Nothing));
    assert_eq!(f.catalog.state().permissions(user).count(), 1);
    assert_eq!(f.catalog.state().permission_named(user, "p").unwrap().mode, PermissionMode::All);
}

#[test]
fn a_deleted_permission_is_gone() {
    let mut f = Fixture::with_container();
    let user = f.new_user("u");
    let permission = f.new_permission(user, &json!({}));
    let delete = |f: &mut Fixture, precondition| {
        f.change(UserChange::DeletePermission { permission, precondition })
    };
    let never = Precondition::IfMatch(None);
    assert_eq!(delete(&mut f, never), Err(CatalogRefusal::PreconditionFailed));
    delete(&mut f, Precondition::None).unwrap();
    assert_eq!(delete(&mut f, Precondition::None), Err(CatalogRefusal::NotFound));
    f.reopen();
}

#[test]
fn links_become_numbers_when_the_permission_is_made() {
    let mut f = Fixture::with_container();
    let user = f.new_user("u");
    let (database, container) = (ResourceId::Database(DATABASE), ResourceId::Container(CONTAINER));
    let item = ItemNumber::new(7, Lsn(1), 0);
    let item_rid = ResourceId::item(CONTAINER, item);
    let named = |id: &str| ScopePart::ItemNamed(ItemId::try_from(id.to_string()).unwrap());
    for (name, (resource, part)) in (0..).zip([
        ("dbs/db/colls/c".to_string(), ScopePart::Whole),
        ("dbs/db/colls/c/docs/i".to_string(), named("i")),
        (
            "dbs/db/colls/c/udfs/f".to_string(),
            ScopePart::Script(ScriptKind::UserDefinedFunction, resource_name("f")),
        ),
        (format!("dbs/{database}/colls/{container}"), ScopePart::Whole),
        (
            format!("dbs/{database}/colls/{container}/docs/{item_rid}"),
            ScopePart::ItemNumbered(item),
        ),
        // A name that looks like a `_rid` is a name.
        (format!("dbs/db/colls/c/docs/{item_rid}"), named(&item_rid.to_string())),
    ]) {
        let extra = json!({ "id": format!("p{name}"), "resource": resource });
        let permission = f.new_permission(user, &extra);
        let expected = Scope { container: CONTAINER, part };
        assert_eq!(f.scope(permission), expected, "{resource}");
    }
    for nobody in ["dbs/none/colls/c", "dbs/db/colls/none", "dbs/db/colls/none/docs/i"] {
        let refused = f.permit(user, &json!({ "id": "x", "resource": nobody }));
        assert_eq!(refused, Err(CatalogRefusal::NotFound), "{nobody}");
    }
    f.reopen();
}

#[test]
fn a_grant_does_not_pass_to_a_container_that_takes_the_name() {
    let mut f = Fixture::with_container();
    let user = f.new_user("u");
    let permission = f.new_permission(user, &json!({ "resourcePartitionKey": ["a"] }));
    let (container, precondition) = (CONTAINER, Precondition::None);
    f.apply(CatalogCommand::DeleteContainer { container, precondition }).unwrap();
    f.create_container("c", 1).unwrap();
    let namesake = f.catalog.state().container_named(DATABASE, "c").unwrap().number;
    assert_ne!(f.scope(permission).container, namesake);
    let key = f.catalog.state().permission(permission).unwrap().partition_key.clone();
    assert_eq!(key, Some(PartitionKey::parse(r#"["a"]"#).unwrap()));
    f.reopen();
}
