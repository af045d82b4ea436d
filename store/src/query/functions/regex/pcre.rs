//! Translates patterns of PCRE into patterns of the `regex` crate that match the same texts.
//!
//! Only whether there is a match is asked, not where. So groups need no numbers, and lazy
//! quantifiers are as good as greedy ones. Classes such as `\w` know ASCII only, as PCRE's do unless
//! it is told otherwise.

use std::iter::Peekable;
use std::str::Chars;

use super::Why;
use super::class::{self, Case, Item};

/// Largest number in a quantifier, as in PCRE.
const REPEAT_MAX: u32 = 65_535;

/// Longest name of a group, in characters, as in PCRE.
const GROUP_NAME_CHARS_MAX: usize = 32;

/// How what follows is read.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the four switches that PCRE has")]
pub(super) struct Modes {
    ignore_case: bool,
    multi_line: bool,
    dot_matches_all: bool,
    ignore_space: bool,
}

impl Modes {
    /// Reads the modifiers of a call.
    pub(super) fn parse(modifiers: &str) -> Result<Modes, Why> {
        let mut modes = Modes::default();
        for letter in modifiers.chars() {
            modes.set(letter, true).ok_or(Why::Invalid)?;
        }
        Ok(modes)
    }

    fn set(&mut self, letter: char, on: bool) -> Option<()> {
        match letter {
            'i' => self.ignore_case = on,
            'm' => self.multi_line = on,
            's' => self.dot_matches_all = on,
            'x' => self.ignore_space = on,
            _ => return None,
        }
        Some(())
    }
}

/// The pattern for the `regex` crate.
pub(super) fn translate(pattern: &str, modes: Modes) -> Result<String, Why> {
    let mut translator = Translator {
        rest: pattern.chars().peekable(),
        out: String::new(),
        groups: vec![Group::new(modes)],
        last: Last::Nothing,
        names: Vec::new(),
    };
    if modes.ignore_case {
        translator.out.push_str("(?i)");
    }
    while let Some(character) = translator.next_significant() {
        translator.piece(character)?;
    }
    if translator.groups.len() > 1 {
        return Err(Why::Invalid);
    }
    Ok(translator.out)
}

struct Translator<'p> {
    rest: Peekable<Chars<'p>>,
    out: String,
    /// The pattern, and the groups that are open in it.
    groups: Vec<Group>,
    last: Last,
    names: Vec<String>,
}

/// A group that is open.
struct Group {
    modes: Modes,
    /// The alternative at hand ends with the end of the text, see `end_of_text`.
    ends: bool,
    /// An earlier alternative did.
    ended: bool,
}

/// What stands before, for quantifiers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// The start of an alternative.
    Nothing,
    /// What may be repeated.
    Atom,
    /// A place between characters.
    Anchor,
    /// A quantifier.
    Quantifier,
}

impl Group {
    fn new(modes: Modes) -> Self {
        Self { modes, ends: false, ended: false }
    }
}

impl Translator<'_> {
    /// The next character, past space and comments where these are ignored.
    fn next_significant(&mut self) -> Option<char> {
        loop {
            let character = self.rest.next()?;
            if !self.group().modes.ignore_space {
                return Some(character);
            }
            match character {
                '#' => while self.rest.next().is_some_and(|skipped| skipped != '\n') {},
                ' ' | '\t' | '\n' | '\x0B' | '\x0C' | '\r' => {}
                _ => return Some(character),
            }
        }
    }

    fn piece(&mut self, character: char) -> Result<(), Why> {
        match character {
            '\\' => self.escape(),
            '[' => {
                let ignore_case = self.group().modes.ignore_case;
                let case = if ignore_case { Case::Ignored } else { Case::Matters };
                let class = class::translate(&mut self.rest, case)?;
                self.atom(&class)
            }
            '(' => self.open(),
            ')' => self.close(),
            '|' => {
                let group = self.group();
                group.ended |= group.ends;
                group.ends = false;
                self.last = Last::Nothing;
                self.out.push('|');
                Ok(())
            }
            '^' if self.group().modes.multi_line => self.anchor("(?m:^)"),
            '^' => self.anchor(r"\A"),
            '$' if self.group().modes.multi_line => self.anchor("(?m:$)"),
            '$' => self.end_of_text(),
            '.' if self.group().modes.dot_matches_all => self.atom("(?s:.)"),
            '.' => self.atom(r"[^\n]"),
            '*' | '+' | '?' => self.quantifier(&character.to_string()),
            '{' => match self.counted()? {
                Some(quantifier) => self.quantifier(&quantifier),
                None => self.literal('{'),
            },
            _ => self.literal(character),
        }
    }

    fn group(&mut self) -> &mut Group {
        self.groups.last_mut().expect("the pattern itself is never closed")
    }

    /// Adds what matches a character or more.
    fn atom(&mut self, translated: &str) -> Result<(), Why> {
        self.add(translated, Last::Atom)
    }

    /// Adds what matches a place between characters.
    fn anchor(&mut self, translated: &str) -> Result<(), Why> {
        self.add(translated, Last::Anchor)
    }

    fn add(&mut self, translated: &str, last: Last) -> Result<(), Why> {
        if self.group().ends {
            return Err(Why::Unsupported);
        }
        self.out.push_str(translated);
        self.last = last;
        Ok(())
    }

    fn literal(&mut self, character: char) -> Result<(), Why> {
        let literal = class::literal(character);
        self.atom(&literal)
    }

    /// The end, or before a line feed that is the last character.
    ///
    /// The engine has no such place. Its translation takes the line feed, which is the same as long
    /// as nothing follows: anything that does is refused.
    fn end_of_text(&mut self) -> Result<(), Why> {
        self.anchor(r"(?:\n?\z)")?;
        self.group().ends = true;
        Ok(())
    }

    fn quantifier(&mut self, quantifier: &str) -> Result<(), Why> {
        match self.last {
            Last::Nothing => return Err(Why::Invalid),
            // PCRE takes some of these; nobody means them.
            Last::Anchor | Last::Quantifier => return Err(Why::Unsupported),
            Last::Atom => {}
        }
        if self.group().ends {
            return Err(Why::Unsupported);
        }
        self.out.push_str(quantifier);
        self.last = Last::Quantifier;
        match self.rest.peek() {
            // Lazy: finds another match, but finds one as well.
            Some('?') => {
                self.rest.next();
                Ok(())
            }
            // Possessive: may find none where others do.
            Some('+') => Err(Why::Unsupported),
            Some(_) | None => Ok(()),
        }
    }

    /// A counted quantifier behind the brace that was read, if it is one: `{3}`, `{3,}`, `{3,5}`.
    fn counted(&mut self) -> Result<Option<String>, Why> {
        // No farther than it can be one: a pattern of braces is gone over once, not once for each.
        let may_follow = |c: &char| c.is_ascii_digit() || *c == ',';
        let ahead: String = self.rest.clone().take_while(may_follow).collect();
        let is_closed = self.rest.clone().nth(ahead.len()) == Some('}');
        let (least, most) = ahead.split_once(',').unwrap_or((&ahead, &ahead));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_closed || ahead.is_empty() || !is_number(least) || !is_number(most) {
            return Ok(None);
        }
        if least.is_empty() {
            // A literal or a quantifier, as the version goes.
            return Err(Why::Unsupported);
        }
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| *n <= REPEAT_MAX);
        let least = number(least).ok_or(Why::Invalid)?;
        let quantifier = if most.is_empty() {
            format!("{{{least},}}")
        } else {
            let most = number(most).filter(|most| least <= *most).ok_or(Why::Invalid)?;
            format!("{{{least},{most}}}")
        };
        let _closing = self.rest.nth(ahead.len());
        Ok(Some(quantifier))
    }

    /// What stands behind a backslash.
    fn escape(&mut self) -> Result<(), Why> {
        let letter = self.rest.next().ok_or(Why::Invalid)?;
        match letter {
            'b' => return self.anchor(r"(?-u:\b)"),
            'B' => return self.anchor(class::NO_WORD_BOUNDARY),
            'A' | 'G' => return self.anchor(r"\A"),
            'z' => return self.anchor(r"\z"),
            'Z' => return self.end_of_text(),
            'N' if self.rest.peek() != Some(&'{') => return self.atom(r"[^\n]"),
            // Moves the start of what was matched, which nobody asks for.
            'K' => return self.anchor(""),
            'Q' => return self.quoted(),
            // The end of what was never quoted.
            'E' => return Ok(()),
            // Back references, and what the engine cannot know.
            '1'..='9' | 'g' | 'k' | 'R' | 'X' | 'C' | 'N' => return Err(Why::Unsupported),
            _ => {}
        }
        match class::escape(letter, &mut self.rest)? {
            Item::Character(character) => self.literal(character),
            Item::Set(set) => self.atom(&set),
            Item::Exact(set) => self.atom(&format!("(?-i:{set})")),
        }
    }

    /// Everything up to `\E` stands for itself.
    fn quoted(&mut self) -> Result<(), Why> {
        while let Some(character) = self.rest.next() {
            if character == '\\' && self.rest.peek() == Some(&'E') {
                self.rest.next();
                return Ok(());
            }
            self.literal(character)?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), Why> {
        if self.groups.len() == 1 {
            return Err(Why::Invalid);
        }
        let group = self.groups.pop().expect("there are two at least");
        self.out.push(')');
        self.last = Last::Atom;
        self.group().ends |= group.ends || group.ended;
        Ok(())
    }

    /// A group, or what else begins with a parenthesis.
    fn open(&mut self) -> Result<(), Why> {
        match self.rest.peek() {
            // Verbs.
            Some('*') => Err(Why::Unsupported),
            Some('?') => {
                self.rest.next();
                self.special_group()
            }
            Some(_) | None => self.enter(self.modes()),
        }
    }

    fn modes(&self) -> Modes {
        self.groups.last().expect("the pattern itself is never closed").modes
    }

    fn enter(&mut self, modes: Modes) -> Result<(), Why> {
        let case = match (self.modes().ignore_case, modes.ignore_case) {
            (false, true) => "(?i:",
            (true, false) => "(?-i:",
            (true, true) | (false, false) => "(?:",
        };
        self.add(case, Last::Nothing)?;
        self.groups.push(Group::new(modes));
        Ok(())
    }

    /// What follows `(?`.
    fn special_group(&mut self) -> Result<(), Why> {
        let kind = *self.rest.peek().ok_or(Why::Invalid)?;
        match kind {
            ':' | '|' => {
                self.rest.next();
                self.enter(self.modes())
            }
            '#' => self.rest.find(|c| *c == ')').map(|_| ()).ok_or(Why::Invalid),
            '<' | '\'' | 'P' => self.named_group(kind),
            // Look-around, atomic groups, recursion, conditions, callouts, other resets.
            '=' | '!' | '>' | 'R' | '&' | '(' | 'C' | '+' | '^' | '0'..='9' => {
                Err(Why::Unsupported)
            }
            _ => self.mode_group(),
        }
    }

    fn named_group(&mut self, kind: char) -> Result<(), Why> {
        self.rest.next();
        let opening = if kind == 'P' { self.rest.next().ok_or(Why::Invalid)? } else { kind };
        let closing = match (opening, self.rest.peek()) {
            // Looking behind; a reference or a call by name.
            ('<', Some('=' | '!')) if kind == '<' => return Err(Why::Unsupported),
            ('=' | '>', _) => return Err(Why::Unsupported),
            ('<', _) => '>',
            ('\'', _) => '\'',
            _ => return Err(Why::Invalid),
        };
        let mut name = String::new();
        loop {
            match self.rest.next().ok_or(Why::Invalid)? {
                end if end == closing => break,
                letter if letter == '_' || letter.is_ascii_alphanumeric() => name.push(letter),
                _ => return Err(Why::Invalid),
            }
        }
        let starts_well = name.starts_with(|first: char| !first.is_ascii_digit());
        if !starts_well || name.len() > GROUP_NAME_CHARS_MAX || self.names.contains(&name) {
            return Err(Why::Invalid);
        }
        self.names.push(name);
        self.enter(self.modes())
    }

    /// `(?i-s)`, for what follows, or `(?i-s:…)`, for a group.
    fn mode_group(&mut self) -> Result<(), Why> {
        let (mut modes, mut on) = (self.modes(), true);
        loop {
            match self.rest.next().ok_or(Why::Invalid)? {
                ')' => {
                    self.set_modes(modes);
                    return Ok(());
                }
                ':' => return self.enter(modes),
                '-' if on => on = false,
                // Space in classes, too.
                'x' if self.rest.peek() == Some(&'x') => return Err(Why::Unsupported),
                // The same name for several groups; a call by number.
                'J' | '0'..='9' => return Err(Why::Unsupported),
                // Numbers of groups, and greed: no matter here.
                'n' | 'U' => {}
                letter => modes.set(letter, on).ok_or(Why::Invalid)?,
            }
        }
    }

    fn set_modes(&mut self, modes: Modes) {
        if self.modes().ignore_case != modes.ignore_case {
            self.out.push_str(if modes.ignore_case { "(?i)" } else { "(?-i)" });
        }
        self.group().modes = modes;
        self.last = Last::Nothing;
    }
}
