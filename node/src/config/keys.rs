//! The account's keys: where they come from, and what they are now.
//!
//! Keys that stand in files are read again while the node runs, so that they can be changed without a
//! pause. Nothing here shows a key, neither in a message nor for debugging.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::{InvalidSettings, Settings};

/// The key every Cosmos emulator uses. Known to everybody: for loopback only.
pub(crate) const EMULATOR_KEY: &str =
    "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw==";

/// Shortest account key, in bytes.
const KEY_BYTES_MIN: usize = 16;

/// Text that nobody shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The account's keys, decoded.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AccountKeys {
    /// One or two keys that may do everything.
    pub(crate) read_write: Vec<Vec<u8>>,
    /// Up to two keys that may look at everything but permissions.
    pub(crate) read_only: Vec<Vec<u8>>,
    /// True if the first is the one everybody knows.
    pub(crate) emulator: bool,
}

impl fmt::Debug for AccountKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (read_write, read_only) = (self.read_write.len(), self.read_only.len());
        write!(f, "{read_write} account keys and {read_only} read-only keys")
    }
}

/// Where the keys come from.
#[derive(Clone, Debug)]
pub(crate) struct KeySources {
    primary: KeySource,
    secondary: KeySource,
    read_only: KeySource,
    secondary_read_only: KeySource,
    listens_on: IpAddr,
    allow_emulator_key: bool,
}

/// Where one key comes from, if it is set at all.
#[derive(Clone, Debug)]
struct KeySource {
    /// What messages call it.
    name: &'static str,
    text: Option<Secret>,
    file: Option<PathBuf>,
}

impl KeySources {
    /// What the settings say of keys, for a node that clients reach at this address.
    pub(crate) fn new(settings: &Settings, listens_on: IpAddr) -> Self {
        let source = |name, text: &Option<Secret>, file: &Option<PathBuf>| KeySource {
            name,
            text: text.clone(),
            file: file.clone(),
        };
        Self {
            primary: source("key", &settings.key, &settings.key_file),
            secondary: source(
                "secondary key",
                &settings.secondary_key,
                &settings.secondary_key_file,
            ),
            read_only: source(
                "read-only key",
                &settings.read_only_key,
                &settings.read_only_key_file,
            ),
            secondary_read_only: source(
                "secondary read-only key",
                &settings.secondary_read_only_key,
                &settings.secondary_read_only_key_file,
            ),
            listens_on,
            allow_emulator_key: settings.allow_emulator_key,
        }
    }

    /// The keys as they are now.
    pub(crate) fn load(&self) -> Result<AccountKeys, InvalidSettings> {
        let (primary, secondary) = (self.primary.load()?, self.secondary.load()?);
        let read_only: Vec<_> =
            self.read_only.load()?.into_iter().chain(self.secondary_read_only.load()?).collect();
        let emulator = primary.is_none();
        if emulator && (secondary.is_some() || !read_only.is_empty()) {
            let message = "a secondary or read-only key needs a primary one beside it".to_string();
            return Err(InvalidSettings::Key(message));
        }
        let primary = match primary {
            Some(key) => key,
            None => self.emulator_key()?,
        };
        let read_write: Vec<_> = std::iter::once(primary).chain(secondary).collect();
        if read_only.iter().any(|key| read_write.contains(key)) {
            let message = "a read-only key is the same as a key that may write".to_string();
            return Err(InvalidSettings::Key(message));
        }
        Ok(AccountKeys { read_write, read_only, emulator })
    }

    fn emulator_key(&self) -> Result<Vec<u8>, InvalidSettings> {
        if !self.listens_on.is_loopback() && !self.allow_emulator_key {
            return Err(InvalidSettings::EmulatorKey(self.listens_on));
        }
        Ok(STANDARD.decode(EMULATOR_KEY).expect("the emulator key is base64"))
    }
}

impl KeySource {
    fn load(&self) -> Result<Option<Vec<u8>>, InvalidSettings> {
        let place =
            self.file.as_ref().map_or(String::new(), |file| format!(" in {}", file.display()));
        let unusable =
            |why: String| InvalidSettings::Key(format!("the {}{place} {why}", self.name));
        let text = match (&self.text, &self.file) {
            (Some(_), Some(_)) => {
                return Err(unusable("is given both directly and by file".into()));
            }
            (None, None) => return Ok(None),
            (Some(Secret(text)), None) => text.clone(),
            (None, Some(file)) => std::fs::read_to_string(file)
                .map_err(|error| unusable(format!("cannot be read: {error}")))?,
        };
        if text.trim().is_empty() {
            return Err(unusable("is empty".into()));
        }
        let key = STANDARD.decode(text.trim()).map_err(|_| unusable("is not base64".into()))?;
        if key.len() < KEY_BYTES_MIN {
            return Err(unusable(format!("is shorter than {KEY_BYTES_MIN} bytes")));
        }
        Ok(Some(key))
    }
}

#[cfg(test)]
mod tests {
    use super::super::NodeConfig;
    use super::*;

    fn settings() -> Settings {
        Settings::default()
    }

    fn key(byte: u8) -> Secret {
        Secret(STANDARD.encode([byte; 64]))
    }

    fn keys(settings: &Settings) -> Result<AccountKeys, InvalidSettings> {
        NodeConfig::single(settings).map(|config| config.keys)
    }

    #[test]
    fn loopback_uses_the_emulator_key_and_others_refuse_it() {
        assert!(keys(&settings()).unwrap().emulator);
        let open = Settings { http: "0.0.0.0:8081".into(), ..settings() };
        let message = keys(&open).unwrap_err().to_string();
        assert!(message.contains("--allow-emulator-key"), "{message}");
        let allowed = Settings { allow_emulator_key: true, ..open.clone() };
        assert!(keys(&allowed).is_ok());
        let keyed = Settings { key: Some(key(7)), ..open };
        assert!(!keys(&keyed).unwrap().emulator);
    }

    #[test]
    fn keys_are_checked() {
        for wrong in ["not base64!", "c2hvcnQ=", ""] {
            let settings = Settings { key: Some(Secret(wrong.into())), ..settings() };
            assert!(keys(&settings).is_err(), "{wrong}");
        }
        for alone in [
            Settings { secondary_key: Some(key(7)), ..settings() },
            Settings { read_only_key: Some(key(7)), ..settings() },
        ] {
            assert!(keys(&alone).is_err());
        }
        let same =
            Settings { key: Some(key(7)), secondary_read_only_key: Some(key(7)), ..settings() };
        assert!(keys(&same).is_err());
        let no_file = Settings { key_file: Some("/nowhere/key".into()), ..settings() };
        assert!(keys(&no_file).unwrap_err().to_string().contains("/nowhere/key"));
        let twice =
            Settings { key: Some(key(7)), key_file: Some("/nowhere/key".into()), ..settings() };
        assert!(keys(&twice).unwrap_err().to_string().contains("both"));
    }

    #[test]
    fn keys_may_be_two_that_write_and_two_that_read() {
        let all = Settings {
            key: Some(key(1)),
            secondary_key: Some(key(2)),
            read_only_key: Some(key(3)),
            secondary_read_only_key: Some(key(4)),
            ..settings()
        };
        let keys = keys(&all).unwrap();
        assert_eq!(keys.read_write, [vec![1; 64], vec![2; 64]]);
        assert_eq!(keys.read_only, [vec![3; 64], vec![4; 64]]);
    }

    #[test]
    fn a_file_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        let settings = Settings { key_file: Some(file.clone()), ..settings() };
        std::fs::write(&file, format!("{}\n", STANDARD.encode([1; 64]))).unwrap();
        let config = NodeConfig::single(&settings).unwrap();
        assert_eq!(config.keys.read_write, [vec![1; 64]]);
        std::fs::write(&file, STANDARD.encode([2; 64])).unwrap();
        assert_eq!(config.key_sources.load().unwrap().read_write, [vec![2; 64]]);
        std::fs::write(&file, "").unwrap();
        assert!(config.key_sources.load().is_err());
    }

    #[test]
    fn nothing_shows_a_key() {
        let settings = Settings { key: Some(key(7)), ..settings() };
        let config = NodeConfig::single(&settings).unwrap();
        let shown = format!("{settings:?} {config:?}");
        assert!(!shown.contains(&STANDARD.encode([7; 64])), "{shown}");
        assert!(!shown.contains("7, 7"), "{shown}");
    }

    #[test]
    fn a_syntax_error_tells_its_place_and_not_the_key_that_stands_there() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("settings.toml");
        let key = STANDARD.encode([7; 64]);
        for wrong in [
            format!("key = \"{key}"),
            format!("key = {key}"),
            format!("key \"{key}\""),
            format!("key = \"{key}\" \"more\""),
        ] {
            std::fs::write(&file, format!("burst = true\n{wrong}\n")).unwrap();
            let error = Settings::load(Some(&file), serde_json::json!({})).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains(&key[..8]), "{shown}");
            assert!(shown.contains("line 2, column "), "{shown}");
        }
    }
}
