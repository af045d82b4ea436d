//! LIKE patterns: `%` any run, `_` one character, `[…]` one of a set, `[^…]` one outside it.

use std::iter::Peekable;
use std::str::Chars;

/// A pattern ready to be matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LikePattern(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    /// This character.
    Exactly(char),
    /// Any one character.
    AnyOne,
    /// Any run of characters, the empty one included.
    AnyRun,
    /// A character inside some range, or outside all of them. The ranges are in order, and do not overlap.
    Set { ranges: Vec<(char, char)>, inside: bool },
}

impl Piece {
    fn admits(&self, found: char) -> bool {
        match self {
            Piece::Exactly(wanted) => *wanted == found,
            Piece::AnyOne => true,
            Piece::AnyRun => false,
            Piece::Set { ranges, inside } => {
                let at = ranges.partition_point(|(_, high)| *high < found);
                ranges.get(at).is_some_and(|(low, _)| *low <= found) == *inside
            }
        }
    }
}

impl LikePattern {
    /// Reads a pattern; every pattern means something.
    pub(super) fn new(pattern: &str, escape: Option<char>) -> Self {
        let mut pieces = Vec::new();
        let mut chars = pattern.chars().peekable();
        // Once a set had no end, no later one has: none is looked for, or each would be up to the end.
        let mut may_end = true;
        while let Some(c) = chars.next() {
            let piece = match c {
                // Behind the escape character everything is itself, and so is that one at the end.
                c if Some(c) == escape => Piece::Exactly(chars.next().unwrap_or(c)),
                '%' => Piece::AnyRun,
                '_' => Piece::AnyOne,
                '[' if may_end => {
                    let set = read_set(&mut chars, escape);
                    may_end = set.is_some();
                    // Without its end it is a character like any other.
                    set.unwrap_or(Piece::Exactly('['))
                }
                c => Piece::Exactly(c),
            };
            if piece != Piece::AnyRun || pieces.last() != Some(&Piece::AnyRun) {
                pieces.push(piece);
            }
        }
        Self(pieces)
    }

    /// What every match starts with, and whether that is followed by anything at all (`true`), by
    /// nothing (`false`), or by something particular (none).
    pub(super) fn prefix(&self) -> (String, Option<bool>) {
        let literal = self.0.iter().map_while(|piece| match piece {
            Piece::Exactly(c) => Some(*c),
            Piece::AnyOne | Piece::AnyRun | Piece::Set { .. } => None,
        });
        let prefix: String = literal.collect();
        let rest = match &self.0[prefix.chars().count()..] {
            [] => Some(false),
            [Piece::AnyRun] => Some(true),
            _ => None,
        };
        (prefix, rest)
    }

    /// True if the whole text matches; none if `spend` refuses to pay for the characters looked at.
    ///
    /// Only the last `%` seen is ever gone back to: what an earlier one took can stay as it is.
    pub(super) fn matches(&self, text: &str, spend: &mut dyn FnMut(u64) -> bool) -> Option<bool> {
        let pieces = self.0.as_slice();
        let (mut at, mut rest) = (0, text.chars());
        let mut retry: Option<(usize, Chars<'_>)> = None;
        let mut looked_at = 0;
        loop {
            let here = rest.clone();
            let next = rest.next();
            match (pieces.get(at), next) {
                (Some(Piece::AnyRun), _) => {
                    at += 1;
                    rest = here;
                    retry = Some((at, rest.clone()));
                    continue;
                }
                (None, None) => return Some(true),
                (Some(piece), Some(found)) if piece.admits(found) => {
                    at += 1;
                    looked_at += 1;
                    continue;
                }
                _ => {}
            }
            // A mismatch: the last `%` takes one character more.
            let Some((start, after)) = &mut retry else { return Some(false) };
            if !spend(looked_at) {
                return None;
            }
            looked_at = 1;
            if after.next().is_none() {
                return Some(false);
            }
            at = *start;
            rest = after.clone();
        }
    }
}

/// The set behind a `[`; none, and nothing taken, if it never ends.
fn read_set(chars: &mut Peekable<Chars<'_>>, escape: Option<char>) -> Option<Piece> {
    let mut ahead = chars.clone();
    let inside = ahead.next_if_eq(&'^').is_none();
    let mut ranges = Vec::new();
    loop {
        let c = ahead.next()?;
        if c == ']' {
            *chars = ahead;
            return Some(Piece::Set { ranges: in_order(ranges), inside });
        }
        let low = if Some(c) == escape { ahead.next()? } else { c };
        let high = read_range_end(&mut ahead, escape).unwrap_or(low);
        ranges.push((low, high));
    }
}

/// The same ranges in order, without overlaps, and without those that hold nothing: a set is looked up in as long as
/// a comparison takes, whatever its length.
fn in_order(mut ranges: Vec<(char, char)>) -> Vec<(char, char)> {
    ranges.retain(|(low, high)| low <= high);
    ranges.sort_unstable();
    let mut merged: Vec<(char, char)> = Vec::new();
    for (low, high) in ranges {
        match merged.last_mut() {
            Some((_, end)) if low <= *end => *end = high.max(*end),
            _ => merged.push((low, high)),
        }
    }
    merged
}

/// The character behind a `-`, if it is not the end of the set.
fn read_range_end(chars: &mut Peekable<Chars<'_>>, escape: Option<char>) -> Option<char> {
    let mut ahead = chars.clone();
    ahead.next_if_eq(&'-')?;
    let c = ahead.next().filter(|c| *c != ']')?;
    let high = if Some(c) == escape { ahead.next()? } else { c };
    *chars = ahead;
    Some(high)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn like(text: &str, pattern: &str, escape: Option<char>) -> bool {
        LikePattern::new(pattern, escape).matches(text, &mut |_| true).unwrap()
    }

    #[test]
    fn patterns_match_whole_texts() {
        for (text, pattern, expected) in [
            ("abc", "abc", true),
            ("abc", "ab", false),
            ("abc", "a%", true),
            ("abc", "%c", true),
            ("abc", "%b%", true),
            ("abc", "a_c", true),
            ("ac", "a_c", false),
            ("abc", "ABC", false),
            ("", "", true),
            ("a", "", false),
            ("", "%", true),
            ("b", "[abc]", true),
            ("d", "[a-f]", true),
            ("g", "[a-f]", false),
            ("g", "[^a-f]", true),
            ("d", "[^a-f]", false),
            ("50%", "50[%]", true),
            ("505", "50[%]", false),
            ("a_c", "a[_]c", true),
            ("abc", "a[_]c", false),
            ("[", "[[]", true),
            ("]", "]", true),
            ("[ab", "[ab", true),
            ("a-", "a[-]", true),
            ("x", "[]", false),
            ("x", "[^]", true),
            ("e", "[f-a]", false),
            ("e", "[x-zd-fa-eb]", true),
            ("g", "[x-zd-fa-eb]", false),
            ("w", "[^x-zd-fa-eb]", true),
            ("a\\c", "a\\c", true),
            ("aXbXc", "%X%X%", true),
            ("aaab", "%aab", true),
            ("mississippi", "m%iss%ip%i", true),
            ("mississippi", "m%iss%x%i", false),
            ("\u{1F600}", "_", true),
        ] {
            assert_eq!(like(text, pattern, None), expected, "{text} LIKE {pattern}");
        }
    }

    #[test]
    fn the_escape_character_makes_the_next_one_literal() {
        for (text, pattern, expected) in [
            ("a_c", "a!_c", true),
            ("abc", "a!_c", false),
            ("a%", "a!%", true),
            ("a!", "a!!", true),
            ("a!", "a!", true),
            ("[x]", "![x]", true),
            ("]", "[!]]", true),
        ] {
            assert_eq!(like(text, pattern, Some('!')), expected, "{text} LIKE {pattern}");
        }
    }

    #[test]
    fn prefixes_are_what_every_match_starts_with() {
        let prefix = |pattern: &str| LikePattern::new(pattern, Some('!')).prefix();
        assert_eq!(prefix("ab%"), ("ab".to_string(), Some(true)));
        assert_eq!(prefix("ab"), ("ab".to_string(), Some(false)));
        assert_eq!(prefix("ab%c"), ("ab".to_string(), None));
        assert_eq!(prefix("a!%b_"), ("a%b".to_string(), None));
        assert_eq!(prefix("%ab"), (String::new(), None));
    }

    #[test]
    fn whoever_pays_can_stop() {
        let pattern = LikePattern::new(&format!("%{}b", "a".repeat(1000)), None);
        let mut spent = 0;
        let text = "a".repeat(100_000);
        let stopped = pattern.matches(&text, &mut |steps| {
            spent += steps;
            spent < 100_000
        });
        assert_eq!(stopped, None);
        assert!(spent < 110_000);
    }

    #[test]
    fn a_million_sets_without_an_end_are_read_once() {
        let brackets = "[".repeat(1 << 20);
        assert!(like(&brackets, &brackets, None));
        assert!(like(&format!("x{brackets}"), &format!("[wx]{brackets}"), None));
    }

    #[test]
    fn a_set_of_any_length_is_soon_looked_up() {
        let set: String = ('\u{100}'..'\u{9000}').filter(|c| u32::from(*c) % 2 == 0).collect();
        let pattern = LikePattern::new(&format!("%[{}]", set.repeat(16)), None);
        let [_, Piece::Set { ranges, .. }] = &pattern.0[..] else { panic!("a run and a set") };
        assert!(ranges.len() <= set.chars().count(), "what is repeated counts once");
        assert_eq!(pattern.matches(&"a".repeat(1_000_000), &mut |_| true), Some(false));
    }

    /// One character at a time, trying everything.
    fn naive(text: &[char], pieces: &[Piece]) -> bool {
        match (pieces.split_first(), text.split_first()) {
            (None, None) => true,
            (Some((Piece::AnyRun, rest)), None) => naive(text, rest),
            (Some((Piece::AnyRun, rest)), Some((_, shorter))) => {
                naive(text, rest) || naive(shorter, pieces)
            }
            (None, Some(_)) | (Some(_), None) => false,
            (Some((piece, rest)), Some((found, shorter))) => {
                piece.admits(*found) && naive(shorter, rest)
            }
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_trying_everything(
            text in "[ab%\\[\\]]{0,12}", pattern in "[ab%_\\[\\]^-]{0,10}",
        ) {
            let pattern = LikePattern::new(&pattern, None);
            let chars: Vec<char> = text.chars().collect();
            prop_assert_eq!(
                pattern.matches(&text, &mut |_| true), Some(naive(&chars, &pattern.0))
            );
        }
    }
}
