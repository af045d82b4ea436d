//! Names and numbers of things: nodes, groups, databases, containers, items, and the resource ids
//! (`_rid`), links (`_self`) and entity tags Cosmos clients see.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use crate::keycode::MalformedKey;

/// A server process with one data directory, numbered by its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// A Raft group. Group 0 is the catalog; every other group is one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId(pub u64);

impl GroupId {
    /// The group that replicates the catalog.
    pub const CATALOG: GroupId = GroupId(0);
}

/// One node's copy of one group. A node that lost its disk comes back as a new replica with a
/// higher incarnation, because Raft must never see an old member with an empty log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaId {
    /// Where the copy lives.
    pub node: NodeId,
    /// Which copy on that node, counted by the catalog.
    pub incarnation: u32,
}

impl ReplicaId {
    /// The number Raft knows this replica by.
    pub fn as_u64(self) -> u64 {
        (u64::from(self.node.0) << 32) | u64::from(self.incarnation)
    }

    /// The replica behind a Raft member number.
    pub fn from_u64(number: u64) -> Self {
        let node = NodeId(u32::try_from(number >> 32).expect("32 bits remain after the shift"));
        let incarnation = u32::try_from(number & 0xFFFF_FFFF).expect("masked to 32 bits");
        Self { node, incarnation }
    }
}

/// A position in a group's log that changed its state: what Cosmos calls the LSN.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Lsn(pub u64);

/// The number of a database, unique in the account and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DatabaseNumber(pub u32);

/// The number of a container: its database's and its own, never reused within the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContainerNumber {
    /// The database that holds the container.
    pub database: DatabaseNumber,
    /// The container's number within it; the top bit is always clear.
    pub number: u32,
}

/// The number of a user: its database's and its own, never reused within the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UserNumber {
    /// The database that holds the user.
    pub database: DatabaseNumber,
    /// The user's number within it; the top bit is always clear.
    pub number: u32,
}

/// The number of a permission: its user's and its own, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PermissionNumber {
    /// Whose permission it is.
    pub user: UserNumber,
    /// The permission's number.
    pub number: u32,
}

/// The number of an item within its container, never reused: the write that created it, by log entry and operation,
/// and in the lowest byte its slot. So the numbers of a partition grow with the age of its items, index entries of
/// equal values come in order, and the feed leads to an item that was written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ItemNumber(pub u64);

/// A partition key range as clients know it: `"0"`, `"1"`, … Never reused within a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RangeId(pub u32);

/// Bit that tells the container part of a resource id from that of a user.
const CONTAINER_BIT: u32 = 1 << 31;
/// The nibble of a child number that tells what kind of resource it is.
const CHILD_KIND_SHIFT: u32 = 60;
/// Bits of an item number, from above: the log entry, the operation, the slot.
const ITEM_LSN_BITS: u32 = 45;
const ITEM_OPERATION_BITS: u32 = 7;

/// What lives directly below a container, told apart by the top nibble of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildKind {
    /// An item.
    Item,
    /// A partition key range.
    Range,
    /// A stored procedure, trigger or user-defined function.
    Script,
}

impl ChildKind {
    fn nibble(self) -> u64 {
        match self {
            ChildKind::Item => 0,
            ChildKind::Range => 5,
            ChildKind::Script => 8,
        }
    }
}

impl ItemNumber {
    /// Behind every number there can be.
    pub const MAX: ItemNumber =
        ItemNumber((1 << (ITEM_LSN_BITS + ITEM_OPERATION_BITS + u8::BITS)) - 1);

    /// So many operations of one log entry can create items.
    pub const OPERATIONS_MAX: usize = 1 << ITEM_OPERATION_BITS;

    /// The item in `slot` that this operation of a log entry creates.
    pub fn new(slot: u8, lsn: Lsn, operation: u16) -> Self {
        Self::checked(slot, lsn, operation)
            .expect("a log has less than 2^45 entries of few operations")
    }

    /// The same of what was stored; none if no log entry is or has that.
    pub(crate) fn checked(slot: u8, lsn: Lsn, operation: u16) -> Option<Self> {
        let is_possible =
            lsn.0 < 1 << ITEM_LSN_BITS && usize::from(operation) < Self::OPERATIONS_MAX;
        let ordinal = (lsn.0 << ITEM_OPERATION_BITS) | u64::from(operation);
        is_possible.then_some(Self((ordinal << u8::BITS) | u64::from(slot)))
    }

    /// The number that a key ends with.
    pub(crate) fn at_end_of(key: &[u8]) -> Result<Self, MalformedKey> {
        let number = key.last_chunk().ok_or(MalformedKey("it ends too early"))?;
        Ok(Self(u64::from_be_bytes(*number)))
    }

    /// The slot of the hash space the item lives in.
    pub fn slot(self) -> u8 {
        u8::try_from(self.0 & 0xFF).expect("masked to 8 bits")
    }

    /// Log entry and operation as one number: later items of a partition have a greater one.
    pub fn ordinal(self) -> u64 {
        self.0 >> u8::BITS
    }

    /// The log entry that created it, and the operation within it.
    pub fn creation(self) -> (Lsn, u16) {
        let operation = self.ordinal() % (1 << ITEM_OPERATION_BITS);
        let operation = u16::try_from(operation).expect("it has 7 bits");
        (Lsn(self.ordinal() >> ITEM_OPERATION_BITS), operation)
    }
}

impl UserNumber {
    /// The eight bytes of its `_rid`.
    pub fn to_bytes(self) -> [u8; 8] {
        assert!(self.number & CONTAINER_BIT == 0, "the top bit is that of containers");
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.database.0.to_be_bytes());
        bytes[4..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }
}

impl ContainerNumber {
    /// The eight bytes that start every key of this container, in the engine and in its `_rid`.
    pub fn to_bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.database.0.to_be_bytes());
        bytes[4..].copy_from_slice(&(self.number | CONTAINER_BIT).to_be_bytes());
        bytes
    }
}

/// A resource id: how Cosmos names a resource independently of what users call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceId {
    /// Four bytes.
    Database(DatabaseNumber),
    /// Eight bytes.
    Container(ContainerNumber),
    /// Sixteen bytes; the number's top nibble is the child's kind.
    Child(ContainerNumber, u64),
    /// Eight bytes.
    User(UserNumber),
    /// Sixteen bytes.
    Permission(PermissionNumber),
}

/// Text that is not a resource id.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("not a resource id")]
pub struct NotAResourceId;

impl ResourceId {
    /// The id of an item.
    pub fn item(container: ContainerNumber, item: ItemNumber) -> Self {
        ResourceId::Child(container, item.0)
    }

    /// The id of a child that is not an item.
    pub fn child(container: ContainerNumber, kind: ChildKind, number: u64) -> Self {
        ResourceId::Child(container, (kind.nibble() << CHILD_KIND_SHIFT) | number)
    }

    /// Parses base64 with `-` for `/`, as it stands in links.
    pub fn parse(text: &str) -> Result<Self, NotAResourceId> {
        let bytes = STANDARD.decode(text.replace('-', "/")).map_err(|_| NotAResourceId)?;
        let word = |at: usize| {
            bytes[at..at + 4].iter().fold(0_u32, |number, byte| (number << 8) | u32::from(*byte))
        };
        match bytes.len() {
            4 => Ok(ResourceId::Database(DatabaseNumber(word(0)))),
            8 | 16 => Self::below_database(
                DatabaseNumber(word(0)),
                word(4),
                bytes[8..].try_into().ok().map(u64::from_le_bytes),
            ),
            _ => Err(NotAResourceId),
        }
    }

    /// A container or a user, or what it holds.
    fn below_database(
        database: DatabaseNumber,
        number: u32,
        child: Option<u64>,
    ) -> Result<Self, NotAResourceId> {
        if number & CONTAINER_BIT == 0 {
            let user = UserNumber { database, number };
            let Some(child) = child else { return Ok(ResourceId::User(user)) };
            let number = u32::try_from(child).map_err(|_| NotAResourceId)?;
            return Ok(ResourceId::Permission(PermissionNumber { user, number }));
        }
        let container = ContainerNumber { database, number: number & !CONTAINER_BIT };
        Ok(match child {
            None => ResourceId::Container(container),
            Some(child) => ResourceId::Child(container, child),
        })
    }

    /// The item number, if this is an item's id.
    pub fn item_number(self) -> Option<ItemNumber> {
        match self {
            ResourceId::Child(_, number) if number >> CHILD_KIND_SHIFT == 0 => {
                Some(ItemNumber(number))
            }
            ResourceId::Child(..)
            | ResourceId::Database(_)
            | ResourceId::Container(_)
            | ResourceId::User(_)
            | ResourceId::Permission(_) => None,
        }
    }
}

/// Length of the longest resource id as clients see it.
pub const RESOURCE_ID_LENGTH_MAX: usize = 24;

impl ResourceId {
    /// Writes the text that clients see, which `parse` takes.
    pub fn encode(self, text: &mut [u8; RESOURCE_ID_LENGTH_MAX]) -> &str {
        let mut bytes = [0; 16];
        let length = match self {
            ResourceId::Database(database) => {
                bytes[..4].copy_from_slice(&database.0.to_be_bytes());
                4
            }
            ResourceId::Container(container) => {
                bytes[..8].copy_from_slice(&container.to_bytes());
                8
            }
            ResourceId::Child(container, number) => {
                bytes[..8].copy_from_slice(&container.to_bytes());
                bytes[8..].copy_from_slice(&number.to_le_bytes());
                16
            }
            ResourceId::User(user) => {
                bytes[..8].copy_from_slice(&user.to_bytes());
                8
            }
            ResourceId::Permission(PermissionNumber { user, number }) => {
                bytes[..8].copy_from_slice(&user.to_bytes());
                bytes[8..12].copy_from_slice(&number.to_le_bytes());
                16
            }
        };
        let written = STANDARD
            .encode_slice(&bytes[..length], text)
            .expect("24 characters hold 16 bytes in base64");
        for byte in &mut text[..written] {
            if *byte == b'/' {
                *byte = b'-';
            }
        }
        std::str::from_utf8(&text[..written]).expect("base64 is ASCII")
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.encode(&mut [0; RESOURCE_ID_LENGTH_MAX]))
    }
}

/// `_self` of a database.
pub fn database_link(database: DatabaseNumber) -> String {
    format!("dbs/{}/", ResourceId::Database(database))
}

/// `_self` of a container.
pub fn container_link(container: ContainerNumber) -> String {
    format!(
        "dbs/{}/colls/{}/",
        ResourceId::Database(container.database),
        ResourceId::Container(container)
    )
}

/// `_self` of a user.
pub fn user_link(user: UserNumber) -> String {
    let (database, user) = (ResourceId::Database(user.database), ResourceId::User(user));
    format!("dbs/{database}/users/{user}/")
}

/// `_self` of a permission.
pub fn permission_link(permission: PermissionNumber) -> String {
    let id = ResourceId::Permission(permission);
    format!("{}permissions/{id}/", user_link(permission.user))
}

/// An entity tag: new on every write, compared as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Etag(pub u128);

/// Length of an etag as clients see it: a GUID in double quotes.
pub const ETAG_LENGTH: usize = 38;

impl Etag {
    /// The tag of the `operation`-th write of one log entry of one group: unique without chance.
    pub fn new(group: GroupId, lsn: Lsn, operation: u16) -> Self {
        let group = u128::from(group.0 & 0xFFFF_FFFF_FFFF);
        Self((group << 80) | (u128::from(operation) << 64) | u128::from(lsn.0))
    }

    /// Writes the quoted form.
    pub fn encode(self, text: &mut [u8; ETAG_LENGTH]) -> &str {
        text.fill(b'"');
        Uuid::from_u128(self.0).hyphenated().encode_lower(&mut text[1..]);
        std::str::from_utf8(text).expect("a GUID in quotes is ASCII")
    }

    /// Parses the quoted form. `None` for anything else, which then simply matches nothing.
    pub fn parse(text: &str) -> Option<Self> {
        let inner = text.strip_prefix('"')?.strip_suffix('"')?;
        if inner.len() != ETAG_LENGTH - 2 {
            return None;
        }
        let mut number = 0_u128;
        for (at, byte) in inner.bytes().enumerate() {
            if matches!(at, 8 | 13 | 18 | 23) {
                if byte != b'-' {
                    return None;
                }
                continue;
            }
            let digit = char::from(byte).to_digit(16)?;
            number = (number << 4) | u128::from(digit);
        }
        Some(Self(number))
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.encode(&mut [0; ETAG_LENGTH]))
    }
}

/// The name of a database, container, script, user or permission: what stands in a URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceName(String);

/// The `id` of an item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ItemId(String);

/// Longest name of a database or container, in characters, as in Azure.
pub const RESOURCE_NAME_CHARS_MAX: usize = 255;
/// Longest `id` of an item, in UTF-8 bytes, as in Azure.
pub const ITEM_ID_BYTES_MAX: usize = 1023;

/// What Azure tells whoever names a resource too short or too long, to the letter.
const NAME_ADVICE: &str = "Ensure to provide a unique non-empty string less than '255' characters";
/// The same of items.
const ITEM_ID_ADVICE: &str =
    "Ensure to provide a unique non-empty string less than '1024' characters";

/// Why a name or id was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidName {
    /// Nothing was there.
    #[error("the id is empty. {advice}")]
    Empty {
        /// What to do instead.
        advice: &'static str,
    },
    /// More than the limit.
    #[error("the id is longer than {limit} {unit}. {advice}")]
    TooLong {
        /// The most that is allowed.
        limit: usize,
        /// What is counted.
        unit: &'static str,
        /// What to do instead.
        advice: &'static str,
    },
    /// One of `/ \ ? #` or a control character.
    #[error("the id contains the character {0:?}, which is not allowed")]
    Character(char),
    /// Azure and its SDKs refuse these.
    #[error("the id ends with a space")]
    TrailingSpace,
}

fn forbidden_in_name(c: char) -> bool {
    matches!(c, '/' | '\\' | '?' | '#' | '\t' | '\r' | '\n' | '\0')
}

impl TryFrom<String> for ResourceName {
    type Error = InvalidName;

    fn try_from(name: String) -> Result<Self, InvalidName> {
        if name.is_empty() {
            return Err(InvalidName::Empty { advice: NAME_ADVICE });
        }
        if name.chars().count() > RESOURCE_NAME_CHARS_MAX {
            return Err(InvalidName::TooLong {
                limit: RESOURCE_NAME_CHARS_MAX,
                unit: "characters",
                advice: NAME_ADVICE,
            });
        }
        if let Some(c) = name.chars().find(|c| forbidden_in_name(*c)) {
            return Err(InvalidName::Character(c));
        }
        if name.ends_with(' ') {
            return Err(InvalidName::TrailingSpace);
        }
        Ok(Self(name))
    }
}

impl TryFrom<String> for ItemId {
    type Error = InvalidName;

    /// Items may be named more freely than containers: only emptiness, length and the characters
    /// that could never be addressed in a URL path are refused.
    fn try_from(id: String) -> Result<Self, InvalidName> {
        if id.is_empty() {
            return Err(InvalidName::Empty { advice: ITEM_ID_ADVICE });
        }
        if id.len() > ITEM_ID_BYTES_MAX {
            return Err(InvalidName::TooLong {
                limit: ITEM_ID_BYTES_MAX,
                unit: "bytes",
                advice: ITEM_ID_ADVICE,
            });
        }
        if let Some(c) = id.chars().find(|c| matches!(c, '/' | '\\' | '?' | '#')) {
            return Err(InvalidName::Character(c));
        }
        Ok(Self(id))
    }
}

macro_rules! text_type {
    ($type:ty) => {
        impl $type {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_type!(ResourceName);
text_type!(ItemId);

macro_rules! display_number {
    ($($type:ty),*) => {
        $(impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        })*
    };
}

display_number!(NodeId, GroupId, Lsn, RangeId);

impl From<u64> for ReplicaId {
    fn from(number: u64) -> Self {
        Self::from_u64(number)
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTAINER: ContainerNumber =
        ContainerNumber { database: DatabaseNumber(0x4A7C_4F00), number: 0x6336_55F3 };
    const USER: UserNumber = UserNumber { database: DatabaseNumber(0x4A7C_4F00), number: 9 };

    #[test]
    fn resource_ids_match_the_published_samples() {
        let database = ResourceId::Database(CONTAINER.database);
        assert_eq!(database.to_string(), "SnxPAA==");
        assert_eq!(ResourceId::Container(CONTAINER).to_string(), "SnxPAOM2VfM=");
        let first = ResourceId::item(CONTAINER, ItemNumber(1));
        assert_eq!(first.to_string(), "SnxPAOM2VfMBAAAAAAAAAA==");
    }

    #[test]
    fn resource_ids_survive_the_round_trip() {
        let ids = [
            ResourceId::Database(DatabaseNumber(u32::MAX)),
            ResourceId::Container(CONTAINER),
            ResourceId::item(CONTAINER, ItemNumber::new(0xFF, Lsn(7), 1)),
            ResourceId::child(CONTAINER, ChildKind::Script, 3),
            ResourceId::User(USER),
            ResourceId::Permission(PermissionNumber { user: USER, number: u32::MAX }),
        ];
        for id in ids {
            let text = id.to_string();
            assert!(!text.contains('/'), "a rid stands in a URL path: {text}");
            assert_eq!(ResourceId::parse(&text), Ok(id));
        }
    }

    #[test]
    fn names_are_not_resource_ids() {
        let no_permission = "SnxPAAAAAAkBAAAAAAAAgA==";
        for name in ["", "db", "my-database", "SnxPAAAA", no_permission, "====", "é"] {
            assert_eq!(ResourceId::parse(name), Err(NotAResourceId), "{name}");
        }
    }

    #[test]
    fn only_items_have_item_numbers() {
        let number = ItemNumber::new(9, Lsn(42), 127);
        assert_eq!((number.slot(), number.creation()), (9, (Lsn(42), 127)));
        let later = [ItemNumber::new(0, Lsn(43), 0), ItemNumber::new(0, Lsn(43), 1)];
        assert!(number < later[0] && later[0] < later[1] && later[1] < ItemNumber::MAX);
        assert_eq!(ResourceId::item(CONTAINER, number).item_number(), Some(number));
        assert_eq!(ResourceId::child(CONTAINER, ChildKind::Range, 1).item_number(), None);
    }

    #[test]
    fn etags_parse_what_they_print_and_nothing_else() {
        let etag = Etag::new(GroupId(7), Lsn(0xDEAD_BEEF), 3);
        let text = etag.to_string();
        assert_eq!(text, "\"00000000-0007-0003-0000-0000deadbeef\"");
        assert_eq!(text.len(), ETAG_LENGTH);
        assert_eq!(Etag::parse(&text), Some(etag));
        for wrong in ["", "*", "\"\"", &text[1..], "\"00000000_0007-0003-0000-0000deadbeef\""] {
            assert_eq!(Etag::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn names_refuse_what_cannot_stand_in_a_url() {
        let name = |text: &str| ResourceName::try_from(text.to_string());
        assert!(name(" begins with a space").is_ok());
        assert_eq!(name("ends "), Err(InvalidName::TrailingSpace));
        assert_eq!(name("a/b"), Err(InvalidName::Character('/')));
        assert_eq!(name(""), Err(InvalidName::Empty { advice: NAME_ADVICE }));
        assert!(name(&"ü".repeat(255)).is_ok());
        assert!(name(&"ü".repeat(256)).is_err());
        assert!(ItemId::try_from("x".repeat(1023)).is_ok());
        assert!(ItemId::try_from("ü".repeat(512)).is_err());
    }

    #[test]
    fn replica_numbers_carry_their_node() {
        let replica = ReplicaId { node: NodeId(3), incarnation: 9 };
        assert_eq!(ReplicaId::from_u64(replica.as_u64()), replica);
        assert_eq!(replica.to_string(), "3.9");
    }
}
