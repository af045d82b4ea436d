//! Settings: flags before environment before file before defaults.

mod keys;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ephemeris_raft::GroupOptions;
use ephemeris_store::ids::NodeId;
use ephemeris_store::time::Millis;
use figment::providers::{Env, Format as _, Serialized, Toml};
use figment::{Figment, Provider};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub(crate) use keys::{AccountKeys, EMULATOR_KEY, KeySources, Secret};

use crate::connections::CONNECTIONS_MAX;
use crate::consistency::ConsistencyLevel;
use crate::partition::Burst;
use crate::telemetry::LogFormat;
use crate::tls::{PeerKeys, TlsError, TlsSource};

/// A leader that shows more often that it lives than this does nothing else.
const HEARTBEAT_MS_MIN: u64 = 10;

/// No request gets to a leader on another node, and there to a majority of disks, in less.
const REQUEST_TIMEOUT_MS_MIN: u64 = 100;

/// Clocks that agree as well as clocks do leave this much doubt.
const CLOCK_WIDTH_MS_MIN: u64 = 100;

/// What the variables of settings begin with.
const PREFIX: &str = "EPHEMERIS_";
/// Other variables that the program reads, or what starts and tests it.
const OTHER_VARIABLES: [&str; 6] = ["URL", "CONFIG", "CA_FILE", "FAULTS", "BIN", "PROFILE"];

/// Everything that can be set. Each is a flag, an `EPHEMERIS_…` variable and a line of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// Where everything is kept.
    pub(crate) data_dir: PathBuf,
    /// Where clients connect.
    pub(crate) http: String,
    /// Where other nodes connect.
    pub(crate) peer: Option<String>,
    /// This node's number.
    pub(crate) node_id: Option<u32>,
    /// All nodes: `1=HOST:PORT,2=HOST:PORT,…`.
    pub(crate) cluster: Option<String>,
    /// Where this node reaches others, if not where they say: `2=HOST:PORT,…`.
    pub(crate) dial: Option<String>,
    /// A file with the private key that all nodes share, in PEM: they talk over TLS, to nobody without it.
    pub(crate) peer_key_file: Option<PathBuf>,
    /// The URL clients are told to use for this node.
    pub(crate) advertise: Option<String>,
    /// The one URL clients use for the whole account: that of a load balancer.
    pub(crate) account_endpoint: Option<String>,
    /// The account key, base64.
    pub(crate) key: Option<Secret>,
    /// A second key that works too, base64.
    pub(crate) secondary_key: Option<Secret>,
    /// A file that holds the account key.
    pub(crate) key_file: Option<PathBuf>,
    /// A file that holds the second key.
    pub(crate) secondary_key_file: Option<PathBuf>,
    /// A key that may look at everything but permissions, base64.
    pub(crate) read_only_key: Option<Secret>,
    /// A second such key, base64.
    pub(crate) secondary_read_only_key: Option<Secret>,
    /// A file that holds the read-only key.
    pub(crate) read_only_key_file: Option<PathBuf>,
    /// A file that holds the second read-only key.
    pub(crate) secondary_read_only_key_file: Option<PathBuf>,
    /// Use the emulator key on an address others can reach.
    pub(crate) allow_emulator_key: bool,
    /// Serve HTTPS, with a certificate made here if there is none.
    pub(crate) tls: bool,
    /// A file with the certificate for HTTPS, and those that vouch for it, in PEM.
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// A file with the certificate's key, in PEM.
    pub(crate) tls_key_file: Option<PathBuf>,
    /// How fresh reads are unless a client asks for less.
    pub(crate) consistency: ConsistencyLevel,
    /// What is logged.
    pub(crate) log: String,
    /// How it looks.
    pub(crate) log_format: LogFormat,
    /// How long a request may take, in milliseconds.
    pub(crate) request_timeout_ms: u64,
    /// Memory for uncompressed blocks, in MiB.
    pub(crate) block_cache_mib: usize,
    /// Memory for writes that are not flushed yet, in MiB.
    pub(crate) write_buffer_mib: usize,
    /// Nothing expires while the clocks of the nodes leave more doubt than this, in milliseconds.
    pub(crate) clock_width_ms_max: u64,
    /// How long expired items are kept after a jump of the clock, in seconds.
    pub(crate) purge_grace_s: u64,
    /// Save request units that are not used, and spend them in bursts.
    pub(crate) burst: bool,
    /// How often a leader shows that it lives, in milliseconds.
    pub(crate) heartbeat_ms: u64,
    /// Added to the leader's lease before a follower stands for election, in milliseconds.
    pub(crate) election_timeout_ms: u64,
    /// Entries of a partition kept behind the last flushed one.
    pub(crate) log_entries_kept: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("ephemeris-data"),
            http: "127.0.0.1:8081".to_string(),
            peer: None,
            node_id: None,
            cluster: None,
            dial: None,
            peer_key_file: None,
            advertise: None,
            account_endpoint: None,
            key: None,
            secondary_key: None,
            key_file: None,
            secondary_key_file: None,
            read_only_key: None,
            secondary_read_only_key: None,
            read_only_key_file: None,
            secondary_read_only_key_file: None,
            allow_emulator_key: false,
            tls: false,
            tls_cert_file: None,
            tls_key_file: None,
            consistency: ConsistencyLevel::Session,
            log: "info".to_string(),
            log_format: LogFormat::Text,
            request_timeout_ms: 5000,
            block_cache_mib: 32,
            write_buffer_mib: 32,
            clock_width_ms_max: 2000,
            purge_grace_s: 3600,
            burst: true,
            heartbeat_ms: 150,
            election_timeout_ms: 450,
            log_entries_kept: GroupOptions::default().log_entries_kept,
        }
    }
}

/// Why a node cannot be run with its settings.
#[derive(Debug, Error)]
pub(crate) enum InvalidSettings {
    /// The settings file is not there.
    #[error("there is no settings file {0}")]
    NoFile(String),
    /// A value has the wrong type, or a name is unknown.
    #[error("the settings are not usable: {0}")]
    Malformed(String),
    /// A flag that a clustered node needs.
    #[error("{flag} is missing: {hint}")]
    Missing {
        /// The flag.
        flag: &'static str,
        /// What it is for.
        hint: &'static str,
    },
    /// Settings of a cluster's node, given to a node alone.
    #[error(
        "start-single-node runs a node that has no others, but {0} is set: for a node of a cluster run \
         `ephemeris start`, for a node alone unset it"
    )]
    NotAlone(String),
    /// A value out of its range.
    #[error("{0}")]
    Value(String),
    /// A key that cannot be used.
    #[error("{0}")]
    Key(String),
    /// The key that nodes share cannot be used.
    #[error("--peer-key-file: {0} (`openssl genpkey -algorithm ed25519` makes a key)")]
    PeerKey(#[from] TlsError),
    /// The key everybody knows, on an address others can reach.
    #[error(
        "no account key is set, and the emulator key that everybody knows is refused on {0}, which \
         others can reach. Set EPHEMERIS_KEY or --key-file (`openssl rand -base64 64 | tr -d \
         '\\n'` makes a key), or pass --allow-emulator-key"
    )]
    EmulatorKey(IpAddr),
}

type Result<T> = std::result::Result<T, InvalidSettings>;

/// Settings that give a key, and those that give a file with it.
const KEY_SETTINGS: [(&str, &str); 4] = [
    ("key", "key_file"),
    ("secondary_key", "secondary_key_file"),
    ("read_only_key", "read_only_key_file"),
    ("secondary_read_only_key", "secondary_read_only_key_file"),
];

impl Settings {
    /// Puts flags over environment over file over defaults.
    pub(crate) fn load(file: Option<&Path>, flags: impl Serialize) -> Result<Self> {
        let mut figment = Figment::from(Serialized::defaults(Settings::default()));
        if let Some(file) = file {
            if !file.is_file() {
                return Err(InvalidSettings::NoFile(file.display().to_string()));
            }
            figment = figment.merge(Toml::file(file));
        }
        let names = setting_names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let environment = Env::prefixed(PREFIX).only(&names);
        let settings = over(over(figment, environment), Serialized::defaults(flags)).extract();
        settings.map_err(|error| InvalidSettings::Malformed(without_source(&error)))
    }
}

/// Puts a layer of settings over others. A key that it gives in one way hides one that was given in the other.
fn over(below: Figment, layer: impl Provider) -> Figment {
    let layer = Figment::from(layer);
    let mut below = below;
    for (key, file) in KEY_SETTINGS {
        for (given, other) in [(key, file), (file, key)] {
            if layer.contains(given) {
                below = below.merge(Serialized::default(other, None::<String>));
            }
        }
    }
    below.merge(layer)
}

/// What is wrong, without the line of the file that a syntax error shows: it may hold a key.
fn without_source(error: &figment::Error) -> String {
    let text = error.to_string();
    let is_source = |line: &str| {
        let behind_number = line.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit());
        behind_number.starts_with('|')
    };
    let told: Vec<&str> = text.lines().filter(|line| !is_source(line)).map(str::trim).collect();
    told.join(": ")
}

/// Variables that look like settings and are none.
pub(crate) fn unknown_variables() -> Vec<String> {
    let settings = setting_names();
    let is_known = |name: &str| {
        settings.iter().any(|setting| setting.eq_ignore_ascii_case(name))
            || OTHER_VARIABLES.contains(&name)
    };
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let of_ours = |name: &String| name.strip_prefix(PREFIX).is_some_and(|name| !is_known(name));
    names.filter(of_ours).collect()
}

pub(crate) fn setting_names() -> Vec<String> {
    let defaults = serde_json::to_value(Settings::default()).expect("settings are plain data");
    let object = defaults.as_object().expect("settings are an object");
    object.keys().cloned().collect()
}

/// What a node needs to know, checked.
#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    /// This node's number.
    pub(crate) node: NodeId,
    /// Where everything is kept.
    pub(crate) data_dir: PathBuf,
    /// Where clients connect.
    pub(crate) http: SocketAddr,
    /// Where other nodes connect; none for a node alone.
    pub(crate) peer: Option<SocketAddr>,
    /// The nodes a cluster is formed of, with their addresses; only this one if it is alone.
    pub(crate) founders: BTreeMap<NodeId, String>,
    /// Where this node reaches others, whatever else is known of them.
    pub(crate) dial: BTreeMap<NodeId, String>,
    /// What nodes talk to each other with; none talks in plain text.
    pub(crate) peer_keys: Option<Arc<PeerKeys>>,
    /// The URL clients are told to use for this node.
    pub(crate) advertise: Option<String>,
    /// The one URL clients are told to use at all; none tells them of every node.
    pub(crate) account_endpoint: Option<String>,
    /// Keys that sign requests, as they were at the start.
    pub(crate) keys: AccountKeys,
    /// Where they come from.
    pub(crate) key_sources: KeySources,
    /// Where the certificate for HTTPS comes from; none serves HTTP.
    pub(crate) tls: Option<TlsSource>,
    /// How fresh reads are unless a client asks for less: the account's default.
    pub(crate) consistency: ConsistencyLevel,
    /// How long a request may take.
    pub(crate) request_timeout: Duration,
    /// Clients' connections at the same time.
    pub(crate) connections_max: usize,
    /// Memory for uncompressed blocks, in bytes.
    pub(crate) block_cache_bytes: usize,
    /// Memory for unflushed writes, in bytes.
    pub(crate) write_buffer_bytes: usize,
    /// Nothing expires while the clocks leave more doubt than this.
    pub(crate) clock_width_max: Duration,
    /// How long expired items are kept after a jump of the clock.
    pub(crate) purge_grace: Millis,
    /// Whether partitions save unused request units for bursts.
    pub(crate) burst: Burst,
    /// How often a leader shows that it lives.
    pub(crate) heartbeat: Duration,
    /// Added to the leader's lease before a follower stands for election.
    pub(crate) election_timeout: Duration,
    /// Entries kept behind the last flushed one, for followers that were away shortly.
    pub(crate) log_entries_kept: u64,
}

/// Where in the data directory the authority is that makes certificates.
const TLS_DIRECTORY: &str = "tls";

/// The number a node alone has.
const ONLY_NODE: NodeId = NodeId(1);

impl NodeConfig {
    /// A node alone.
    pub(crate) fn single(settings: &Settings) -> Result<Self> {
        let of_a_cluster = [
            ("cluster", settings.cluster.is_some()),
            ("peer", settings.peer.is_some()),
            ("node_id", settings.node_id.is_some()),
            ("dial", settings.dial.is_some()),
            ("peer_key_file", settings.peer_key_file.is_some()),
        ];
        let set: Vec<String> = of_a_cluster
            .iter()
            .filter(|(_, is_set)| *is_set)
            .map(|(key, _)| format!("{key} (EPHEMERIS_{})", key.to_uppercase()))
            .collect();
        if !set.is_empty() {
            return Err(InvalidSettings::NotAlone(set.join(", ")));
        }
        let founders = BTreeMap::from([(ONLY_NODE, String::new())]);
        Self::new(settings, ONLY_NODE, None, founders)
    }

    /// A node of a cluster.
    pub(crate) fn clustered(settings: &Settings) -> Result<Self> {
        let missing = |flag, hint| InvalidSettings::Missing { flag, hint };
        let node =
            settings.node_id.ok_or(missing("--node-id", "give every node a number of its own"))?;
        let peer = settings.peer.as_deref().ok_or(missing(
            "--peer",
            "the address to listen on for other nodes, as 10.0.0.1:7000, in a network that only they can reach or with a \
             --peer-key-file",
        ))?;
        let cluster = settings.cluster.as_deref().ok_or(missing(
            "--cluster",
            "the same list on every node, as 1=n1:7000,2=n2:7000,3=n3:7000",
        ))?;
        let founders = parse_nodes("--cluster", cluster)?;
        let node = NodeId(node);
        if !founders.contains_key(&node) {
            return Err(value(format!(
                "node {node} is not in --cluster {cluster}: the list names all nodes, this one \
                 included"
            )));
        }
        let peer = parse_address("--peer", peer)?;
        let config = Self::new(settings, node, Some(peer), founders)?;
        let http = config.http;
        if http.ip().is_unspecified()
            && config.advertise.is_none()
            && config.account_endpoint.is_none()
        {
            return Err(value(format!(
                "clients of other nodes cannot be told to connect to --http {http}: set --advertise to this \
                 node's URL, as http://n{node}:{}, or --account-endpoint to that of a load balancer",
                http.port()
            )));
        }
        Ok(config)
    }

    fn new(
        settings: &Settings,
        node: NodeId,
        peer: Option<SocketAddr>,
        founders: BTreeMap<NodeId, String>,
    ) -> Result<Self> {
        let http = parse_address("--http", &settings.http)?;
        let key_sources = KeySources::new(settings, http.ip());
        let keys = key_sources.load()?;
        if settings.heartbeat_ms < HEARTBEAT_MS_MIN {
            return Err(value(format!("heartbeat_ms must be at least {HEARTBEAT_MS_MIN}")));
        }
        if settings.request_timeout_ms < REQUEST_TIMEOUT_MS_MIN {
            let least = format!("request_timeout_ms must be at least {REQUEST_TIMEOUT_MS_MIN}");
            return Err(value(least));
        }
        if settings.clock_width_ms_max < CLOCK_WIDTH_MS_MIN {
            return Err(value(format!("clock_width_ms_max must be at least {CLOCK_WIDTH_MS_MIN}")));
        }
        for (key, mib) in [
            ("block_cache_mib", settings.block_cache_mib),
            ("write_buffer_mib", settings.write_buffer_mib),
        ] {
            if mib == 0 {
                return Err(value(format!("{key} must be at least 1")));
            }
        }
        if settings.election_timeout_ms < 2 * settings.heartbeat_ms {
            return Err(value("election_timeout_ms must be at least twice heartbeat_ms".into()));
        }
        let peer_keys = settings.peer_key_file.clone().map(PeerKeys::load).transpose()?;
        let dial = settings.dial.as_deref().map(|dial| parse_nodes("--dial", dial)).transpose()?;
        Ok(Self {
            node,
            data_dir: settings.data_dir.clone(),
            http,
            peer,
            founders,
            dial: dial.unwrap_or_default(),
            peer_keys: peer_keys.map(Arc::new),
            advertise: parse_url("--advertise", settings.advertise.as_deref())?,
            account_endpoint: parse_url(
                "--account-endpoint",
                settings.account_endpoint.as_deref(),
            )?,
            keys,
            key_sources,
            tls: tls_source(settings, http)?,
            consistency: settings.consistency,
            request_timeout: Duration::from_millis(settings.request_timeout_ms),
            connections_max: CONNECTIONS_MAX,
            block_cache_bytes: settings.block_cache_mib << 20,
            write_buffer_bytes: settings.write_buffer_mib << 20,
            clock_width_max: Duration::from_millis(settings.clock_width_ms_max),
            purge_grace: Millis(settings.purge_grace_s.saturating_mul(1000)),
            burst: if settings.burst { Burst::Saved } else { Burst::Off },
            heartbeat: Duration::from_millis(settings.heartbeat_ms),
            election_timeout: Duration::from_millis(settings.election_timeout_ms),
            log_entries_kept: settings.log_entries_kept,
        })
    }

    /// How clients' URLs begin.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

/// Where the certificate comes from, if HTTPS is to be served.
fn tls_source(settings: &Settings, http: SocketAddr) -> Result<Option<TlsSource>> {
    match (&settings.tls_cert_file, &settings.tls_key_file) {
        (Some(certificate), Some(key)) => {
            let (certificate, key) = (certificate.clone(), key.clone());
            Ok(Some(TlsSource::Files { certificate, key }))
        }
        (None, None) if settings.tls => {
            let directory = settings.data_dir.join(TLS_DIRECTORY);
            let urls = [&settings.advertise, &settings.account_endpoint];
            let names = names(urls.into_iter().flatten(), http);
            Ok(Some(TlsSource::Made { directory, names }))
        }
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => {
            Err(value("--tls-cert-file and --tls-key-file go together".to_string()))
        }
    }
}

/// What clients may call this node: a certificate made here is good for these.
fn names<'u>(urls: impl Iterator<Item = &'u String>, http: SocketAddr) -> Vec<String> {
    let own = Some(http.ip()).filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string());
    let advertised = urls.filter_map(|url| {
        let url = reqwest::Url::parse(url).ok()?;
        // A URL has brackets round an IPv6 address.
        url.host_str().map(|host| host.trim_matches(['[', ']']).to_string())
    });
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_string).to_vec();
    names.extend(own.into_iter().chain(advertised));
    names.sort();
    names.dedup();
    names
}

fn value(message: String) -> InvalidSettings {
    InvalidSettings::Value(message)
}

fn parse_address(flag: &str, text: &str) -> Result<SocketAddr> {
    text.parse().map_err(|_| value(format!("{flag} {text} is no address such as 127.0.0.1:8081")))
}

/// Checks a URL that clients are told to use, and gives it the form that SDKs are used to.
fn parse_url(flag: &str, url: Option<&str>) -> Result<Option<String>> {
    let Some(text) = url else { return Ok(None) };
    match reqwest::Url::parse(text) {
        Ok(url)
            if matches!(url.scheme(), "http" | "https")
                && (url.path(), url.query(), url.fragment()) == ("/", None, None)
                && !matches!(url.host_str(), Some("0.0.0.0" | "[::]")) =>
        {
            Ok(Some(url.to_string()))
        }
        Ok(_) | Err(_) => Err(value(format!(
            "{flag} {text} is no URL that clients could use, such as https://db.example/"
        ))),
    }
}

/// Parses `1=HOST:PORT,2=HOST:PORT`.
fn parse_nodes(flag: &str, text: &str) -> Result<BTreeMap<NodeId, String>> {
    let mut nodes = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let malformed = || value(format!("'{part}' in {flag} is not NUMBER=HOST:PORT"));
        let (number, address) = part.split_once('=').ok_or_else(malformed)?;
        let number: u32 = number.trim().parse().map_err(|_| malformed())?;
        let (host, port) = address.trim().rsplit_once(':').ok_or_else(malformed)?;
        if number == 0 || host.is_empty() || port.parse::<u16>().is_err() {
            return Err(malformed());
        }
        if nodes.insert(NodeId(number), address.trim().to_string()).is_some() {
            return Err(value(format!("node {number} stands twice in {flag}")));
        }
    }
    if nodes.is_empty() { Err(value(format!("{flag} names no node"))) } else { Ok(nodes) }
}
