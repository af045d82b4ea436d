//! Reads JSON value by value, for those who need some of them as they stand.
//!
//! `RawValue` of `serde_json` would do. But its feature gives a member named `$serde_json::private::RawValue`
//! a meaning of its own wherever a tree is read, and clients may name members as they like.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{Error as _, IgnoredAny};
use serde_json::{Deserializer, Error};

/// JSON of which some has been read.
pub(super) struct Pieces<'a> {
    text: &'a [u8],
    read: usize,
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Pieces<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, read: 0 }
    }

    fn rest(&self) -> &'a [u8] {
        &self.text[self.read..]
    }

    /// The next value.
    pub(super) fn value<T: Deserialize<'a>>(&mut self) -> Result<T, Error> {
        let mut values = Deserializer::from_slice(self.rest()).into_iter();
        let value = values.next().unwrap_or_else(|| Err(self.missing("a value")));
        self.read += values.byte_offset();
        value
    }

    /// The next value as it stands; none if it is null.
    pub(super) fn text(&mut self) -> Result<Option<&'a [u8]>, Error> {
        let rest = self.rest();
        let before = self.read;
        self.value::<IgnoredAny>()?;
        let text = rest[..self.read - before].trim_ascii_start();
        Ok((text != b"null").then_some(text))
    }

    /// An array: `element` reads one.
    pub(super) fn array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.list(b'[', b']', |this| element(this))
    }

    /// An object: `member` is told a name, and reads the value.
    pub(super) fn object(
        &mut self,
        mut member: impl FnMut(&str, &mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.list(b'{', b'}', |this| {
            let Name(name) = this.value()?;
            this.expect(b':')?;
            member(&name, this)
        })
    }

    /// The end.
    pub(super) fn end(&self) -> Result<(), Error> {
        if self.rest().trim_ascii_start().is_empty() {
            Ok(())
        } else {
            Err(self.missing("the end"))
        }
    }

    fn list(
        &mut self,
        open: u8,
        close: u8,
        mut one: impl FnMut(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.expect(open)?;
        if self.takes(close) {
            return Ok(());
        }
        loop {
            one(self)?;
            if self.takes(close) {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    fn takes(&mut self, byte: u8) -> bool {
        let rest = self.rest().trim_ascii_start();
        let is_next = rest.first() == Some(&byte);
        if is_next {
            self.read = self.text.len() - rest.len() + 1;
        }
        is_next
    }

    fn expect(&mut self, byte: u8) -> Result<(), Error> {
        if self.takes(byte) {
            Ok(())
        } else {
            Err(self.missing(&format!("'{}'", char::from(byte))))
        }
    }

    fn missing(&self, what: &str) -> Error {
        Error::custom(format!("expected {what} at byte {}", self.read))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, from_slice, json};

    use super::*;

    /// The elements of an array, or the members of an object, each read from its own text.
    fn taken_apart(text: &[u8]) -> Result<Value, Error> {
        let read = |text: Option<&[u8]>| text.map_or(Ok(Value::Null), from_slice);
        let mut pieces = Pieces::new(text);
        let whole = if text.trim_ascii_start().first() == Some(&b'[') {
            let mut elements = Vec::new();
            pieces.array(|pieces| {
                elements.push(read(pieces.text()?)?);
                Ok(())
            })?;
            Value::Array(elements)
        } else {
            let mut members = serde_json::Map::new();
            pieces.object(|name, pieces| {
                members.insert(name.to_string(), read(pieces.text()?)?);
                Ok(())
            })?;
            Value::Object(members)
        };
        pieces.end()?;
        Ok(whole)
    }

    #[test]
    fn values_are_read_as_they_stand() {
        let mut pieces = Pieces::new(b" { \"a\\n\" : [1, {\"b\":2.0}] ,\"c\":null} ");
        let mut seen = Vec::new();
        let read = pieces.object(|name, pieces| {
            seen.push((name.to_string(), pieces.text()?));
            Ok(())
        });
        read.unwrap();
        pieces.end().unwrap();
        let text = &b"[1, {\"b\":2.0}]"[..];
        assert_eq!(seen, [("a\n".to_string(), Some(text)), ("c".to_string(), None)]);
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a\"\\\\ é,\\]}:]{0,5}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[a-c\"{]{0,3}", inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Whatever is read in pieces is what would be read at once, and nothing else is read.
        #[test]
        fn pieces_make_the_whole(
            value in value(),
            is_pretty: bool,
            damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let value = if value.is_object() { value } else { json!([value]) };
            let text = if is_pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) };
            let mut text = text.unwrap();
            if let Some((at, byte)) = damage {
                let at = at.index(text.len());
                text[at] = byte;
            }
            let at_once = from_slice::<Value>(&text).ok().filter(|whole| whole.is_array() || whole.is_object());
            prop_assert_eq!(taken_apart(&text).ok(), at_once);
        }
    }
}
