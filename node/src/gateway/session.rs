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

/// What a client has seen, by its token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Session(Vec<(RangeId, Lsn)>);

impl Session {
    /// Reads the header.
    pub(crate) fn of(headers: &RequestHeaders) -> Result<Self, ApiError> {
        let Some(text) = headers.text("x-ms-session-token")? else { return Ok(Self::default()) };
        Self::parse(text).ok_or_else(|| {
            ApiError::BadRequest(format!("The session token '{text}' is malformed."))
        })
    }

    /// Parses `1:-1#19,0:-1#19#1=5`; region parts are ignored, and so are bare numbers of old.
    fn parse(text: &str) -> Option<Self> {
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
        session.collect::<Option<Vec<_>>>().map(Self)
    }

    /// Checks that an answer is not older than what the client has seen: at a leader that can only
    /// be if the token comes from somewhere else.
    pub(crate) fn check(&self, range: RangeId, lsn: Lsn) -> Result<(), ApiError> {
        let ahead = self.0.iter().any(|(seen, at)| *seen == range && *at > lsn);
        if ahead { Err(ApiError::SessionNotAvailable) } else { Ok(()) }
    }
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
    fn only_a_token_ahead_of_the_partition_is_refused() {
        let session = Session::parse("1:-1#19,0:0#5#1=4#2=9, 2:8").unwrap();
        assert!(session.check(RangeId(1), Lsn(19)).is_ok());
        assert!(session.check(RangeId(1), Lsn(18)).is_err());
        assert!(session.check(RangeId(0), Lsn(5)).is_ok());
        assert!(session.check(RangeId(2), Lsn(7)).is_err());
        assert!(session.check(RangeId(9), Lsn(0)).is_ok());
    }

    #[test]
    fn malformed_tokens_are_refused() {
        for wrong in ["x", "1", "1:", "1:x#3", "1:-1#", "1:-1#x", ":-1#1", "0:-1#-5"] {
            assert_eq!(Session::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Session::parse(""), Some(Session::default()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(parts: Vec<(u32, u32)>) {
            let sessions: Vec<_> = parts
                .into_iter()
                .map(|(range, lsn)| (RangeId(range), Lsn(u64::from(lsn))))
                .collect();
            prop_assert_eq!(Session::parse(&token(&sessions)), Some(Session(sessions)));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,40}|[0-9:#,=-]{0,40}") {
            let _ = Session::parse(&text);
        }
    }
}
