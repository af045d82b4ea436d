//! The two orders in which items die, and what their rows say: the feed, by last write, for those that
//! inherit the default, and the order of expiry, for those with their own `ttl`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::engine::{Fault, KeyRange, Table};
use crate::ids::{GroupId, ItemNumber, Lsn};
use crate::item::{Item, ItemKey, Stamp};
use crate::keycode::{KeyReader, MalformedKey};
use crate::time::Seconds;
use crate::ttl::ItemTtl;

/// A place in a feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FeedPosition {
    /// The log entry.
    pub lsn: Lsn,
    /// The write within it.
    pub operation: u16,
}

impl FeedPosition {
    /// Before everything that this entry did.
    pub fn start_of(lsn: Lsn) -> Self {
        Self { lsn, operation: 0 }
    }

    /// Behind everything that this entry did.
    pub fn end_of(lsn: Lsn) -> Self {
        Self { lsn, operation: u16::MAX }
    }

    /// The last place before this one; none before the first.
    pub(crate) fn before(self) -> Option<Self> {
        let Self { lsn, operation } = self;
        match operation.checked_sub(1) {
            Some(operation) => Some(Self { lsn, operation }),
            None => lsn.0.checked_sub(1).map(|lsn| Self::end_of(Lsn(lsn))),
        }
    }

    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once('.') {
            None => Some(Self::end_of(Lsn(text.parse().ok()?))),
            Some((lsn, operation)) => {
                Some(Self { lsn: Lsn(lsn.parse().ok()?), operation: operation.parse().ok()? })
            }
        }
    }

    /// Where a version stands in the feed.
    pub fn of(stamp: &Stamp) -> Self {
        Self { lsn: stamp.lsn, operation: stamp.operation }
    }

    /// Where the first version of an item stood.
    pub fn of_first(number: ItemNumber) -> Self {
        let (lsn, operation) = number.creation();
        Self { lsn, operation }
    }
}

impl fmt::Display for FeedPosition {
    /// `7`, or `7.2` for a place inside the entry 7.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lsn, operation } = self;
        if *operation == u16::MAX { write!(f, "{lsn}") } else { write!(f, "{lsn}.{operation}") }
    }
}

/// The rows of a feed.
pub fn feed_rows(feed: GroupId) -> KeyRange {
    KeyRange::prefix(Table::Feed, feed.0.to_be_bytes().to_vec())
}

/// The key of a feed row.
pub fn feed_key(feed: GroupId, position: FeedPosition) -> [u8; 18] {
    let mut key = [0; 18];
    key[..8].copy_from_slice(&feed.0.to_be_bytes());
    key[8..16].copy_from_slice(&position.lsn.0.to_be_bytes());
    key[16..].copy_from_slice(&position.operation.to_be_bytes());
    key
}

/// The position in a feed key.
pub fn feed_position(key: &[u8]) -> Result<FeedPosition, Fault> {
    let parse = || {
        let mut reader = KeyReader::new(key);
        reader.u64()?;
        Ok(FeedPosition { lsn: Lsn(reader.u64()?), operation: reader.u16()? })
    };
    parse().map_err(|error: MalformedKey| Fault::corrupt("feed", error))
}

/// A place in the order in which items with their own `ttl` die: by second, then by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OwnExpiry {
    /// The second.
    pub second: Seconds,
    /// The item.
    pub number: ItemNumber,
}

impl OwnExpiry {
    /// When and where an item with its own `ttl` dies; none for all others.
    pub fn of(stamp: &Stamp) -> Option<Self> {
        match stamp.ttl {
            ItemTtl::Own(seconds) => {
                Some(Self { second: stamp.ts.plus(seconds.get()), number: stamp.number })
            }
            ItemTtl::Inherit | ItemTtl::Never => None,
        }
    }

    /// Behind every item that expires in this second.
    pub fn end_of(second: Seconds) -> Self {
        Self { second, number: ItemNumber::MAX }
    }
}

/// The key in `Table::Expiry` of an item with its own time to live; it leads to the item's key.
pub fn expiry_key(group: GroupId, expiry: OwnExpiry) -> [u8; 24] {
    let mut key = [0; 24];
    key[..8].copy_from_slice(&group.0.to_be_bytes());
    key[8..16].copy_from_slice(&expiry.second.0.to_be_bytes());
    key[16..].copy_from_slice(&expiry.number.0.to_be_bytes());
    key
}

/// The place in a key of `Table::Expiry`.
pub fn expiry_place(key: &[u8]) -> Result<OwnExpiry, Fault> {
    let parse = || {
        let mut reader = KeyReader::new(key);
        reader.u64()?;
        Ok(OwnExpiry { second: Seconds(reader.u64()?), number: ItemNumber(reader.u64()?) })
    };
    parse().map_err(|error: MalformedKey| Fault::corrupt("expiry", error))
}

/// Where the sweeper comes upon a version, if it expires: in the order of expiry, or in the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepPlace {
    /// It has its own `ttl`.
    Own(OwnExpiry),
    /// It inherits the default.
    Inheriting(FeedPosition),
}

const PLACE_OWN: u8 = 1;
const PLACE_INHERITING: u8 = 2;

impl SweepPlace {
    fn of(stamp: &Stamp) -> Option<Self> {
        match stamp.ttl {
            ItemTtl::Never => None,
            ItemTtl::Own(_) => OwnExpiry::of(stamp).map(SweepPlace::Own),
            ItemTtl::Inherit => Some(SweepPlace::Inheriting(FeedPosition::of(stamp))),
        }
    }

    /// That of a version whose rows tell it.
    pub(crate) fn told_by(stamp: &Stamp) -> Option<Self> {
        SweepPlace::of(stamp).filter(|_| stamp.tells_place)
    }

    /// What the index entries of a version hold: its place, if they tell it, without what the item's number in
    /// their keys says.
    ///
    /// | byte 0 | then |
    /// |---|---|
    /// | none | nothing: the entry goes when its item does |
    /// | 1 | the second of its expiry, big-endian, without the zeros it begins with |
    /// | 2 | nothing: the feed has it where the number says |
    pub fn in_entries_of(stamp: &Stamp) -> Vec<u8> {
        match SweepPlace::told_by(stamp) {
            None => Vec::new(),
            Some(SweepPlace::Own(expiry)) => {
                let mut bytes = vec![PLACE_OWN];
                put_trimmed(&mut bytes, expiry.second.0);
                bytes
            }
            Some(SweepPlace::Inheriting(_)) => vec![PLACE_INHERITING],
        }
    }

    /// Reads what an entry of the item with this number holds; none if it tells no place.
    pub fn in_entry(value: &[u8], number: ItemNumber) -> Result<Option<Self>, MalformedKey> {
        Ok(match value {
            [] => None,
            [PLACE_OWN, second @ ..] => {
                let second = Seconds(trimmed(second)?);
                Some(SweepPlace::Own(OwnExpiry { second, number }))
            }
            [PLACE_INHERITING] => Some(SweepPlace::Inheriting(FeedPosition::of_first(number))),
            _ => return Err(MalformedKey("an unknown place")),
        })
    }
}

fn put_trimmed(bytes: &mut Vec<u8>, number: u64) {
    let zeros = number.leading_zeros() as usize / 8;
    bytes.extend_from_slice(&number.to_be_bytes()[zeros..]);
}

fn trimmed(bytes: &[u8]) -> Result<u64, MalformedKey> {
    let mut number = [0; 8];
    let start = number.len().checked_sub(bytes.len()).ok_or(MalformedKey("a number too long"))?;
    number[start..].copy_from_slice(bytes);
    Ok(u64::from_be_bytes(number))
}

/// What a row of `Table::Feed` or `Table::Expiry` says of an item's version: enough to charge for it
/// and to remove it unread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionRow {
    /// The version's stamp.
    pub stamp: Stamp,
    /// Bytes of its body.
    pub body_bytes: u32,
    /// The item.
    pub item: ItemKey,
}

impl VersionRow {
    /// The row of a version.
    pub fn new(key: &ItemKey, version: &Item) -> Self {
        Self { stamp: version.stamp, body_bytes: body_bytes(version), item: key.clone() }
    }

    /// Appends the stored form of a version's row: the stamp as in the item, the length of the body, the item's key.
    pub(crate) fn put(key: &ItemKey, version: &Item, bytes: &mut Vec<u8>) {
        version.stamp.put(bytes);
        bytes.extend_from_slice(&body_bytes(version).to_be_bytes());
        bytes.extend_from_slice(key.as_bytes());
    }

    /// Reads a row.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        VersionRef::read(bytes)?.to_row()
    }
}

/// The same, lent.
pub(crate) struct VersionRef<'a> {
    pub(crate) stamp: Stamp,
    pub(crate) body_bytes: u32,
    /// The bytes of the item's key.
    pub(crate) item: &'a [u8],
}

impl<'a> VersionRef<'a> {
    /// Reads a row.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, Fault> {
        let parse = || {
            let mut reader = KeyReader::new(bytes);
            let stamp = Stamp::read(&mut reader)?;
            let (body_bytes, item) = (reader.u32()?, reader.rest());
            if item.is_empty() {
                return Err(MalformedKey("a row without its item"));
            }
            Ok(Self { stamp, body_bytes, item })
        };
        parse().map_err(malformed)
    }

    /// The row for itself.
    pub(crate) fn to_row(&self) -> Result<VersionRow, Fault> {
        let &Self { stamp, body_bytes, item } = self;
        Ok(VersionRow { stamp, body_bytes, item: ItemKey::from_bytes(item).map_err(malformed)? })
    }
}

fn malformed(error: MalformedKey) -> Fault {
    Fault::corrupt("feed", error)
}

fn body_bytes(version: &Item) -> u32 {
    u32::try_from(version.body.len()).expect("a body has a few megabytes")
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;
    use crate::item::tests::{key, stamp};

    #[test]
    fn a_row_that_was_cut_before_its_item_is_damage() {
        let (item, mut row) = (key("[1]", "x"), Vec::new());
        let version = Item { stamp: stamp(ItemTtl::Inherit), body: vec![0; 7].into() };
        VersionRow::put(&item, &version, &mut row);
        let without_item = row.len() - item.as_bytes().len();
        assert!(VersionRef::read(&row).is_ok());
        for cut in [without_item, without_item - 1, 0] {
            let read = VersionRef::read(&row[..cut]);
            assert!(matches!(read.err(), Some(Fault::Corrupt { .. })), "{cut} bytes");
        }
    }

    proptest! {
        #[test]
        fn feed_rows_survive_the_round_trip_in_lsn_order(a: (u64, u16), b: (u64, u16)) {
            let position = |(lsn, operation)| FeedPosition { lsn: Lsn(lsn), operation };
            let (a, b) = (position(a), position(b));
            let feed = GroupId(4);
            prop_assert_eq!(a.cmp(&b), feed_key(feed, a).cmp(&feed_key(feed, b)));
            prop_assert_eq!(feed_position(&feed_key(feed, a)).unwrap(), a);
            prop_assert_eq!(FeedPosition::parse(&a.to_string()), Some(a));
            let body = vec![0; a.operation.into()].into();
            let version = Item { stamp: stamp(ItemTtl::Inherit), body };
            let (key, mut row) = (key("[1]", "x"), Vec::new());
            VersionRow::put(&key, &version, &mut row);
            prop_assert_eq!(VersionRow::decode(&row).unwrap(), VersionRow::new(&key, &version));
        }

        #[test]
        fn entries_tell_where_their_version_is_swept(
            lsn in 0..1_u64 << 45, operation in 0..128_u16, slot: u8, ts: u64,
            own in prop::option::of(1..u32::MAX)
        ) {
            let ttl = own.and_then(NonZeroU32::new).map_or(ItemTtl::Inherit, ItemTtl::Own);
            let number = ItemNumber::new(slot, Lsn(lsn), operation);
            let stamp = Stamp { lsn: Lsn(lsn), operation, ts: Seconds(ts), number, ..stamp(ttl) };
            prop_assert!(stamp.is_first());
            let value = SweepPlace::in_entries_of(&stamp);
            let place = SweepPlace::in_entry(&value, number).unwrap();
            prop_assert_eq!(place, SweepPlace::of(&stamp));
            let silent = Stamp { tells_place: false, ..stamp };
            prop_assert!(SweepPlace::in_entries_of(&silent).is_empty());
        }

        #[test]
        fn places_in_the_order_of_expiry_survive_the_round_trip_in_order(
            a: (u64, u64), b: (u64, u64)
        ) {
            let place = |(second, number)| OwnExpiry {
                second: Seconds(second), number: ItemNumber(number)
            };
            let (a, b, group) = (place(a), place(b), GroupId(1));
            prop_assert_eq!(a.cmp(&b), expiry_key(group, a).cmp(&expiry_key(group, b)));
            prop_assert_eq!(expiry_place(&expiry_key(group, a)).unwrap(), a);
        }

        #[test]
        fn any_bytes_are_decoded_without_panic(bytes: Vec<u8>) {
            let _ = SweepPlace::in_entry(&bytes, ItemNumber(1));
            let _ = VersionRow::decode(&bytes);
            let _ = feed_position(&bytes);
            let _ = expiry_place(&bytes);
        }
    }
}
