//! One node: a container of docker-compose.yml.
//!
//! Docker starts it again if it ends by itself, and leaves it alone if it was told to end.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZero;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::command;
use super::disk::Disk;
use super::links::Passage;
use super::node::{Node, Resource};

/// Its memory as docker-compose.yml has it, and so little that its process cannot live.
const MEMORY: &str = "1g";
const MEMORY_LITTLE: &str = "16m";
/// So much of a processor that its process hardly moves.
const PROCESSORS_LITTLE: &str = "0.1";
/// The first bytes of all containers' addresses, and what the node's number is added to.
const NETWORK: [u8; 3] = [172, 30, 81];
const ADDRESS_BASE: u8 = 10;
/// Clients connect to this port and the node's number.
const HTTP_PORT_BASE: u16 = 8080;
/// What a container calls its own port.
const HTTP_PORT_INSIDE: u16 = 8081;

/// A node that may be running.
#[derive(Debug)]
pub(super) struct Container {
    number: u8,
    /// What Docker calls it.
    id: String,
    /// Its own disk, if this machine can make one.
    disk: Option<Disk>,
    is_running: bool,
    /// How often Docker has started it again since our last start, as far as was seen.
    restarts: u64,
    /// Whether what others say to it is filtered, and what it says is delayed.
    is_filtered: bool,
    is_delayed: bool,
}

impl Container {
    pub(super) fn new(number: u8, id: String, disk: Option<Disk>) -> Self {
        Self {
            number,
            id,
            disk,
            is_running: false,
            restarts: 0,
            is_filtered: false,
            is_delayed: false,
        }
    }

    /// Where clients connect to a node.
    pub(super) fn http_of(number: u8) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, HTTP_PORT_BASE + u16::from(number)).into()
    }

    /// Where other nodes find one.
    pub(super) fn address_of(number: u8) -> Ipv4Addr {
        let [a, b, c] = NETWORK;
        Ipv4Addr::new(a, b, c, ADDRESS_BASE + number)
    }

    /// Limits its memory to what it has anyway, to see whether that can be done.
    pub(super) fn try_limit(&self) -> anyhow::Result<()> {
        self.limit(MEMORY)
    }

    fn limit(&self, memory: &str) -> anyhow::Result<()> {
        docker(&["update", "--memory", memory, "--memory-swap", memory, &self.id]).map(drop)
    }

    /// Gives it all processors, as it has anyway, to see whether that can be done.
    pub(super) fn try_limit_processors(&self) -> anyhow::Result<()> {
        self.limit_processors(&processors())
    }

    fn limit_processors(&self, processors: &str) -> anyhow::Result<()> {
        docker(&["update", "--cpus", processors, &self.id]).map(drop)
    }

    /// Lets packets from another node pass in another way.
    pub(super) fn filter(&mut self, from: u8, passage: Passage) -> anyhow::Result<()> {
        let verdict = verdict(passage).context("a filter does not delay")?;
        let from = Self::address_of(from);
        // The last word counts, so it comes first.
        let rules = format!(
            "add table ip faults\n\
             add chain ip faults input {{ type filter hook input priority 0 ; }}\n\
             insert rule ip faults input ip saddr {from} {verdict}\n"
        );
        self.enter(&["nft", "--file", "-"], &rules)?;
        self.is_filtered = true;
        Ok(())
    }

    /// Delays packets to everybody.
    pub(super) fn delay(&mut self, most: Duration) -> anyhow::Result<()> {
        let half = format!("{}ms", most.as_millis() / 2);
        let netem = ["tc", "qdisc", "replace", "dev", "eth0", "root", "netem", "delay"];
        self.enter(&[&netem[..], &[&half, &half]].concat(), "")?;
        self.is_delayed = true;
        Ok(())
    }

    /// Lets all packets pass again.
    pub(super) fn heal(&mut self) -> anyhow::Result<()> {
        let (is_filtered, is_delayed) = (self.is_filtered, self.is_delayed);
        (self.is_filtered, self.is_delayed) = (false, false);
        if self.process_id()?.is_none() {
            // It has lost its network, and all that was done to it.
            return Ok(());
        }
        if is_filtered {
            // It may have a new network, where there is no such table.
            self.enter(&["nft", "--file", "-"], "add table ip faults\ndelete table ip faults\n")?;
        }
        if is_delayed {
            self.enter(&["tc", "qdisc", "replace", "dev", "eth0", "root", "noqueue"], "")?;
        }
        Ok(())
    }

    /// Runs a program of this machine in the container's network. Needs root.
    fn enter(&self, program: &[&str], input: &str) -> anyhow::Result<()> {
        let id = self.process_id()?.with_context(|| format!("node {} has ended", self.number))?;
        let mut nsenter = Command::new("nsenter");
        nsenter.args(["--target", &id.to_string(), "--net"]).args(program);
        command::run_with(&mut nsenter, input).with_context(|| program.join(" ")).map(drop)
    }

    /// The number its first process has on this machine; none if it does not run.
    fn process_id(&self) -> anyhow::Result<Option<u32>> {
        let id: u32 = self.inspect("{{.State.Pid}}")?.parse()?;
        Ok((id != 0).then_some(id))
    }

    fn inspect(&self, format: &str) -> anyhow::Result<String> {
        let text = docker(&["inspect", "--format", format, &self.id])?;
        Ok(text.trim().to_string())
    }

    fn restarts(&self) -> anyhow::Result<u64> {
        Ok(self.inspect("{{.RestartCount}}")?.parse()?)
    }

    fn look_for_end(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let state = "{{.State.Running}} {{.State.Pid}} {{.RestartCount}} {{.State.ExitCode}}";
        let state = self.inspect(state)?;
        let [is_running, process, restarts, code] = state.split(' ').collect::<Vec<_>>()[..] else {
            bail!("docker says {state}");
        };
        let (is_running, restarts) = (is_running == "true", restarts.parse()?);
        if is_running && restarts == self.restarts {
            return Ok(None);
        }
        (self.is_running, self.restarts) = (is_running, restarts);
        let code = if process == "0" { code.to_string() } else { self.last_exit_code()? };
        Ok(Some(ExitStatus::from_raw(code.parse::<i32>()? << 8)))
    }

    /// How a container ended that runs again.
    fn last_exit_code(&self) -> anyhow::Result<String> {
        let container = format!("container={}", self.id);
        let which = ["--filter", "event=die", "--filter", &container];
        let format = ["--format", "{{.Actor.Attributes.exitCode}}"];
        let past = ["events", "--since", "1h", "--until", "0s"];
        let codes = docker(&[&past[..], &which[..], &format[..]].concat())?;
        // Docker remembers a few hundred events.
        Ok(codes.lines().last().unwrap_or("1").to_string())
    }
}

impl Node for Container {
    fn http(&self) -> SocketAddr {
        Self::http_of(self.number)
    }

    /// Past Docker's proxy, which takes six descriptors for each connection.
    fn http_of_crowds(&self) -> SocketAddr {
        (Self::address_of(self.number), HTTP_PORT_INSIDE).into()
    }

    fn start(&mut self) {
        docker(&["start", &self.id]).expect("the container can be started");
        self.is_running = true;
        self.restarts = self.restarts().expect("the container can be looked at");
    }

    fn is_running(&self) -> bool {
        self.is_running
    }

    fn kill(&mut self) {
        if self.is_running {
            let ended = self.try_wait();
            assert!(ended.is_none(), "node {} had ended by itself: {ended:?}", self.number);
            docker(&["kill", &self.id]).expect("the container can be killed");
            self.is_running = false;
        }
    }

    fn terminate(&self) {
        docker(&["kill", "--signal", "TERM", &self.id]).expect("the container can be signalled");
    }

    fn pause(&self) {
        docker(&["pause", &self.id]).expect("the container can be paused");
    }

    fn resume(&self) {
        docker(&["unpause", &self.id]).expect("the container can go on");
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        self.look_for_end().expect("the container can be looked at")
    }

    fn log(&self) -> String {
        let output = Command::new("docker").args(["logs", &self.id]).output();
        let output = output.expect("docker can be run");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// Docker would start it again if its process ended otherwise than by `kill`.
    fn hold_for_power_loss(&self) -> Option<u32> {
        self.pause();
        None
    }

    fn exhaust(&mut self, resource: Resource) {
        match resource {
            Resource::Disk => self.disk.as_ref().expect("it has a disk of its own").fill(),
            Resource::Memory => {
                // The kernel does not take away what is in use: it begins with too little.
                self.kill();
                self.limit(MEMORY_LITTLE).expect("its memory can be limited");
                self.start();
            }
            Resource::Processor => {
                self.limit_processors(PROCESSORS_LITTLE).expect("its processors can be limited");
            }
            Resource::Descriptors => panic!("the limit of a container is set when it is made"),
        }
    }

    fn relieve(&mut self, resource: Resource) {
        match resource {
            Resource::Disk => self.disk.as_ref().expect("it has a disk of its own").free(),
            Resource::Memory => self.limit(MEMORY).expect("its memory can be limited"),
            Resource::Processor => {
                self.try_limit_processors().expect("its processors can be given back");
            }
            Resource::Descriptors => panic!("the limit of a container is set when it is made"),
        }
    }
}

/// What becomes of packets; none if that is not for a filter to say.
fn verdict(passage: Passage) -> Option<String> {
    match passage {
        Passage::Open => Some("accept".to_string()),
        Passage::Delayed(_) => None,
        Passage::Throttled(bytes) => Some(format!("limit rate over {bytes} bytes/second drop")),
        Passage::Lossy(percent) => Some(format!("numgen random mod 100 < {percent} drop")),
        Passage::Held => Some("drop".to_string()),
        Passage::Cut => Some("meta l4proto tcp reject with tcp reset".to_string()),
    }
}

/// All there are: Docker takes nothing that means "without limit", and refuses more.
fn processors() -> String {
    thread::available_parallelism().map_or(1, NonZero::get).to_string()
}

/// Runs docker; what it says.
pub(super) fn docker(arguments: &[&str]) -> anyhow::Result<String> {
    command::run(Command::new("docker").args(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_where_docker_compose_yml_has_them() {
        let file = include_str!("../../../docker-compose.yml");
        for number in 1..=3 {
            let published = format!("{}:{HTTP_PORT_INSIDE}\"", Container::http_of(number));
            let address = format!("ipv4_address: {}}}", Container::address_of(number));
            assert!(file.contains(&published), "{published}");
            assert!(file.contains(&address), "{address}");
        }
        assert!(file.contains(&format!("mem_limit: {MEMORY}\n")));
    }
}
