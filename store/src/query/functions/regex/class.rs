//! Characters and classes of characters in patterns.

use std::iter::Peekable;
use std::str::Chars;

use super::Why;

/// The classes that have a name.
const CLASS_NAMES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
    "space", "upper", "word", "xdigit",
];

/// A place where no word of ASCII begins or ends.
pub(super) const NO_WORD_BOUNDARY: &str = r"(?-u:\B)";

/// What stands in a class, or what an escape stands for. Sets are as the engine writes them.
pub(super) enum Item {
    /// One character.
    Character(char),
    /// A set that has of every letter both cases.
    Set(String),
    /// A set that stays what it is where case is ignored.
    Exact(String),
}

/// A character that stands for itself, whatever it means to the engine.
pub(super) fn literal(character: char) -> String {
    if character.is_ascii_alphanumeric() || !character.is_ascii() {
        return character.to_string();
    }
    format!("\\x{{{:X}}}", u32::from(character))
}

/// What an escape stands for, inside a class or outside of it; the letter was read.
pub(super) fn escape(letter: char, rest: &mut Peekable<Chars<'_>>) -> Result<Item, Why> {
    if let Some(set) = set(letter) {
        return Ok(set);
    }
    let character = match letter {
        'a' => '\x07',
        'e' => '\x1B',
        'f' => '\x0C',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        '0' => octal(rest),
        'o' => braced(rest, 8)?.ok_or(Why::Invalid)?,
        'x' => match braced(rest, 16)? {
            Some(character) => character,
            None => hexadecimal(rest),
        },
        'c' => control(rest)?,
        'p' | 'P' => return property(letter, rest),
        _ if letter.is_ascii_alphanumeric() => return Err(Why::Invalid),
        _ => letter,
    };
    Ok(Item::Character(character))
}

/// Types of characters.
fn set(letter: char) -> Option<Item> {
    let set = match letter {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        'w' => return Some(Item::Exact("[0-9A-Za-z_]".to_string())),
        'W' => return Some(Item::Exact("[^0-9A-Za-z_]".to_string())),
        's' => r"[\t\n\x0B\x0C\r\x20]",
        'S' => r"[^\t\n\x0B\x0C\r\x20]",
        'h' => r"[\t\x20\xA0\u1680\u180E\u2000-\u200A\u202F\u205F\u3000]",
        'H' => r"[^\t\x20\xA0\u1680\u180E\u2000-\u200A\u202F\u205F\u3000]",
        'v' => r"[\n\x0B\x0C\r\x85\u2028\u2029]",
        'V' => r"[^\n\x0B\x0C\r\x85\u2028\u2029]",
        _ => return None,
    };
    Some(Item::Set(set.to_string()))
}

/// Up to two more octal digits.
fn octal(rest: &mut Peekable<Chars<'_>>) -> char {
    let mut code = 0;
    for _ in 0..2 {
        let Some(digit) = rest.peek().and_then(|c| c.to_digit(8)) else { break };
        rest.next();
        code = code * 8 + digit;
    }
    char::from_u32(code).expect("two octal digits are a character")
}

/// Up to two hexadecimal digits.
fn hexadecimal(rest: &mut Peekable<Chars<'_>>) -> char {
    let mut code = 0;
    for _ in 0..2 {
        let Some(digit) = rest.peek().and_then(|c| c.to_digit(16)) else { break };
        rest.next();
        code = code * 16 + digit;
    }
    char::from_u32(code).expect("two hexadecimal digits are a character")
}

/// A number in braces, if a brace is next.
fn braced(rest: &mut Peekable<Chars<'_>>, radix: u32) -> Result<Option<char>, Why> {
    if rest.next_if_eq(&'{').is_none() {
        return Ok(None);
    }
    let digits = until_brace(rest)?;
    let is_number = digits.chars().all(|digit| digit.is_digit(radix));
    let code = u32::from_str_radix(&digits, radix).ok().filter(|_| is_number);
    code.and_then(char::from_u32).map(Some).ok_or(Why::Invalid)
}

/// What stands before the closing brace, which is taken, too.
fn until_brace(rest: &mut Peekable<Chars<'_>>) -> Result<String, Why> {
    let mut inside = String::new();
    loop {
        match rest.next().ok_or(Why::Invalid)? {
            '}' => return Ok(inside),
            character => inside.push(character),
        }
    }
}

/// A control character by its letter.
fn control(rest: &mut Peekable<Chars<'_>>) -> Result<char, Why> {
    let letter = rest.next().filter(|c| (' '..='~').contains(c)).ok_or(Why::Invalid)?;
    char::from_u32(u32::from(letter.to_ascii_uppercase()) ^ 0x40).ok_or(Why::Invalid)
}

/// A property of Unicode: a general category or a script.
fn property(letter: char, rest: &mut Peekable<Chars<'_>>) -> Result<Item, Why> {
    let mut name = match rest.next().ok_or(Why::Invalid)? {
        '{' => until_brace(rest)?,
        single => single.to_string(),
    };
    let mut is_negated = letter == 'P';
    if let Some(positive) = name.strip_prefix('^') {
        (name, is_negated) = (positive.to_string(), !is_negated);
    }
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        // Also names with `&`, `=`, `:` or spaces, which PCRE has.
        return Err(Why::Unsupported);
    }
    let letter = if is_negated { 'P' } else { 'p' };
    Ok(Item::Exact(format!("\\{letter}{{{name}}}")))
}

/// Whether case matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    Matters,
    Ignored,
}

/// The class behind the bracket that was read.
pub(super) fn translate(rest: &mut Peekable<Chars<'_>>, case: Case) -> Result<String, Why> {
    let mut parts = Parts::default();
    let is_negated = rest.next_if_eq(&'^').is_some();
    let mut is_first = true;
    loop {
        let next = rest.next().ok_or(Why::Invalid)?;
        if next == ']' && !is_first {
            return parts.finish(is_negated, case);
        }
        is_first = false;
        match item(next, rest, case)? {
            Item::Set(set) => parts.folding.push_str(&set),
            Item::Exact(set) => parts.exact.push_str(&set),
            Item::Character(start) if begins_range(rest) => {
                rest.next();
                let next = rest.next().ok_or(Why::Invalid)?;
                let Item::Character(end) = item(next, rest, case)? else {
                    return Err(Why::Invalid);
                };
                parts.range(start, end)?;
            }
            Item::Character(character) => parts.range(character, character)?,
        }
    }
}

/// A class in the making.
#[derive(Default)]
struct Parts {
    /// What folds with case, where it is ignored.
    folding: String,
    /// What does not.
    exact: String,
    has_letters: bool,
}

impl Parts {
    fn range(&mut self, start: char, end: char) -> Result<(), Why> {
        if start > end {
            return Err(Why::Invalid);
        }
        let (first, last) = (literal(start), literal(end));
        // Letters begin at `A`, and among what follows there is always one.
        self.has_letters |= end >= 'A' && (start != end || start.is_alphabetic());
        let range = if start == end { first } else { format!("{first}-{last}") };
        self.folding.push_str(&range);
        Ok(())
    }

    /// Modes have no place inside a class, so what does not fold must stand in one of its own.
    fn finish(self, is_negated: bool, case: Case) -> Result<String, Why> {
        let Parts { folding, exact, has_letters } = self;
        if exact.is_empty() || case == Case::Matters {
            return Ok(format!("[{}{folding}{exact}]", if is_negated { "^" } else { "" }));
        }
        if !is_negated {
            let folding = if folding.is_empty() { folding } else { format!("[{folding}]|") };
            return Ok(format!("(?:{folding}(?-i:[{exact}]))"));
        }
        if has_letters { Err(Why::Unsupported) } else { Ok(format!("(?-i:[^{folding}{exact}])")) }
    }
}

/// True if a hyphen follows, and not the end behind it.
fn begins_range(rest: &Peekable<Chars<'_>>) -> bool {
    let mut ahead = rest.clone();
    ahead.next() == Some('-') && ahead.next().is_some_and(|end| end != ']')
}

/// What stands at a place in a class.
fn item(character: char, rest: &mut Peekable<Chars<'_>>, case: Case) -> Result<Item, Why> {
    match character {
        '\\' => {
            let letter = rest.next().ok_or(Why::Invalid)?;
            match letter {
                'b' => Ok(Item::Character('\x08')),
                // Octal digits; quotes in a class.
                '1'..='7' | 'Q' | 'E' => Err(Why::Unsupported),
                _ => escape(letter, rest),
            }
        }
        '[' => named(rest, case),
        _ => Ok(Item::Character(character)),
    }
}

/// `[:alpha:]`, or a bracket that stands for itself.
fn named(rest: &mut Peekable<Chars<'_>>, case: Case) -> Result<Item, Why> {
    let Some(mark) = rest.peek().copied().filter(|c| matches!(c, ':' | '.' | '=')) else {
        return Ok(Item::Character('['));
    };
    let ahead: String = rest.clone().skip(1).take_while(|c| *c != mark && *c != ']').collect();
    let length = ahead.chars().count();
    let mut behind = rest.clone().skip(1 + length);
    if behind.next() != Some(mark) || behind.next() != Some(']') {
        return Ok(Item::Character('['));
    }
    let (negation, name) = match ahead.strip_prefix('^') {
        Some(name) => ("^", name),
        None => ("", ahead.as_str()),
    };
    if mark != ':' || !CLASS_NAMES.contains(&name) {
        return Err(Why::Invalid);
    }
    let _taken = rest.nth(length + 2);
    // Without regard to case both are all letters.
    let is_case = matches!(name, "lower" | "upper") && case == Case::Ignored;
    let name = if is_case { "alpha" } else { name };
    Ok(Item::Exact(format!("[:{negation}{name}:]")))
}
