//! What definitions are taken, completed, refused and read again.

use super::*;

fn definition(extra: &Value) -> Result<ContainerDefinition, InvalidDefinition> {
    let mut body = json!({ "id": "c", "partitionKey": { "paths": ["/pk"] } });
    let extra = extra.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(extra);
    ContainerDefinition::parse(&body)
}

#[test]
fn missing_parts_take_the_services_defaults() {
    let definition = definition(&json!({})).unwrap();
    assert_eq!(
        Value::Object(definition.json().clone()),
        json!({
            "id": "c",
            "partitionKey": { "paths": ["/pk"], "kind": "Hash" },
            "indexingPolicy": indexing::complete(None).unwrap(),
            "conflictResolutionPolicy": {
                "mode": "LastWriterWins",
                "conflictResolutionPath": "/_ts",
                "conflictResolutionProcedure": "",
            },
            "geospatialConfig": { "type": "Geography" },
        })
    );
    assert_eq!(definition.ttl(), TtlPolicy::Off);
}

#[test]
fn r5_default_ttls_are_checked() {
    let policy = |ttl: Value| definition(&json!({ "defaultTtl": ttl })).map(|d| d.ttl());
    assert_eq!(policy(json!(null)), Ok(TtlPolicy::Off));
    assert_eq!(policy(json!(-1)), Ok(TtlPolicy::NoDefault));
    for valid in [json!(1), json!(2_147_483_647), json!(10.0), json!(1e3)] {
        assert!(matches!(policy(valid.clone()), Ok(TtlPolicy::Default(_))), "{valid}");
    }
    for invalid in [
        json!(0),
        json!(-2),
        json!(2_147_483_648_u32),
        json!(1.5),
        json!("10"),
        json!(true),
        json!([]),
        json!({}),
        json!(u64::MAX),
    ] {
        assert!(matches!(policy(invalid.clone()), Err(InvalidDefinition::Ttl(_))), "{invalid}");
    }
}

#[test]
fn the_retention_of_the_feed_is_whole_minutes() {
    let retention =
        |policy: Value| definition(&json!({ "changeFeedPolicy": policy })).map(|d| d.retention());
    let minutes = |minutes| NonZeroU32::new(minutes).map(Retention);
    assert_eq!(definition(&json!({})).unwrap().retention(), None);
    for none in [json!(null), json!({}), json!({ "retentionDuration": 0 })] {
        assert_eq!(retention(none.clone()), Ok(None), "{none}");
    }
    assert_eq!(retention(json!({ "retentionDuration": 10 })), Ok(minutes(10)));
    for wrong in [
        json!(5),
        json!({ "retentionDuration": -1 }),
        json!({ "retentionDuration": "10" }),
        json!({ "retentionDuration": 1.5 }),
        json!({ "retentionDuration": 1_u64 << 40 }),
    ] {
        assert!(retention(wrong.clone()).is_err(), "{wrong}");
    }
}

#[test]
fn r8_no_index_no_default_ttl() {
    let none = json!({ "indexingMode": "none" });
    assert!(definition(&json!({ "indexingPolicy": none })).is_ok());
    let both = definition(&json!({ "indexingPolicy": none, "defaultTtl": 5 }));
    assert_eq!(both.unwrap_err(), InvalidDefinition::TtlWithoutIndex);
    let lazy = json!({ "indexingMode": "lazy" });
    assert!(definition(&json!({ "indexingPolicy": lazy, "defaultTtl": 5 })).is_ok());
}

#[test]
fn r12_analytical_ttl_is_checked_and_echoed() {
    for valid in [json!(-1), json!(1), json!(100), json!(2_147_483_647)] {
        let definition = definition(&json!({ "analyticalStorageTtl": valid })).unwrap();
        assert_eq!(definition.json()["analyticalStorageTtl"], valid);
    }
    for invalid in
        [json!(0), json!(0.0), json!(-2), json!(2_147_483_648_u32), json!(1.5), json!("10")]
    {
        let error = definition(&json!({ "analyticalStorageTtl": invalid })).unwrap_err();
        let InvalidDefinition::Ttl(error) = error else { panic!("{invalid}: {error:?}") };
        assert_eq!(error.property, "analyticalStorageTtl");
    }
}

/// A replacement that spells a default out changes nothing, and neither does one that does not.
#[test]
fn absent_and_default_are_the_same_in_a_replacement() {
    let difference = |old: Value, new: Value| {
        let (old, new) = (definition(&old).unwrap(), definition(&new).unwrap());
        assert_eq!(old.immutable_difference(&new), new.immutable_difference(&old));
        old.immutable_difference(&new)
    };
    let unique = |policy: Value| json!({ "uniqueKeyPolicy": policy });
    let conflicts = |policy: Value| json!({ "conflictResolutionPolicy": policy });
    let key = |key: Value| json!({ "partitionKey": key });
    for same in [
        unique(json!(null)),
        unique(json!({})),
        unique(json!({ "uniqueKeys": null })),
        unique(json!({ "uniqueKeys": [] })),
        conflicts(json!(null)),
        conflicts(json!({ "mode": "LastWriterWins" })),
        conflicts(json!({ "mode": "lastWriterWins", "conflictResolutionPath": null })),
        conflicts(json!({ "conflictResolutionPath": "/_ts", "mode": "LastWriterWins" })),
        key(json!({ "paths": ["/pk"], "kind": "Hash", "version": 1 })),
        key(json!({ "version": null, "kind": null, "paths": ["/pk"], "systemKey": false })),
    ] {
        assert_eq!(difference(json!({}), same.clone()), None, "{same}");
    }
    let custom = conflicts(json!({ "mode": "Custom" }));
    assert_eq!(difference(custom, json!({})), Some("conflictResolutionPolicy"));
    let version = key(json!({ "paths": ["/pk"], "version": 2 }));
    assert_eq!(difference(version, json!({})), Some("partitionKey"));
    let keys = |keys: Value| unique(json!({ "uniqueKeys": keys }));
    let one = || keys(json!([{ "paths": ["/a", "/b/c"] }]));
    assert_eq!(difference(one(), keys(json!([{ "paths": ["/\"a\"", "/b/'c'"] }]))), None);
    assert_eq!(difference(one(), json!({})), Some("uniqueKeyPolicy"));
    assert_eq!(difference(one(), keys(json!([{ "paths": ["/a"] }]))), Some("uniqueKeyPolicy"));
    assert!(definition(&unique(json!(5))).is_err());
    assert!(definition(&unique(json!([]))).is_err());
}

#[test]
fn the_version_of_a_partition_key_is_shown_if_somebody_named_it() {
    let shown = |key: Value| {
        let definition = definition(&json!({ "partitionKey": key })).unwrap();
        definition.json()["partitionKey"].get("version").cloned()
    };
    assert_eq!(shown(json!({ "paths": ["/pk"] })), None);
    assert_eq!(shown(json!({ "paths": ["/pk"], "version": null })), None);
    assert_eq!(shown(json!({ "paths": ["/pk"], "version": 1 })), Some(json!(1)));
    assert_eq!(shown(json!({ "paths": ["/pk"], "version": 2 })), Some(json!(2)));
    assert_eq!(shown(json!({ "paths": ["/a", "/b"], "kind": "MultiHash" })), Some(json!(2)));
}

#[test]
fn partition_keys_are_checked() {
    let key = |key: Value| definition(&json!({ "partitionKey": key }));
    let kind = |value: Value| key(value).unwrap().key().kind;
    assert_eq!(kind(json!({ "paths": ["/a"], "version": 2 })), KeyKind::HashV2);
    let multi = json!({ "paths": ["/a", "/b/c"], "kind": "MultiHash", "version": 2 });
    assert_eq!(kind(multi), KeyKind::MultiHash);
    for wrong in [
        json!([]),
        json!({}),
        json!({ "paths": [] }),
        json!({ "paths": ["/a", "/b"] }),
        json!({ "paths": ["a"] }),
        json!({ "paths": [1] }),
        json!({ "paths": ["/a"], "kind": "Range" }),
        json!({ "paths": ["/a"], "version": 3 }),
        json!({ "paths": ["/a", "/b", "/c", "/d"], "kind": "MultiHash" }),
        json!({ "paths": ["/a"], "kind": "MultiHash", "version": 1 }),
        json!({ "paths": ["/pk"], "systemKey": true }),
        json!({ "paths": ["/_partitionKey"], "kind": "MultiHash", "systemKey": true }),
    ] {
        assert!(key(wrong.clone()).is_err(), "{wrong}");
    }
}

#[test]
fn a_container_without_a_key_of_its_users_says_so() {
    let path = |key: Value| {
        let mut key = key;
        key["paths"] = json!([SYSTEM_KEY_PATH]);
        definition(&json!({ "partitionKey": key })).unwrap()
    };
    let system = path(json!({ "systemKey": true }));
    assert_eq!(system.key().kind, KeyKind::SystemV1);
    let shown = json!({ "paths": ["/_partitionKey"], "kind": "Hash", "systemKey": true });
    assert_eq!(system.json()["partitionKey"], shown);
    let system = path(json!({ "kind": "Hash", "version": 2, "systemKey": true }));
    assert_eq!(system.key().kind, KeyKind::SystemV2);
    let own = path(json!({ "systemKey": false }));
    assert_eq!(own.key().kind, KeyKind::HashV1);
    assert_eq!(own.json()["partitionKey"].get("systemKey"), None);
    assert_eq!(own.immutable_difference(&system), Some("partitionKey"));
}

#[test]
fn unique_keys_are_checked_and_echoed() {
    let unique = |path: &str| json!({ "uniqueKeys": [{ "paths": [path], "x": 1 }], "y": 2 });
    let accepted = definition(&json!({ "uniqueKeyPolicy": unique("/a") })).unwrap();
    assert_eq!(accepted.json()["uniqueKeyPolicy"], unique("/a"));
    assert!(!accepted.unique_keys().is_empty());
    let refused = definition(&json!({ "uniqueKeyPolicy": unique("/a/*") }));
    assert!(matches!(refused, Err(InvalidDefinition::UniqueKeys(_))));
    assert!(definition(&json!({})).unwrap().unique_keys().is_empty());
}

#[test]
fn computed_properties_are_checked_and_echoed() {
    let computed = json!([{ "name": "low", "query": "SELECT VALUE c.n FROM c", "x": 1 }]);
    let accepted = definition(&json!({ "computedProperties": computed })).unwrap();
    assert_eq!(accepted.json()["computedProperties"], computed);
    assert_eq!(accepted.computed().names().collect::<Vec<_>>(), ["low"]);
    assert!(definition(&json!({ "computedProperties": {} })).is_err());
    let refused = json!([{ "name": "low", "query": "SELECT c.n FROM c" }]);
    let refused = json!({ "computedProperties": refused });
    assert!(matches!(definition(&refused), Err(InvalidDefinition::Computed(_))));
    let mut stored = json!({ "id": "c", "partitionKey": { "paths": ["/pk"] } });
    stored.as_object_mut().unwrap().extend(refused.as_object().unwrap().clone());
    let restored = ContainerDefinition::restore(&stored).unwrap();
    assert_eq!(restored.computed().names().count(), 0, "what was stored unchecked still opens");
    assert_eq!(restored.json()["computedProperties"], stored["computedProperties"]);
}

#[test]
fn what_no_container_has_is_refused_and_nothing_of_it_is_taken() {
    let vectors = json!({ "vectorEmbeddings": [{ "path": "/v", "dimensions": 3 }] });
    let texts = json!({ "fullTextPaths": [{ "path": "/t", "language": "en-US" }] });
    let view = json!({ "sourceCollectionId": "carts", "definition": "SELECT c.id FROM c" });
    let index = |member: &str| {
        json!({ "indexingPolicy": {
            "includedPaths": [{ "path": "/*" }], member: [{ "path": "/v", "type": "flat" }],
        } })
    };
    for (feature, asked) in [
        ("vectorIndexes", index("vectorIndexes")),
        ("fullTextIndexes", index("fullTextIndexes")),
        ("vectorEmbeddingPolicy", json!({ "vectorEmbeddingPolicy": vectors })),
        ("fullTextPolicy", json!({ "fullTextPolicy": texts })),
        ("materializedViewDefinition", json!({ "materializedViewDefinition": view })),
    ] {
        let refused = definition(&asked).unwrap_err();
        assert_eq!(refused, InvalidDefinition::Unsupported(feature));
        let mut stored = json!({ "id": "c", "partitionKey": { "paths": ["/pk"] } });
        stored.as_object_mut().unwrap().extend(asked.as_object().unwrap().clone());
        assert!(ContainerDefinition::restore(&stored).is_ok(), "what is stored is read");
    }
    for nothing in [
        json!({ "vectorEmbeddingPolicy": null, "fullTextPolicy": null }),
        json!({ "vectorEmbeddingPolicy": { "vectorEmbeddings": [] } }),
        json!({ "fullTextPolicy": { "defaultLanguage": "en-US", "fullTextPaths": [] } }),
        json!({ "materializedViewDefinition": null }),
        json!({ "indexingPolicy": { "vectorIndexes": [], "fullTextIndexes": [] } }),
    ] {
        assert!(definition(&nothing).is_ok(), "{nothing}");
    }
}

/// All nodes would end, and again at each start.
#[test]
fn whatever_is_accepted_is_read_again() {
    let paths = |count: usize| -> Vec<Value> {
        (0..count).map(|n| json!({ "path": format!("/p{n}/?") })).collect()
    };
    let magic = "$serde_json::private::RawValue";
    for body in [
        json!({ "indexingPolicy": {
            "includedPaths": [{ "path": "/*" }], "excludedPaths": paths(1500),
        } }),
        json!({ "indexingPolicy": {
            "includedPaths": [{ "indexes": [], magic: 5, "path": "/*" }],
        } }),
        json!({ "vectorEmbeddingPolicy": { magic: "[[[[1]]]]" } }),
    ] {
        let accepted = definition(&body).unwrap();
        let text = Value::Object(accepted.json().clone()).to_string();
        let read = serde_json::from_str(&text).unwrap();
        assert_eq!(ContainerDefinition::restore(&read).unwrap().json(), accepted.json());
    }
}

#[test]
fn what_is_listed_as_stored_cannot_become_computed() {
    let with = |policy: Value, name: &str| {
        let query = "SELECT VALUE c.n FROM c";
        let computed = json!([{ "name": name, "query": query }]);
        let computed = if name.is_empty() { json!([]) } else { computed };
        definition(&json!({ "indexingPolicy": policy, "computedProperties": computed })).unwrap()
    };
    let listed = |entries: Value| {
        let mut policy = json!({ "includedPaths": [{ "path": "/*" }] });
        policy.as_object_mut().unwrap().extend(entries.as_object().unwrap().clone());
        policy
    };
    for policy in [
        listed(json!({ "includedPaths": [{ "path": "/*" }, { "path": "/low/?" }] })),
        listed(json!({ "excludedPaths": [{ "path": "/\"low\"/sub/*" }] })),
        listed(json!({ "spatialIndexes": [{ "path": "/low/*", "types": ["Point"] }] })),
        listed(json!({ "compositeIndexes": [[{ "path": "/a" }, { "path": "/low" }]] })),
    ] {
        let computes = with(policy.clone(), "low");
        let conflict =
            |old: &ContainerDefinition| old.listed_and_now_computed(&computes).map(str::to_string);
        assert_eq!(conflict(&with(policy.clone(), "")), Some("low".to_string()), "{policy}");
        assert_eq!(conflict(&with(policy.clone(), "low")), None, "its own entry: {policy}");
        assert_eq!(conflict(&with(listed(json!({})), "")), None, "not listed before");
    }
}

#[test]
fn paths_of_keys_lead_to_one_property_that_users_write_and_are_not_endless() {
    let of_key = |path: &str| definition(&json!({ "partitionKey": { "paths": [path] } }));
    let of_unique = |path: &str| {
        let keys = json!([{ "paths": [path] }]);
        definition(&json!({ "uniqueKeyPolicy": { "uniqueKeys": keys } }))
    };
    assert!(of_key("/a/id").is_ok() && of_key("/id").is_ok());
    for path in ["/_ts", "/_rid/x", "/a/*", "/a/?", "/a/[]/b"] {
        let refused = of_key(path).unwrap_err();
        assert!(matches!(refused, InvalidDefinition::KeyPath(_)), "{path}: {refused}");
    }
    for (path, is_taken) in [
        ("/a".repeat(PATH_NAMES_MAX), true),
        ("/a".repeat(PATH_NAMES_MAX + 1), false),
        (format!("/{}", "a".repeat(PATH_BYTES_MAX - 1)), true),
        (format!("/{}", "a".repeat(PATH_BYTES_MAX)), false),
        ("/a".repeat(200_000), false),
    ] {
        for made in [of_key(&path), of_unique(&path)] {
            let is_refused = matches!(made, Err(InvalidDefinition::PathTooLong { .. }));
            assert_eq!((made.is_ok(), is_refused), (is_taken, !is_taken), "{:?}", made.err());
        }
    }
}

#[test]
fn a_definition_is_no_longer_than_a_node_keeps_for_good() {
    let padded =
        |bytes: usize| definition(&json!({ "clientEncryptionPolicy": { "x": "x".repeat(bytes) } }));
    assert!(padded(DEFINITION_BYTES_MAX - 2000).is_ok());
    let refused = padded(DEFINITION_BYTES_MAX).unwrap_err();
    assert!(matches!(refused, InvalidDefinition::TooLong(_)), "{refused}");
}
