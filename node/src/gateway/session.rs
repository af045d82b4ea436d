//! Session tokens: `<range>:-1#<lsn>`, one for every partition, joined by commas.

use std::fmt::Write as _;

use ephemeris_store::ids::{Lsn, RangeId};

use super::error::ApiError;
use super::headers::RequestHeaders;

/// Writes a token.
pub(crate) fn token(sessions: &[(RangeId, Lsn)]) -> String {
    let mut token = String::new();
    for (range, lsn) in sessions {
        if !token.is_empty() {
            token.push(',');
        }
        write!(token, "{range}:-1#{lsn}").expect("text takes every write");
    }
    token
}

/// Refuses a header that is no token.
///
/// What it says needs no checking: every answer comes from a leader, behind a barrier, and so shows
/// everything any client was ever told. A token that is ahead all the same is that of another
/// container, as SDKs send them when an answer without a body left them unsure which it was.
pub(crate) fn check(headers: &RequestHeaders) -> Result<(), ApiError> {
    match headers.text("x-ms-session-token")? {
        Some(text) if parse(text).is_none() => {
            Err(ApiError::BadRequest(format!("The session token '{text}' is malformed.")))
        }
        Some(_) | None => Ok(()),
    }
}

/// Parses `1:-1#19,0:-1#19#1=5`; region parts are ignored, and so are bare numbers of old.
fn parse(text: &str) -> Option<Vec<(RangeId, Lsn)>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let session = parts.map(|part| {
        let (range, token) = part.split_once(':')?;
        let range = RangeId(range.parse().ok()?);
        let lsn = match token.split_once('#') {
            None => token,
            Some((version, rest)) => {
                version.parse::<i64>().ok()?;
                rest.split('#').next()?
            }
        };
        Some((range, Lsn(lsn.parse().ok()?)))
    });
    session.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tokens_have_one_shape() {
        assert_eq!(token(&[(RangeId(0), Lsn(7))]), "0:-1#7");
        assert_eq!(token(&[(RangeId(1), Lsn(19)), (RangeId(0), Lsn(3))]), "1:-1#19,0:-1#3");
    }

    #[test]
    fn tokens_of_every_shape_are_read() {
        let read = parse("1:-1#19,0:0#5#1=4#2=9, 2:8").unwrap();
        let expected = [(1, 19), (0, 5), (2, 8)].map(|(range, lsn)| (RangeId(range), Lsn(lsn)));
        assert_eq!(read, expected);
    }

    #[test]
    fn malformed_tokens_are_refused() {
        for wrong in ["x", "1", "1:", "1:x#3", "1:-1#", "1:-1#x", ":-1#1", "0:-1#-5"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(parse(""), Some(Vec::new()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(parts: Vec<(u32, u32)>) {
            let sessions: Vec<_> = parts
                .into_iter()
                .map(|(range, lsn)| (RangeId(range), Lsn(u64::from(lsn))))
                .collect();
            prop_assert_eq!(parse(&token(&sessions)), Some(sessions));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,40}|[0-9:#,=-]{0,40}") {
            let _ = parse(&text);
        }
    }
}
