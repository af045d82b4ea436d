//! TLS between nodes: those of a cluster hold the same private key, and take nobody who does not.
//!
//! 1. `PeerKeys::load` reads the file. We show its first key, and take every key in it from others: so one key can
//!    follow another while the cluster runs.
//! 2. Keys go over the wire by themselves (raw public keys, RFC 7250), in no certificate: whoever holds the key
//!    needs no name, and nothing ends on a day, so that no wrong clock parts nodes.
//! 3. `PeerKeys::reload`, called every few seconds, takes up a file that has changed; connections that are open
//!    stay as they are.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{TlsError, read};
use crate::platform::Stream;
use crate::reload::Looked;

/// What a node that is called is said to be named: TLS wants a name, and nobody looks at it.
const ANY_NODE: &str = "node";

/// What nodes talk to each other with.
pub(crate) struct PeerKeys {
    file: PathBuf,
    /// What the file said when it was last read.
    content: Mutex<Vec<u8>>,
    ends: ArcSwap<Ends>,
}

/// Both ends of connections from now on.
struct Ends {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl fmt::Debug for PeerKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the keys in {}", self.file.display())
    }
}

impl PeerKeys {
    /// Reads the keys.
    pub(crate) fn load(file: PathBuf) -> Result<Self, TlsError> {
        let content = read(&file)?;
        let ends = Ends::new(&file, &content)?;
        Ok(Self { file, content: Mutex::new(content), ends: ArcSwap::from_pointee(ends) })
    }

    /// Looks whether there are other keys by now; connections from now on use them.
    pub(crate) fn reload(&self) -> Result<Looked, TlsError> {
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        let found = read(&self.file)?;
        if found == *content {
            return Ok(Looked::Same);
        }
        self.ends.store(Arc::new(Ends::new(&self.file, &found)?));
        *content = found;
        Ok(Looked::Changed)
    }

    /// Encrypts a connection that another node has made.
    pub(crate) async fn accept(&self, connection: TcpStream) -> io::Result<Stream> {
        let acceptor = self.ends.load().acceptor.clone();
        acceptor.accept(connection).await.map(halves).map_err(|error| explained(&error))
    }

    /// Encrypts a connection to another node.
    pub(crate) async fn connect(&self, connection: TcpStream) -> io::Result<Stream> {
        let connector = self.ends.load().connector.clone();
        let name = ServerName::try_from(ANY_NODE).expect("it is a name");
        connector.connect(name, connection).await.map(halves).map_err(|error| explained(&error))
    }
}

fn halves(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Stream {
    let (reader, writer) = tokio::io::split(stream);
    Stream { reader: Box::new(reader), writer: Box::new(writer) }
}

fn explained(error: &io::Error) -> io::Error {
    let told =
        format!("no TLS with the other node: {error}; give every node the same --peer-key-file");
    io::Error::new(error.kind(), told)
}

impl Ends {
    fn new(file: &Path, pem: &[u8]) -> Result<Self, TlsError> {
        let unusable = |reason: String| TlsError::Pem {
            path: file.display().to_string(),
            what: "private key",
            reason,
        };
        let mut keys = Vec::new();
        for key in PrivateKeyDer::pem_slice_iter(pem) {
            let key = key.map_err(|error| unusable(error.to_string()))?;
            let key = ring::sign::any_supported_type(&key);
            keys.push(key.map_err(|error| unusable(error.to_string()))?);
        }
        let taken: Option<Vec<_>> = keys.iter().map(public_part).collect();
        let taken = taken.ok_or_else(|| unusable("its public part is not known".to_string()))?;
        let (Some(own), Some(shown)) = (keys.into_iter().next(), taken.first()) else {
            return Err(unusable("there is none in it".to_string()));
        };
        // A key by itself stands where a certificate would.
        let shown = vec![CertificateDer::from(shown.as_ref().to_vec())];
        let shown = Arc::new(CertifiedKey::new(shown, own));
        let provider = Arc::new(ring::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let holders = Arc::new(Holders { taken, algorithms });

        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(holders.clone())
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(shown.clone())));
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(holders)
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(shown)));
        // Whoever goes on where an earlier connection ended shows no key: one that no longer counts would.
        (server.session_storage, server.send_tls13_tickets) =
            (Arc::new(NoServerSessionStorage {}), 0);
        (client.resumption, client.enable_sni) = (Resumption::disabled(), false);
        let (acceptor, connector) = (Arc::new(server).into(), Arc::new(client).into());
        Ok(Self { acceptor, connector })
    }
}

fn public_part(key: &Arc<dyn SigningKey>) -> Option<SubjectPublicKeyInfoDer<'static>> {
    key.public_key().map(SubjectPublicKeyInfoDer::into_owned)
}

/// Takes whoever proves to hold one of our keys, on either end of a connection.
#[derive(Debug)]
struct Holders {
    /// The public parts of the keys.
    taken: Vec<SubjectPublicKeyInfoDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Holders {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        if self.taken.iter().any(|key| **key == **shown) {
            return Ok(());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn check_proof(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        proof: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(&**shown);
        verify_tls13_signature_with_raw_key(message, &key, proof, &self.algorithms)
    }
}

fn too_old() -> Error {
    Error::General("nodes speak TLS 1.3 alone".to_string())
}

impl ServerCertVerifier for Holders {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(too_old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        proof: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_proof(message, shown, proof)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Holders {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(too_old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        proof: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_proof(message, shown, proof)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_key() -> String {
        rcgen::KeyPair::generate().unwrap().serialize_pem()
    }

    #[test]
    fn keys_are_taken_up_when_the_file_changes_and_what_is_none_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("peer-key.pem");
        std::fs::write(&file, new_key()).unwrap();
        let keys = PeerKeys::load(file.clone()).unwrap();
        let first = keys.ends.load_full();
        assert!(matches!(keys.reload(), Ok(Looked::Same)));
        for nothing in
            ["", "nothing", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
        {
            std::fs::write(&file, nothing).unwrap();
            assert!(matches!(keys.reload(), Err(TlsError::Pem { .. })), "{nothing}");
            assert!(PeerKeys::load(file.clone()).is_err());
        }
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(keys.reload(), Err(TlsError::File { .. })));
        assert!(Arc::ptr_eq(&first, &keys.ends.load_full()));
        std::fs::write(&file, new_key()).unwrap();
        assert!(matches!(keys.reload(), Ok(Looked::Changed)));
        assert!(!Arc::ptr_eq(&first, &keys.ends.load_full()));
        assert!(matches!(keys.reload(), Ok(Looked::Same)));
    }

    /// As `openssl genpkey` makes them.
    #[test]
    fn keys_of_all_usual_kinds_are_taken() {
        use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

        for kind in [&PKCS_ED25519, &PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384] {
            let key = rcgen::KeyPair::generate_for(kind).unwrap().serialize_pem();
            Ends::new(Path::new("peer-key.pem"), key.as_bytes()).unwrap();
        }
    }

    #[test]
    fn nothing_shows_a_key() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("peer-key.pem");
        let key = new_key();
        std::fs::write(&file, &key).unwrap();
        let shown = format!("{:?}", PeerKeys::load(file).unwrap());
        assert!(shown.len() < 200 && shown.ends_with("peer-key.pem"), "{shown}");
    }
}
