//! Settings: flags before environment before file before defaults.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ephemeris_store::ids::NodeId;
use figment::Figment;
use figment::providers::{Env, Format as _, Serialized, Toml};
use serde::{Deserialize, Serialize};

use crate::telemetry::LogFormat;

/// The key every Cosmos emulator uses. Known to everybody: for loopback only.
pub const EMULATOR_KEY: &str =
    "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw==";

/// Everything that can be set. Each is a flag, an `EPHEMERIS_…` variable and a line of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// Where clients connect.
    pub http: String,
    /// Where other nodes connect.
    pub peer: Option<String>,
    /// This node's number.
    pub node_id: Option<u32>,
    /// All nodes: `1=HOST:PORT,2=HOST:PORT,…`.
    pub cluster: Option<String>,
    /// The URL clients are told to use for this node.
    pub advertise: Option<String>,
    /// The account key, base64.
    pub key: Option<String>,
    /// A second key that works too, base64.
    pub secondary_key: Option<String>,
    /// A file that holds the account key.
    pub key_file: Option<PathBuf>,
    /// A file that holds the second key.
    pub secondary_key_file: Option<PathBuf>,
    /// Use the emulator key on an address others can reach.
    pub allow_emulator_key: bool,
    /// What is logged.
    pub log: String,
    /// How it looks.
    pub log_format: LogFormat,
    /// How long a request may take, in milliseconds.
    pub request_timeout_ms: u64,
    /// Memory for uncompressed blocks, in MiB.
    pub block_cache_mib: usize,
    /// Memory for writes that are not flushed yet, in MiB.
    pub write_buffer_mib: usize,
    /// How often a leader shows that it lives, in milliseconds.
    pub heartbeat_ms: u64,
    /// How long a follower waits for a sign before it stands for election, in milliseconds.
    pub election_timeout_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("ephemeris-data"),
            http: "127.0.0.1:8081".to_string(),
            peer: None,
            node_id: None,
            cluster: None,
            advertise: None,
            key: None,
            secondary_key: None,
            key_file: None,
            secondary_key_file: None,
            allow_emulator_key: false,
            log: "info".to_string(),
            log_format: LogFormat::Text,
            request_timeout_ms: 5000,
            block_cache_mib: 32,
            write_buffer_mib: 32,
            heartbeat_ms: 250,
            election_timeout_ms: 750,
        }
    }
}

impl Settings {
    /// Puts flags over environment over file over defaults.
    pub fn load(file: Option<&Path>, flags: impl Serialize) -> anyhow::Result<Self> {
        let mut figment = Figment::from(Serialized::defaults(Settings::default()));
        if let Some(file) = file {
            ensure!(file.is_file(), "there is no settings file {}", file.display());
            figment = figment.merge(Toml::file(file));
        }
        let names = setting_names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let environment = Env::prefixed("EPHEMERIS_").only(&names);
        let settings = figment.merge(environment).merge(Serialized::defaults(flags)).extract();
        settings.context("the settings are not usable")
    }
}

fn setting_names() -> Vec<String> {
    let defaults = serde_json::to_value(Settings::default()).expect("settings are plain data");
    let object = defaults.as_object().expect("settings are an object");
    object.keys().cloned().collect()
}

/// What a node needs to know, checked.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// This node's number.
    pub node: NodeId,
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// Where clients connect.
    pub http: SocketAddr,
    /// Where other nodes connect; none for a node alone.
    pub peer: Option<SocketAddr>,
    /// The nodes a cluster is formed of, with their addresses; only this one if it is alone.
    pub founders: BTreeMap<NodeId, String>,
    /// The URL clients are told to use.
    pub advertise: Option<String>,
    /// Keys that sign requests.
    pub keys: AccountKeys,
    /// How long a request may take.
    pub request_timeout: Duration,
    /// Memory for uncompressed blocks, in bytes.
    pub block_cache_bytes: usize,
    /// Memory for unflushed writes, in bytes.
    pub write_buffer_bytes: usize,
    /// How often a leader shows that it lives.
    pub heartbeat: Duration,
    /// How long a follower waits for a sign.
    pub election_timeout: Duration,
}

/// The account's keys, decoded.
#[derive(Clone)]
pub struct AccountKeys {
    /// One or two keys.
    pub keys: Vec<Vec<u8>>,
    /// True if the first is the one everybody knows.
    pub emulator: bool,
}

impl std::fmt::Debug for AccountKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} account keys", self.keys.len())
    }
}

/// The number a node alone has.
const ONLY_NODE: NodeId = NodeId(1);

impl NodeConfig {
    /// A node alone.
    pub fn single(settings: &Settings) -> anyhow::Result<Self> {
        let founders = BTreeMap::from([(ONLY_NODE, String::new())]);
        Self::new(settings, ONLY_NODE, None, founders)
    }

    /// A node of a cluster.
    pub fn clustered(settings: &Settings) -> anyhow::Result<Self> {
        let node = settings.node_id.context("--node-id is missing: give every node its number")?;
        let peer = settings.peer.as_deref().context(
            "--peer is missing: the address where other nodes reach this one, as 0.0.0.0:7000",
        )?;
        let cluster = settings.cluster.as_deref().context(
            "--cluster is missing: the same list on every node, as 1=n1:7000,2=n2:7000,3=n3:7000",
        )?;
        let founders = parse_cluster(cluster)?;
        let node = NodeId(node);
        ensure!(
            founders.contains_key(&node),
            "node {node} is not in --cluster {cluster}: the list names all nodes, this one included"
        );
        let peer = parse_address("--peer", peer)?;
        Self::new(settings, node, Some(peer), founders)
    }

    fn new(
        settings: &Settings,
        node: NodeId,
        peer: Option<SocketAddr>,
        founders: BTreeMap<NodeId, String>,
    ) -> anyhow::Result<Self> {
        let http = parse_address("--http", &settings.http)?;
        let keys = account_keys(settings, http.ip())?;
        ensure!(settings.heartbeat_ms >= 10, "heartbeat_ms must be at least 10");
        ensure!(
            settings.election_timeout_ms >= 2 * settings.heartbeat_ms,
            "election_timeout_ms must be at least twice heartbeat_ms"
        );
        let advertise = settings.advertise.clone().map(|url| {
            if url.ends_with('/') { url } else { url + "/" }
        });
        Ok(Self {
            node,
            data_dir: settings.data_dir.clone(),
            http,
            peer,
            founders,
            advertise,
            keys,
            request_timeout: Duration::from_millis(settings.request_timeout_ms),
            block_cache_bytes: settings.block_cache_mib << 20,
            write_buffer_bytes: settings.write_buffer_mib << 20,
            heartbeat: Duration::from_millis(settings.heartbeat_ms),
            election_timeout: Duration::from_millis(settings.election_timeout_ms),
        })
    }
}

fn parse_address(flag: &str, text: &str) -> anyhow::Result<SocketAddr> {
    text.parse().with_context(|| format!("{flag} {text} is no address such as 127.0.0.1:8081"))
}

/// Parses `1=HOST:PORT,2=HOST:PORT`.
fn parse_cluster(text: &str) -> anyhow::Result<BTreeMap<NodeId, String>> {
    let mut nodes = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (number, address) =
            part.split_once('=').with_context(|| format!("{part} is not NUMBER=HOST:PORT"))?;
        let number: u32 = number.trim().parse().with_context(|| format!("{part}: no number"))?;
        ensure!(number > 0, "nodes are numbered from 1");
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        ensure!(port.is_some(), "{part}: the address needs a port");
        if nodes.insert(NodeId(number), address.trim().to_string()).is_some() {
            bail!("node {number} stands twice in --cluster");
        }
    }
    ensure!(!nodes.is_empty(), "--cluster names no node");
    Ok(nodes)
}

fn account_keys(settings: &Settings, listens_on: IpAddr) -> anyhow::Result<AccountKeys> {
    let primary = one_key("key", settings.key.as_deref(), settings.key_file.as_deref())?;
    let secondary = one_key(
        "secondary key",
        settings.secondary_key.as_deref(),
        settings.secondary_key_file.as_deref(),
    )?;
    let Some(primary) = primary else {
        ensure!(secondary.is_none(), "a secondary key needs a primary one beside it");
        ensure!(
            listens_on.is_loopback() || settings.allow_emulator_key,
            "no account key is set, and the emulator key that everybody knows is refused on \
             {listens_on}, which others can reach. Set EPHEMERIS_KEY or --key-file \
             (`openssl rand -base64 64 | tr -d '\\n'` makes a key), or pass --allow-emulator-key"
        );
        let key = STANDARD.decode(EMULATOR_KEY).expect("the emulator key is base64");
        return Ok(AccountKeys { keys: vec![key], emulator: true });
    };
    let keys = std::iter::once(primary).chain(secondary).collect();
    Ok(AccountKeys { keys, emulator: false })
}

fn one_key(
    what: &str,
    value: Option<&str>,
    file: Option<&Path>,
) -> anyhow::Result<Option<Vec<u8>>> {
    let text = match (value, file) {
        (Some(_), Some(_)) => bail!("the {what} is given both directly and by file"),
        (None, None) => return Ok(None),
        (Some(value), None) => value.to_string(),
        (None, Some(file)) => std::fs::read_to_string(file)
            .with_context(|| format!("the {what} file {} cannot be read", file.display()))?,
    };
    let key = STANDARD.decode(text.trim()).with_context(|| format!("the {what} is not base64"))?;
    ensure!(key.len() >= 16, "the {what} is shorter than 16 bytes");
    Ok(Some(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::default()
    }

    #[test]
    fn loopback_uses_the_emulator_key_and_others_refuse_it() {
        assert!(NodeConfig::single(&settings()).unwrap().keys.emulator);
        let open = Settings { http: "0.0.0.0:8081".into(), ..settings() };
        let message = NodeConfig::single(&open).unwrap_err().to_string();
        assert!(message.contains("--allow-emulator-key"), "{message}");
        let allowed = Settings { allow_emulator_key: true, ..open.clone() };
        assert!(NodeConfig::single(&allowed).is_ok());
        let keyed = Settings { key: Some(STANDARD.encode([7; 64])), ..open };
        assert!(!NodeConfig::single(&keyed).unwrap().keys.emulator);
    }

    #[test]
    fn keys_are_checked() {
        let with = |key: &str| Settings { key: Some(key.into()), ..settings() };
        assert!(NodeConfig::single(&with("not base64!")).is_err());
        assert!(NodeConfig::single(&with("c2hvcnQ=")).is_err());
        let alone = Settings { secondary_key: Some(STANDARD.encode([7; 64])), ..settings() };
        assert!(NodeConfig::single(&alone).is_err());
    }

    #[test]
    fn cluster_lists_are_checked() {
        let nodes = parse_cluster("1=a:1, 2=b:2,3=[::1]:3").unwrap();
        assert_eq!(nodes[&NodeId(3)], "[::1]:3");
        for wrong in ["", "a:1", "1=a", "x=a:1", "0=a:1", "1=a:1,1=b:1", "1=a:99999"] {
            assert!(parse_cluster(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_clustered_node_says_what_is_missing() {
        let message = |settings: &Settings| NodeConfig::clustered(settings).unwrap_err().to_string();
        let mut settings = settings();
        assert!(message(&settings).contains("--node-id"));
        settings.node_id = Some(4);
        assert!(message(&settings).contains("--peer"));
        settings.peer = Some("127.0.0.1:7000".into());
        assert!(message(&settings).contains("--cluster"));
        settings.cluster = Some("1=a:1,2=b:2".into());
        assert!(message(&settings).contains("node 4 is not in --cluster"));
        settings.node_id = Some(2);
        assert!(NodeConfig::clustered(&settings).is_ok());
    }

    #[test]
    fn flags_win_over_the_file_which_wins_over_defaults() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ephemeris.toml");
        std::fs::write(&file, "http = \"127.0.0.1:9\"\nlog = \"debug\"\n").unwrap();
        let flags = serde_json::json!({ "log": "warn" });
        let settings = Settings::load(Some(&file), flags).unwrap();
        assert_eq!((settings.http.as_str(), settings.log.as_str()), ("127.0.0.1:9", "warn"));
        assert_eq!(settings.request_timeout_ms, 5000);
        std::fs::write(&file, "htpp = \"127.0.0.1:9\"\n").unwrap();
        let error = Settings::load(Some(&file), serde_json::json!({})).unwrap_err();
        assert!(format!("{error:#}").contains("htpp"), "{error:#}");
    }
}
