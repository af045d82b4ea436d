//! What a permission grants: to read, or to do anything with, a container or a part of one.
//!
//! The definition names the resource by its link. When the permission is created the link is turned
//! into a `Scope` of numbers, which are never reused: who was granted a container is not granted
//! another one that later takes its name.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::state::{CatalogState, ScriptKind};
use crate::ids::{ContainerNumber, InvalidName, ItemId, ItemNumber, ResourceId, ResourceName};
use crate::partition_key::{InvalidKey, PartitionKey};

/// Longest link of a resource, in characters: four of the longest names and what is between them.
const LINK_CHARS_MAX: usize = 2048;

/// What may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PermissionMode {
    /// Read and query.
    Read,
    /// Write and delete, too.
    All,
}

/// What a permission is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    /// The container it is, or is in.
    pub container: ContainerNumber,
    /// How much of it.
    pub part: ScopePart,
}

/// A container or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScopePart {
    /// Everything in it.
    Whole,
    /// The items with an id.
    ItemNamed(ItemId),
    /// The item with a number.
    ItemNumbered(ItemNumber),
    /// A script.
    Script(ScriptKind, ResourceName),
}

/// A permission as a client defines it, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct PermissionDefinition {
    /// Its name.
    pub name: ResourceName,
    /// What may be done.
    pub mode: PermissionMode,
    /// With which resource.
    pub link: ResourceLink,
    /// With which of its items, by their partition key; with all if there is none.
    pub partition_key: Option<PartitionKey>,
    /// The definition, complete, without anything else.
    json: Value,
}

/// The link of a container or of something in it, taken apart: each part is a name or a `_rid`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceLink {
    database: String,
    container: String,
    child: Option<(Child, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Child {
    Item,
    Script(ScriptKind),
}

/// Why a definition was refused.
#[derive(Debug, Error, PartialEq)]
pub enum InvalidPermission {
    /// A property is missing or is no text.
    #[error("'{0}' must be there and must be a string")]
    NotText(&'static str),
    /// The name cannot be one.
    #[error("its 'id' cannot be used: {0}")]
    Name(#[from] InvalidName),
    /// Not one of the two modes.
    #[error("'permissionMode' must be 'Read' or 'All'")]
    Mode,
    /// Not the link of a container, an item or a script.
    #[error(
        "'resource' must be the link of a container, an item or a script, such as \
         dbs/d/colls/c or dbs/d/colls/c/docs/i"
    )]
    Link,
    /// Not a partition key value.
    #[error("'resourcePartitionKey' is no partition key: {0}")]
    Key(#[from] InvalidKey),
    /// The partition key of nothing: requests take it for no key at all.
    #[error("'resourcePartitionKey' must not be empty")]
    EmptyKey,
}

impl PermissionMode {
    /// The name in definitions.
    pub fn name(self) -> &'static str {
        match self {
            PermissionMode::Read => "read",
            PermissionMode::All => "all",
        }
    }

    /// SDKs differ in how they write it.
    fn parse(name: &str) -> Result<Self, InvalidPermission> {
        let known = [PermissionMode::Read, PermissionMode::All];
        let found = known.into_iter().find(|mode| mode.name().eq_ignore_ascii_case(name));
        found.ok_or(InvalidPermission::Mode)
    }
}

impl PermissionDefinition {
    /// Checks a definition; properties it does not know are left out.
    pub fn parse(body: &Value) -> Result<Self, InvalidPermission> {
        let text = |property: &'static str| {
            let text = body.get(property).and_then(Value::as_str);
            text.ok_or(InvalidPermission::NotText(property))
        };
        let name = ResourceName::try_from(text("id")?.to_string())?;
        let mode = PermissionMode::parse(text("permissionMode")?)?;
        let link = text("resource")?;
        let mut json = Map::new();
        json.insert("id".into(), json!(name.as_str()));
        json.insert("permissionMode".into(), json!(mode.name()));
        json.insert("resource".into(), json!(link));
        let key = body.get("resourcePartitionKey").filter(|key| !key.is_null());
        let partition_key = key.map(|key| PartitionKey::parse(&key.to_string())).transpose()?;
        if partition_key.as_ref().is_some_and(|key| key.0.is_empty()) {
            return Err(InvalidPermission::EmptyKey);
        }
        if let Some(key) = key {
            json.insert("resourcePartitionKey".into(), key.clone());
        }
        let (link, json) = (ResourceLink::parse(link)?, Value::Object(json));
        Ok(Self { name, mode, link, partition_key, json })
    }

    /// The definition as it is stored and shown.
    pub fn json(&self) -> &Value {
        &self.json
    }
}

impl ResourceLink {
    fn parse(link: &str) -> Result<Self, InvalidPermission> {
        if link.chars().count() > LINK_CHARS_MAX {
            return Err(InvalidPermission::Link);
        }
        let segments: Vec<&str> = link.trim_matches('/').split('/').collect();
        if segments.iter().any(|segment| segment.is_empty()) {
            return Err(InvalidPermission::Link);
        }
        let (database, container, child) = match segments.as_slice() {
            ["dbs", database, "colls", container] => (database, container, None),
            ["dbs", database, "colls", container, kind, child] => {
                (database, container, Some((Child::parse(kind)?, (*child).to_string())))
            }
            _ => return Err(InvalidPermission::Link),
        };
        let [database, container] = [database, container].map(|segment| (*segment).to_string());
        Ok(Self { database, container, child })
    }

    /// What the link names now; none if a name in it is nobody's. A `_rid` may be of something that
    /// does not exist, and then grants nothing.
    pub fn scope(&self, state: &CatalogState) -> Option<Scope> {
        let (container, by_rid) = self.container(state)?;
        let rid = |text: &str| match ResourceId::parse(text) {
            Ok(ResourceId::Child(owner, _)) if !by_rid || owner != container => None,
            Ok(rid) => rid.item_number(),
            Err(_) => None,
        };
        let part = match &self.child {
            None => ScopePart::Whole,
            Some((Child::Item, text)) => match rid(text) {
                Some(number) => ScopePart::ItemNumbered(number),
                None => ScopePart::ItemNamed(ItemId::try_from(text.clone()).ok()?),
            },
            Some((Child::Script(kind), text)) => {
                ScopePart::Script(*kind, ResourceName::try_from(text.clone()).ok()?)
            }
        };
        Some(Scope { container, part })
    }

    /// The container, and whether it is named by its `_rid`.
    fn container(&self, state: &CatalogState) -> Option<(ContainerNumber, bool)> {
        if let Some(database) = state.database_named(&self.database) {
            let container = state.container_named(database.number, &self.container)?;
            return Some((container.number, false));
        }
        match (ResourceId::parse(&self.database), ResourceId::parse(&self.container)) {
            (Ok(ResourceId::Database(database)), Ok(ResourceId::Container(container)))
                if container.database == database =>
            {
                Some((container, true))
            }
            (Ok(_), Ok(_)) | (Err(_), _) | (_, Err(_)) => None,
        }
    }
}

impl Child {
    fn parse(kind: &str) -> Result<Self, InvalidPermission> {
        match kind {
            "docs" => Ok(Child::Item),
            "sprocs" => Ok(Child::Script(ScriptKind::StoredProcedure)),
            "triggers" => Ok(Child::Script(ScriptKind::Trigger)),
            "udfs" => Ok(Child::Script(ScriptKind::UserDefinedFunction)),
            _ => Err(InvalidPermission::Link),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(extra: &Value) -> Result<PermissionDefinition, InvalidPermission> {
        let mut body = json!({ "id": "p", "permissionMode": "All", "resource": "dbs/d/colls/c" });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        PermissionDefinition::parse(&body)
    }

    #[test]
    fn a_definition_keeps_what_it_knows() {
        let definition = parse(&json!({
            "permissionMode": "Read", "resourcePartitionKey": ["a", 1], "_token": "x", "x": 1,
        }));
        let definition = definition.unwrap();
        let expected = json!({
            "id": "p", "permissionMode": "read", "resource": "dbs/d/colls/c",
            "resourcePartitionKey": ["a", 1],
        });
        assert_eq!(definition.json(), &expected);
        assert_eq!(PermissionDefinition::parse(&expected), Ok(definition));
        assert_eq!(parse(&json!({ "resourcePartitionKey": null })).unwrap().partition_key, None);
    }

    #[test]
    fn modes_are_read_in_any_case() {
        for (name, mode) in [
            ("all", PermissionMode::All),
            ("All", PermissionMode::All),
            ("READ", PermissionMode::Read),
        ] {
            assert_eq!(parse(&json!({ "permissionMode": name })).unwrap().mode, mode);
        }
        for wrong in [json!("none"), json!(""), json!("write")] {
            let result = parse(&json!({ "permissionMode": wrong }));
            assert_eq!(result, Err(InvalidPermission::Mode));
        }
    }

    #[test]
    fn links_lead_into_containers() {
        for good in [
            "dbs/d/colls/c",
            "/dbs/d/colls/c/",
            "dbs/d/colls/c/docs/an item",
            "dbs/colls/colls/docs/docs/dbs",
            "dbs/d/colls/c/sprocs/s",
            "dbs/AQAAAA==/colls/AQAAAJ0fgTc=",
        ] {
            assert!(parse(&json!({ "resource": good })).is_ok(), "{good}");
        }
        let long = format!("dbs/d/colls/{}", "c".repeat(LINK_CHARS_MAX));
        for wrong in [
            "",
            "/",
            "dbs",
            "dbs/d",
            "dbs//colls/c",
            "dbs/d/users/u",
            "dbs/d/colls",
            "dbs/d/colls/c/docs",
            "dbs/d/colls/c/pkranges/0",
            "dbs/d/colls/c/docs/i/attachments/a",
            "offers/o",
            &long,
        ] {
            let result = parse(&json!({ "resource": wrong }));
            assert_eq!(result, Err(InvalidPermission::Link), "{wrong}");
        }
    }

    #[test]
    fn every_part_of_a_definition_is_checked() {
        for property in ["id", "permissionMode", "resource"] {
            let result = parse(&json!({ property: 5 }));
            assert_eq!(result, Err(InvalidPermission::NotText(property)));
        }
        assert!(matches!(parse(&json!({ "id": "a/b" })), Err(InvalidPermission::Name(_))));
        for key in [json!("a"), json!({}), json!([[1]]), json!([{ "a": 1 }])] {
            let result = parse(&json!({ "resourcePartitionKey": key }));
            assert!(matches!(result, Err(InvalidPermission::Key(_))), "{key}");
        }
        let empty = parse(&json!({ "resourcePartitionKey": [] }));
        assert_eq!(empty, Err(InvalidPermission::EmptyKey));
        for body in [json!(null), json!([]), json!("p")] {
            assert!(PermissionDefinition::parse(&body).is_err(), "{body}");
        }
    }
}
