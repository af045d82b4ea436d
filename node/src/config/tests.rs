//! Settings that are taken, and settings that are refused.

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
fn clients_are_told_urls_without_a_path_that_they_can_reach() {
    let endpoint = |url: &str| {
        let settings = Settings { account_endpoint: Some(url.to_string()), ..settings() };
        NodeConfig::single(&settings).map(|config| config.account_endpoint.unwrap())
    };
    let advertised = |url: &str| {
        let settings = Settings { advertise: Some(url.to_string()), ..settings() };
        NodeConfig::single(&settings).map(|config| config.advertise.unwrap())
    };
    for right in ["https://db.example/", "http://db.example:8081/", "http://[::1]:8081/"] {
        for shown in [right, right.trim_end_matches('/')] {
            assert_eq!(endpoint(shown).unwrap(), right);
            assert_eq!(advertised(shown).unwrap(), right);
        }
    }
    let wrong = ["", "db.example", "db.example:8081", "ftp://db", "https://db/x", "https://db/?a"];
    for wrong in wrong.into_iter().chain(["http://0.0.0.0:8081", "http://[::]:8081/"]) {
        let message = endpoint(wrong).unwrap_err().to_string();
        assert!(message.contains("--account-endpoint"), "{message}");
        let message = advertised(wrong).unwrap_err().to_string();
        assert!(message.contains("--advertise"), "{message}");
    }
}

#[test]
fn a_node_alone_is_given_no_settings_of_a_cluster() {
    let text = || Some("1=a:1".to_string());
    for (key, settings) in [
        ("cluster (EPHEMERIS_CLUSTER)", Settings { cluster: text(), ..settings() }),
        ("peer (EPHEMERIS_PEER)", Settings { peer: text(), ..settings() }),
        ("node_id (EPHEMERIS_NODE_ID)", Settings { node_id: Some(1), ..settings() }),
        ("dial (EPHEMERIS_DIAL)", Settings { dial: text(), ..settings() }),
        (
            "peer_key_file (EPHEMERIS_PEER_KEY_FILE)",
            Settings { peer_key_file: Some("key.pem".into()), ..settings() },
        ),
    ] {
        let message = NodeConfig::single(&settings).unwrap_err().to_string();
        assert!(message.contains(key) && message.contains("`ephemeris start`"), "{message}");
    }
}

#[test]
fn memory_is_not_nothing() {
    for (key, settings) in [
        ("block_cache_mib", Settings { block_cache_mib: 0, ..settings() }),
        ("write_buffer_mib", Settings { write_buffer_mib: 0, ..settings() }),
    ] {
        let message = NodeConfig::single(&settings).unwrap_err().to_string();
        assert!(message.contains(key), "{message}");
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

    settings.http = "0.0.0.0:8081".into();
    settings.allow_emulator_key = true;
    assert!(message(&settings).contains("--advertise"), "nobody can connect to 0.0.0.0");
    let url = || Some("http://n2:8081".to_string());
    let advertised = Settings { advertise: url(), ..settings.clone() };
    assert!(NodeConfig::clustered(&advertised).is_ok());
    let balanced = Settings { account_endpoint: url(), ..settings };
    assert!(NodeConfig::clustered(&balanced).is_ok());
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

#[test]
fn a_key_by_flag_wins_however_another_was_given() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ephemeris.toml");
    let keys = |below: &str, flags: serde_json::Value| {
        std::fs::write(&file, below).unwrap();
        let settings = Settings::load(Some(&file), flags).unwrap();
        (settings.key.is_some(), settings.key_file.is_some())
    };
    let by_file = || serde_json::json!({ "key_file": "/run/key" });
    assert_eq!(keys("key = \"a\"", by_file()), (false, true));
    assert_eq!(keys("key_file = \"a\"", serde_json::json!({ "key": "b" })), (true, false));
    for (key, key_file) in KEY_SETTINGS {
        for (below, above) in [(key, key_file), (key_file, key)] {
            std::fs::write(&file, format!("{below} = \"a\"\n")).unwrap();
            let settings = Settings::load(Some(&file), serde_json::json!({ above: "b" })).unwrap();
            let settings = serde_json::to_value(settings).unwrap();
            assert_eq!(settings[below], serde_json::Value::Null, "{above} hides it");
            assert_eq!(settings[above], "b");
        }
    }
    assert_eq!(keys("secondary_key = \"a\"\nkey = \"a\"", serde_json::json!({})), (true, false));
    let twice = "key_file = \"a\"\nkey = \"a\"";
    assert_eq!(keys(twice, serde_json::json!({})), (true, true), "which one is meant?");
}
