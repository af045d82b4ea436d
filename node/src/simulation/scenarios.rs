//! Scenarios that need whole nodes, told one by one. The names carry the T-numbers of
//! `docs/TESTING.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ephemeris_raft::testing::simulate;
use ephemeris_store::ids::{GroupId, NodeId};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::http::{Answer, Ask, HttpClient, Lost};
use super::machine::{Loss, node_ip};
use super::show_what_happens;
use super::world::{Options, PEER_PORT, World};
use crate::clock::monotonic;

/// An answer within this is no news: elections and recovery take their time.
const PATIENCE: Duration = Duration::from_secs(20);
/// A time to live that ends while a node is made anew, or soon after.
const SHORT: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_hours(1);
/// Gateways accept dates that are not further off.
const TEN_MINUTES_MICROS: i64 = 600_000_000;
const SECOND_MICROS: i64 = 1_000_000;
const YEAR_MICROS: i64 = 365 * 24 * 3600 * SECOND_MICROS;

/// Runs a scenario in simulated time, with clocks that are right.
fn scenario<F: Future<Output = ()>>(options: Options, tell: impl FnOnce(Scene) -> F) {
    show_what_happens();
    simulate(1, async {
        let world = World::new(1, options);
        world.heal().await;
        let http = HttpClient::new(&world.network, 0);
        tell(Scene { world, http }).await;
    });
}

/// A world with hands to act in it.
struct Scene {
    world: Rc<World>,
    http: HttpClient,
}

impl Scene {
    /// Asks a node once.
    async fn ask(
        &mut self,
        node: u32,
        verb: &'static str,
        path: &str,
        headers: &[(&'static str, &str)],
        body: &Value,
    ) -> Result<Answer, Lost> {
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_string())).collect();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let ask = Ask { verb, path, headers, body };
        let now = self.world.truth();
        self.http.ask(node, &ask, now, PATIENCE).await
    }

    /// Asks a node until it answers with this.
    async fn expect(
        &mut self,
        (node, status): (u32, u16),
        verb: &'static str,
        path: &str,
        headers: &[(&'static str, &str)],
        body: &Value,
    ) -> Answer {
        let deadline = monotonic() + PATIENCE;
        loop {
            let answer = self.ask(node, verb, path, headers, body).await;
            match answer {
                Ok(answer) if answer.status == status => return answer,
                other => assert!(
                    monotonic() < deadline,
                    "{verb} {path}: {other:?}\n{}",
                    self.world.describe()
                ),
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn create_container(&mut self, default_ttl: i64) {
        self.expect((1, 201), "POST", "/dbs", &[], &json!({ "id": "d" })).await;
        let offer = [("x-ms-offer-throughput", "12000")];
        let body = definition(default_ttl);
        self.expect((1, 201), "POST", "/dbs/d/colls", &offer, &body).await;
    }

    async fn put(&mut self, node: u32, id: &str, ttl: i64) {
        self.put_in("p", node, id, ttl).await;
    }

    /// Writes an item of a logical partition; what the client is told.
    async fn put_in(&mut self, pk: &str, node: u32, id: &str, ttl: i64) -> Answer {
        let key = format!("[\"{pk}\"]");
        let headers = [(KEY, key.as_str()), ("x-ms-documentdb-is-upsert", "true")];
        let body = json!({ "id": id, "pk": pk, "ttl": ttl });
        let deadline = monotonic() + PATIENCE;
        loop {
            let answer = self.ask(node, "POST", DOCS, &headers, &body).await;
            if let Ok(answer @ Answer { status: 200 | 201, .. }) = answer {
                return answer;
            }
            assert!(monotonic() < deadline, "not written:\n{}", self.world.describe());
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Two logical partitions that lie in different partitions.
    async fn far_apart(&mut self) -> [String; 2] {
        let mut found = BTreeMap::new();
        for number in 0..100 {
            let pk = format!("p{number}");
            let answer = self.put_in(&pk, 1, "probe", -1).await;
            let token = answer.header("x-ms-session-token").unwrap_or_default();
            let (range, _) = token.split_once(':').expect("a token of one partition");
            found.entry(range.to_string()).or_insert(pk);
            if found.len() == 2 {
                break;
            }
        }
        let found: Vec<String> = found.into_values().collect();
        found.try_into().expect("hashes lead to both partitions")
    }

    /// What a node finds at each level of consistency: 200 or 404.
    async fn finds(&mut self, node: u32, id: &str) -> BTreeSet<u16> {
        self.finds_in("p", node, id).await
    }

    /// What a node finds in a logical partition at each level of consistency.
    async fn finds_in(&mut self, pk: &str, node: u32, id: &str) -> BTreeSet<u16> {
        let mut found = BTreeSet::new();
        for level in ["Strong", "Session", "Eventual"] {
            found.insert(self.finds_at(level, pk, node, id).await);
        }
        found
    }

    /// What a node finds in a logical partition at one level of consistency.
    async fn finds_at(&mut self, level: &str, pk: &str, node: u32, id: &str) -> u16 {
        let key = format!("[\"{pk}\"]");
        let headers = [(KEY, key.as_str()), ("x-ms-consistency-level", level)];
        let path = format!("{DOCS}/{id}");
        let deadline = monotonic() + PATIENCE;
        loop {
            let answer = self.ask(node, "GET", &path, &headers, &Value::Null).await;
            if let Ok(Answer { status: status @ (200 | 404), .. }) = answer {
                return status;
            }
            assert!(monotonic() < deadline, "{answer:?}\n{}", self.world.describe());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sleeps until true time has come so far beyond a second, in microseconds.
    async fn until(&self, second: i64, beyond: i64) {
        let left = second * SECOND_MICROS + beyond - self.world.truth();
        if let Ok(left) = u64::try_from(left) {
            sleep(Duration::from_micros(left)).await;
        }
    }

    /// Cuts nodes off from all other nodes.
    fn isolate(&self, nodes: &[u32]) {
        for node in nodes {
            for other in self.world.numbers().filter(|other| other != node) {
                self.world.network.cut(node_ip(*node), node_ip(other));
                self.world.network.cut(node_ip(other), node_ip(*node));
            }
        }
    }

    /// The nodes that each partition has replicas on.
    fn placement(&self) -> Vec<(GroupId, BTreeSet<u32>)> {
        let node = self.world.node(1).expect("node 1 runs");
        let directory = node.directory().current();
        let placed = directory.state().partitions().map(|record| {
            let nodes = record.replicas.iter().map(|replica| replica.node.0).collect();
            (record.group, nodes)
        });
        placed.collect()
    }

    /// True if all groups that node 1 has replicas of have these voters.
    fn vote(&self, nodes: &[u32]) -> bool {
        let node = self.world.node(1).expect("node 1 runs");
        node.describe().replicas.iter().all(|replica| {
            let voters = replica.voters.iter().map(|voter| voter.node.0);
            !replica.is_joint && voters.eq(nodes.iter().copied())
        })
    }

    /// The policy epoch at every replica of a group that runs.
    fn epochs(&self, group: GroupId) -> Vec<u64> {
        let replicas = self.world.numbers().flat_map(|number| self.world.replicas(number));
        let replicas = replicas.filter(|local| local.group().group() == group);
        replicas.map(|local| local.group().machine().state().ttl().epoch().0).collect()
    }

    /// True if the replicas of one node are as those of another.
    fn alike(&self, one: u32, other: u32) -> bool {
        let others = self.world.replicas(other);
        self.world.replicas(one).iter().all(|local| {
            let (group, state) = (local.group().group(), local.group().machine().state());
            let mut same = others.iter().filter(|other| other.group().group() == group);
            same.any(|other| other.group().machine().state() == state)
        })
    }

    /// Waits until a node's process has ended by itself, for this reason.
    async fn ends_by_itself(&self, node: u32, reason: &str) {
        let ended = || self.world.host(node).and_then(|host| host.ended());
        self.world.wait("the node to end", 2 * PATIENCE, || ended().is_some()).await;
        let found = ended().expect("it has ended");
        assert!(found.contains(reason), "{found}");
        self.world.end(node, Loss::Process { seed: 0 });
    }

    /// Ends all processes in order.
    async fn stop_all(&self) {
        for number in self.world.numbers() {
            self.world.stop(number).await;
        }
    }
}

const DOCS: &str = "/dbs/d/colls/c/docs";
const KEY: &str = "x-ms-documentdb-partitionkey";

fn definition(default_ttl: i64) -> Value {
    let key = json!({ "paths": ["/pk"], "kind": "Hash", "version": 2 });
    json!({ "id": "c", "partitionKey": key, "defaultTtl": default_ttl })
}

/// The second in which an item was written, as the client is told.
fn stamp(answer: &Answer) -> i64 {
    answer.json()["_ts"].as_i64().expect("an item has a stamp")
}

/// Two nodes of the one set of three, not both of them in the other.
fn majority_without(one: &BTreeSet<u32>, other: &BTreeSet<u32>) -> Vec<u32> {
    let pairs = one.iter().flat_map(|a| one.range(a + 1..).map(|b| vec![*a, *b]));
    let mut spared = pairs.filter(|pair| !pair.iter().all(|node| other.contains(node)));
    spared.next().expect("replicas are spread")
}

/// T41: a change of the time to live is not done before every partition has applied it. A partition
/// that nobody can reach keeps it from being answered 200, and gets it later all the same.
#[test]
fn t41_an_unreachable_partition_keeps_a_replace_from_being_answered_200() {
    let options = Options { nodes: 5, ..Options::plain() };
    scenario(options, async |mut scene| {
        scene.create_container(1000).await;
        let placement = scene.placement();
        let [(near, near_nodes), (far, far_nodes)] = &placement[..] else {
            panic!("{placement:?}")
        };
        let lost = majority_without(far_nodes, near_nodes);
        // The other partition, and the catalog, keep a majority.
        scene.isolate(&lost);
        let gateway = scene.world.numbers().find(|node| !lost.contains(node)).expect("three");
        let path = "/dbs/d/colls/c";
        // Until the catalog has a leader again, nothing is done at all.
        let deadline = monotonic() + PATIENCE;
        let answer = loop {
            let answer = scene.ask(gateway, "PUT", path, &[], &definition(1)).await;
            match answer {
                Ok(answer) if answer.status != 429 => break answer,
                _ => assert!(monotonic() < deadline, "{}", scene.world.describe()),
            }
        };
        assert_eq!(answer.status, 408, "not done, and not undone: {answer:?}");
        let shown = scene.expect((gateway, 200), "GET", path, &[], &Value::Null).await;
        assert_eq!(shown.json()["defaultTtl"], 1, "the catalog has it");
        assert!(scene.epochs(*far).contains(&1), "the far partition does not");

        // Nobody asks for it again: the partitions' leaders take it over from the catalog.
        scene.world.network.heal();
        for group in [near, far] {
            let world = &scene.world;
            let applied = || scene.epochs(*group).iter().all(|epoch| *epoch == 2);
            world.wait("the policy to be everywhere", PATIENCE, applied).await;
        }
        scene.expect((gateway, 200), "PUT", path, &[], &definition(1)).await;
    });
}

/// T50: what had expired before a backup was restored is gone at the first read, at every level; what
/// had not is there; and no countdown starts anew.
#[test]
fn t50_a_restored_backup_shows_nothing_that_has_expired_meanwhile() {
    scenario(Options::plain(), async |mut scene| {
        scene.create_container(-1).await;
        for (id, ttl) in [("minutes", 600), ("hours", 3 * 3600), ("forever", -1)] {
            scene.put(1, id, ttl).await;
        }
        scene.stop_all().await;
        let copies: Vec<_> =
            scene.world.numbers().map(|number| scene.world.copy_disks(number)).collect();

        scene.world.heal().await;
        scene.put(2, "later", -1).await;
        // Now it would live for another ten minutes, were it not for the backup.
        scene.put(2, "minutes", 3600).await;
        scene.stop_all().await;
        sleep(2 * HOUR).await;
        for (number, copy) in scene.world.numbers().zip(copies) {
            scene.world.restore_disks(number, copy);
        }
        scene.world.heal().await;
        for node in scene.world.numbers() {
            assert_eq!(scene.finds(node, "minutes").await, [404].into(), "at node {node}");
            assert_eq!(scene.finds(node, "hours").await, [200].into(), "at node {node}");
            assert_eq!(scene.finds(node, "forever").await, [200].into(), "at node {node}");
            assert_eq!(scene.finds(node, "later").await, [404].into(), "at node {node}");
        }
        sleep(HOUR).await;
        assert_eq!(scene.finds(1, "hours").await, [404].into(), "three hours, not five");
    });
}

/// T55: a node that lost its data and whose clock is behind gets its replicas anew by snapshots, and
/// shows nothing that has expired.
#[test]
fn t55_a_node_made_anew_with_a_slow_clock_shows_nothing_that_has_expired() {
    let options = Options { log_entries_kept: 0, ..Options::plain() };
    scenario(options, async |mut scene| {
        scene.create_container(-1).await;
        let short = i64::try_from(SHORT.as_secs()).expect("seconds");
        for (id, ttl) in [("short", short), ("long", 3600)] {
            scene.put(1, id, ttl).await;
        }
        // What is in no log any more when the node comes back, it gets by snapshots or not at all.
        let world = scene.world.clone();
        let alike = || scene.alike(1, 2) && scene.alike(1, 3);
        world.wait("all to have what was written", PATIENCE, alike).await;
        for number in 1..=2 {
            let (host, node) = (world.host(number), world.node(number));
            let (host, node) = (host.expect("it runs"), node.expect("it has started"));
            host.run(async move { node.flush().await }).await;
        }
        let purged = || {
            let mut replicas = (1..=2).flat_map(|number| world.replicas(number));
            replicas.all(|local| {
                let status = local.group().status();
                status.purged.is_some() && status.purged == status.applied
            })
        };
        world.wait("the logs to be purged", PATIENCE, purged).await;
        scene.world.end(3, Loss::Everything);
        scene.world.wipe(3);
        scene.world.time(3).set_wall(-TEN_MINUTES_MICROS, 0);
        scene.world.boot(3);
        let ended = || world.host(3).and_then(|host| host.ended());
        scene.world.wait("the node to be refused", PATIENCE, || ended().is_some()).await;
        let reason = ended().expect("it has ended");
        assert!(reason.contains("rebuild-node 3"), "{reason}");
        scene.world.end(3, Loss::Everything);

        let forget = json!({ "node": 3 });
        scene.expect((1, 200), "POST", "/admin/forget-node", &[], &forget).await;
        scene.world.boot(3);
        let ready = || {
            let node = world.node(3);
            node.is_some_and(|node| node.readiness().iter().all(|(_, holds)| *holds))
        };
        scene.world.wait("the node to be ready", 3 * PATIENCE, ready).await;
        let alike = || world.replicas(3).len() == 2 && scene.alike(1, 3);
        scene.world.wait("its replicas to be as the others", PATIENCE, alike).await;
        let received = world.snapshot_syncs(3);
        assert!(received >= 2, "{received} snapshots were received");
        sleep(SHORT).await;
        assert_eq!(scene.finds(3, "short").await, [404].into());
        assert_eq!(scene.finds(3, "long").await, [200].into());
    });
}

/// T57: two partitions have an item each that expires in the same second. Once one of them has said that its
/// item is gone, nobody is shown the other's, through any node, at any level, whichever clock is slow.
#[test]
fn t57_what_one_partition_calls_gone_the_other_does_not_show() {
    const LIFETIME: i64 = 10;
    for slow in 1..=3 {
        scenario(Options::plain(), async |mut scene| {
            scene.create_container(-1).await;
            let [near, far] = scene.far_apart().await;
            scene.world.time(slow).set_wall(-2 * SECOND_MICROS, 0);
            let expiry = stamp(&scene.put_in(&far, 1, "b", LIFETIME).await) + LIFETIME;
            // The same second, in whichever it is written.
            let mut ttl = LIFETIME;
            loop {
                let written = stamp(&scene.put_in(&near, 1, "a", ttl).await);
                if written + ttl == expiry {
                    break;
                }
                ttl = expiry - written;
            }
            scene.until(expiry, -SECOND_MICROS).await;
            assert_eq!(scene.finds_in(&near, 1, "a").await, [200].into());
            assert_eq!(scene.finds_in(&far, 1, "b").await, [200].into());
            scene.until(expiry, -SECOND_MICROS / 20).await;
            let deadline = monotonic() + PATIENCE;
            while scene.finds_at("Strong", &near, 1, "a").await == 200 {
                assert!(monotonic() < deadline, "not gone:\n{}", scene.world.describe());
            }
            for node in scene.world.numbers() {
                let found = scene.finds_in(&far, node, "b").await;
                assert_eq!(found, [404].into(), "at node {node}, node {slow} is slow");
            }
        });
    }
}

/// A node is the only one, and is written to all the time, while another joins. As long as that one cannot be
/// reached it has no vote, or nobody could write any more.
#[test]
fn a_joiner_that_cannot_be_reached_stops_no_writes() {
    let options = Options { nodes: 2, joiners: 1, ..Options::plain() };
    scenario(options, async |mut scene| {
        scene.create_container(-1).await;
        scene.put(1, "before", -1).await;
        let world = scene.world.clone();
        world.boot(2);
        let registered = || {
            let directory = world.node(1).expect("node 1 runs").directory().current();
            directory.state().node(NodeId(2)).is_some()
        };
        world.wait("the node to be registered", PATIENCE, registered).await;
        scene.isolate(&[2]);
        // The balancer has some rounds, and leaders look after their members.
        for second in 0..30 {
            let began = monotonic();
            scene.put(1, &format!("i{second}"), -1).await;
            scene
                .expect((1, 201), "POST", "/dbs", &[], &json!({ "id": format!("d{second}") }))
                .await;
            assert!(began.elapsed() < Duration::from_secs(1), "{}", world.describe());
            sleep(Duration::from_secs(1)).await;
        }
        assert!(scene.vote(&[1]), "{}", world.describe());

        world.network.heal();
        world.wait("the node to vote", PATIENCE, || scene.vote(&[1, 2])).await;
        assert_eq!(scene.finds(2, "before").await, [200].into());
        assert_eq!(scene.finds(2, "i29").await, [200].into());
    });
}

/// A node that can be seen to run is not forgotten. One that runs all the same ends once it hears that it was, and
/// again when it is started with what it had; it does not register itself anew.
#[test]
fn a_forgotten_node_takes_part_in_nothing_any_more() {
    scenario(Options::plain(), async |mut scene| {
        scene.create_container(-1).await;
        scene.put(1, "a", -1).await;
        let (forget, path) = (json!({ "node": 3 }), "/admin/forget-node");
        let world = scene.world.clone();
        // First it is one of the founders, then one that has joined.
        for _ in 0..2 {
            let refused = scene.expect((1, 409), "POST", path, &[], &forget).await;
            let message = refused.json()["message"].to_string();
            assert!(message.contains("stop its process first"), "{message}");

            scene.isolate(&[3]);
            scene.expect((1, 200), "POST", path, &[], &forget).await;
            world.wait("it to lose its votes", PATIENCE, || scene.vote(&[1, 2])).await;
            world.network.heal();
            scene.ends_by_itself(3, "has forgotten node 3").await;
            world.boot(3);
            scene.ends_by_itself(3, "has forgotten node 3").await;
            let directory = world.node(1).expect("node 1 runs").directory().current();
            assert!(directory.state().node(NodeId(3)).is_none(), "it is not known");

            world.wipe(3);
            world.boot(3);
            world.wait("it to join", 2 * PATIENCE, || scene.vote(&[1, 2, 3])).await;
            assert_eq!(scene.finds(3, "a").await, [200].into());
        }
    });
}

/// A node without a replica of a partition asks those that have one. One of them that hangs, and led, is
/// passed over: by the next request for who writes, and within a request for who reads.
#[test]
fn a_replica_that_hangs_is_passed_over_by_a_gateway_without_one() {
    let options = Options { nodes: 5, ..Options::plain() };
    scenario(options, async |mut scene| {
        scene.create_container(-1).await;
        let world = scene.world.clone();
        let (group, nodes) = scene.placement().swap_remove(0);
        let gateways: Vec<u32> = world.numbers().filter(|node| !nodes.contains(node)).collect();
        let [reading, writing] = gateways[..] else { panic!("five nodes") };
        let hanging = {
            let node = world.node(1).expect("node 1 runs");
            let directory = node.directory().current();
            directory.state().partition(group).expect("it was placed").replicas[0].node.0
        };
        world.host(hanging).expect("it runs").freeze();
        let leads = |number: u32| {
            let replicas = world.replicas(number);
            let mut of_group = replicas.iter().filter(|local| local.group().group() == group);
            of_group.any(|local| local.group().leadership().is_me)
        };
        let others: Vec<u32> = nodes.iter().copied().filter(|node| *node != hanging).collect();
        world.wait("another leader", PATIENCE, || others.iter().any(|node| leads(*node))).await;

        let deadline = monotonic() + 3 * world.options.request_timeout;
        let path = format!("{DOCS}/a");
        let key = [(KEY, "[\"p\"]")];
        let answer = scene.ask(reading, "GET", &path, &key, &Value::Null).await;
        assert_eq!(answer.expect("it is answered").status, 404, "the first read finds the leader");
        scene.put(writing, "a", -1).await;
        assert_eq!(scene.finds(writing, "a").await, [200].into());
        assert!(monotonic() < deadline, "{}", world.describe());
        world.host(hanging).expect("it runs").thaw();
    });
}

/// All nodes can be given other addresses at once: what `--cluster` says at a start counts more than what the
/// catalog knew. So a copy of all nodes that is started elsewhere does not ask the ones that it is a copy of.
#[test]
fn a_cluster_whose_nodes_have_all_moved_finds_itself_again() {
    scenario(Options::plain(), async |mut scene| {
        scene.create_container(-1).await;
        scene.put(1, "a", -1).await;
        // Whether the catalog is in the engine or in the log only.
        for loss in [None, Some(Loss::Process { seed: 0 })] {
            for number in scene.world.numbers() {
                match loss {
                    None => scene.world.stop(number).await,
                    Some(loss) => scene.world.end(number, loss),
                }
            }
            let port = PEER_PORT + 1 + u16::from(loss.is_some());
            scene.world.renumber(port);
            scene.world.heal().await;
            let world = scene.world.clone();
            let moved = || {
                let directory = world.node(1).expect("node 1 runs").directory().current();
                directory.state().nodes().all(|node| node.peer.ends_with(&format!(":{port}")))
            };
            world.wait("the catalog to know the new addresses", PATIENCE, moved).await;
            for node in world.numbers() {
                assert_eq!(scene.finds(node, "a").await, [200].into());
            }
        }
    });
}

/// A group in which nothing is written does not show who has gone: leadership goes to a node that answers.
#[test]
fn an_idle_group_is_handed_over_to_a_node_that_answers() {
    scenario(Options::plain(), async |mut scene| {
        scene.create_container(-1).await;
        scene.put(1, "a", -1).await;
        let world = scene.world.clone();
        let leader = || {
            world.numbers().find(|number| {
                world.replicas(*number).iter().any(|local| local.group().leadership().is_me)
            })
        };
        world.wait("a leader", PATIENCE, || leader().is_some()).await;
        let leads = leader().expect("one leads");
        let others: Vec<u32> = world.numbers().filter(|number| *number != leads).collect();
        let [stays, goes] = others[..] else { panic!("three nodes") };
        world.end(goes, Loss::Process { seed: 0 });

        let terms = |number: u32| -> Vec<u64> {
            let replicas = world.node(number).expect("it runs").describe().replicas;
            replicas.iter().map(|replica| replica.term).collect()
        };
        let before = terms(stays);
        scene.expect((leads, 200), "POST", "/admin/hand-over", &[], &json!({})).await;
        // Sooner than after an election that nobody asked for.
        let soon = Duration::from_millis(500);
        world.wait("the other to lead", soon, || leader() == Some(stays)).await;
        let after = terms(stays);
        assert!(after.iter().zip(&before).all(|(after, before)| *after <= before + 1), "{after:?}");
    });
}

/// A node that once was a cluster of one goes by the majority that the others have made, also when it is
/// started again with the list of then: a clock that is a year ahead expires nothing.
#[test]
fn a_cluster_that_began_with_one_node_goes_by_its_majority() {
    let options = Options { nodes: 3, joiners: 2, ..Options::plain() };
    scenario(options, async |mut scene| {
        scene.create_container(-1).await;
        let world = scene.world.clone();
        world.boot(2);
        world.boot(3);
        world.wait("all to vote", 2 * PATIENCE, || scene.vote(&[1, 2, 3])).await;
        scene.put(1, "hours", 36_000).await;

        world.end(1, Loss::Process { seed: 0 });
        world.time(1).set_wall(YEAR_MICROS, 0);
        world.boot(1);
        let ready = || {
            let node = world.node(1);
            node.is_some_and(|node| node.readiness().iter().all(|(_, holds)| *holds))
        };
        world.wait("the node to be ready", PATIENCE, ready).await;
        // The catalog's leader brings it back to lead what it is to lead.
        sleep(Duration::from_mins(1)).await;
        assert_eq!(scene.finds(2, "hours").await, [200].into());
        world.check();
    });
}
