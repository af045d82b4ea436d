//! The containers of docker-compose.yml, under a project name of their own.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::command;
use super::container::{Container, docker};
use super::disk::Disk;

/// Neither a developer's own cluster, nor that of `.ci/run`.
const PROJECT: &str = "ephemeris-faults";
const IMAGE: &str = "ephemeris:dev";
/// The nodes of docker-compose.yml.
const NODES: [u8; 3] = [1, 2, 3];

/// Containers, networks and volumes, which all go when this is dropped.
pub(super) struct Project {
    /// Where the disks are.
    directory: PathBuf,
    /// Files that describe it.
    files: Vec<&'static str>,
    /// Why the nodes have no disks of their own, if so.
    pub(super) without_disks: Option<String>,
}

impl Project {
    /// Makes containers, none of which runs yet, and what they need.
    pub(super) fn create(directory: &Path) -> anyhow::Result<(Self, BTreeMap<u32, Container>)> {
        for number in NODES {
            let address = Container::http_of(number);
            TcpListener::bind(address).with_context(|| {
                format!(
                    "{address} is taken. If by a run that was killed, docker-compose \
                     --project-name {PROJECT} down --volumes ends its containers"
                )
            })?;
        }
        let image = docker(&["images", "--quiet", IMAGE])?;
        ensure!(!image.is_empty(), "there is no image {IMAGE}: run .ci/image first");

        let make = |number: u8| {
            Disk::make(&directory.join(format!("node{number}"))).and_then(Disk::open_to_containers)
        };
        let disks: anyhow::Result<Vec<Disk>> = NODES.into_iter().map(make).collect();
        let mut files = vec!["docker-compose.yml", "cluster-tests/compose/strong.yml"];
        if disks.is_ok() {
            files.push("cluster-tests/compose/disks.yml");
        }
        let without_disks = disks.as_ref().err().map(|error| format!("{error:#}"));
        let project = Self { directory: directory.to_path_buf(), files, without_disks };
        // What a run has left that was killed.
        project.compose(&["down", "--volumes"])?;
        project.compose(&["up", "--no-start", "--no-build"])?;

        let label = format!("label=com.docker.compose.project={PROJECT}");
        let format = "{{.ID}} {{.Label \"com.docker.compose.service\"}}";
        let listed = docker(&["ps", "--all", "--filter", &label, "--format", format])?;
        let mut disks = disks.unwrap_or_default().into_iter();
        let mut containers = BTreeMap::new();
        for number in NODES {
            let service = format!("n{number}");
            let line =
                listed.lines().find_map(|line| line.split_once(' ').filter(|it| it.1 == service));
            let (id, _) = line.with_context(|| format!("docker-compose made no {service}"))?;
            let container = Container::new(number, id.to_string(), disks.next());
            containers.insert(u32::from(number), container);
        }
        Ok((project, containers))
    }

    fn compose(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("a workspace")?;
        let standalone = command::run(Command::new("docker-compose").arg("version")).is_ok();
        let mut compose = Command::new(if standalone { "docker-compose" } else { "docker" });
        if !standalone {
            compose.arg("compose");
        }
        compose.current_dir(root).args(["--project-name", PROJECT]);
        for file in &self.files {
            compose.args(["--file", file]);
        }
        // The emulator key, whatever the developer's own setting is.
        compose.env("EPHEMERIS_KEY", "").env("DISKS", &self.directory);
        command::run(compose.args(arguments)).map(drop)
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        // They need not hand their leaderships over.
        let down = ["down", "--volumes", "--timeout", "0"];
        if let Err(error) = self.compose(&down) {
            eprintln!("the containers of {PROJECT} are still there: {error:#}");
        }
    }
}
