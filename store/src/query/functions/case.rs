//! Upper and lower case without a locale: each character for itself, one for one.

/// Upper case. A character whose upper case is more than one character stays: `ß`.
pub(super) fn upper(text: &str) -> String {
    text.chars().map(upper_char).collect()
}

/// Lower case. A character whose lower case is more than one character stays: `İ`.
pub(super) fn lower(text: &str) -> String {
    text.chars().map(lower_char).collect()
}

/// A form in which texts are equal that differ in case only.
pub(super) fn fold(text: &str) -> String {
    text.chars().map(fold_char).collect()
}

fn fold_char(character: char) -> char {
    /// Its upper case is `I`, but Unicode folds it to nothing else.
    const DOTLESS_I: char = 'ı';
    match character {
        DOTLESS_I => character,
        _ => lower_char(upper_char(character)),
    }
}

fn upper_char(character: char) -> char {
    only(character.to_uppercase()).unwrap_or(character)
}

fn lower_char(character: char) -> char {
    only(character.to_lowercase()).unwrap_or(character)
}

fn only(mut mapped: impl Iterator<Item = char>) -> Option<char> {
    let first = mapped.next()?;
    mapped.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_maps_one_to_one() {
        assert_eq!(upper("aßéσſŉ"), "AßÉΣSŉ");
        assert_eq!(lower("AİÉΣẞ"), "aİéσß");
    }

    #[test]
    fn folding_joins_what_differs_in_case_only() {
        for (a, b) in [("straẞe", "STRAßE"), ("ΣΑΣ", "σας"), ("K", "k"), ("ᾳ", "ᾼ"), ("ſ", "S")]
        {
            assert_eq!(fold(a), fold(b), "{a} {b}");
        }
        for (a, b) in [("ı", "i"), ("İ", "i"), ("ß", "ss"), ("é", "e")] {
            assert_ne!(fold(a), fold(b), "{a} {b}");
        }
    }
}
