//! The members of an object: in stored order, and each soon found by its name.

use std::fmt;
use std::ops::Deref;

use super::Value;
use crate::indexing::hash;

/// A member of an object: its name and its value.
pub type Member = (String, Value);

/// Up to so many members are compared one by one; beyond that an index is faster.
const FEW_MEMBERS: usize = 24;
/// To find a member takes about as long as to go over so many bytes.
const MEMBER_LENGTH: usize = 16;

/// The members of an object in stored order.
#[derive(Clone, Default)]
pub struct Members {
    list: Box<[Member]>,
    /// None for a few. In a box, so that a value takes no more room than its text does.
    by_name: Option<Box<ByName>>,
}

impl Members {
    /// The value of the first member of this name.
    pub fn named(&self, name: &str) -> Option<&Value> {
        self.place(name).map(|place| &self.list[place].1)
    }

    /// The same, keeping nothing else.
    pub(in crate::query) fn into_named(self, name: &str) -> Option<Value> {
        let place = self.place(name)?;
        let (_, value) = self.list.into_vec().swap_remove(place);
        Some(value)
    }

    fn place(&self, name: &str) -> Option<usize> {
        match &self.by_name {
            None => self.list.iter().position(|(known, _)| known == name),
            Some(by_name) => by_name.place(&self.list, name),
        }
    }

    /// As many bytes as it takes to find each of the members.
    pub(super) fn search_length(&self) -> usize {
        self.list.iter().map(|(name, _)| name.len() + MEMBER_LENGTH).sum()
    }
}

impl From<Vec<Member>> for Members {
    fn from(list: Vec<Member>) -> Self {
        let by_name = (list.len() > FEW_MEMBERS).then(|| Box::new(ByName::of(&list)));
        Self { list: list.into_boxed_slice(), by_name }
    }
}

impl FromIterator<Member> for Members {
    fn from_iter<I: IntoIterator<Item = Member>>(members: I) -> Self {
        members.into_iter().collect::<Vec<_>>().into()
    }
}

impl IntoIterator for Members {
    type Item = Member;
    type IntoIter = std::vec::IntoIter<Member>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_vec().into_iter()
    }
}

impl<'m> IntoIterator for &'m Members {
    type Item = &'m Member;
    type IntoIter = std::slice::Iter<'m, Member>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

impl Deref for Members {
    type Target = [Member];

    fn deref(&self) -> &[Member] {
        &self.list
    }
}

/// As the list that they are.
impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.list.fmt(f)
    }
}

/// Where the members of a list are, in the order of the hashes of their names and then of the names:
/// numbers, side by side, are soon compared, and names that share a hash do no harm.
#[derive(Clone)]
struct ByName(Box<[(u64, u32)]>);

impl ByName {
    fn of(list: &[Member]) -> Self {
        let hashed = |(place, (name, _)): (u32, &Member)| (hash_of(name), place);
        let mut places: Box<[(u64, u32)]> = (0..).zip(list).map(hashed).collect();
        let name = |place: u32| &list[place as usize].0;
        // The first of a name stays before the others.
        places.sort_by(|(a_hash, a), (b_hash, b)| {
            a_hash.cmp(b_hash).then_with(|| name(*a).cmp(name(*b)))
        });
        Self(places)
    }

    /// The place of the first member of this name in the list that it was made of.
    fn place(&self, list: &[Member], name: &str) -> Option<usize> {
        let hash = hash_of(name);
        let name_at = |place: u32| list[place as usize].0.as_str();
        let is_before =
            |(known, place): &(u64, u32)| known.cmp(&hash).then_with(|| name_at(*place).cmp(name));
        let first = self.0.partition_point(|one| is_before(one).is_lt());
        let (_, place) = *self.0.get(first)?;
        (name_at(place) == name).then_some(place as usize)
    }
}

fn hash_of(name: &str) -> u64 {
    hash::of_bytes(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_of_a_name_is_found_among_few_and_many(
            names in prop::collection::vec("[a-c]{0,3}", 0..80), sought in "[a-d]{0,3}",
        ) {
            let list: Vec<Member> = (0_i64..).zip(names).map(|(n, name)| (name, n.into())).collect();
            let members = Members::from(list.clone());
            for name in list.iter().map(|(name, _)| name).chain([&sought]) {
                let first = list.iter().find(|(known, _)| known == name);
                let first = first.map(|(_, value)| value.to_json());
                prop_assert_eq!(members.named(name).map(Value::to_json), first.clone());
                prop_assert_eq!(members.clone().into_named(name).as_ref().map(Value::to_json), first);
            }
            let order = members.iter().map(|(name, _)| name);
            prop_assert!(order.eq(list.iter().map(|(name, _)| name)));
        }
    }

    #[test]
    fn names_that_share_a_hash_are_told_apart() {
        let names = ["b", "a", "c", "a"];
        let list: Vec<Member> =
            (0_i64..).zip(names).map(|(n, name)| (name.into(), n.into())).collect();
        let shared = hash_of("a");
        let by_name = ByName([1, 3, 0, 2].map(|place| (shared, place)).into());
        assert_eq!(by_name.place(&list, "a"), Some(1));
        assert_eq!(by_name.place(&list, "z"), None);
    }

    /// What the conditions of patches build is counted in places of values, and replicas must agree.
    #[test]
    fn a_value_takes_as_much_room_as_it_always_did() {
        assert_eq!(size_of::<Value>(), 32);
    }
}
