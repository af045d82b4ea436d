//! Items as the engine holds them: their keys, and the stamp of fixed length that goes before every body.

use std::num::NonZeroU32;

use bytes::{Buf as _, Bytes};
use serde::{Deserialize, Serialize};

use crate::engine::{Fault, KeyRange, Table};
use crate::ids::{
    ContainerNumber, ETAG_LENGTH, Etag, ItemId, ItemNumber, Lsn, RESOURCE_ID_LENGTH_MAX, ResourceId,
};
use crate::keycode::{self, KeyReader, MalformedKey};
use crate::partition_key::{Epk, PartitionKey, Place, SlotRange};
use crate::time::Seconds;
use crate::ttl::ItemTtl;

/// Where an item stands within its container: slot, EPK, partition key value, id, in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ItemKey(#[serde(with = "serde_bytes")] Vec<u8>);

/// What the keys of all items with one partition key value begin with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogicalPartition(#[serde(with = "serde_bytes")] Vec<u8>);

impl LogicalPartition {
    /// The logical partition of a complete partition key value.
    pub fn new(place: &Place, key: &PartitionKey) -> Self {
        Self(ItemKey::logical_partition(place, key))
    }

    /// The slot of the hash space.
    pub fn slot(&self) -> u8 {
        *self.0.first().expect("a logical partition starts with its slot")
    }

    /// True if it starts with a slot at all: what a decoder must check.
    pub fn is_valid(&self) -> bool {
        !self.0.is_empty()
    }

    /// The bytes, slot first.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// True for the key of an item in it. Keys are self-delimiting, so none begins with a part of
    /// another.
    pub fn holds(&self, item: &ItemKey) -> bool {
        item.0.starts_with(&self.0)
    }
}

/// An item key taken apart.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemKeyParts {
    /// The effective partition key.
    pub epk: Epk,
    /// The partition key value.
    pub key: PartitionKey,
    /// The id.
    pub id: String,
}

impl ItemKey {
    /// The key of an item.
    pub fn new(place: &Place, key: &PartitionKey, id: &ItemId) -> Self {
        let mut bytes = Self::logical_partition(place, key);
        keycode::put_bytes(&mut bytes, id.as_str().as_bytes());
        Self(bytes)
    }

    /// The common beginning of all keys with this partition key value.
    pub fn logical_partition(place: &Place, key: &PartitionKey) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.push(place.slot);
        keycode::put_bytes(&mut bytes, place.epk.as_bytes());
        key.put(&mut bytes);
        bytes
    }

    /// A key from its bytes, as found in the engine.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MalformedKey> {
        if bytes.is_empty() {
            Err(MalformedKey("an empty item key"))
        } else {
            Ok(Self(bytes.into()))
        }
    }

    /// The slot of the hash space.
    pub fn slot(&self) -> u8 {
        *self.0.first().expect("an item key starts with its slot")
    }

    /// True if the key starts with a slot at all: what a decoder must check.
    pub fn is_valid(&self) -> bool {
        !self.0.is_empty()
    }

    /// The bytes, slot first.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The beginning that it has in common with all keys of its logical partition; `components` is the
    /// number of paths in the container's definition.
    pub fn logical_partition_of(&self, components: usize) -> Result<&[u8], MalformedKey> {
        let mut reader = KeyReader::new(&self.0);
        reader.u8()?;
        reader.bytes()?;
        PartitionKey::read(&mut reader, components)?;
        Ok(&self.0[..self.0.len() - reader.rest().len()])
    }

    /// Takes the key apart; `components` is the number of paths in the container's definition.
    pub fn parts(&self, components: usize) -> Result<ItemKeyParts, MalformedKey> {
        let mut reader = KeyReader::new(&self.0);
        reader.u8()?;
        let epk = Epk::from_bytes(reader.bytes()?);
        let key = PartitionKey::read(&mut reader, components)?;
        let id = reader.text()?;
        if reader.rest().is_empty() {
            Ok(ItemKeyParts { epk, key, id })
        } else {
            Err(MalformedKey("bytes behind the id"))
        }
    }
}

/// What the system keeps beside a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The log entry that wrote this version.
    pub lsn: Lsn,
    /// Which write of that entry it was.
    pub operation: u16,
    /// `_ts`.
    pub ts: Seconds,
    /// What the body says about its time to live.
    pub ttl: ItemTtl,
    /// `_etag`.
    pub etag: Etag,
    /// The item's number: the last part of its `_rid`, kept over replacements.
    pub number: ItemNumber,
    /// How many values the index policy included when this version was written.
    pub indexed_values: u32,
    /// True if its rows, those of the index, too, tell where the sweeper comes upon it: they go by themselves once
    /// it did. So it is if the version was to expire when it was written, and is the first of its item: a later one
    /// leaves most entries of the index as they are, and would have to write them all.
    pub tells_place: bool,
}

/// A stored version of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// What the system keeps.
    pub stamp: Stamp,
    /// What the user wrote, normalised.
    pub body: Bytes,
}

/// First byte of every stored item.
const ITEM_VERSION: u8 = 2;
/// Bytes of a stored stamp, which stands before the body.
pub(crate) const STAMP_BYTES: usize = 52;

const TTL_INHERIT: u8 = 0;
const TTL_NEVER: u8 = 1;
const TTL_OWN: u8 = 2;
/// Beside the kind of the `ttl`.
const TELLS_PLACE: u8 = 0x80;

fn ttl_code(ttl: ItemTtl) -> (u8, u32) {
    match ttl {
        ItemTtl::Inherit => (TTL_INHERIT, 0),
        ItemTtl::Never => (TTL_NEVER, 0),
        ItemTtl::Own(seconds) => (TTL_OWN, seconds.get()),
    }
}

fn ttl_from_code(code: u8, seconds: u32) -> Result<ItemTtl, MalformedKey> {
    match (code, NonZeroU32::new(seconds)) {
        (TTL_INHERIT, None) => Ok(ItemTtl::Inherit),
        (TTL_NEVER, None) => Ok(ItemTtl::Never),
        (TTL_OWN, Some(seconds)) => Ok(ItemTtl::Own(seconds)),
        _ => Err(MalformedKey("an unknown time to live")),
    }
}

fn corrupt_item(error: &MalformedKey) -> Fault {
    Fault::corrupt("items", error)
}

impl Item {
    /// The stored form: version byte, header, body.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(STAMP_BYTES + self.body.len());
        self.put(&mut bytes);
        bytes
    }

    /// Appends the stored form.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        self.stamp.put(bytes);
        bytes.extend_from_slice(&self.body);
    }

    /// Reads the stored form.
    pub fn decode(bytes: Vec<u8>) -> Result<Self, Fault> {
        let stamp = Stamp::decode(&bytes)?;
        let mut body = Bytes::from(bytes);
        body.advance(STAMP_BYTES);
        Ok(Self { stamp, body })
    }

    /// Takes the stored form apart, copying nothing.
    pub fn split(bytes: &[u8]) -> Result<(Stamp, &[u8]), Fault> {
        let mut reader = KeyReader::new(bytes);
        let stamp = Stamp::read(&mut reader).map_err(|error| corrupt_item(&error))?;
        Ok((stamp, reader.rest()))
    }

    /// The item as clients see it: the body with the system properties at its end.
    pub fn to_json(&self, container: ContainerNumber) -> Vec<u8> {
        client_json(&self.body, &self.stamp, container)
    }
}

impl Stamp {
    /// True for an item that was written once: the feed leads to it from its number. To all others a row of
    /// `Table::Numbers` does.
    pub fn is_first(&self) -> bool {
        self.number.creation() == (self.lsn, self.operation)
    }

    /// Reads the header of a stored item, leaving the body alone.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        Self::read(&mut KeyReader::new(bytes)).map_err(|error| corrupt_item(&error))
    }

    /// Appends the stored form.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        let Stamp { lsn, operation, ts, ttl, etag, number, indexed_values, tells_place } = *self;
        let (ttl_code, ttl_seconds) = ttl_code(ttl);
        let ttl_code = if tells_place { ttl_code | TELLS_PLACE } else { ttl_code };
        let start = bytes.len();
        bytes.push(ITEM_VERSION);
        bytes.push(ttl_code);
        bytes.extend_from_slice(&operation.to_be_bytes());
        bytes.extend_from_slice(&ttl_seconds.to_be_bytes());
        bytes.extend_from_slice(&lsn.0.to_be_bytes());
        bytes.extend_from_slice(&ts.0.to_be_bytes());
        bytes.extend_from_slice(&etag.0.to_be_bytes());
        bytes.extend_from_slice(&number.0.to_be_bytes());
        bytes.extend_from_slice(&indexed_values.to_be_bytes());
        assert_eq!(bytes.len() - start, STAMP_BYTES, "the header has a fixed length");
    }

    pub(crate) fn read(reader: &mut KeyReader<'_>) -> Result<Self, MalformedKey> {
        if reader.u8()? != ITEM_VERSION {
            return Err(MalformedKey("an unknown item version"));
        }
        let ttl_code = reader.u8()?;
        let operation = reader.u16()?;
        let tells_place = ttl_code & TELLS_PLACE != 0;
        let ttl = ttl_from_code(ttl_code & !TELLS_PLACE, reader.u32()?)?;
        let lsn = Lsn(reader.u64()?);
        let ts = Seconds(reader.u64()?);
        let etag = Etag((u128::from(reader.u64()?) << 64) | u128::from(reader.u64()?));
        let number = ItemNumber(reader.u64()?);
        let indexed_values = reader.u32()?;
        Ok(Self { lsn, operation, ts, ttl, etag, number, indexed_values, tells_place })
    }
}

/// Room for the system properties of an item, in bytes: a little more than they take.
const SYSTEM_PROPERTIES_ROOM: usize = 256;

/// Splices the system properties into a stored body.
pub fn client_json(body: &[u8], stamp: &Stamp, container: ContainerNumber) -> Vec<u8> {
    let open = body.strip_suffix(b"}").expect("a stored body is a JSON object");
    let comma = if open.len() > 1 { "," } else { "" };
    let [mut database, mut collection, mut rid] = [[0; RESOURCE_ID_LENGTH_MAX]; 3];
    let database = ResourceId::Database(container.database).encode(&mut database);
    let collection = ResourceId::Container(container).encode(&mut collection);
    let rid = ResourceId::item(container, stamp.number).encode(&mut rid);
    let mut etag = [0; ETAG_LENGTH];
    let etag = &stamp.etag.encode(&mut etag)[1..ETAG_LENGTH - 1];
    let mut ts = itoa::Buffer::new();
    let properties = [
        [comma, "\"_rid\":\"", rid],
        ["\",\"_self\":\"dbs/", database, "/colls/"],
        [collection, "/docs/", rid],
        ["/\",\"_etag\":\"\\\"", etag, "\\\"\",\"_attachments\":\"attachments/\""],
        [",\"_ts\":", ts.format(stamp.ts.0), "}"],
    ];
    let mut json = Vec::with_capacity(body.len() + SYSTEM_PROPERTIES_ROOM);
    json.extend_from_slice(open);
    for text in properties.as_flattened() {
        json.extend_from_slice(text.as_bytes());
    }
    json
}

/// Builds the engine keys of one container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerKeys {
    prefix: [u8; 8],
}

impl ContainerKeys {
    /// Keys of this container.
    pub fn new(container: ContainerNumber) -> Self {
        Self { prefix: container.to_bytes() }
    }

    fn key(self, rest: &[u8], extra: usize) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.prefix.len() + rest.len() + extra);
        key.extend_from_slice(&self.prefix);
        key.extend_from_slice(rest);
        key
    }

    /// How many bytes every key begins with before what is the item's own.
    pub fn prefix_bytes(self) -> usize {
        self.prefix.len()
    }

    /// The item's row in `Table::Items`.
    pub fn item(self, key: &ItemKey) -> Vec<u8> {
        self.key(key.as_bytes(), 0)
    }

    /// True for the key of the item's row in `Table::Items`.
    pub(crate) fn is_item(self, row: &[u8], key: &ItemKey) -> bool {
        row.strip_prefix(&self.prefix[..]) == Some(key.as_bytes())
    }

    /// The item key in a key of `Table::Items`.
    pub fn item_of(self, key: &[u8]) -> Result<ItemKey, Fault> {
        ItemKey::from_bytes(self.item_bytes_of(key)?).map_err(|error| corrupt_item(&error))
    }

    /// The bytes of the item key in a key of `Table::Items`.
    pub fn item_bytes_of(self, key: &[u8]) -> Result<&[u8], Fault> {
        let rest = key.strip_prefix(&self.prefix[..]);
        rest.ok_or_else(|| corrupt_item(&MalformedKey("another container")))
    }

    /// The row in `Table::Numbers` that finds an item by its number, if it was written more than once.
    pub fn number(self, number: ItemNumber) -> Vec<u8> {
        let mut key = self.key(&[number.slot()], 8);
        key.extend_from_slice(&number.0.to_be_bytes());
        key
    }

    /// The rows of a run of slots in a table whose keys start with container and slot.
    pub fn slots(self, table: Table, slots: SlotRange) -> KeyRange {
        let bound = |slot: u16| match u8::try_from(slot) {
            Ok(slot) => Some(self.key(&[slot], 0)),
            Err(_) => keycode::prefix_end(&self.prefix),
        };
        let start = bound(slots.start).expect("a run of slots starts inside the hash space");
        KeyRange { table, start, end: bound(slots.end) }
    }

    /// The rows of `Table::Items` of a logical partition.
    pub fn rows_of(self, partition: &LogicalPartition) -> KeyRange {
        KeyRange::prefix(Table::Items, self.key(&partition.0, 0))
    }

    /// The rows of `Table::Items` with this partition key value or prefix of one.
    pub fn logical_partition(self, place: &Place, key: &PartitionKey) -> KeyRange {
        let prefix = self.key(&ItemKey::logical_partition(place, key), 0);
        KeyRange::prefix(Table::Items, prefix)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{DatabaseNumber, GroupId};
    use crate::partition_key::{KeyDefinition, KeyKind};

    pub(crate) fn stamp(ttl: ItemTtl) -> Stamp {
        Stamp {
            lsn: Lsn(7),
            operation: 2,
            ts: Seconds(1_700_000_000),
            ttl,
            etag: Etag::new(GroupId(3), Lsn(7), 2),
            number: ItemNumber::new(200, Lsn(7), 2),
            indexed_values: 5,
            tells_place: ttl != ItemTtl::Never,
        }
    }

    pub(crate) fn key(pk: &str, id: &str) -> ItemKey {
        let definition = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
        let value = PartitionKey::parse(pk).unwrap();
        let id = ItemId::try_from(id.to_string()).unwrap();
        ItemKey::new(&definition.place(&value), &value, &id)
    }

    const CONTAINER: ContainerNumber = ContainerNumber { database: DatabaseNumber(1), number: 2 };

    #[test]
    fn stored_items_are_pinned_to_the_byte() {
        let item = Item {
            stamp: stamp(ItemTtl::Own(NonZeroU32::new(9).unwrap())),
            body: b"{}"[..].into(),
        };
        let golden = [
            &[2, 0x82, 0, 2, 0, 0, 0, 9][..],
            &[0, 0, 0, 0, 0, 0, 0, 7],
            &[0, 0, 0, 0, 0x65, 0x53, 0xF1, 0],
            &[0, 0, 0, 0, 0, 3, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7],
            &[0, 0, 0, 0, 0, 3, 0x82, 200],
            &[0, 0, 0, 5],
            b"{}",
        ]
        .concat();
        assert_eq!(item.encode(), golden);
        assert_eq!(Item::decode(golden).unwrap(), item);
    }

    #[test]
    fn corrupt_items_are_faults() {
        let good = Item { stamp: stamp(ItemTtl::Never), body: b"{}"[..].into() }.encode();
        for cut in 0..STAMP_BYTES {
            assert!(Item::decode(good[..cut].to_vec()).is_err());
        }
        let mut wrong_version = good.clone();
        wrong_version[0] = 9;
        assert!(Item::decode(wrong_version).is_err());
        let mut wrong_ttl = good;
        wrong_ttl[1] = TTL_OWN;
        assert!(Item::decode(wrong_ttl).is_err());
    }

    #[test]
    fn system_properties_stand_at_the_end() {
        let json = client_json(br#"{"id":"a"}"#, &stamp(ItemTtl::Inherit), CONTAINER);
        assert_eq!(
            String::from_utf8(json).unwrap(),
            r#"{"id":"a","_rid":"AAAAAYAAAALIggMAAAAAAA==","_self":"dbs/AAAAAQ==/colls/AAAAAYAAAAI=/docs/AAAAAYAAAALIggMAAAAAAA==/","_etag":"\"00000000-0003-0002-0000-000000000007\"","_attachments":"attachments/","_ts":1700000000}"#
        );
        let empty = client_json(b"{}", &stamp(ItemTtl::Inherit), CONTAINER);
        assert!(serde_json::from_slice::<serde_json::Value>(&empty).is_ok());
    }

    #[test]
    fn slot_ranges_cover_their_slots_in_every_table() {
        let keys = ContainerKeys::new(CONTAINER);
        let item = key(r#"["a"]"#, "1");
        let slot = u16::from(item.slot());
        let inside = SlotRange { start: slot, end: slot + 1 };
        let below = SlotRange { start: 0, end: slot };
        let contains = |range: &KeyRange, key: &[u8]| {
            range.start.as_slice() <= key && range.end.as_ref().is_none_or(|end| key < &end[..])
        };
        let rows = [
            (Table::Items, keys.item(&item)),
            (Table::Numbers, keys.number(ItemNumber::new(item.slot(), Lsn(1), 0))),
        ];
        for (table, row) in rows {
            assert!(contains(&keys.slots(table, inside), &row));
            assert!(contains(&keys.slots(table, SlotRange::ALL), &row));
            assert!(!contains(&keys.slots(table, below), &row));
        }
    }

    #[test]
    fn keys_come_apart_as_they_were_put_together() {
        let item = key(r#"["a\u0000b"]"#, "id\u{1}");
        let parts = item.parts(1).unwrap();
        assert_eq!(
            (parts.id.as_str(), parts.key),
            ("id\u{1}", PartitionKey::parse(r#"["a\u0000b"]"#).unwrap())
        );
        assert!(item.parts(2).is_err());
        let partition = item.logical_partition_of(1).unwrap();
        assert!(key(r#"["a\u0000b"]"#, "other").as_bytes().starts_with(partition));
        assert!(!key(r#"["a"]"#, "id\u{1}").as_bytes().starts_with(partition));
        let keys = ContainerKeys::new(CONTAINER);
        assert_eq!(keys.item_of(&keys.item(&item)).unwrap(), item);
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_panic(bytes: Vec<u8>) {
            let _ = Item::decode(bytes);
        }
    }
}
