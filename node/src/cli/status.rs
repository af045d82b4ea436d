//! Prints what a cluster looks like.

use std::io::{self, Write as _};

use serde_json::Value;

/// Prints the answer of `/admin/status`, for people or as it is.
pub(super) fn print(status: &Value, as_json: bool) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        writeln!(out, "{}", serde_json::to_string_pretty(status)?)?;
        return Ok(());
    }
    writeln!(out, "cluster {}", text(&status["cluster"]))?;
    writeln!(
        out,
        "\n{:>4}  {:<10} {:>8}  {:>8}  {:<32} version",
        "node", "reachable", "replicas", "clock", "url"
    )?;
    for node in list(&status["nodes"]) {
        writeln!(
            out,
            "{:>4}  {:<10} {:>8}  {:>8}  {:<32} {}",
            text(&node["node"]),
            if node["reachable"] == true { "yes" } else { "NO" },
            text(&node["replicas"]),
            clock(&node["clock"]),
            text(&node["url"]),
            text(&node["version"]),
        )?;
    }
    writeln!(
        out,
        "\n{:>5}  {:<40} {:>6} {:>5} {:>9}  replicas: node (lag)",
        "group", "of", "leader", "term", "last"
    )?;
    for group in list(&status["groups"]) {
        writeln!(
            out,
            "{:>5}  {:<40} {:>6} {:>5} {:>9}  {}",
            text(&group["group"]),
            name(&group["of"]),
            text(&group["leader"]),
            text(&group["term"]),
            text(&group["last"]),
            replicas(group),
        )?;
    }
    Ok(())
}

/// How exactly a node knows the time.
fn clock(clock: &Value) -> String {
    match (clock.is_null(), clock["widthMs"].as_f64()) {
        (true, _) => "own".to_string(),
        (false, None) => "UNKNOWN".to_string(),
        (false, Some(width)) => format!("±{:.0} ms", width / 2.0),
    }
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_string(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

pub(super) fn name(of: &Value) -> String {
    match of {
        Value::Object(of) => format!(
            "{}/{} range {}",
            text(&of["database"]),
            text(&of["container"]),
            text(&of["range"])
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            text(of)
        }
    }
}

fn replicas(group: &Value) -> String {
    let replicas = list(&group["replicas"]).iter().map(|replica| {
        let stopped = if replica["stopped"].is_null() { "" } else { " STOPPED" };
        format!("{} ({}){stopped}", text(&replica["node"]), text(&replica["lag"]))
    });
    replicas.collect::<Vec<_>>().join(", ")
}
