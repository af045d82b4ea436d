//! Session tokens: `<range>:-1#<lsn>`, one for every partition, joined by commas.

use std::fmt;

use ephemeris_store::catalog::PartitionRecord;
use ephemeris_store::ids::{Lsn, RangeId};

use super::Call;
use super::error::ApiError;
use super::headers::malformed;
use super::reply::SESSION_TOKEN;
use crate::consistency::ConsistencyLevel;
use crate::node::Node;
use crate::partition::ReadLevel;

/// A token, as it is written.
pub(crate) struct Token<'s>(pub(crate) &'s [(RangeId, Lsn)]);

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (range, lsn)) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let [mut range_text, mut lsn_text] = [itoa::Buffer::new(), itoa::Buffer::new()];
            let (range, lsn) = (range_text.format(range.0), lsn_text.format(lsn.0));
            for part in [comma, range, ":-1#", lsn] {
                f.write_str(part)?;
            }
        }
        Ok(())
    }
}

/// How fresh what a request reads must be.
#[derive(Clone, Debug)]
pub(crate) struct Freshness {
    level: ConsistencyLevel,
    session: Vec<(RangeId, Lsn)>,
}

impl Freshness {
    /// What a request asks for by its level and its session token; an error if that is none.
    ///
    /// A token may be ahead of every replica: SDKs send that of another container, when an answer
    /// without a body left them unsure which it was. It is honoured all the same: no replica is as
    /// fresh, so the leader answers, with everything anybody was told of this container.
    pub(crate) fn of(call: &Call) -> Result<Self, ApiError> {
        let text = call.headers.text(&SESSION_TOKEN)?.unwrap_or_default();
        let session = parse(text).ok_or_else(|| malformed(SESSION_TOKEN.as_str(), text))?;
        Ok(Self { level: call.consistency, session })
    }

    /// How fresh a replica of this partition must be to answer.
    pub(crate) fn at(&self, node: &Node, partition: &PartitionRecord) -> ReadLevel {
        self.of_range(partition.range, || node.told(partition.group))
    }

    /// A client that sends no token has the session of the node it talks to: what that has `told`.
    fn of_range(&self, range: RangeId, told: impl FnOnce() -> Lsn) -> ReadLevel {
        match self.level {
            ConsistencyLevel::Strong | ConsistencyLevel::BoundedStaleness => {
                ReadLevel::Linearizable
            }
            ConsistencyLevel::Session => {
                let seen = self.session.iter().filter(|(of, _)| *of == range).map(|(_, lsn)| *lsn);
                ReadLevel::AtLeast(seen.max().unwrap_or_else(told))
            }
            ConsistencyLevel::ConsistentPrefix | ConsistencyLevel::Eventual => ReadLevel::Any,
        }
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
        let token = |sessions: &[(RangeId, Lsn)]| Token(sessions).to_string();
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
    fn a_level_and_a_token_say_how_fresh_a_replica_must_be() {
        let session = parse("0:-1#7,1:-1#9,0:-1#8").unwrap();
        let at = |level, range| {
            Freshness { level, session: session.clone() }.of_range(RangeId(range), || Lsn(5))
        };
        for level in [ConsistencyLevel::Strong, ConsistencyLevel::BoundedStaleness] {
            assert_eq!(at(level, 0), ReadLevel::Linearizable);
        }
        let level = ConsistencyLevel::Session;
        assert_eq!(at(level, 0), ReadLevel::AtLeast(Lsn(8)));
        assert_eq!(at(level, 1), ReadLevel::AtLeast(Lsn(9)));
        assert_eq!(at(level, 2), ReadLevel::AtLeast(Lsn(5)), "no token of this range");
        for level in [ConsistencyLevel::ConsistentPrefix, ConsistencyLevel::Eventual] {
            assert_eq!(at(level, 0), ReadLevel::Any);
        }
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
            prop_assert_eq!(parse(&Token(&sessions).to_string()), Some(sessions));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,40}|[0-9:#,=-]{0,40}") {
            let _ = parse(&text);
        }
    }
}
