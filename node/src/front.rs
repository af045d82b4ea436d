//! Everything that clients and operators can ask for, from the moment that the node has its address. Most
//! requests are for the gateway, which takes paths apart by itself.
//!
//! A node that waits for the others of a cluster may do so for long: meanwhile it says that it is alive and not
//! ready, and requests wait for it as long as they may take.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use ephemeris_raft::Host;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::SetOnce;

use crate::admin;
use crate::gateway::{self, Gateway};

/// Answers requests. Clones do the same.
#[derive(Clone)]
pub(crate) struct Front {
    started: Arc<SetOnce<Started>>,
    /// How long a request may wait for the node to start.
    patience: Duration,
    /// The simulated process that answers, if it is one.
    process: Option<Host>,
}

/// Who answers once the node has started.
struct Started {
    gateway: Gateway,
    probes: TowerToHyperService<Router>,
}

impl Front {
    /// Nobody answers yet but this.
    pub(crate) fn new(patience: Duration) -> Self {
        Self { started: Arc::default(), patience, process: Host::current() }
    }

    /// The node has started.
    pub(crate) fn open(&self, gateway: Gateway, metrics: PrometheusHandle) {
        let probes = TowerToHyperService::new(admin::probes(gateway.node.clone(), metrics));
        let set = self.started.set(Started { gateway, probes });
        assert!(set.is_ok(), "a node starts once");
    }

    async fn handle(self, request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let waiting = tokio::time::timeout(self.patience, self.started.wait());
        match waiting.await {
            Ok(Started { gateway, .. }) => gateway::handle(gateway.clone(), request).await,
            Err(_) => Ok(gateway::not_started(request).await),
        }
    }
}

impl Service<Request<Incoming>> for Front {
    type Response = Response<Body>;
    type Error = Infallible;
    // Boxed, or every connection at rest would take as much room as a request.
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        if admin::PROBES.contains(&request.uri().path()) {
            return match self.started.get() {
                Some(Started { probes, .. }) => Box::pin(probes.call(request)),
                None => Box::pin(std::future::ready(Ok(admin::probe_early(request.uri().path())))),
            };
        }
        let request = request.map(Body::new);
        match (&self.process, self.started.get()) {
            (None, Some(Started { gateway, .. })) => {
                Box::pin(gateway::handle(gateway.clone(), request))
            }
            (None, None) => Box::pin(self.clone().handle(request)),
            // The tasks of connections are outside of a simulated process; their answers are not.
            (Some(process), _) => {
                let (process, front) = (process.clone(), self.clone());
                Box::pin(async move { process.run(front.handle(request)).await })
            }
        }
    }
}
