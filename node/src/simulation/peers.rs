//! A peer whose answers nobody can read, as one of another version, or with bad memory, might give them:
//! what it was asked may be done, so a write is not sent again.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use ephemeris_raft::testing::simulate;
use ephemeris_raft::{Host, Router};
use ephemeris_store::catalog::{
    CatalogCommand, CatalogOutcome, ContainerDefinition, Created, ReplicaPlan,
};
use ephemeris_store::codec;
use ephemeris_store::ids::{DatabaseNumber, GroupId, Lsn, NodeId, ReplicaId, ResourceName};
use serde_json::json;

use super::machine::node_ip;
use super::show_what_happens;
use super::world::{Options, PEER_PORT, World};
use crate::clock::monotonic;
use crate::node::Node;
use crate::partition::PartitionRequest;
use crate::platform::Network as _;
use crate::requests::{NodeRequest, NodeResponse, Probed, RequestError};
use crate::supervisor::Tasks;
use crate::transport::{LocalIdentity, RequestHandler, serve};

/// The one node that is whole, and the peer.
const NODE: NodeId = NodeId(1);
const PEER: NodeId = NodeId(2);
/// The peer's data directory.
const DIRECTORY: u128 = 2;
/// Long enough for many attempts.
const PATIENCE: Duration = Duration::from_secs(3);

/// Lets nodes join, and answers all else with what is no answer.
#[derive(Default)]
struct Garbler {
    asked: Mutex<Vec<NodeRequest>>,
}

impl Garbler {
    /// Starts one at the peer's address.
    async fn start(world: &World) -> Arc<Self> {
        let (ip, garbler) = (node_ip(PEER.0), Arc::new(Self::default()));
        let interface = world.network.interface(ip, Host::new());
        let listener = interface.listen(SocketAddr::new(ip, PEER_PORT)).await.unwrap();
        let identity = LocalIdentity::new(PEER, DIRECTORY, None);
        serve(&Tasks::new(), listener, identity, Router::new(), garbler.clone());
        garbler
    }

    /// How many such requests it got.
    fn count(&self, is_such: impl Fn(&NodeRequest) -> bool) -> usize {
        self.asked.lock().unwrap().iter().filter(|request| is_such(request)).count()
    }

    fn answer(&self, request: NodeRequest) -> Bytes {
        let answer = if matches!(request, NodeRequest::Probe) {
            NodeResponse::Probe(Probed { formed: true, known_directory: None })
        } else if let NodeRequest::Catalog(CatalogCommand::RegisterNode { node, .. }) = request {
            let result = Ok(Created::Node(ReplicaId { node, incarnation: 5 }));
            NodeResponse::Catalog(Ok(CatalogOutcome { lsn: Lsn(5), result }))
        } else {
            self.asked.lock().unwrap().push(request);
            return Bytes::from_static(b"\xff\xff\xff");
        };
        Bytes::from(codec::encode(&answer))
    }
}

impl RequestHandler for Garbler {
    fn handle(
        &self,
        _from: NodeId,
        request: Bytes,
    ) -> Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>> {
        let answer = self.answer(codec::decode(&request).unwrap());
        Box::pin(std::future::ready(Ok(answer)))
    }
}

/// Has the node do something, as a part of its process.
async fn on<F: Future>(world: &World, work: impl FnOnce(Node) -> F) -> F::Output {
    world.wait("the node to start", PATIENCE, || world.node(NODE.0).is_some()).await;
    let (host, node) = (world.host(NODE.0).unwrap(), world.node(NODE.0).unwrap());
    host.run(work(node)).await
}

fn create_database() -> CatalogCommand {
    let name = ResourceName::try_from("d".to_string()).unwrap();
    CatalogCommand::CreateDatabase { name, throughput: None }
}

/// What makes a partition, number 1, that has its one replica at the peer.
fn partition_at_peer() -> [CatalogCommand; 3] {
    let body = json!({ "id": "c", "partitionKey": { "paths": ["/pk"] } });
    let definition = ContainerDefinition::parse(&body).unwrap();
    [
        CatalogCommand::RegisterNode {
            node: PEER,
            directory: DIRECTORY,
            peer: SocketAddr::new(node_ip(PEER.0), PEER_PORT).to_string(),
            url: String::new(),
            founder: false,
        },
        create_database(),
        CatalogCommand::CreateContainer {
            database: DatabaseNumber(1),
            definition: serde_json::to_string(definition.json()).unwrap(),
            throughput: None,
            placement: vec![ReplicaPlan(vec![PEER])],
        },
    ]
}

#[test]
fn a_write_whose_answer_cannot_be_read_is_sent_once() {
    show_what_happens();
    simulate(1, async {
        let world: Rc<World> = World::new(1, Options { nodes: 2, joiners: 1, ..Options::plain() });
        world.heal().await;
        let garbler = Garbler::start(&world).await;
        let written = on(&world, async |node| {
            for command in partition_at_peer() {
                let changed = node.change_catalog(command, monotonic() + PATIENCE).await;
                changed.unwrap().result.unwrap();
            }
            let write = PartitionRequest::Write(Vec::new());
            node.ask_partition(GroupId(1), write, monotonic() + PATIENCE).await
        });
        let written = written.await;
        assert!(matches!(written, Err(RequestError::Unknown(_))), "{written:?}");
        let is_write = |asked: &NodeRequest| matches!(asked, NodeRequest::Partition(..));
        assert_eq!(garbler.count(is_write), 1);
    });
}

#[test]
fn a_change_of_the_catalog_whose_answer_cannot_be_read_is_sent_once() {
    show_what_happens();
    simulate(1, async {
        let world = World::dark(1, Options { nodes: 2, ..Options::plain() });
        let garbler = Garbler::start(&world).await;
        world.boot(NODE.0);
        let changed = on(&world, async |node| {
            node.change_catalog(create_database(), monotonic() + PATIENCE).await
        });
        let changed = changed.await;
        assert!(matches!(changed, Err(RequestError::Unknown(_))), "{changed:?}");
        let is_it = |asked: &NodeRequest| {
            matches!(asked, NodeRequest::Catalog(CatalogCommand::CreateDatabase { .. }))
        };
        assert_eq!(garbler.count(is_it), 1);
    });
}
