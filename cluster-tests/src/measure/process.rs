//! What a process has used, by `/proc`.

use std::fs;
use std::iter::Sum;
use std::ops::Sub;
use std::time::Duration;

/// Place of `utime` among the fields that follow a process's name in `/proc/<pid>/stat`.
const UTIME: usize = 11;
/// Place of the parent's number there.
const PARENT: usize = 1;

/// Processor time and memory of one process, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on processors, in user and system mode.
    pub cpu: Duration,
    /// Memory that is really there, in bytes.
    pub resident_bytes: u64,
}

impl Usage {
    /// What a process has used so far.
    pub fn of(process: u32) -> Self {
        let read = |name: &str| {
            let path = format!("/proc/{process}/{name}");
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        let ticks_per_second = rustix::param::clock_ticks_per_second();
        let cpu = cpu(&read("stat"), ticks_per_second).expect("/proc/<pid>/stat is as it was");
        let resident = resident_bytes(&read("status"));
        Self { cpu, resident_bytes: resident.expect("/proc/<pid>/status is as it was") }
    }

    /// What a process and all that it has started have used so far. Memory that several share counts
    /// once.
    pub fn of_tree(root: u32) -> Self {
        let ticks_per_second = rustix::param::clock_ticks_per_second();
        let read = |process: u32, name| fs::read_to_string(format!("/proc/{process}/{name}")).ok();
        let directories = fs::read_dir("/proc").expect("/proc is there").flatten();
        let processes = directories.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // One that ends meanwhile is told by its parent.
        let family = |process: u32| Family::parse(process, &read(process, "stat")?);
        let families: Vec<Family> = processes.filter_map(family).collect();
        let tree = descendants(root, &families);
        let ticks: u64 = tree.iter().map(|family| family.ticks).sum();
        let resident =
            tree.iter().filter_map(|f| proportional_bytes(&read(f.process, "smaps_rollup")?));
        Self {
            cpu: Duration::from_micros(ticks * 1_000_000 / ticks_per_second),
            resident_bytes: resident.sum(),
        }
    }

    /// What this process has used so far.
    pub fn of_self() -> Self {
        Self::of(std::process::id())
    }
}

/// Processor time that all processes of this machine together have used so far.
pub fn machine_cpu() -> Duration {
    let stat = fs::read_to_string("/proc/stat").expect("/proc/stat is readable");
    let busy = busy(&stat, rustix::param::clock_ticks_per_second());
    busy.expect("/proc/stat is as it was")
}

/// Processor time since an earlier look; memory as it is now.
impl Sub for Usage {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { cpu: self.cpu.saturating_sub(earlier.cpu), resident_bytes: self.resident_bytes }
    }
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            cpu: sum.cpu + one.cpu,
            resident_bytes: sum.resident_bytes + one.resident_bytes,
        })
    }
}

/// A process and its parent, with the processor time of its own and of its children that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Family {
    process: u32,
    parent: u32,
    ticks: u64,
}

impl Family {
    fn parse(process: u32, stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks = fields.get(UTIME..UTIME + 4)?.iter().map(|field| field.parse::<u64>());
        let ticks = ticks.sum::<Result<u64, _>>().ok()?;
        Some(Self { process, parent: fields.get(PARENT)?.parse().ok()?, ticks })
    }
}

/// A process and all that it has started, and so on.
fn descendants(root: u32, families: &[Family]) -> Vec<Family> {
    let mut tree: Vec<Family> = families.iter().copied().filter(|f| f.process == root).collect();
    let mut at = 0;
    while let Some(family) = tree.get(at) {
        let parent = family.process;
        tree.extend(families.iter().copied().filter(|f| f.parent == parent));
        at += 1;
    }
    tree
}

fn proportional_bytes(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

fn cpu(stat: &str, ticks_per_second: u64) -> Option<Duration> {
    // The name, in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(UTIME);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_micros((user + system) * 1_000_000 / ticks_per_second))
}

/// User, nice, system, interrupts and what the host took; not idle and waiting for disks.
fn busy(stat: &str, ticks_per_second: u64) -> Option<Duration> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Option<Vec<u64>> = line.split_whitespace().map(|field| field.parse().ok()).collect();
    let ticks = ticks?;
    let busy: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|at| ticks.get(*at)).sum();
    Some(Duration::from_micros(busy * 1_000_000 / ticks_per_second))
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 4 0 1 2 3";
        assert_eq!(cpu(stat, 100), Some(Duration::from_secs(2)));
    }

    #[test]
    fn the_machine_is_busy_when_it_neither_idles_nor_waits() {
        let stat = "cpu  100 10 40 9999 5555 20 20 10 7 7\ncpu0 1 2 3\n";
        assert_eq!(busy(stat, 100), Some(Duration::from_secs(2)));
    }

    #[test]
    fn resident_memory_is_told_in_kilobytes() {
        assert_eq!(resident_bytes("VmSize:\t 9 kB\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(resident_bytes("VmSize:\t 9 kB\n"), None);
    }

    #[test]
    fn a_tree_counts_what_ended_children_have_used() {
        let stat = |parent| format!("(x) S {parent} 0 0 0 0 0 0 0 0 0 100 50 30 20 0 0 0");
        let families: Vec<Family> = [(2, 1), (3, 2), (4, 3), (5, 1)]
            .into_iter()
            .filter_map(|(process, parent)| Family::parse(process, &stat(parent)))
            .collect();
        let tree = descendants(2, &families);
        let processes: Vec<u32> = tree.iter().map(|family| family.process).collect();
        assert_eq!(processes, [2, 3, 4]);
        assert!(tree.iter().all(|family| family.ticks == 200));
    }

    #[test]
    fn this_process_uses_something() {
        assert!(Usage::of_self().resident_bytes > 0);
        assert!(Usage::of_tree(std::process::id()).resident_bytes > 0);
    }
}
