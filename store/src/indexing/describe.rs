//! Entries as people read them: for tests.

use super::key::{Component, decoded};
use super::path::{COMPOSITE, ELEMENTS, END, MEMBER, SHAPES, invert};
use crate::ids::ItemNumber;
use crate::keycode::{KeyReader, MalformedKey};

/// An entry's path, its values and its item, from a key without what all keys of a generation begin
/// with. Values that the entry does not tell whole end in `…`.
pub fn describe_entry(key: &[u8]) -> Result<(String, String, ItemNumber), MalformedKey> {
    let mut reader = KeyReader::new(key);
    if key.first() == Some(&SHAPES) {
        return shape(key);
    }
    let (path, directions) = if key.first() == Some(&COMPOSITE) {
        reader.u8()?;
        composite(&mut reader)?
    } else {
        let tag = reader.u8()?;
        (path(tag, &mut reader)?, vec![0])
    };
    let mut values = Vec::new();
    for descending in directions {
        values.push(value(&mut reader, descending != 0)?);
    }
    let number = ItemNumber(reader.u64()?);
    if reader.rest().is_empty() {
        Ok((path, values.join(", "), number))
    } else {
        Err(MalformedKey("bytes behind the number"))
    }
}

/// An entry of a spatial index: its value is the way to a cell.
fn shape(key: &[u8]) -> Result<(String, String, ItemNumber), MalformedKey> {
    let mut reader = KeyReader::new(&key[1..]);
    let tag = reader.u8()?;
    let path = path(tag, &mut reader)? + " cell";
    let (cell, number) = reader.rest().split_last_chunk().ok_or(MalformedKey("no number"))?;
    let digits = cell.strip_suffix(&[END]).ok_or(MalformedKey("a cell without an end"))?;
    let cell = digits.iter().map(ToString::to_string).collect();
    Ok((path, cell, ItemNumber(u64::from_be_bytes(*number))))
}

fn composite(reader: &mut KeyReader<'_>) -> Result<(String, Vec<u8>), MalformedKey> {
    let (mut paths, mut directions) = (Vec::new(), Vec::new());
    loop {
        match reader.u8()? {
            END => return Ok((paths.join(", "), directions)),
            tag => {
                let path = path(tag, reader)?;
                let direction = reader.u8()?;
                paths.push(if direction == 0 { path } else { format!("{path} DESC") });
                directions.push(direction);
            }
        }
    }
}

/// The rest of a path that begins with this step.
fn path(mut tag: u8, reader: &mut KeyReader<'_>) -> Result<String, MalformedKey> {
    let mut path = String::new();
    loop {
        match tag {
            END => return Ok(path),
            MEMBER => path = path + "/" + &reader.text()?,
            ELEMENTS => path += "/[]",
            _ => return Err(MalformedKey("an unknown step")),
        }
        tag = reader.u8()?;
    }
}

fn value(reader: &mut KeyReader<'_>, descending: bool) -> Result<String, MalformedKey> {
    let mut bytes = reader.rest().to_vec();
    if descending {
        invert(&mut bytes);
    }
    let mut values = KeyReader::new(&bytes);
    let component = Component::read(&mut values)?;
    reader.take(bytes.len() - values.rest().len())?;
    Ok(match component {
        Component::Undefined => "undefined".to_string(),
        Component::Null => "null".to_string(),
        Component::Bool(truth) => truth.to_string(),
        Component::Number(number) => number.to_string(),
        Component::About(number) => format!("{number}…"),
        Component::Text(kept) => format!("{:?}", decoded(kept)),
        Component::CutText(kept) => format!("{:?}…", decoded(kept)),
        Component::Array(_) => "[…]".to_string(),
        Component::Object(_) => "{…}".to_string(),
    })
}
