//! What can be done to nodes on this machine, and why the rest cannot.

use anyhow::{bail, ensure};

use super::disk::Disk;
use super::{Cluster, Passage, Resource};

/// Something that can be done to nodes, depending on the machine and on what they run in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// Bytes between nodes pass in this way.
    Pass(Passage),
    /// Their clocks and disks lie.
    Lie,
    /// They run out of something.
    Exhaust(Resource),
    /// Their files and settings are ours.
    Own,
    /// Their machines lose power, and with it what was not synced.
    PowerLoss,
    /// There are so many of them at least.
    Nodes(usize),
}

impl Cluster {
    /// Why something cannot be done to the running nodes; none if it can.
    pub fn lacks(&mut self, ability: Ability) -> Option<String> {
        let tried = if self.project.is_some() {
            self.try_on_containers(ability)
        } else {
            self.try_on_processes(ability)
        };
        tried.err().map(|error| format!("{error:#}"))
    }

    fn try_on_processes(&self, ability: Ability) -> anyhow::Result<()> {
        match ability {
            Ability::Pass(Passage::Lossy(_)) => bail!("between processes there are no packets"),
            Ability::Exhaust(Resource::Memory | Resource::Processor) => {
                bail!("processes have no limit of their own")
            }
            Ability::PowerLoss => self.try_power(),
            Ability::Nodes(least) => self.try_count(least),
            Ability::Pass(
                Passage::Open
                | Passage::Delayed(_)
                | Passage::Throttled(_)
                | Passage::Held
                | Passage::Cut,
            )
            | Ability::Exhaust(Resource::Disk | Resource::Descriptors)
            | Ability::Lie
            | Ability::Own => Ok(()),
        }
    }

    fn try_on_containers(&mut self, ability: Ability) -> anyhow::Result<()> {
        match ability {
            Ability::Lie => bail!("ephemeris-faulty is not in the image"),
            Ability::Own => bail!("files and settings of containers are not ours"),
            Ability::Exhaust(Resource::Disk) => self.try_disks(),
            Ability::Exhaust(Resource::Memory) => self.container_mut(1).try_limit(),
            Ability::Exhaust(Resource::Processor) => self.container_mut(1).try_limit_processors(),
            Ability::Exhaust(Resource::Descriptors) => {
                bail!("the limit of a container is set when it is made")
            }
            Ability::PowerLoss => self.try_power(),
            Ability::Nodes(least) => self.try_count(least),
            Ability::Pass(passage) => {
                let tried = self.try_set_link((1, 2), passage);
                self.heal_links();
                tried
            }
        }
    }

    /// An error if the nodes have no disks of their own.
    fn try_disks(&self) -> anyhow::Result<()> {
        let why = match &self.project {
            Some(project) => &project.without_disks,
            None => &self.without_disks,
        };
        match why {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        }
    }

    fn try_power(&self) -> anyhow::Result<()> {
        self.try_disks()?;
        Disk::try_power()
    }

    fn try_count(&self, least: usize) -> anyhow::Result<()> {
        ensure!(self.nodes.len() >= least, "it takes {least} nodes");
        Ok(())
    }
}
