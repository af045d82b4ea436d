//! Throws away what a node has, so that it is made anew from the other nodes.
//!
//! 1. The data directory is locked: nobody uses it meanwhile.
//! 2. A healthy node tells that it is of the same cluster, and that the lost one does not run.
//! 3. If the data is to be kept: it can be moved to where it should go.
//! 4. It forgets the lost one, unless some group would be left without a majority.
//! 5. The directory is emptied, its identity last. Until then all of this can be done again; after that
//!    the node starts as one that nobody knows.
//!
//! Certificates stay, and so does everything that is not ours.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use serde_json::Value;

use super::client::Client;
use super::{Connection, forget_node};
use crate::identity::IDENTITY_FILE;
use crate::platform::{
    LOCK_FILE, LOG_DIRECTORY, SNAPSHOT_DIRECTORY, STATE_DIRECTORY, lock_directory,
};

/// What is thrown away, in this order.
const DATA: [&str; 4] = [STATE_DIRECTORY, LOG_DIRECTORY, SNAPSHOT_DIRECTORY, IDENTITY_FILE];

/// A file that is moved to see whether files can be.
const PROBE: &str = "rebuild-probe";

#[derive(Args)]
pub(super) struct RebuildArgs {
    /// The number of the node to rebuild; not the one that `--http` asks.
    node: u32,
    /// Its data directory, on this machine.
    #[arg(long, env = "EPHEMERIS_DATA_DIR")]
    data_dir: PathBuf,
    /// Move the old data there instead of removing it: a directory of the same file system, made if there is none.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// A healthy node: `--http URL` is not the one that is rebuilt.
    #[command(flatten)]
    connection: Connection,
}

/// Makes a node one that the cluster does not know, and that has no data.
pub(super) async fn run(args: RebuildArgs) -> anyhow::Result<()> {
    let RebuildArgs { node, data_dir, keep, connection } = args;
    ensure!(data_dir.is_dir(), "there is no directory {}", data_dir.display());
    check_ownership(&data_dir)?;
    let _lock = lock_directory(&data_dir)?;
    let client = Client::new(&connection)?;
    let status = client.send("GET", "/admin/status", None, &[]).await?.json()?;
    let is_known = find_lost(&status, node, identity(&data_dir).as_ref())?;
    if let Some(keep) = &keep {
        make_ready(keep, &data_dir)?;
    }
    if is_known {
        forget_node(&client, node).await?;
    }
    let mut taken = Vec::new();
    for name in DATA {
        let path = data_dir.join(name);
        let done = match &keep {
            Some(keep) => fs::rename(&path, keep.join(name)),
            None if path.is_dir() => fs::remove_dir_all(&path),
            None => fs::remove_file(&path),
        };
        match done {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error)
                    .with_context(|| format!("{} cannot be taken away", path.display()));
            }
            Ok(()) => taken.push(name),
            Err(_) => {}
        }
    }
    let what = if taken.is_empty() { "nothing".to_string() } else { taken.join(", ") };
    println!(
        "Node {node} is forgotten, and has no data any more: {what} was taken out of {}. Start the node: it copies \
         everything from the others.",
        data_dir.display()
    );
    Ok(())
}

/// Makes sure that a node has used the directory, if there is anything in it that would be thrown away.
fn check_ownership(data_dir: &Path) -> anyhow::Result<()> {
    let holds = |name: &str| data_dir.join(name).exists();
    let is_used = holds(LOCK_FILE) || holds(IDENTITY_FILE);
    let Some(foreign) = DATA.into_iter().find(|name| !is_used && holds(name)) else {
        return Ok(());
    };
    bail!(
        "{} is no data directory: it has neither `{IDENTITY_FILE}` nor `{LOCK_FILE}`, and its `{foreign}` may be \
         something else. Check --data-dir; if both files were lost, remove the data by hand",
        data_dir.display()
    )
}

/// Makes sure that data can be moved to a directory, which may hold what an earlier try has moved.
fn make_ready(keep: &Path, data_dir: &Path) -> anyhow::Result<()> {
    match fs::create_dir(keep) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("{} cannot be made", keep.display()));
        }
        Ok(()) | Err(_) => {}
    }
    ensure!(keep.is_dir(), "{} is no directory", keep.display());
    let (keep, data_dir) = (&fs::canonicalize(keep)?, &fs::canonicalize(data_dir)?);
    for name in DATA {
        let is_in_it = keep.starts_with(data_dir.join(name));
        ensure!(!is_in_it, "{} is within what is moved", keep.display());
        let is_in_both = data_dir.join(name).exists() && keep.join(name).exists();
        ensure!(!is_in_both, "{} has a `{name}` already: name another directory", keep.display());
    }
    let (probe, moved) = (data_dir.join(PROBE), keep.join(PROBE));
    fs::write(&probe, "")
        .with_context(|| format!("{} cannot be written to", data_dir.display()))?;
    let done = fs::rename(&probe, &moved);
    fs::remove_file(if done.is_ok() { &moved } else { &probe })?;
    done.with_context(|| {
        let keep = keep.display();
        format!(
            "nothing can be moved to {keep}: it must be on the file system of the data directory"
        )
    })
}

/// What the directory says of itself; none if that is what was damaged.
fn identity(data_dir: &Path) -> Option<Value> {
    let text = fs::read(data_dir.join(IDENTITY_FILE)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// True if the cluster knows the node, false if it has forgotten it already; an error if this is not a
/// directory of that node, or the node lives.
fn find_lost(status: &Value, node: u32, identity: Option<&Value>) -> anyhow::Result<bool> {
    if let Some(identity) = identity {
        let owner = &identity["node"];
        ensure!(
            *owner == node,
            "the data directory belongs to node {owner}, not to node {node}: name the directory of \
             node {node}, or run rebuild-node {owner}"
        );
        let (ours, theirs) = (&identity["cluster"], &status["cluster"]);
        if !ours.is_null() && ours != theirs {
            bail!(
                "the data directory is of cluster {ours}, the node that answers of {theirs}: let \
                 --http name a node of the same cluster"
            );
        }
    }
    let nodes = status["nodes"].as_array().context("the answer names no nodes")?;
    let known = nodes.iter().find(|known| known["node"] == node);
    if known.is_some_and(|known| known["reachable"] == true) {
        bail!(
            "node {node} answers the others, with another data directory or on another machine: \
             stop its process first, or check the number"
        );
    }
    Ok(known.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(reachable: bool) -> Value {
        json!({ "cluster": "c", "nodes": [
            { "node": 1, "reachable": true },
            { "node": 2, "reachable": reachable },
        ] })
    }

    #[test]
    fn a_directory_to_keep_data_in_is_tried_and_takes_what_an_earlier_try_left() {
        let parent = tempfile::tempdir().unwrap();
        let (data_dir, keep) = (parent.path().join("data"), parent.path().join("kept"));
        fs::create_dir(&data_dir).unwrap();
        fs::write(data_dir.join(IDENTITY_FILE), "{}").unwrap();
        make_ready(&keep, &data_dir).unwrap();
        assert_eq!(fs::read_dir(&keep).unwrap().count(), 0);
        assert_eq!(fs::read_dir(&data_dir).unwrap().count(), 1);

        fs::create_dir(keep.join(STATE_DIRECTORY)).unwrap();
        make_ready(&keep, &data_dir).unwrap();
        fs::write(keep.join(IDENTITY_FILE), "{}").unwrap();
        let refused = make_ready(&keep, &data_dir).unwrap_err().to_string();
        assert!(refused.contains("has a"), "{refused}");

        // Processes are directories of a file system of their own.
        let elsewhere = Path::new("/proc/self");
        let refused = make_ready(elsewhere, &data_dir).unwrap_err().to_string();
        assert!(refused.contains("file system of the data directory"), "{refused}");
        assert_eq!(fs::read_dir(&data_dir).unwrap().count(), 1);
        let nowhere = make_ready(&parent.path().join("no/where"), &data_dir).unwrap_err();
        assert!(nowhere.to_string().contains("cannot be made"), "{nowhere}");
    }

    #[test]
    fn what_no_node_has_used_is_not_emptied() {
        let directory = tempfile::tempdir().unwrap();
        check_ownership(directory.path()).unwrap();
        fs::create_dir(directory.path().join(LOG_DIRECTORY)).unwrap();
        let refused = check_ownership(directory.path()).unwrap_err().to_string();
        assert!(refused.contains("is no data directory"), "{refused}");
        fs::write(directory.path().join(LOCK_FILE), "").unwrap();
        check_ownership(directory.path()).unwrap();
    }

    #[test]
    fn only_a_node_that_is_dead_and_whose_directory_this_is_is_rebuilt() {
        let of = |node: u32, cluster: &str| json!({ "node": node, "cluster": cluster });
        let wiped = json!({ "node": 2, "cluster": null });
        let find = |identity: Option<&Value>| find_lost(&status(false), 2, identity);
        assert!(find(Some(&of(2, "c"))).unwrap());
        assert!(find(Some(&wiped)).unwrap(), "it was started with an empty directory");
        assert!(find(None).unwrap(), "its identity is damaged, too");
        assert!(find(Some(&of(1, "c"))).is_err(), "another node's");
        assert!(find(Some(&of(2, "d"))).is_err(), "another cluster's");
        assert!(find_lost(&status(true), 2, Some(&of(2, "c"))).is_err(), "it runs");
        assert!(!find_lost(&status(false), 3, None).unwrap(), "it was forgotten before");
    }
}
