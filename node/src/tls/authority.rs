//! An authority of our own, for those who have no certificate: clients trust its one file, `ca.pem`.
//!
//! Its key stays beside it. Nodes that are given the same two files make certificates that the same
//! clients trust. A node's own certificate is made anew at each start, and never written down.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ephemeris_raft::disk::create_private;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};

use super::{Identity, TlsError, Version, file_error};

/// What clients trust.
const AUTHORITY_FILE: &str = "ca.pem";
/// What makes certificates that they trust: nobody else's business.
const AUTHORITY_KEY_FILE: &str = "ca-key.pem";
/// What viewers of certificates show.
const AUTHORITY_NAME: &str = "Ephemeris certificate authority";
const NODE_NAME: &str = "Ephemeris node";
/// How long clients may trust the authority without hearing of it again: ten years.
const AUTHORITY_LIFETIME: Duration = Duration::from_hours(10 * 365 * 24);
/// Certificates hold from this long before they were made: clients' clocks may be behind.
const CLOCK_TOLERANCE: Duration = Duration::from_hours(24);

/// Makes a certificate for `names`; makes the authority first, if it is not there.
pub(super) fn make_identity(
    directory: &Path,
    names: &[String],
    now: SystemTime,
    lifetime: Duration,
) -> Result<Identity, TlsError> {
    // The directory above is the node's, which is made here if this is its first start.
    for directory in directory.parent().into_iter().chain([directory]) {
        create_private(directory).map_err(|source| file_error(directory, source))?;
    }
    let authority_key = authority_key(directory)?;
    let authority = directory.join(AUTHORITY_FILE);
    if !authority.exists() {
        let pem = authority_params(now).self_signed(&authority_key)?.pem();
        write_new(&authority, &pem, 0o644)?;
    }
    let issuer = Issuer::new(authority_params(now), authority_key);
    let key = KeyPair::generate()?;
    let certificate: Certificate = node_params(names, now, lifetime)?.signed_by(&key, &issuer)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let chain = vec![certificate.der().clone()];
    check_trust(&authority, &chain[0], &names[0], now)?;
    Ok(Identity { chain, key, version: Version::Made(now) })
}

/// Checks that clients who trust the authority's file take a certificate: its two files may be of two
/// authorities.
fn check_trust(
    authority: &Path,
    certificate: &CertificateDer<'_>,
    name: &str,
    now: SystemTime,
) -> Result<(), TlsError> {
    let untrusted =
        |reason: String| TlsError::Authority { path: authority.display().to_string(), reason };
    let pem = fs::read(authority).map_err(|source| file_error(authority, source))?;
    let root =
        CertificateDer::from_pem_slice(&pem).map_err(|error| untrusted(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    roots.add(root).map_err(|error| untrusted(error.to_string()))?;
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build();
    let verifier = verifier.map_err(|error| untrusted(error.to_string()))?;
    let name = ServerName::try_from(name).map_err(|error| untrusted(error.to_string()))?;
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = UnixTime::since_unix_epoch(now);
    let checked = verifier.verify_server_cert(certificate, &[], &name, &[], now);
    checked.map(|_| ()).map_err(|error| untrusted(error.to_string()))
}

fn authority_key(directory: &Path) -> Result<KeyPair, TlsError> {
    let path = directory.join(AUTHORITY_KEY_FILE);
    if !path.exists() {
        write_new(&path, &KeyPair::generate()?.serialize_pem(), 0o600)?;
    }
    let pem = fs::read_to_string(&path).map_err(|source| file_error(&path, source))?;
    Ok(KeyPair::from_pem(&pem)?)
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// What the authority's certificate says; what it signs repeats its name and its key's number.
fn authority_params(now: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = (now - CLOCK_TOLERANCE).into();
    params.not_after = (now + AUTHORITY_LIFETIME).into();
    params
}

fn node_params(
    names: &[String],
    now: SystemTime,
    lifetime: Duration,
) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = named(NODE_NAME);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.not_before = (now - CLOCK_TOLERANCE).into();
    params.not_after = (now + lifetime).into();
    Ok(params)
}

/// Writes a file that was not there, so that a crash leaves all of it or nothing.
fn write_new(path: &Path, content: &str, mode: u32) -> Result<(), TlsError> {
    let write = || -> io::Result<()> {
        let temporary = path.with_extension("pem.new");
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        // Who has copied it trusts it for good.
        path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    };
    write().map_err(|source| file_error(path, source))
}

/// Tells people how clients come to trust the authority in a directory.
pub(crate) fn trust_lines(directory: &Path) -> String {
    let authority = directory.join(AUTHORITY_FILE);
    let file = fs::canonicalize(&authority).unwrap_or(authority);
    let file = file.display();
    format!(
        "HTTPS uses a certificate made here. Clients trust it by {file}:\n\
         \x20 curl       curl --cacert {file}\n\
         \x20 ephemeris  --ca-file {file}, or EPHEMERIS_CA_FILE\n\
         \x20 Python     CosmosClient(url, key, connection_verify=\"{file}\"); nothing on localhost\n\
         \x20 Node.js    NODE_EXTRA_CA_CERTS={file}\n\
         \x20 Java       keytool -importcert -cacerts -noprompt -alias ephemeris -file {file}\n\
         \x20 .NET, Go   as Debian\n\
         \x20 Debian     cp {file} /usr/local/share/ca-certificates/ephemeris.crt && \
         update-ca-certificates\n"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const LIFETIME: Duration = Duration::from_hours(24);

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)
    }

    fn names() -> Vec<String> {
        ["localhost", "127.0.0.1", "::1", "n1.example"].map(str::to_string).to_vec()
    }

    /// Whether a client that trusts `ca.pem` takes a certificate of a node it calls `name`.
    fn is_trusted(directory: &Path, identity: &Identity, name: &str, at: SystemTime) -> bool {
        check_trust(&directory.join("ca.pem"), &identity.chain[0], name, at).is_ok()
    }

    #[test]
    fn clients_trust_what_the_authority_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let first = make_identity(path, &names(), now(), LIFETIME).unwrap();
        let later = make_identity(path, &names(), now() + LIFETIME, LIFETIME).unwrap();
        for identity in [&first, &later] {
            for name in names() {
                assert!(is_trusted(path, identity, &name, now() + LIFETIME / 2), "{name}");
            }
            assert!(!is_trusted(path, identity, "elsewhere.example", now()));
        }
        assert!(!is_trusted(path, &first, "localhost", now() + 2 * LIFETIME));
        let elsewhere = tempfile::tempdir().unwrap();
        let stranger = make_identity(elsewhere.path(), &names(), now(), LIFETIME).unwrap();
        assert!(!is_trusted(path, &stranger, "localhost", now()));
    }

    #[test]
    fn nodes_with_the_same_authority_are_trusted_by_the_same_clients() {
        let [one, two] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        make_identity(one.path(), &names(), now(), LIFETIME).unwrap();
        for file in ["ca.pem", "ca-key.pem"] {
            fs::copy(one.path().join(file), two.path().join(file)).unwrap();
        }
        let other = make_identity(two.path(), &names(), now(), LIFETIME).unwrap();
        assert!(is_trusted(one.path(), &other, "localhost", now()));
    }

    #[test]
    fn the_authoritys_key_is_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        make_identity(directory.path(), &names(), now(), LIFETIME).unwrap();
        let mode = |file: &str| {
            fs::metadata(directory.path().join(file)).unwrap().permissions().mode() & 0o777
        };
        assert_eq!(mode("ca-key.pem"), 0o600);
        assert_eq!(mode("ca.pem") & 0o444, 0o444);
        let files = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(files, 2, "a node's own key is not written down");
    }

    #[test]
    fn files_of_two_authorities_are_refused() {
        let [one, two] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        make_identity(one.path(), &names(), now(), LIFETIME).unwrap();
        fs::copy(one.path().join("ca.pem"), two.path().join("ca.pem")).unwrap();
        let made = make_identity(two.path(), &names(), now(), LIFETIME);
        assert!(matches!(made, Err(TlsError::Authority { .. })));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca-key.pem"), "nothing").unwrap();
        assert!(make_identity(directory.path(), &names(), now(), LIFETIME).is_err());
    }
}
