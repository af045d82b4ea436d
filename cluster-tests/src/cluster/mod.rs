//! A cluster of real processes on the loopback interface, or of containers.
//!
//! Each test has its own: free ports, a temporary directory, the emulator key. What was started is
//! killed in the end; if the test fails, its directory is kept and the ends of the logs are printed.

mod ability;
mod command;
mod compose;
mod container;
mod damage;
mod disk;
mod links;
mod node;
mod ports;
mod process;
mod status;

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::client::{AccountKey, Call, Client, Container};
use crate::{clock, wait};
use compose::Project;
use disk::Disk;
use links::Links;
use node::Node;
use process::Process;

pub use ability::Ability;
pub use links::{Link, Passage};
pub use node::Resource;
pub use ports::Port;
pub use process::binary;
pub use status::{GroupStatus, NodeStatus, ReplicaStatus, Status};

/// How long a node may take until it is ready, on a machine that is busy with other tests.
const READY_DEADLINE: Duration = Duration::from_secs(30);
/// How long an election, a hand-over or catching up may take.
const SETTLE_DEADLINE: Duration = Duration::from_secs(30);
/// How long a process may take to end.
const EXIT_DEADLINE: Duration = Duration::from_secs(30);

/// How long a machine may take until it lies as it is told.
const FAULTS_DEADLINE: Duration = Duration::from_secs(10);
/// How `ephemeris-faulty` ends if it does not understand what is wrong.
const EXIT_NOT_UNDERSTOOD: i32 = 78;

/// What a replica may lack that takes part, while clients write.
const LAG_MAX: u64 = 1000;

/// Tests that say nothing of consistency want to see what was acknowledged.
const STRONG: &str = "Strong";

/// Nodes that were started together.
pub struct Cluster {
    /// What the nodes are containers of, if they are. Goes before their disks do.
    project: Option<Project>,
    nodes: BTreeMap<u32, Box<dyn Node>>,
    /// Proxies between processes, if their links can be broken.
    links: Option<Links>,
    /// Why processes have no disks of their own, if so.
    without_disks: Option<String>,
    /// None once the directory is to be kept.
    directory: Option<TempDir>,
    key: AccountKey,
}

impl Cluster {
    /// Starts a node alone, and waits until it is ready.
    pub async fn single() -> Self {
        let mut cluster = Self::alone();
        cluster.start_all().await;
        cluster
    }

    /// A node alone that does not run yet.
    pub fn alone() -> Self {
        Self::alone_with(&[])
    }

    /// A node alone that does not run yet, and will be started with these arguments.
    pub fn alone_with(arguments: &[&str]) -> Self {
        let mut cluster = Self::new(1);
        let arguments = std::iter::once(&"start-single-node").chain(arguments);
        cluster.process_mut(1).set_arguments(arguments.map(|text| (*text).to_string()).collect());
        cluster
    }

    /// Starts a cluster of nodes 1 to `count`, and waits until all are ready. Its reads show everything
    /// acknowledged, unless they ask for less.
    pub async fn start(count: u32) -> Self {
        Self::start_at(count, STRONG).await
    }

    /// Starts a cluster with an empty container.
    pub async fn start_with_container(count: u32) -> (Self, Container) {
        let cluster = Self::start(count).await;
        let container = Container::new("shop", "orders");
        cluster.client(1).create_database("shop").await.expect(201);
        cluster.client(1).create_container(&container, json!({})).await.expect(201);
        (cluster, container)
    }

    /// Starts a cluster whose reads are as fresh as a level says, unless they ask for less.
    pub async fn start_at(count: u32, consistency: &str) -> Self {
        let mut cluster = Self::formable_at(count, consistency);
        cluster.start_all().await;
        cluster
    }

    /// A cluster of nodes 1 to `count`, none of which runs yet.
    pub fn formable(count: u32) -> Self {
        Self::formable_at(count, STRONG)
    }

    fn formable_at(count: u32, consistency: &str) -> Self {
        Self::formable_with(count, &["--consistency", consistency])
    }

    /// A cluster of nodes 1 to `count`, none of which runs yet, and which will be started with these
    /// arguments.
    pub fn formable_with(count: u32, arguments: &[&str]) -> Self {
        let mut cluster = Self::new(count);
        cluster.set_arguments(arguments);
        cluster
    }

    /// The same, with links between the nodes that can be broken.
    pub fn breakable_with(count: u32, arguments: &[&str]) -> Self {
        let mut cluster = Self::new(count);
        let peers = cluster.ids().into_iter().map(|id| (id, cluster.process(id).peer())).collect();
        cluster.links = Some(Links::new(&peers));
        cluster.set_arguments(arguments);
        cluster
    }

    /// The containers of docker-compose.yml, none of which runs yet, at Strong consistency.
    pub fn compose() -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("ephemeris-test-").tempdir()?;
        let (project, containers) = Project::create(directory.path())?;
        let boxed = |(id, node)| -> (u32, Box<dyn Node>) { (id, Box::new(node)) };
        let nodes = containers.into_iter().map(boxed).collect();
        let key = AccountKey::emulator();
        let (project, links, without_disks) = (Some(project), None, None);
        Ok(Self { project, nodes, links, without_disks, directory: Some(directory), key })
    }

    /// Lets all nodes run on machines whose clocks and disks lie as `set_faults` says, and which lose what
    /// was not synced with every end of a process.
    pub fn make_faulty(&mut self) {
        self.ids().into_iter().for_each(|id| self.process_mut(id).set_faulty());
    }

    /// Gives processes, none of which has run yet, disks of their own, which can lose their power.
    /// `lacks` tells why they have none, if that cannot be done here.
    pub fn give_disks(&mut self) {
        if self.project.is_some() {
            return;
        }
        let made: anyhow::Result<Vec<Disk>> =
            self.ids().into_iter().map(|id| self.process(id).make_disk()).collect();
        self.without_disks = made.as_ref().err().map(|error| format!("{error:#}"));
        for (id, disk) in self.ids().into_iter().zip(made.unwrap_or_default()) {
            self.process_mut(id).set_disk(disk);
        }
    }

    /// Lets all nodes run another build of the program, from their next start on.
    pub fn set_binary(&mut self, binary: &Path) {
        self.ids().into_iter().for_each(|id| self.process_mut(id).set_binary(binary));
    }

    /// Says what is wrong with a node's machine, in JSON; `{}` is nothing. If the node runs, that is so when this
    /// returns: what it does not understand ends it.
    pub async fn set_faults(&self, node: u32, faults: &str) {
        let process = self.process(node);
        process.set_faults(faults);
        if process.is_running() {
            let what = format!("node {node} to see its faults, {faults}");
            wait::until(&what, FAULTS_DEADLINE, async || process.has_seen_faults().then_some(()))
                .await;
        }
    }

    fn set_arguments(&mut self, arguments: &[&str]) {
        let peers: Vec<(u32, String)> =
            self.ids().into_iter().map(|id| (id, self.process(id).peer().to_string())).collect();
        let members: Vec<String> = peers.iter().map(|(id, peer)| format!("{id}={peer}")).collect();
        let members = members.join(",");
        for (number, peer) in &peers {
            let dial = self.links.as_ref().map(|links| links.dial_map(*number));
            let id = number.to_string();
            let whom = ["start", "--node-id", &id, "--peer", peer, "--cluster", &members];
            let through = dial.as_deref().map_or(Vec::new(), |dial| vec!["--dial", dial]);
            let all = whom.into_iter().chain(through).chain(arguments.iter().copied());
            self.process_mut(*number).set_arguments(all.map(str::to_string).collect());
        }
    }

    fn new(count: u32) -> Self {
        let directory = tempfile::Builder::new().prefix("ephemeris-test-").tempdir();
        let directory = directory.expect("the temporary directory is writable");
        let process = |id: u32| -> (u32, Box<dyn Node>) {
            let home = directory.path().join(format!("node{id}"));
            (id, Box::new(Process::new(home, Port::take(), Port::take())))
        };
        let nodes = (1..=count).map(process).collect();
        let key = AccountKey::emulator();
        let (project, links) = (None, None);
        let without_disks = Some("nobody gave the nodes disks of their own".to_string());
        Self { project, nodes, links, without_disks, directory: Some(directory), key }
    }

    /// Starts all nodes, and waits until they are ready.
    pub async fn start_all(&mut self) {
        let ids = self.ids();
        for id in &ids {
            self.spawn(*id);
        }
        for id in ids {
            self.await_ready(id).await;
        }
    }

    /// All nodes, running or not.
    pub fn ids(&self) -> Vec<u32> {
        self.nodes.keys().copied().collect()
    }

    /// Nodes whose process was not ended.
    pub fn running(&self) -> Vec<u32> {
        let running = self.nodes.iter().filter(|(_, node)| node.is_running());
        running.map(|(id, _)| *id).collect()
    }

    /// The process number of a running node.
    pub fn process_id(&self, node: u32) -> u32 {
        self.process(node).id()
    }

    /// Where a node keeps its data.
    pub fn data_directory(&self, node: u32) -> PathBuf {
        self.process(node).data()
    }

    /// Everything a node has logged.
    pub fn log(&self, node: u32) -> String {
        self.node(node).log()
    }

    /// Where clients connect to a node.
    pub fn url(&self, node: u32) -> String {
        format!("http://{}", self.node(node).http())
    }

    /// Where clients connect to a node.
    pub fn address(&self, node: u32) -> std::net::SocketAddr {
        self.node(node).http()
    }

    /// Where other nodes connect to a node.
    pub fn peer(&self, node: u32) -> std::net::SocketAddr {
        self.process(node).peer()
    }

    /// Where thousands of clients connect to a node.
    pub fn crowd_address(&self, node: u32) -> std::net::SocketAddr {
        self.node(node).http_of_crowds()
    }

    /// A client of one node.
    pub fn client(&self, node: u32) -> Client {
        Client::new(self.url(node), self.key.clone())
    }

    /// Clients of these nodes.
    pub fn clients(&self, nodes: &[u32]) -> Vec<Client> {
        nodes.iter().map(|node| self.client(*node)).collect()
    }

    /// Runs the program with other arguments, to its end.
    pub fn command(&self, arguments: &[&str]) -> Output {
        process::run(arguments)
    }

    /// Starts a node that is not running, and does not wait for it.
    pub fn spawn(&mut self, node: u32) {
        self.node_mut(node).start();
    }

    /// Starts a node that is not running, and waits until it is ready.
    pub async fn restart(&mut self, node: u32) {
        self.spawn(node);
        self.await_ready(node).await;
    }

    /// Ends a node's process at once, as a crash does.
    pub fn kill(&mut self, node: u32) {
        self.node_mut(node).kill();
    }

    /// Ends these nodes at the same time.
    pub fn kill_at_once(&mut self, nodes: &[u32]) {
        self.at_once(nodes, Node::kill);
    }

    fn at_once(&mut self, nodes: &[u32], act: fn(&mut (dyn Node + 'static))) {
        std::thread::scope(|scope| {
            let chosen = self.nodes.iter_mut().filter(|(id, _)| nodes.contains(id));
            let acting = chosen.map(|(_, node)| scope.spawn(move || act(node.as_mut())));
            for thread in acting.collect::<Vec<_>>() {
                thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            }
        });
    }

    /// Takes the power from the machines of these nodes, which run, at the same time: what was not synced is
    /// gone, in all of their files. They do not run afterwards, and their disks are whole.
    pub fn lose_power(&mut self, nodes: &[u32]) {
        let hold = |node: &u32| (self.disk(*node), self.node(*node).hold_for_power_loss());
        let disks: Vec<(&Disk, Option<u32>)> = nodes.iter().map(hold).collect();
        Disk::lose_power(&disks).expect("disks can be shut down");
        self.at_once(nodes, Node::kill_without_power);
        for node in nodes {
            self.disk(*node).remount().expect("a disk that was shut down can be mounted again");
        }
    }

    /// Lets a node, from its next start on, have so many files and connections open.
    pub fn set_descriptors_max(&mut self, node: u32, most: u64) {
        self.process_mut(node).set_descriptors_max(most);
    }

    /// Sends SIGTERM to a node.
    pub fn terminate(&self, node: u32) {
        self.node(node).terminate();
    }

    /// Sends SIGHUP to a node.
    pub fn hang_up(&self, node: u32) {
        self.process(node).signal(Signal::HUP);
    }

    /// Stops a node in its tracks: it does nothing, and its sockets stay open.
    pub fn pause(&self, node: u32) {
        self.node(node).pause();
    }

    /// Lets a paused node go on.
    pub fn resume(&self, node: u32) {
        self.node(node).resume();
    }

    /// Lets bytes from one node to another pass in another way. Only where links can be broken.
    pub fn set_link(&mut self, link: Link, passage: Passage) {
        self.try_set_link(link, passage).expect("the links can be broken");
    }

    fn try_set_link(&mut self, (from, to): Link, passage: Passage) -> anyhow::Result<()> {
        if let Some(links) = &self.links {
            links.set((from, to), passage);
            return Ok(());
        }
        if let Passage::Delayed(most) = passage {
            return self.container_mut(from).delay(most);
        }
        self.container_mut(to).filter(u8::try_from(from)?, passage)
    }

    /// How many bytes were held, delayed or cut on all links so far; nothing where nobody counts them.
    pub fn bytes_touched(&self) -> Option<u64> {
        self.links.as_ref().map(Links::touched)
    }

    /// Lets all bytes pass again.
    pub fn heal_links(&mut self) {
        if let Some(links) = &self.links {
            return links.all().for_each(|link| links.set(link, Passage::Open));
        }
        for id in self.ids() {
            self.container_mut(id).heal().expect("the links can be mended");
        }
    }

    /// Leaves a node so little of something that it ends, or hardly moves.
    pub fn exhaust(&mut self, node: u32, resource: Resource) {
        self.node_mut(node).exhaust(resource);
    }

    /// Gives a node enough of it again.
    pub fn relieve(&mut self, node: u32, resource: Resource) {
        self.node_mut(node).relieve(resource);
    }

    /// Damages the log of a node that is not running: what was acknowledged long ago.
    pub fn damage_log(&self, node: u32) {
        damage::damage_log(&self.data_directory(node));
    }

    /// Damages a row that a node, which is not running, has flushed lately.
    pub fn damage_row(&self, node: u32, text: &str) {
        damage::damage_row(&self.data_directory(node), text);
    }

    /// Has the program throw a node's data away, so that it is made anew from those of the others.
    pub fn rebuild(&self, node: u32) -> Output {
        let other = self.running().into_iter().find(|other| *other != node);
        self.rebuild_by(node, other.expect("another node runs"))
    }

    /// The same, with the help of this one.
    pub fn rebuild_by(&self, node: u32, helper: u32) -> Output {
        let data = self.data_directory(node).display().to_string();
        let (helper, number) = (self.url(helper), node.to_string());
        self.command(&["rebuild-node", &number, "--data-dir", &data, "--http", &helper])
    }

    /// Throws the data of a node that is not running away.
    pub fn wipe(&self, node: u32) {
        self.process(node).wipe();
    }

    /// Waits for a process that was told to end, or must end by itself.
    pub async fn await_exit(&mut self, node: u32) -> ExitStatus {
        let what = format!("the end of node {node}");
        let ended = async || self.node_mut(node).try_wait();
        let status = wait::until(&what, EXIT_DEADLINE, ended).await;
        let is_understood = status.code() != Some(EXIT_NOT_UNDERSTOOD);
        assert!(is_understood, "node {node} does not understand its faults: see its log");
        status
    }

    /// Waits until a node says that it is ready.
    pub async fn await_ready(&mut self, node: u32) {
        wait::until(&format!("node {node} to be ready"), READY_DEADLINE, async || {
            if let Some(status) = self.node_mut(node).try_wait() {
                panic!("node {node} ended with {status}:\n{}", self.node(node).log_tail());
            }
            self.is_ready(node).await.then_some(())
        })
        .await;
    }

    /// How a node ended, if it has.
    pub fn try_exit(&mut self, node: u32) -> Option<ExitStatus> {
        self.node_mut(node).try_wait()
    }

    /// Waits until a node is ready that has ended by itself. Nobody but us starts a process again, and
    /// a container may end a few times more.
    pub async fn await_return(&mut self, node: u32) {
        if !self.node(node).is_running() {
            self.spawn(node);
        }
        wait::until(&format!("node {node} to be back"), READY_DEADLINE, async || {
            self.node_mut(node).try_wait();
            self.is_ready(node).await.then_some(())
        })
        .await;
    }

    async fn is_ready(&self, node: u32) -> bool {
        let answer = self.client(node).send_unsigned(&Call::get("/readyz?verbose")).await;
        answer.is_ok_and(|answer| answer.status == 200)
    }

    /// What the cluster looks like from a node; none if it does not answer.
    pub async fn try_status(&self, node: u32) -> Option<Status> {
        Status::of(&self.client(node)).await
    }

    /// What the cluster looks like from any running node.
    pub async fn status(&self) -> Status {
        wait::until("a node's status", SETTLE_DEADLINE, async || {
            for node in self.running() {
                if let Some(status) = self.try_status(node).await {
                    return Some(status);
                }
            }
            None
        })
        .await
    }

    /// The node that leads a container's first partition, once there is one.
    pub async fn leader(&self, container: &Container) -> u32 {
        wait::until("a leader", SETTLE_DEADLINE, async || {
            let status = self.status().await;
            let leader = status.partitions(container).first().and_then(|group| group.leader);
            leader.filter(|leader| self.running().contains(leader))
        })
        .await
    }

    /// Waits until a node leads a container's first partition.
    pub async fn await_leader(&self, container: &Container, node: u32) {
        let what = format!("node {node} to lead {}", container.path());
        wait::until(&what, SETTLE_DEADLINE, async || {
            let status = self.status().await;
            let leader = status.partitions(container).first().and_then(|group| group.leader);
            (leader == Some(node)).then_some(())
        })
        .await;
    }

    /// Waits until every replica on the running nodes has applied everything.
    pub async fn await_settled(&self) {
        let nodes = self.running().len();
        wait::until_seen("all replicas to be level", SETTLE_DEADLINE, async || {
            let status = self.status().await;
            if status.is_settled(nodes) { Ok(()) } else { Err(format!("{status:#?}")) }
        })
        .await;
    }

    /// Waits until the clocks of all nodes agree, and since this call did so once.
    pub async fn await_clocks(&self) {
        let begun = clock::monotonic();
        wait::until_seen("the clocks to agree", SETTLE_DEADLINE, async || {
            let status = self.status().await;
            let agree = status.clocks_have_agreed(begun.elapsed());
            if agree { Ok(()) } else { Err(format!("{:#?}", status.nodes)) }
        })
        .await;
    }

    /// Waits until every group has all of its replicas on running nodes, whether they are quite level or
    /// not.
    pub async fn await_copies(&self) {
        let nodes = self.running().len();
        wait::until_seen("all replicas to be there", SETTLE_DEADLINE, async || {
            let status = self.status().await;
            if status.has_copies(nodes, LAG_MAX) { Ok(()) } else { Err(format!("{status:#?}")) }
        })
        .await;
    }

    /// How nodes ended that were not told to, since somebody looked.
    pub fn ended_by_themselves(&mut self) -> BTreeMap<u32, ExitStatus> {
        let running = self.running().into_iter();
        running.filter_map(|id| Some((id, self.node_mut(id).try_wait()?))).collect()
    }

    fn node(&self, node: u32) -> &dyn Node {
        self.nodes.get(&node).expect("the cluster has this node").as_ref()
    }

    fn node_mut(&mut self, node: u32) -> &mut dyn Node {
        self.nodes.get_mut(&node).expect("the cluster has this node").as_mut()
    }

    fn disk(&self, node: u32) -> &Disk {
        self.node(node).disk().expect("the node has a disk of its own")
    }

    fn process(&self, node: u32) -> &Process {
        let node: &dyn Any = self.node(node);
        node.downcast_ref().expect("the node is a process of this machine")
    }

    fn process_mut(&mut self, node: u32) -> &mut Process {
        let node: &mut dyn Any = self.node_mut(node);
        node.downcast_mut().expect("the node is a process of this machine")
    }

    fn container_mut(&mut self, node: u32) -> &mut container::Container {
        let node: &mut dyn Any = self.node_mut(node);
        node.downcast_mut().expect("the node is a container")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for (id, node) in &self.nodes {
            eprintln!("--- the end of node {id}'s log ---\n{}\n", node.log_tail());
        }
        if let Some(directory) = self.directory.take() {
            eprintln!("--- everything is kept in {} ---", directory.keep().display());
        }
    }
}
