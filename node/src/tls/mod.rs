//! HTTPS for clients: where certificates come from, and connections that use them. And TLS between nodes: `peers`.
//!
//! 1. `Tls::load` reads the operator's own certificate, or has one made by an authority of our own.
//! 2. `listener` takes connections in and shakes hands with each apart, so that none waits for another.
//! 3. `Tls::reload`, called every few seconds, takes up files that have changed and renews a made
//!    certificate before it ends; connections that are open stay as they are.

mod authority;
mod listener;
mod peers;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

use crate::clock;
use crate::reload::Looked;

pub(crate) use authority::trust_lines;
pub(crate) use listener::TlsListener;
pub(crate) use peers::PeerKeys;
#[cfg(test)]
pub(crate) use peers::tests::new_peer_key;

/// What clients may speak over TLS, what we like best first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// How long a made certificate is good: short, as nobody keeps it.
const MADE_LIFETIME: Duration = Duration::from_hours(90 * 24);
/// A made certificate is renewed when it has this long left.
const MADE_RENEWAL: Duration = Duration::from_hours(30 * 24);

/// Where the certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TlsSource {
    /// The operator's files, in PEM.
    Files {
        /// The certificate, and those between it and one that clients trust.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
    },
    /// Made here, by an authority whose files are in a directory, or will be.
    Made {
        /// The directory.
        directory: PathBuf,
        /// What clients call this node: names and addresses.
        names: Vec<String>,
    },
}

/// Why a file of certificates or keys cannot be used.
#[derive(Debug, Error)]
pub(crate) enum TlsError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A file holds no certificate or no key in PEM.
    #[error("{path} holds no usable {what} in PEM: {reason}")]
    Pem {
        /// The file.
        path: String,
        /// A certificate or a key.
        what: &'static str,
        /// Why.
        reason: String,
    },
    /// Certificate and key do not go together, or are of a kind nobody takes.
    #[error("certificate and key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    /// Clients that trust the authority do not trust what it made.
    #[error("{path} does not vouch for certificates made with the key beside it: {reason}")]
    Authority {
        /// The authority's certificate.
        path: String,
        /// Why not.
        reason: String,
    },
    /// A certificate could not be made.
    #[error("a certificate cannot be made: {0}")]
    Making(#[from] rcgen::Error),
}

/// A certificate and its key.
struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// What tells it from another: the files' content, or when it was made.
    version: Version,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Version {
    Read(Vec<u8>),
    Made(SystemTime),
}

/// What new connections are encrypted with.
pub(crate) struct Tls {
    source: TlsSource,
    version: Mutex<Version>,
    config: ArcSwap<ServerConfig>,
}

impl Tls {
    /// Reads or makes the certificate.
    pub(crate) fn load(source: TlsSource) -> Result<Self, TlsError> {
        let identity = source.identity(clock::wall())?;
        let version = Mutex::new(identity.version.clone());
        Ok(Self { source, version, config: ArcSwap::new(server_config(identity)?) })
    }

    /// Where the certificate comes from.
    pub(crate) fn source(&self) -> &TlsSource {
        &self.source
    }

    /// What a connection that comes now is encrypted with.
    fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    /// Looks whether there is another certificate by now; connections from now on get it.
    pub(crate) fn reload(&self, now: SystemTime) -> Result<Looked, TlsError> {
        let mut version = self.version.lock().unwrap_or_else(PoisonError::into_inner);
        if let Version::Made(at) = *version
            && now < at + MADE_LIFETIME - MADE_RENEWAL
        {
            return Ok(Looked::Same);
        }
        let identity = self.source.identity(now)?;
        if identity.version == *version {
            return Ok(Looked::Same);
        }
        let new_version = identity.version.clone();
        self.config.store(server_config(identity)?);
        *version = new_version;
        Ok(Looked::Changed)
    }
}

impl TlsSource {
    fn identity(&self, now: SystemTime) -> Result<Identity, TlsError> {
        match self {
            TlsSource::Files { certificate, key } => read_identity(certificate, key),
            TlsSource::Made { directory, names } => {
                authority::make_identity(directory, names, now, MADE_LIFETIME)
            }
        }
    }
}

fn read_identity(certificate: &Path, key: &Path) -> Result<Identity, TlsError> {
    let (chain_pem, key_pem) = (read(certificate)?, read(key)?);
    let unusable = |path: &Path, what, reason: String| TlsError::Pem {
        path: path.display().to_string(),
        what,
        reason,
    };
    let chain = CertificateDer::pem_slice_iter(&chain_pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unusable(certificate, "certificate", fault_of(&error).to_string()))?;
    if chain.is_empty() {
        return Err(unusable(certificate, "certificate", "there is none in it".to_string()));
    }
    let private_key = PrivateKeyDer::from_pem_slice(&key_pem)
        .map_err(|error| unusable(key, "key", fault_of(&error).to_string()))?;
    let version = Version::Read([chain_pem, key_pem].concat());
    Ok(Identity { chain, key: private_key, version })
}

/// What is wrong with a file in PEM. Not what stands there: it may be a key.
fn fault_of(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section does not end",
        pem::Error::IllegalSectionStart { .. } => "a section does not begin as it should",
        pem::Error::Base64Decode(_) => "a section is not base64",
        pem::Error::NoItemsFound => "there is none in it",
        pem::Error::Io(_) | pem::Error::SectionTooLarge | _ => "it cannot be read",
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| file_error(path, source))
}

fn file_error(path: &Path, source: io::Error) -> TlsError {
    TlsError::File { path: path.display().to_string(), source }
}

fn server_config(identity: Identity) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let mut config = builder
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(identity.chain, identity.key)?;
    config.alpn_protocols = PROTOCOLS.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)
    }

    /// Files of a certificate made for tests.
    fn write_files(directory: &Path) -> TlsSource {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_string()]).unwrap();
        let (certificate, key) = (directory.join("server.pem"), directory.join("key.pem"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        TlsSource::Files { certificate, key }
    }

    fn made(directory: &Path) -> TlsSource {
        let names = ["localhost", "127.0.0.1"].map(str::to_string).to_vec();
        TlsSource::Made { directory: directory.join("tls"), names }
    }

    #[test]
    fn files_are_taken_up_when_they_change() {
        let directory = tempfile::tempdir().unwrap();
        let tls = Tls::load(write_files(directory.path())).unwrap();
        let before = tls.config();
        assert!(matches!(tls.reload(now()), Ok(Looked::Same)));
        assert!(Arc::ptr_eq(&before, &tls.config()));
        write_files(directory.path());
        assert!(matches!(tls.reload(now()), Ok(Looked::Changed)));
        assert!(!Arc::ptr_eq(&before, &tls.config()));
        assert!(matches!(tls.reload(now()), Ok(Looked::Same)));
    }

    #[test]
    fn files_that_cannot_be_used_change_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let source = write_files(directory.path());
        let TlsSource::Files { certificate, key } = source.clone() else { unreachable!() };
        let tls = Tls::load(source).unwrap();
        let before = tls.config();
        let old_key = std::fs::read(&key).unwrap();
        write_files(directory.path());
        std::fs::write(&key, old_key).unwrap();
        assert!(matches!(tls.reload(now()), Err(TlsError::Unusable(_))), "another one's key");
        for (file, content) in [(&certificate, "nothing"), (&certificate, ""), (&key, "nothing")] {
            write_files(directory.path());
            std::fs::write(file, content).unwrap();
            assert!(matches!(tls.reload(now()), Err(TlsError::Pem { .. })), "{content}");
        }
        std::fs::remove_file(&key).unwrap();
        assert!(matches!(tls.reload(now()), Err(TlsError::File { .. })));
        assert!(Arc::ptr_eq(&before, &tls.config()));
    }

    #[test]
    fn a_made_certificate_is_renewed_in_time_by_the_same_authority() {
        let directory = tempfile::tempdir().unwrap();
        let tls = Tls::load(made(directory.path())).unwrap();
        let authority = std::fs::read(directory.path().join("tls/ca.pem")).unwrap();
        let started = clock::wall();
        let day = Duration::from_hours(24);
        assert!(matches!(tls.reload(started + 50 * day), Ok(Looked::Same)));
        assert!(matches!(tls.reload(started + 61 * day), Ok(Looked::Changed)));
        assert!(matches!(tls.reload(started + 62 * day), Ok(Looked::Same)));
        assert_eq!(std::fs::read(directory.path().join("tls/ca.pem")).unwrap(), authority);
    }
}
