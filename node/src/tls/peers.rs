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
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tracing::info;

use super::{TlsError, fault_of, read};
use crate::platform::Stream;
use crate::reload::Looked;

/// What a node that is called is said to be named: TLS wants a name, and nobody looks at it.
const ANY_NODE: &str = "node";

/// What nodes talk to each other with.
pub(crate) struct PeerKeys {
    file: PathBuf,
    ends: ArcSwap<Ends>,
}

/// Both ends of connections from now on.
struct Ends {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    /// The key that we show.
    shown: PublicKey,
    /// How many keys others may hold.
    taken: usize,
    /// What the file said when it was read.
    content: Vec<u8>,
}

type PublicKey = SubjectPublicKeyInfoDer<'static>;

impl fmt::Debug for PeerKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the keys in {}", self.file.display())
    }
}

impl PeerKeys {
    /// Reads the keys.
    pub(crate) fn load(file: PathBuf) -> Result<Self, TlsError> {
        let ends = Ends::read(&file, read(&file)?)?;
        Ok(Self { file, ends: ArcSwap::from_pointee(ends) })
    }

    /// Looks whether there are other keys by now; connections from now on use them.
    pub(crate) fn reload(&self) -> Result<Looked, TlsError> {
        let content = read(&self.file)?;
        if content == self.ends.load().content {
            return Ok(Looked::Same);
        }
        self.ends.store(Arc::new(Ends::read(&self.file, content)?));
        self.announce();
        Ok(Looked::Changed)
    }

    /// Tells people which key is shown, and how many are taken: all nodes should say the same.
    pub(crate) fn announce(&self) {
        let ends = self.ends.load();
        let digest = Sha256::digest(&ends.shown);
        let first = digest.first_chunk().expect("it is longer");
        let shows = format!("{:016x}", u64::from_be_bytes(*first));
        info!(shows, keys = ends.taken, file = %self.file.display(), "TLS between nodes");
    }

    /// Encrypts a connection that another node has made.
    pub(crate) async fn accept(&self, connection: TcpStream) -> io::Result<Stream> {
        let (acceptor, address) = (self.ends.load().acceptor.clone(), connection.peer_addr()?);
        encrypted(acceptor.accept(connection).await, address)
    }

    /// Encrypts a connection to another node.
    pub(crate) async fn connect(&self, connection: TcpStream) -> io::Result<Stream> {
        let (connector, address) = (self.ends.load().connector.clone(), connection.peer_addr()?);
        let name = ServerName::try_from(ANY_NODE).expect("it is a name");
        encrypted(connector.connect(name, connection).await, address)
    }
}

fn encrypted(
    shaken: io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static>,
    address: SocketAddr,
) -> io::Result<Stream> {
    let stream = shaken.map_err(|error| {
        let said =
            matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof);
        let hint = if said { "; give every node the same --peer-key-file" } else { "" };
        io::Error::new(error.kind(), format!("no TLS with {}: {error}{hint}", address.ip()))
    })?;
    let (reader, writer) = tokio::io::split(stream);
    Ok(Stream { reader: Box::new(reader), writer: Box::new(writer) })
}

impl Ends {
    /// What the keys in a file make of connections.
    fn read(file: &Path, content: Vec<u8>) -> Result<Self, TlsError> {
        let unusable = |reason: String| TlsError::Pem {
            path: file.display().to_string(),
            what: "private key",
            reason,
        };
        let mut keys = Vec::new();
        for key in PrivateKeyDer::pem_slice_iter(&content) {
            let key = key.map_err(|error| unusable(fault_of(&error).to_string()))?;
            let key = ring::sign::any_supported_type(&key);
            keys.push(key.map_err(|error| unusable(error.to_string()))?);
        }
        // One that was passed over would be missed only when others show it.
        if keys.len() != count_keys(&content) {
            let reason = "a key does not begin on a line of its own, or is encrypted";
            return Err(unusable(reason.to_string()));
        }
        let public: Option<Vec<_>> = keys.iter().map(|key| public_part(&**key)).collect();
        let public = public.ok_or_else(|| unusable("its public part is not known".to_string()))?;
        let (Some(own), Some(shown)) = (keys.into_iter().next(), public.first().cloned()) else {
            return Err(unusable("there is none in it".to_string()));
        };
        Self::new(own, shown, public, content)
    }

    /// Shows a public key, proves by the private one to hold it, and takes whoever holds one of the others.
    fn new(
        own: Arc<dyn SigningKey>,
        shown: PublicKey,
        others: Vec<PublicKey>,
        content: Vec<u8>,
    ) -> Result<Self, TlsError> {
        let taken = others.len();
        // A key by itself stands where a certificate would.
        let certificate = CertificateDer::from(shown.as_ref().to_vec());
        let identity = Arc::new(CertifiedKey::new(vec![certificate], own));
        let provider = Arc::new(ring::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let holders = Arc::new(Holders { taken: others, algorithms });

        let resolver = Arc::new(AlwaysResolvesServerRawPublicKeys::new(identity.clone()));
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(holders.clone())
            .with_cert_resolver(resolver);
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(holders)
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(identity)));
        // A connection that was resumed would skip the proof, and outlive a key that was taken out.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let (acceptor, connector) = (Arc::new(server).into(), Arc::new(client).into());
        Ok(Self { acceptor, connector, shown, taken, content })
    }
}

/// How many private keys a file seems to hold, whether they can be read or not.
fn count_keys(pem: &[u8]) -> usize {
    let text = String::from_utf8_lossy(pem);
    let sections = text.split("-----BEGIN ").skip(1);
    let first_lines = sections.filter_map(|section| section.lines().next());
    first_lines.filter(|line| line.contains("PRIVATE KEY")).count()
}

fn public_part(key: &dyn SigningKey) -> Option<PublicKey> {
    key.public_key().map(SubjectPublicKeyInfoDer::into_owned)
}

/// Takes whoever proves to hold one of our keys, on either end of a connection.
#[derive(Debug)]
struct Holders {
    /// The public parts of the keys.
    taken: Vec<PublicKey>,
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
pub(crate) mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// As `openssl genpkey` made them: Ed25519, ECDSA with P-256 and with P-384.
    const BY_OPENSSL: [&str; 3] = [
        "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIBmM9q/U4tp4CiDlDLs8UHpeBi3HyobvFD/C1ERosroM
-----END PRIVATE KEY-----
",
        "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgiNqL++SA8D+U0P6k
cVuC91himoDkTCtyowPOv1IP2quhRANCAAQrK15jHzNF5bgHX5qJMpXZXCHddZAh
ars95z5wYBtxr7x3K9MlArnzqcWCGSkRQwUckm9FFDYuiEPhresGZcSl
-----END PRIVATE KEY-----
",
        "-----BEGIN PRIVATE KEY-----
MIG2AgEAMBAGByqGSM49AgEGBSuBBAAiBIGeMIGbAgEBBDCnUQFv1DdshCICWLo+
Kyh/1AsYgYIu/S0DjL8DSh8B7wtWCOPL3DLcDY5ULml2+T6hZANiAAQAs40XitzN
94wJe00Mb6DDhLG7px6O7orqPd+3Gu7/59uYuL44GkNhk/ViCzINX6OaLt9jZT6e
5uJLvzNYSWIFJHiUQ0OFc0z8gBkbz4ONeePgmgzDAM3E0SgR8hl1UmQ=
-----END PRIVATE KEY-----
",
    ];

    /// A private key, in PEM.
    pub(crate) fn new_peer_key() -> String {
        rcgen::KeyPair::generate().unwrap().serialize_pem()
    }

    fn ends(pem: &str) -> Result<Ends, TlsError> {
        Ends::read(Path::new("peer-key.pem"), pem.into())
    }

    fn keys(ends: Ends) -> PeerKeys {
        let ends = ArcSwap::from_pointee(ends);
        PeerKeys { file: PathBuf::new(), ends }
    }

    /// Sends a byte, and waits for one: who calls hears only then whether it was taken.
    async fn exchange(stream: io::Result<Stream>) -> io::Result<()> {
        let mut stream = stream?;
        stream.writer.write_all(b"?").await?;
        stream.writer.flush().await?;
        stream.reader.read_u8().await.map(drop)
    }

    /// One node calls another: what becomes of it at either end.
    async fn call(dialer: Ends, answerer: Ends) -> (io::Result<()>, io::Result<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let calls = async {
            let connection = TcpStream::connect(address).await.unwrap();
            exchange(keys(dialer).connect(connection).await).await
        };
        let takes = async {
            let (connection, _) = listener.accept().await.unwrap();
            exchange(keys(answerer).accept(connection).await).await
        };
        tokio::join!(calls, takes)
    }

    fn told(result: &io::Result<()>) -> String {
        result.as_ref().unwrap_err().to_string()
    }

    #[tokio::test]
    async fn each_end_looks_at_the_key_of_the_other() {
        let [one, other] = [new_peer_key(), new_peer_key()];
        let both = format!("{other}{one}");
        let (dialer, answerer) = call(ends(&both).unwrap(), ends(&both).unwrap()).await;
        assert!(dialer.is_ok() && answerer.is_ok());
        // The dialer takes what the answerer shows, and shows a key that this one does not take.
        let (dialer, answerer) = call(ends(&both).unwrap(), ends(&one).unwrap()).await;
        assert!(told(&answerer).contains("no TLS with 127.0.0.1: invalid peer"), "{answerer:?}");
        assert!(dialer.is_err());
        // And the other way round.
        let (dialer, answerer) = call(ends(&one).unwrap(), ends(&both).unwrap()).await;
        assert!(told(&dialer).contains("no TLS with 127.0.0.1: invalid peer"), "{dialer:?}");
        assert!(told(&answerer).contains("received fatal alert"), "{answerer:?}");
    }

    #[tokio::test]
    async fn to_show_a_key_is_not_to_hold_it() {
        let [one, other] = [new_peer_key(), new_peer_key()];
        let signing = |pem: &str| {
            let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap();
            ring::sign::any_supported_type(&key).unwrap()
        };
        let public = public_part(&*signing(&one)).unwrap();
        let (public, taken) = (public.clone(), vec![public]);
        let thief =
            || Ends::new(signing(&other), public.clone(), taken.clone(), Vec::new()).unwrap();
        let (dialer, answerer) = call(thief(), ends(&one).unwrap()).await;
        assert!(told(&answerer).contains("BadSignature"), "{answerer:?}");
        assert!(dialer.is_err());
        let (dialer, _) = call(ends(&one).unwrap(), thief()).await;
        assert!(told(&dialer).contains("BadSignature"), "{dialer:?}");
    }

    #[tokio::test]
    async fn keys_that_openssl_makes_are_taken() {
        for pem in BY_OPENSSL {
            let (dialer, answerer) = call(ends(pem).unwrap(), ends(pem).unwrap()).await;
            assert!(dialer.is_ok() && answerer.is_ok(), "{pem}");
        }
    }

    #[test]
    fn a_key_that_would_be_passed_over_is_noticed() {
        let [one, other] = [new_peer_key(), new_peer_key()];
        let noted = format!("# the new one\n{other}# the old one\n{one}");
        assert_eq!(ends(&noted).unwrap().taken, 2);
        let encrypted = other.replace("PRIVATE", "ENCRYPTED PRIVATE");
        for passed_over in [format!("{}{other}", one.trim_end()), format!("{one}{encrypted}")] {
            assert!(matches!(ends(&passed_over), Err(TlsError::Pem { .. })), "{passed_over}");
        }
    }

    #[test]
    fn keys_are_taken_up_when_the_file_changes_and_what_is_none_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("peer-key.pem");
        std::fs::write(&file, new_peer_key()).unwrap();
        let keys = PeerKeys::load(file.clone()).unwrap();
        let first = keys.ends.load_full();
        assert!(matches!(keys.reload(), Ok(Looked::Same)));
        let no_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        for nothing in ["", "nothing", no_key] {
            std::fs::write(&file, nothing).unwrap();
            assert!(matches!(keys.reload(), Err(TlsError::Pem { .. })), "{nothing}");
            assert!(PeerKeys::load(file.clone()).is_err());
        }
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(keys.reload(), Err(TlsError::File { .. })));
        assert!(Arc::ptr_eq(&first, &keys.ends.load_full()));
        std::fs::write(&file, new_peer_key()).unwrap();
        assert!(matches!(keys.reload(), Ok(Looked::Changed)));
        assert!(!Arc::ptr_eq(&first, &keys.ends.load_full()));
        assert!(matches!(keys.reload(), Ok(Looked::Same)));
    }

    #[test]
    fn nothing_shows_a_key() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("peer-key.pem");
        let key = new_peer_key();
        std::fs::write(&file, &key).unwrap();
        let shown = format!("{:?}", PeerKeys::load(file).unwrap());
        assert!(shown.len() < 200 && shown.ends_with("peer-key.pem"), "{shown}");
        // All of it on one line, as variables and forms make it: parts of it look like the names of sections.
        let (in_one, escaped) = (key.replace('\n', ""), key.replace('\n', "\\n"));
        for broken in [in_one, escaped, key.replace("END", "ENDE"), key.replace('M', "!")] {
            let error = ends(&broken).err().unwrap();
            let shown = format!("{error} {error:?}");
            let inside = |byte: &u8| byte.to_string();
            let bytes: Vec<String> = key.as_bytes()[30..40].iter().map(inside).collect();
            assert!(!shown.contains(&key[30..40]), "{shown}");
            assert!(!shown.contains(&bytes.join(", ")), "{shown}");
        }
    }
}
