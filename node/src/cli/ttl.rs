//! Prints what expires where.

use std::io::{self, Write as _};

use serde_json::Value;

use super::status::{list, name, text};

/// Prints the answer of `/admin/ttl`, for people or as it is.
pub(super) fn print(status: &Value, as_json: bool) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        writeln!(out, "{}", serde_json::to_string_pretty(status)?)?;
        return Ok(());
    }
    writeln!(out, "sweeping {}", text(&status["sweeping"]))?;
    writeln!(
        out,
        "\n{:<40} {:>10} {:>9} {:>9} {:>10} {:>8} {:>9} {:>8}  notes",
        "partition",
        "defaultTtl",
        "items",
        "backlog",
        "overdue s",
        "swept/s",
        "due in s",
        "clock ms"
    )?;
    for row in list(&status["partitions"]) {
        let plus = if row["backlogIsMore"] == true { "+" } else { "" };
        writeln!(
            out,
            "{:<40} {:>10} {:>9} {:>9} {:>10} {:>8} {:>9} {:>8}  {}",
            name(row),
            text(&row["defaultTtl"]),
            text(&row["items"]),
            text(&row["backlog"]) + plus,
            text(&row["oldestOverdueS"]),
            text(&row["sweptPerSecond"]),
            text(&row["nextDueS"]),
            text(&row["clockWidthMs"]),
            notes(row),
        )?;
    }
    Ok(())
}

fn notes(row: &Value) -> String {
    let mut notes = Vec::new();
    if !row["error"].is_null() {
        notes.push(text(&row["error"]));
    }
    if row["keptAfterJump"] == true {
        notes.push("kept after a jump of the clock".to_string());
    }
    if row["clockIsSure"] == false {
        notes.push("CLOCK UNSURE: nothing expires".to_string());
    }
    notes.join("; ")
}
