//! Makes queries of the grammar out of bytes, so that mutations change queries, not letters.

use arbitrary::{Result, Unstructured};

/// Expressions nest no deeper than this, so that queries end.
const DEPTH_MAX: u32 = 6;

const NAMES: [&str; 10] = ["c", "t", "a", "b", "id", "_ts", "Value1", "NaN", "Infinity", "udf_"];
const LITERALS: [&str; 16] = [
    "null",
    "true",
    "false",
    "undefined",
    "0",
    "1",
    "-1",
    "9223372036854775807",
    "1e308",
    ".5",
    "0x1F",
    "''",
    "'x'",
    "\"\\u00e9\\n\"",
    "'%_[a-c]'",
    "'2023-01-31T10:00:00Z'",
];
const BINARY: [&str; 22] = [
    "+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", ">>>", "=", "!=", "<>", "<", "<=", ">",
    ">=", "AND", "OR", "||", "??",
];
const UNARY: [&str; 4] = ["-", "+", "~", "NOT "];
const FUNCTIONS: [&str; 34] = [
    "ABS",
    "ARRAY_CONTAINS",
    "ARRAY_CONCAT",
    "ARRAY_LENGTH",
    "ARRAY_SLICE",
    "CEILING",
    "CHOOSE",
    "CONCAT",
    "CONTAINS",
    "COUNT",
    "AVG",
    "MAX",
    "MIN",
    "SUM",
    "MAKELIST",
    "DateTimeAdd",
    "DateTimePart",
    "FLOOR",
    "IIF",
    "INDEX_OF",
    "IS_DEFINED",
    "IntDiv",
    "LEFT",
    "LENGTH",
    "LOWER",
    "ObjectToArray",
    "POWER",
    "REGEXMATCH",
    "REPLACE",
    "REPLICATE",
    "RIGHT",
    "SetUnion",
    "StringToObject",
    "SUBSTRING",
];

/// A query.
pub fn query(bytes: &mut Unstructured<'_>) -> Result<String> {
    select(bytes, 0)
}

/// An expression.
pub fn condition(bytes: &mut Unstructured<'_>) -> Result<String> {
    expr(bytes, 0)
}

/// An item.
pub fn item(bytes: &mut Unstructured<'_>) -> Result<String> {
    let members: Vec<String> = (0..4)
        .map(|_| Ok(format!("\"{}\":{}", name(bytes)?, json(bytes, 0)?)))
        .collect::<Result<_>>()?;
    Ok(format!("{{{}}}", members.join(",")))
}

fn json(bytes: &mut Unstructured<'_>, depth: u32) -> Result<String> {
    let kinds = if depth < 3 { 7 } else { 5 };
    Ok(match bytes.int_in_range(0..=kinds)? {
        0 => "null".to_string(),
        1 => bytes.arbitrary::<bool>()?.to_string(),
        2 => bytes.arbitrary::<i64>()?.to_string(),
        3 => bytes.int_in_range(-3_i8..=3)?.to_string(),
        4 => "1.5e10".to_string(),
        5 => "\"x\"".to_string(),
        6 => format!("[{},{}]", json(bytes, depth + 1)?, json(bytes, depth + 1)?),
        _ => format!("{{\"{}\":{}}}", name(bytes)?, json(bytes, depth + 1)?),
    })
}

fn select(bytes: &mut Unstructured<'_>, depth: u32) -> Result<String> {
    let mut text = "SELECT ".to_string();
    if bytes.ratio(1, 5)? {
        text += "DISTINCT ";
    }
    if bytes.ratio(1, 5)? {
        text += &format!("TOP {} ", count(bytes)?);
    }
    text += &match bytes.int_in_range(0..=2)? {
        0 => "*".to_string(),
        1 => format!("VALUE {}", expr(bytes, depth + 1)?),
        _ => list(bytes, depth, |bytes, depth| {
            let expr = expr(bytes, depth)?;
            Ok(if bytes.arbitrary()? { format!("{expr} AS {}", name(bytes)?) } else { expr })
        })?,
    };
    if bytes.ratio(7, 8)? {
        text += &format!(" FROM {}", source(bytes, depth)?);
        for _ in 0..more(bytes)? {
            text += &format!(" JOIN {}", source(bytes, depth)?);
        }
    }
    if bytes.arbitrary()? {
        text += &format!(" WHERE {}", expr(bytes, depth + 1)?);
    }
    if bytes.ratio(1, 4)? {
        text += &format!(" GROUP BY {}", list(bytes, depth, expr)?);
    }
    if bytes.ratio(1, 3)? {
        let order = list(bytes, depth, |bytes, depth| {
            Ok(format!("{}{}", expr(bytes, depth)?, bytes.choose(&["", " ASC", " DESC"])?))
        })?;
        text += &format!(" ORDER BY {order}");
    }
    if bytes.ratio(1, 5)? {
        text += &format!(" OFFSET {} LIMIT {}", count(bytes)?, count(bytes)?);
    }
    Ok(text)
}

fn count(bytes: &mut Unstructured<'_>) -> Result<&'static str> {
    bytes.choose(&["0", "1", "5", "@p", "4294967295", "4294967296", "1.5"]).copied()
}

fn source(bytes: &mut Unstructured<'_>, depth: u32) -> Result<String> {
    let from = match bytes.int_in_range(0..=3)? {
        0 if depth < DEPTH_MAX => format!("({})", select(bytes, depth + 1)?),
        1 => format!("c.{}", name(bytes)?),
        2 => format!("c.{}[0]['b c']", name(bytes)?),
        _ => "c".to_string(),
    };
    Ok(match bytes.int_in_range(0..=2)? {
        0 => format!("{} IN {from}", name(bytes)?),
        1 => format!("{from} AS {}", name(bytes)?),
        _ => from,
    })
}

fn list(
    bytes: &mut Unstructured<'_>,
    depth: u32,
    mut one: impl FnMut(&mut Unstructured<'_>, u32) -> Result<String>,
) -> Result<String> {
    let mut text = one(bytes, depth + 1)?;
    for _ in 0..more(bytes)? {
        text += &format!(", {}", one(bytes, depth + 1)?);
    }
    Ok(text)
}

/// How many more of a kind follow the first: a number of its own, as a coin thrown after the last byte
/// falls on the same side for ever.
fn more(bytes: &mut Unstructured<'_>) -> Result<u32> {
    let throw = bytes.int_in_range(0_u32..=15)?;
    Ok(throw.saturating_sub(12))
}

fn name(bytes: &mut Unstructured<'_>) -> Result<&'static str> {
    bytes.choose(&NAMES).copied()
}

fn expr(bytes: &mut Unstructured<'_>, depth: u32) -> Result<String> {
    let kinds = if depth < DEPTH_MAX { 15 } else { 3 };
    let inner = depth + 1;
    Ok(match bytes.int_in_range(0..=kinds)? {
        0 => (*bytes.choose(&LITERALS)?).to_string(),
        1 => format!("c.{}", name(bytes)?),
        2 => (*bytes.choose(&["@p", "@q", "@list", "@n", "c", "c[@q]", "c['first name']"])?)
            .to_string(),
        3 => name(bytes)?.to_string(),
        4 => format!("({})", expr(bytes, inner)?),
        5 | 6 => {
            let operator = bytes.choose(&BINARY)?;
            format!("{} {operator} {}", expr(bytes, inner)?, expr(bytes, inner)?)
        }
        7 => format!("{}{}", bytes.choose(&UNARY)?, expr(bytes, inner)?),
        8 => {
            let (test, yes, no) = (expr(bytes, inner)?, expr(bytes, inner)?, expr(bytes, inner)?);
            format!("{test} ? {yes} : {no}")
        }
        9 => format!("[{}]", list(bytes, depth, expr)?),
        10 => format!("{{'a': {}, b: {}}}", expr(bytes, inner)?, expr(bytes, inner)?),
        11 => format!("{}({})", bytes.choose(&FUNCTIONS)?, list(bytes, depth, expr)?),
        12 => {
            let not = bytes.choose(&["", "NOT "])?;
            let (value, low) = (expr(bytes, inner)?, expr(bytes, inner)?);
            match bytes.int_in_range(0..=2)? {
                0 => format!("{value} {not}BETWEEN {low} AND {}", expr(bytes, inner)?),
                1 => format!("{value} {not}IN ({})", list(bytes, depth, expr)?),
                _ => format!("{value} {not}LIKE {low} ESCAPE '!'"),
            }
        }
        13 => format!("{}.{}[{}]", expr(bytes, inner)?, name(bytes)?, expr(bytes, inner)?),
        14 => {
            let kind = bytes.choose(&["", "EXISTS", "ARRAY", "ALL", "FIRST", "LAST"])?;
            format!("{kind}({})", select(bytes, inner)?)
        }
        _ => format!("udf.{}({})", name(bytes)?, expr(bytes, inner)?),
    })
}
