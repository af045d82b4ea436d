//! Walks a body once and writes the text of what it sees.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::marker::{Extent, Marker, NumberForm, TextForm, Width};
use super::{Cursor, DEPTH_MAX, InvalidBinaryJson, Result, TEXT_BYTES_MAX};
use crate::json::{self, Scalar};

/// The text of a body, whose preamble was seen.
pub(super) fn write_text(body: &[u8]) -> Result<Vec<u8>> {
    let cursor = Cursor { body, position: 1, end: body.len() };
    let mut writer = Writer { cursor, depth: 0, text: Vec::with_capacity(body.len()) };
    writer.value()?;
    match writer.cursor.position {
        at if at < body.len() => Err(InvalidBinaryJson::Trailing { at }),
        _ => Ok(writer.text),
    }
}

struct Writer<'b> {
    cursor: Cursor<'b>,
    /// Containers that are open.
    depth: usize,
    text: Vec<u8>,
}

impl Writer<'_> {
    fn value(&mut self) -> Result<()> {
        let at = self.cursor.position;
        let byte = self.cursor.byte()?;
        let marker = Marker::of(byte).ok_or(InvalidBinaryJson::Marker { at, marker: byte })?;
        match marker {
            Marker::Null => Scalar::Null.write(&mut self.text),
            Marker::Bool(truth) => Scalar::Bool(truth).write(&mut self.text),
            Marker::SmallInteger(number) => Scalar::Int(number.into()).write(&mut self.text),
            Marker::Number(form) => self.number(at, form)?,
            Marker::Text(form) => self.string(at, form)?,
            Marker::Guid => {
                let guid = self.cursor.guid_value()?;
                json::write_text(&mut self.text, &guid);
            }
            Marker::Bytes(width) => {
                let length = self.cursor.count(width)?;
                let bytes = STANDARD.encode(self.cursor.take(length)?);
                json::write_text(&mut self.text, &bytes);
            }
            Marker::Array(extent) => self.container(at, extent, *b"[]", Self::value)?,
            Marker::Object(extent) => self.container(at, extent, *b"{}", Self::member)?,
            Marker::NumberArray(width) => self.number_array(at, width)?,
            Marker::NumberArrays(width) => self.number_arrays(at, width)?,
        }
        self.check_size()
    }

    fn check_size(&self) -> Result<()> {
        if self.text.len() > TEXT_BYTES_MAX { Err(InvalidBinaryJson::TooLarge) } else { Ok(()) }
    }

    fn string(&mut self, at: usize, form: TextForm) -> Result<()> {
        let string = self.cursor.string(at, form)?;
        json::write_text(&mut self.text, &string);
        Ok(())
    }

    fn member(&mut self) -> Result<()> {
        let at = self.cursor.position;
        let byte = self.cursor.byte()?;
        let form = TextForm::of(byte).ok_or(InvalidBinaryJson::Marker { at, marker: byte })?;
        self.string(at, form)?;
        self.check_size()?;
        self.text.push(b':');
        self.value()
    }

    /// Writes a container whose marker was read, item by item.
    fn container(
        &mut self,
        at: usize,
        extent: Extent,
        [open, close]: [u8; 2],
        item: fn(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if self.depth == DEPTH_MAX {
            return Err(InvalidBinaryJson::TooDeep { at });
        }
        self.depth += 1;
        self.text.push(open);
        match extent {
            Extent::Empty => {}
            Extent::One => item(self)?,
            Extent::Bytes(width) => {
                let length = self.cursor.count(width)?;
                self.items(length, item)?;
            }
            Extent::BytesAndCount(width) => {
                let (length, count) = (self.cursor.count(width)?, self.cursor.count(width)?);
                if self.items(length, item)? != count {
                    return Err(InvalidBinaryJson::Length { at });
                }
            }
        }
        self.text.push(close);
        self.depth -= 1;
        Ok(())
    }

    /// Writes the items in the next so many bytes; returns how many they were.
    fn items(&mut self, length: usize, item: fn(&mut Self) -> Result<()>) -> Result<usize> {
        let end = self.cursor.end_of(length)?;
        let outer_end = std::mem::replace(&mut self.cursor.end, end);
        let mut count = 0;
        while self.cursor.position < end {
            if count > 0 {
                self.text.push(b',');
            }
            item(self)?;
            count += 1;
        }
        self.cursor.end = outer_end;
        Ok(count)
    }

    fn number(&mut self, at: usize, form: NumberForm) -> Result<()> {
        self.cursor.number(at, form)?.write(&mut self.text);
        Ok(())
    }

    fn number_array(&mut self, at: usize, width: Width) -> Result<()> {
        let form = self.cursor.array_number_form()?;
        let count = self.cursor.count(width)?;
        self.numbers(at, form, count)
    }

    fn number_arrays(&mut self, at: usize, width: Width) -> Result<()> {
        let inner_at = self.cursor.position;
        let inner = self.cursor.byte()?;
        if Marker::of(inner) != Some(Marker::NumberArray(width)) {
            return Err(InvalidBinaryJson::Marker { at: inner_at, marker: inner });
        }
        let form = self.cursor.array_number_form()?;
        let (inner_count, outer_count) = (self.cursor.count(width)?, self.cursor.count(width)?);
        self.text.push(b'[');
        for index in 0..outer_count {
            if index > 0 {
                self.text.push(b',');
            }
            self.numbers(at, form, inner_count)?;
            // Empty arrays take no bytes of the body: it does not bound how many there are.
            self.check_size()?;
        }
        self.text.push(b']');
        Ok(())
    }

    fn numbers(&mut self, at: usize, form: NumberForm, count: usize) -> Result<()> {
        self.text.push(b'[');
        for index in 0..count {
            if index > 0 {
                self.text.push(b',');
            }
            self.number(at, form)?;
        }
        self.text.push(b']');
        Ok(())
    }
}

impl Cursor<'_> {
    fn array_number_form(&mut self) -> Result<NumberForm> {
        let at = self.position;
        let marker = self.byte()?;
        NumberForm::of_array(marker).ok_or(InvalidBinaryJson::Marker { at, marker })
    }

    fn number(&mut self, at: usize, form: NumberForm) -> Result<Scalar<'static>> {
        let float = match form {
            NumberForm::I8 => return Ok(Scalar::Int(i8::from_le_bytes(self.take_array()?).into())),
            NumberForm::U8 => return Ok(Scalar::Int(self.byte()?.into())),
            NumberForm::I16 => {
                return Ok(Scalar::Int(i16::from_le_bytes(self.take_array()?).into()));
            }
            NumberForm::I32 => {
                return Ok(Scalar::Int(i32::from_le_bytes(self.take_array()?).into()));
            }
            NumberForm::U32 => {
                return Ok(Scalar::Int(u32::from_le_bytes(self.take_array()?).into()));
            }
            NumberForm::I64 => return Ok(Scalar::Int(i64::from_le_bytes(self.take_array()?))),
            NumberForm::U64 => return Ok(Scalar::UInt(u64::from_le_bytes(self.take_array()?))),
            NumberForm::F32 => f64::from(f32::from_le_bytes(self.take_array()?)),
            NumberForm::F64 => f64::from_le_bytes(self.take_array()?),
        };
        if float.is_finite() {
            Ok(Scalar::Float(float))
        } else {
            Err(InvalidBinaryJson::NotFinite { at })
        }
    }
}
