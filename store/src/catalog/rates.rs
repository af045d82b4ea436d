//! What the partitions of a container may spend, as offers say it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::state::{CatalogState, OfferTarget};
use crate::charge::Rate;
use crate::ids::{ContainerNumber, DatabaseNumber};

impl CatalogState {
    /// The rate of each partition of every container that has a limit.
    ///
    /// A container's own offer is shared by its partitions; a database's by all partitions of its
    /// containers that have no offer of their own. Autoscale's maximum is available at once. A
    /// container with neither offer has no limit.
    pub fn rates(&self) -> BTreeMap<ContainerNumber, Rate> {
        let mut partitions = BTreeMap::new();
        for partition in self.partitions() {
            count(&mut partitions, partition.container, NonZeroU32::MIN);
        }
        let (mut own, mut of_database) = (BTreeMap::new(), BTreeMap::new());
        for offer in self.offers() {
            let rate = offer.throughput.maximum();
            match offer.target {
                OfferTarget::Container(container) => drop(own.insert(container, rate)),
                OfferTarget::Database(database) => drop(of_database.insert(database, rate)),
            }
        }
        let mut sharing: BTreeMap<DatabaseNumber, NonZeroU32> = BTreeMap::new();
        for (container, partitions) in &partitions {
            if !own.contains_key(container) {
                count(&mut sharing, container.database, *partitions);
            }
        }
        let rate = |(container, partitions): (ContainerNumber, NonZeroU32)| {
            if let Some(rate) = own.get(&container) {
                return Some((container, Rate::share(*rate, partitions)));
            }
            let (rate, partitions) =
                (of_database.get(&container.database)?, sharing.get(&container.database)?);
            Some((container, Rate::share(*rate, *partitions)))
        };
        partitions.into_iter().filter_map(rate).collect()
    }
}

fn count<K: Ord>(counts: &mut BTreeMap<K, NonZeroU32>, key: K, more: NonZeroU32) {
    let sum = |known: &mut NonZeroU32| *known = known.saturating_add(more.get());
    counts.entry(key).and_modify(sum).or_insert(more);
}
