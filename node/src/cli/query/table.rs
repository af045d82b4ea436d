//! Shows rows as a table.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use ephemeris_store::document::SYSTEM_PROPERTIES;
use serde_json::Value;

/// Characters of a cell; more is cut off.
const CELL_CHARS_MAX: usize = 200;
/// Heads the column of rows that are no objects.
const VALUE_COLUMN: &str = "(value)";

/// Rows under the names of their members, in the order in which these first come; so wide at most.
pub(super) fn of(rows: &[Value], width: Option<u16>) -> String {
    let columns = columns(rows);
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if let Some(width) = width {
        table.set_width(width);
    }
    table.set_header(columns.iter().map(|name| printable(name)));
    for row in rows {
        table.add_row(columns.iter().map(|name| cell(row, name)));
    }
    table.to_string()
}

fn columns(rows: &[Value]) -> Vec<&str> {
    let mut columns: Vec<&str> = Vec::new();
    let add = |columns: &mut Vec<_>, name| {
        if !columns.contains(&name) {
            columns.push(name);
        }
    };
    for row in rows {
        let Value::Object(members) = row else {
            add(&mut columns, VALUE_COLUMN);
            continue;
        };
        // What whole items carry, their tables leave out.
        let is_item = SYSTEM_PROPERTIES.iter().all(|name| members.contains_key(*name));
        let is_shown = |name: &&String| !is_item || !SYSTEM_PROPERTIES.contains(&name.as_str());
        members.keys().filter(is_shown).for_each(|name| add(&mut columns, name));
    }
    columns
}

fn cell(row: &Value, column: &str) -> Cell {
    let value = match row {
        Value::Object(members) => members.get(column),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Some(row).filter(|_| column == VALUE_COLUMN)
        }
    };
    match value {
        None => Cell::new(""),
        Some(Value::String(text)) => Cell::new(printable(text)),
        Some(number @ Value::Number(_)) => {
            Cell::new(number.to_string()).set_alignment(CellAlignment::Right)
        }
        Some(other) => Cell::new(printable(&other.to_string())),
    }
}

/// Text on one line, without characters that would steer the terminal.
fn printable(text: &str) -> String {
    let mut shown = String::new();
    for (at, c) in text.chars().enumerate() {
        if at == CELL_CHARS_MAX {
            shown.push('…');
            break;
        }
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_come_in_the_order_of_their_first_row() {
        let rows = [json!({ "b": 1, "a": "x" }), json!({ "c": [1, null], "a": null }), json!(7)];
        let expected = "\
┌───┬──────┬──────────┬─────────┐
│ b ┆ a    ┆ c        ┆ (value) │
╞═══╪══════╪══════════╪═════════╡
│ 1 ┆ x    ┆          ┆         │
│   ┆ null ┆ [1,null] ┆         │
│   ┆      ┆          ┆       7 │
└───┴──────┴──────────┴─────────┘";
        assert_eq!(of(&rows, None), expected);
    }

    #[test]
    fn whole_items_are_shown_without_system_properties() {
        let whole = json!({
            "id": "1", "_rid": "r", "_self": "s", "_etag": "e", "_attachments": "a", "_ts": 1,
        });
        assert_eq!(columns(&[whole]), ["id"]);
        assert_eq!(columns(&[json!({ "id": "1", "_ts": 1 })]), ["id", "_ts"]);
    }

    #[test]
    fn nothing_in_a_cell_steers_the_terminal() {
        assert_eq!(printable("a\u{1b}[31m\n\u{9b}b"), "a\\u{1b}[31m\\n\\u{9b}b");
        assert_eq!(printable(&"x".repeat(500)).chars().count(), CELL_CHARS_MAX + 1);
    }

    #[test]
    fn a_table_keeps_to_its_width() {
        let rows = [json!({ "text": "word ".repeat(30), "other": "word ".repeat(30) })];
        let table = of(&rows, Some(40));
        assert!(table.lines().all(|line| line.chars().count() <= 40), "{table}");
    }
}
