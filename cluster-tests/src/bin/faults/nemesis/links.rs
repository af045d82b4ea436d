//! What nodes say to each other arrives late, in part, somewhere else, or not at all.

use std::time::Duration;

use ephemeris_cluster_tests::cluster::{Link, Passage};
use rand::RngExt as _;
use rand::seq::SliceRandom as _;

use super::{Nemesis, names};

/// Longest delay of what passes a link.
pub(super) const DELAY_MAX: Duration = Duration::from_millis(300);
/// What passes a throttled link in a second, in bytes.
pub(super) const THROTTLED_BYTES: u32 = 100_000;
/// Of a hundred packets so many are lost.
const LOST_PERCENTS: [u8; 4] = [1, 5, 20, LOST_PERCENT_MAX];
pub(super) const LOST_PERCENT_MAX: u8 = 40;

/// How long a leader is cut off and reached again while it flaps.
const FLAP_HELD_MS: std::ops::Range<u64> = 50..600;
const FLAP_OPEN_MS: std::ops::Range<u64> = 50..300;
const FLAPS: u32 = 10;
/// Pause until the next node is cut off, or comes back.
const SWIZZLE_MS: std::ops::Range<u64> = 100..800;
/// How much longer than the others' connections are cut a leader stands still, in election timeouts.
const STANDS_STILL: u32 = 2;
/// Of so many in a ring, each hears a majority if it hears both neighbours.
const MAJORITY_RING: usize = 5;

impl Nemesis<'_> {
    pub(super) async fn links(
        &mut self,
        links: &[Link],
        passage: Passage,
        lasts: Duration,
    ) -> Vec<String> {
        self.set_links(links, passage);
        self.wait(lasts).await;
        self.heal_links();
        links.iter().map(|(from, to)| format!("n{from}>n{to}")).collect()
    }

    pub(super) async fn hold(&mut self, links: &[Link], lasts: Duration) -> Vec<String> {
        self.links(links, Passage::Held, lasts).await
    }

    /// Some nodes hear and say nothing.
    pub(super) async fn isolate(
        &mut self,
        nodes: &[u32],
        all: &[u32],
        lasts: Duration,
    ) -> Vec<String> {
        self.hold(&touching(nodes, all), lasts).await;
        names(nodes)
    }

    pub(super) async fn flap(&mut self, node: u32, others: &[u32]) -> Vec<String> {
        for _ in 0..FLAPS {
            let held = Duration::from_millis(self.rng.random_range(FLAP_HELD_MS));
            self.hold(&around(node, others), held).await;
            let open = Duration::from_millis(self.rng.random_range(FLAP_OPEN_MS));
            tokio::time::sleep(open).await;
        }
        names(&[node])
    }

    /// Nodes are cut off one after the other, until none hears any, and come back in another order.
    pub(super) async fn swizzle(&mut self, nodes: &[u32]) -> Vec<String> {
        for (at, node) in nodes.iter().enumerate() {
            self.set_links(&around(*node, &nodes[at + 1..]), Passage::Held);
            self.swizzle_pause().await;
        }
        let mut back = nodes.to_vec();
        back.shuffle(&mut self.rng);
        for (at, node) in back.iter().enumerate() {
            self.set_links(&around(*node, &back[..at]), Passage::Open);
            self.swizzle_pause().await;
        }
        self.heal_links();
        names(nodes)
    }

    pub(super) fn set_links(&mut self, links: &[Link], passage: Passage) {
        for link in links {
            self.cluster.set_link(*link, passage);
        }
    }

    pub(super) fn heal_links(&mut self) {
        self.cluster.heal_links();
        self.note_healed();
    }

    async fn swizzle_pause(&mut self) {
        let pause = self.rng.random_range(SWIZZLE_MS);
        self.wait(Duration::from_millis(pause)).await;
    }

    /// A leader stands still, and those that should elect another lose their connections.
    pub(super) async fn pause_and_cut(&mut self, leader: u32, others: &[u32]) -> Vec<String> {
        self.cluster.pause(leader);
        let cut = self.links(&every(others), Passage::Cut, self.election_timeout).await;
        tokio::time::sleep(self.election_timeout * STANDS_STILL).await;
        self.cluster.resume(leader);
        self.note_healed();
        [names(&[leader]), cut].concat()
    }

    /// Packets are lost between all nodes.
    pub(super) async fn lose_packets(&mut self, nodes: &[u32], lasts: Duration) -> Vec<String> {
        let percent = LOST_PERCENTS[self.rng.random_range(0..LOST_PERCENTS.len())];
        self.links(&every(nodes), Passage::Lossy(percent), lasts).await;
        vec![format!("{percent} of 100 packets")]
    }
}

pub(super) fn out_of(node: u32, others: &[u32]) -> Vec<Link> {
    others.iter().map(|other| (node, *other)).collect()
}

pub(super) fn into(node: u32, others: &[u32]) -> Vec<Link> {
    others.iter().map(|other| (*other, node)).collect()
}

pub(super) fn around(node: u32, others: &[u32]) -> Vec<Link> {
    [out_of(node, others), into(node, others)].concat()
}

/// All links there are.
pub(super) fn every(nodes: &[u32]) -> Vec<Link> {
    let pairs = nodes.iter().flat_map(|from| nodes.iter().map(move |to| (*from, *to)));
    pairs.filter(|(from, to)| from != to).collect()
}

/// Those that lead to one of some nodes or away from it.
fn touching(some: &[u32], all: &[u32]) -> Vec<Link> {
    let links = every(all).into_iter();
    links.filter(|(from, to)| some.contains(from) || some.contains(to)).collect()
}

/// Those between the first half and the second, of which one is larger if nodes are odd.
pub(super) fn between(nodes: &[u32]) -> Vec<Link> {
    let (first, second) = nodes.split_at(nodes.len() / 2);
    first.iter().flat_map(|node| around(*node, second)).collect()
}

/// Those that do not lead from a node of a ring to the next, nor back, if there are enough of them.
pub(super) fn beside_ring(ring: &[u32]) -> Vec<Link> {
    let next: Vec<Link> = ring.iter().copied().zip(ring.iter().copied().cycle().skip(1)).collect();
    let hears_next = ring.len() >= MAJORITY_RING;
    let is_beside = |(from, to): &Link| {
        !(next.contains(&(*from, *to)) || hears_next && next.contains(&(*to, *from)))
    };
    every(ring).into_iter().filter(is_beside).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn sorted(links: Vec<Link>) -> Vec<Link> {
        let count = links.len();
        let links: BTreeSet<Link> = links.into_iter().collect();
        assert_eq!(links.len(), count, "each link once");
        links.into_iter().collect()
    }

    /// Whom a node hears while these links are held.
    fn heard_by(node: u32, all: &[u32], held: &[Link]) -> Vec<u32> {
        let mut heard: Vec<u32> = all.iter().copied().filter(|other| *other != node).collect();
        heard.retain(|other| !held.contains(&(*other, node)));
        heard.sort_unstable();
        heard
    }

    #[test]
    fn halves_hear_themselves_and_not_each_other() {
        assert_eq!(sorted(between(&[2, 1, 3])), [(1, 2), (2, 1), (2, 3), (3, 2)]);
        let held = between(&[5, 1, 4, 3, 2]);
        assert_eq!(sorted(held.clone()).len(), 12);
        assert_eq!(heard_by(1, &[1, 2, 3, 4, 5], &held), [5]);
        assert_eq!(heard_by(2, &[1, 2, 3, 4, 5], &held), [3, 4]);
    }

    #[test]
    fn in_a_ring_of_three_each_hears_the_one_before_it() {
        let (ring, held) = ([3, 1, 2], sorted(beside_ring(&[3, 1, 2])));
        assert_eq!(held, [(1, 3), (2, 1), (3, 2)]);
        assert_eq!([1, 2, 3].map(|node| heard_by(node, &ring, &held)), [[3], [1], [2]]);
    }

    #[test]
    fn in_a_ring_of_five_each_hears_its_neighbours() {
        let ring = [3, 1, 2, 5, 4];
        let held = sorted(beside_ring(&ring));
        assert_eq!(held.len(), 10);
        assert_eq!(heard_by(3, &ring, &held), [1, 4]);
        assert_eq!(heard_by(2, &ring, &held), [1, 5]);
    }

    #[test]
    fn nodes_that_are_cut_off_hear_nobody_and_nobody_hears_them() {
        let held = sorted(touching(&[2, 5], &[1, 2, 3, 4, 5]));
        assert_eq!(held.len(), 14);
        assert!(heard_by(2, &[1, 2, 3, 4, 5], &held).is_empty());
        assert_eq!(heard_by(1, &[1, 2, 3, 4, 5], &held), [3, 4]);
    }

    #[test]
    fn one_after_the_other_every_link_is_held_and_let_go() {
        let (cut, back) = ([3, 1, 4, 2], [1, 2, 3, 4]);
        let held = (0..4).flat_map(|at| around(cut[at], &cut[at + 1..])).collect();
        let opened = (0..4).flat_map(|at| around(back[at], &back[..at])).collect();
        assert_eq!(sorted(held), sorted(every(&cut)));
        assert_eq!(sorted(opened), sorted(every(&cut)));
    }
}
