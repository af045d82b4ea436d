//! Settings: flags before environment before file before defaults.

mod keys;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ephemeris_raft::GroupOptions;
use ephemeris_store::ids::NodeId;
use ephemeris_store::time::Millis;
use figment::Figment;
use figment::providers::{Env, Format as _, Serialized, Toml};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub(crate) use keys::{AccountKeys, EMULATOR_KEY, KeySources, Secret};

use crate::connections::CONNECTIONS_MAX;
use crate::consistency::ConsistencyLevel;
use crate::partition::Burst;
use crate::telemetry::LogFormat;
use crate::tls::TlsSource;

/// A leader that shows more often that it lives than this does nothing else.
const HEARTBEAT_MS_MIN: u64 = 10;

/// No request gets to a leader on another node, and there to a majority of disks, in less.
const REQUEST_TIMEOUT_MS_MIN: u64 = 100;

/// Clocks that agree as well as clocks do leave this much doubt.
const CLOCK_WIDTH_MS_MIN: u64 = 100;

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
    /// How long a follower waits for a sign before it stands for election, in milliseconds.
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
    /// A value out of its range.
    #[error("{0}")]
    Value(String),
    /// A key that cannot be used.
    #[error("{0}")]
    Key(String),
    /// The key everybody knows, on an address others can reach.
    #[error(
        "no account key is set, and the emulator key that everybody knows is refused on {0}, which \
         others can reach. Set EPHEMERIS_KEY or --key-file (`openssl rand -base64 64 | tr -d \
         '\\n'` makes a key), or pass --allow-emulator-key"
    )]
    EmulatorKey(IpAddr),
}

type Result<T> = std::result::Result<T, InvalidSettings>;

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
        let environment = Env::prefixed("EPHEMERIS_").only(&names);
        let settings = figment.merge(environment).merge(Serialized::defaults(flags)).extract();
        settings.map_err(|error| InvalidSettings::Malformed(without_source(&error)))
    }
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
    /// How long a follower waits for a sign.
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
            "the address where other nodes reach this one, as 0.0.0.0:7000",
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
        Self::new(settings, node, Some(peer), founders)
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
        if settings.election_timeout_ms < 2 * settings.heartbeat_ms {
            return Err(value("election_timeout_ms must be at least twice heartbeat_ms".into()));
        }
        let with_slash = |url: String| if url.ends_with('/') { url } else { url + "/" };
        let dial = settings.dial.as_deref().map(|dial| parse_nodes("--dial", dial)).transpose()?;
        Ok(Self {
            node,
            data_dir: settings.data_dir.clone(),
            http,
            peer,
            founders,
            dial: dial.unwrap_or_default(),
            advertise: settings.advertise.clone().map(with_slash),
            account_endpoint: parse_endpoint(settings.account_endpoint.as_deref())?,
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

/// Checks the URL that is all clients know of the account, and gives it the form that SDKs are used to.
fn parse_endpoint(endpoint: Option<&str>) -> Result<Option<String>> {
    let Some(text) = endpoint else { return Ok(None) };
    match reqwest::Url::parse(text) {
        Ok(url)
            if matches!(url.scheme(), "http" | "https")
                && (url.path(), url.query(), url.fragment()) == ("/", None, None) =>
        {
            Ok(Some(url.to_string()))
        }
        Ok(_) | Err(_) => {
            Err(value(format!("--account-endpoint {text} is no URL such as https://db.example/")))
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::default()
    }

    #[test]
    fn https_needs_a_certificate_and_its_key_or_makes_both() {
        let tls = |settings: &Settings| NodeConfig::single(settings).map(|config| config.tls);
        assert_eq!(tls(&settings()).unwrap(), None);
        assert_eq!(NodeConfig::single(&settings()).unwrap().scheme(), "http");
        let [certificate, key] = ["c.pem", "k.pem"].map(PathBuf::from);
        let files = Settings {
            tls_cert_file: Some(certificate.clone()),
            tls_key_file: Some(key.clone()),
            ..settings()
        };
        assert_eq!(tls(&files).unwrap(), Some(TlsSource::Files { certificate, key }));
        assert_eq!(NodeConfig::single(&files).unwrap().scheme(), "https");
        for half in [
            Settings { tls_cert_file: None, ..files.clone() },
            Settings { tls_key_file: None, tls: true, ..files },
        ] {
            assert!(tls(&half).is_err());
        }
        let advertise = Some("https://n1.example:8081".to_string());
        let account_endpoint = Some("https://db.example".to_string());
        let made = Settings { tls: true, advertise, account_endpoint, key: None, ..settings() };
        let made = Settings { allow_emulator_key: true, http: "10.0.0.1:1".into(), ..made };
        let Some(TlsSource::Made { directory, names }) = tls(&made).unwrap() else { panic!() };
        assert_eq!(directory, PathBuf::from("ephemeris-data/tls"));
        let expected = ["10.0.0.1", "127.0.0.1", "::1", "db.example", "localhost", "n1.example"];
        assert_eq!(names, expected);
        let urls = ["https://[fe80::1]/".to_string()];
        let unspecified = self::names(urls.iter(), "0.0.0.0:1".parse().unwrap());
        assert_eq!(unspecified, ["127.0.0.1", "::1", "fe80::1", "localhost"]);
    }

    #[test]
    fn an_account_endpoint_is_a_url_without_a_path() {
        let shown = |url: &str| {
            let settings = Settings { account_endpoint: Some(url.to_string()), ..settings() };
            NodeConfig::single(&settings).map(|config| config.account_endpoint.unwrap())
        };
        assert_eq!(shown("https://db.example").unwrap(), "https://db.example/");
        assert_eq!(shown("http://db.example:8081/").unwrap(), "http://db.example:8081/");
        for wrong in
            ["", "db.example", "db.example:8081", "ftp://db", "https://db/x", "https://db/?a"]
        {
            let message = shown(wrong).unwrap_err().to_string();
            assert!(message.contains("--account-endpoint"), "{message}");
        }
    }

    #[test]
    fn a_timeout_that_no_request_could_meet_is_refused() {
        let with = |request_timeout_ms| Settings { request_timeout_ms, ..settings() };
        for too_short in [0, REQUEST_TIMEOUT_MS_MIN - 1] {
            let message = NodeConfig::single(&with(too_short)).unwrap_err().to_string();
            assert!(message.contains("request_timeout_ms must be at least 100"), "{message}");
        }
        assert!(NodeConfig::single(&with(REQUEST_TIMEOUT_MS_MIN)).is_ok());
    }

    #[test]
    fn bursts_are_saved_for_unless_switched_off() {
        assert_eq!(NodeConfig::single(&settings()).unwrap().burst, Burst::Saved);
        let off = Settings { burst: false, ..settings() };
        assert_eq!(NodeConfig::single(&off).unwrap().burst, Burst::Off);
    }

    #[test]
    fn cluster_lists_are_checked() {
        let nodes = parse_nodes("--cluster", "1=a:1, 2=b:2,3=[::1]:3").unwrap();
        assert_eq!(nodes[&NodeId(3)], "[::1]:3");
        for wrong in ["", "a:1", "1=a", "x=a:1", "0=a:1", "1=a:1,1=b:1", "1=a:99999"] {
            assert!(parse_nodes("--cluster", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_clustered_node_says_what_is_missing() {
        let message =
            |settings: &Settings| NodeConfig::clustered(settings).unwrap_err().to_string();
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
        assert_eq!(settings.consistency, ConsistencyLevel::Session);
        std::fs::write(&file, "consistency = \"BoundedStaleness\"\n").unwrap();
        let settings = Settings::load(Some(&file), serde_json::json!({})).unwrap();
        assert_eq!(settings.consistency, ConsistencyLevel::BoundedStaleness);
        std::fs::write(&file, "consistency = \"weak\"\n").unwrap();
        assert!(Settings::load(Some(&file), serde_json::json!({})).is_err());
        std::fs::write(&file, "htpp = \"127.0.0.1:9\"\n").unwrap();
        let error = Settings::load(Some(&file), serde_json::json!({})).unwrap_err();
        assert!(error.to_string().contains("htpp"), "{error}");
    }
}
