//! Reads the paths of indexing policies: `/a/"b c"/[]/d/?`.

use std::fmt;

use thiserror::Error;

use super::path::Step;

/// Text that is no path, and where it stops being one.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "the indexing path '{path}' could not be accepted, failed near position '{position}'. Please \
     ensure that the path is a valid path. Common errors include invalid characters or absence of \
     quotes around labels"
)]
pub struct InvalidPath {
    /// The whole path.
    pub path: String,
    /// Bytes before the place that is wrong.
    pub position: usize,
}

/// What a path of a policy is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// `/?`: the value right here.
    Value,
    /// `/*`: everything below, and the value here.
    Below,
    /// Nothing: the path of a composite index.
    Bare,
}

/// A path of a policy, taken apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pattern {
    pub(super) steps: Vec<Step>,
    /// The paths from there to the members of a tuple: `{name, kind/sub}`.
    pub(super) tuple: Vec<Vec<Step>>,
    pub(super) end: End,
}

impl Pattern {
    /// Reads a path.
    pub(super) fn parse(path: &str) -> Result<Self, InvalidPath> {
        let mut parser = Parser { path, at: 0 };
        let mut pattern = Self { steps: Vec::new(), tuple: Vec::new(), end: End::Bare };
        if path == "/" {
            return Ok(Self { end: End::Below, ..pattern });
        }
        while pattern.end == End::Bare && !parser.rest().is_empty() {
            parser.expect('/')?;
            pattern.read_part(&mut parser)?;
        }
        let is_whole = !path.is_empty() && parser.rest().is_empty();
        let ends_somewhere = pattern.end != End::Value || !pattern.steps.is_empty();
        if is_whole && ends_somewhere { Ok(pattern) } else { Err(parser.invalid()) }
    }

    /// True for `/*`: what holds for all paths that no other one is about.
    pub(super) fn is_root(&self) -> bool {
        self.steps.is_empty() && self.end == End::Below
    }

    fn read_part(&mut self, parser: &mut Parser<'_>) -> Result<(), InvalidPath> {
        if parser.takes("?") {
            self.end = End::Value;
        } else if parser.takes("*") && self.tuple.is_empty() {
            self.end = End::Below;
        } else if parser.rest().starts_with('{') && self.steps.last() == Some(&Step::Elements) {
            self.tuple = parser.tuple()?;
        } else if !self.tuple.is_empty() {
            return Err(parser.invalid());
        } else if parser.takes("[]") {
            self.steps.push(Step::Elements);
        } else {
            self.steps.push(Step::Member(parser.name()?));
        }
        Ok(())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| write!(f, "/{step}"))?;
        if !self.tuple.is_empty() {
            let member = |steps: &Vec<Step>| {
                steps.iter().map(ToString::to_string).collect::<Vec<_>>().join("/")
            };
            let members: Vec<String> = self.tuple.iter().map(member).collect();
            write!(f, "/{{{}}}", members.join(","))?;
        }
        f.write_str(match self.end {
            End::Value => "/?",
            End::Below => "/*",
            End::Bare => "",
        })
    }
}

struct Parser<'p> {
    path: &'p str,
    at: usize,
}

impl<'p> Parser<'p> {
    fn rest(&self) -> &'p str {
        &self.path[self.at..]
    }

    fn invalid(&self) -> InvalidPath {
        InvalidPath { path: self.path.to_string(), position: self.at }
    }

    fn takes(&mut self, token: &str) -> bool {
        let is_next = self.rest().starts_with(token);
        self.at += if is_next { token.len() } else { 0 };
        is_next
    }

    fn expect(&mut self, token: char) -> Result<(), InvalidPath> {
        if self.takes(token.encode_utf8(&mut [0; 4])) { Ok(()) } else { Err(self.invalid()) }
    }

    fn name(&mut self) -> Result<String, InvalidPath> {
        match self.rest().chars().next() {
            Some(quote @ ('"' | '\'')) => self.quoted(quote),
            Some(_) | None => self.label().map(str::to_string),
        }
    }

    /// A name without quotes: letters, digits and `_`.
    fn label(&mut self) -> Result<&'p str, InvalidPath> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        if end == 0 {
            return Err(self.invalid());
        }
        self.at += end;
        Ok(&rest[..end])
    }

    /// A name in quotes; a backslash takes the next character as it is.
    fn quoted(&mut self, quote: char) -> Result<String, InvalidPath> {
        let (mut name, mut is_escaped) = (String::new(), false);
        for (at, c) in self.rest().char_indices().skip(1) {
            match (is_escaped, c) {
                (false, '\\') => is_escaped = true,
                (false, c) if c == quote && name.is_empty() => break,
                (false, c) if c == quote => {
                    self.at += at + c.len_utf8();
                    return Ok(name);
                }
                (_, c) => {
                    name.push(c);
                    is_escaped = false;
                }
            }
        }
        Err(self.invalid())
    }

    /// `{name, kind/sub}`
    fn tuple(&mut self) -> Result<Vec<Vec<Step>>, InvalidPath> {
        let mut members = Vec::new();
        self.expect('{')?;
        loop {
            self.skip_spaces();
            let mut steps = vec![Step::Member(self.name()?)];
            while self.takes("/") {
                steps.push(Step::Member(self.name()?));
            }
            members.push(steps);
            self.skip_spaces();
            if self.takes("}") {
                return Ok(members);
            }
            self.expect(',')?;
        }
    }

    fn skip_spaces(&mut self) {
        while self.takes(" ") {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(path: &str) -> Result<(Vec<String>, End), InvalidPath> {
        let pattern = Pattern::parse(path)?;
        let shown = |step: Step| match step {
            Step::Member(name) => name,
            Step::Elements => "[]".to_string(),
        };
        Ok((pattern.steps.into_iter().map(shown).collect(), pattern.end))
    }

    #[test]
    fn paths_are_names_elements_and_an_end() {
        let steps = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (path, names, end) in [
            ("/", &[][..], End::Below),
            ("/*", &[], End::Below),
            ("/a/?", &["a"], End::Value),
            ("/a/b_1/*", &["a", "b_1"], End::Below),
            ("/a", &["a"], End::Bare),
            ("/a/[]/b/?", &["a", "[]", "b"], End::Value),
            ("/\"x-y\"/?", &["x-y"], End::Value),
            (r#"/"say \"hi\""/*"#, &["say \"hi\""], End::Below),
            ("/\"a/b*?\"/*", &["a/b*?"], End::Below),
            ("/größe/?", &["größe"], End::Value),
        ] {
            assert_eq!(parse(path), Ok((steps(names), end)), "{path}");
        }
    }

    #[test]
    fn quoted_brackets_are_a_name() {
        let steps = Pattern::parse("/\"[]\"/[]/?").unwrap().steps;
        assert_eq!(steps, [Step::Member("[]".into()), Step::Elements]);
    }

    #[test]
    fn what_is_no_path_is_refused_where_it_goes_wrong() {
        for (path, position) in [
            ("", 0),
            ("a/?", 0),
            ("/?", 2),
            ("//", 1),
            ("/a/", 3),
            ("/a-b/?", 2),
            ("/a b/?", 2),
            ("/a/?/b", 4),
            ("/a/*/?", 4),
            ("/\"a", 1),
            ("/\"\"/?", 1),
            ("/[0]/?", 1),
            ("/a/{b}/?", 3),
        ] {
            let found = Pattern::parse(path).map_err(|error| error.position);
            assert_eq!(found, Err(position), "{path}");
        }
    }

    #[test]
    fn tuples_stand_behind_elements() {
        let pattern = Pattern::parse("/events/[]/{name, kind/sub}/?").unwrap();
        assert_eq!(pattern.steps, [Step::from("events"), Step::Elements]);
        let tuple = [vec![Step::from("name")], vec![Step::from("kind"), Step::from("sub")]];
        assert_eq!((&pattern.tuple[..], pattern.end), (&tuple[..], End::Value));
        for wrong in [
            "/events/{name}/?",
            "/events/[]/{}/?",
            "/events/[]/{/name}/?",
            "/events/[]/{name/?}/?",
            "/events/[]/{name/[]}/?",
            "/events/[]/{name}/*",
            "/events/[]/{name}/more/?",
            "/events/[]/{name}/[]/{kind}/?",
            "/events/[]/{name",
        ] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(path in "[/a\"'\\\\?*\\[\\]{}, é]{0,12}") {
            if let Err(error) = Pattern::parse(&path) {
                prop_assert!(error.position <= path.len());
            }
        }
    }
}
