//! What requests of clients cost: an estimate before they run, the charge after.
//!
//! Estimates come from the request alone. Where the stored item decides they are the least it can be,
//! so that nobody waits for units that may not be needed.

use ephemeris_store::charge::Charge;
use ephemeris_store::command::{Action, ItemWrite};

use super::{PartitionError, PartitionRequest, PartitionResponse};

/// What a request is expected to cost; none if it is the system's own and charged to nobody.
pub(super) fn estimate(request: &PartitionRequest) -> Option<Charge> {
    match request {
        PartitionRequest::Write(writes) => Some(writes.iter().map(of_write).sum()),
        PartitionRequest::Read(_) => Some(Charge::NOT_FOUND),
        PartitionRequest::Query(_) | PartitionRequest::Changes(_) => Some(Charge::QUERY_START),
        PartitionRequest::Clear(_) => Some(Charge::METADATA_READ),
        PartitionRequest::Find(_)
        | PartitionRequest::SetPolicies { .. }
        | PartitionRequest::Statistics
        | PartitionRequest::TtlStatus => None,
    }
}

fn of_write(write: &ItemWrite) -> Charge {
    match &write.action {
        Action::Create(document) | Action::Upsert(document) => {
            Charge::create(document.body.len(), document.indexed_values)
        }
        Action::Replace(document) | Action::Rename { document, .. } => {
            Charge::replace(document.body.len(), document.indexed_values)
        }
        Action::Patch(_) => Charge::replace(0, 0),
        Action::Delete => Charge::create(0, 0),
        Action::Read => Charge::NOT_FOUND,
    }
}

/// What a request did cost; none if nobody knows, so that the estimate stands.
pub(super) fn charge(answer: &Result<PartitionResponse, PartitionError>) -> Option<Charge> {
    match answer {
        Ok(response) => Some(of_response(response)),
        // It may still be committed.
        Err(PartitionError::Unknown(_)) => None,
        Err(
            PartitionError::NotHere
            | PartitionError::NotLeader { .. }
            | PartitionError::Doubtful(_)
            | PartitionError::Fault(_)
            | PartitionError::Throttled { .. },
        ) => Some(Charge::ZERO),
    }
}

fn of_response(response: &PartitionResponse) -> Charge {
    match response {
        PartitionResponse::Written { result: Ok(written), .. } => {
            written.iter().map(|one| one.charge).sum()
        }
        PartitionResponse::Written { result: Err(refused), .. } => refused.charge,
        PartitionResponse::Read { item: Some(item), .. } => Charge::point_read(item.body.len()),
        PartitionResponse::Read { item: None, .. } => Charge::NOT_FOUND,
        PartitionResponse::Page { page, .. } => Charge::query_page(&page.work),
        PartitionResponse::Changes { page, .. } => Charge::query_page(&page.work),
        PartitionResponse::Cleared(_) => Charge::METADATA_READ,
        PartitionResponse::Found(_)
        | PartitionResponse::ChangesRefused(_)
        | PartitionResponse::QueryRefused(_)
        | PartitionResponse::QueryStopped
        | PartitionResponse::PolicySet(_)
        | PartitionResponse::Statistics(_)
        | PartitionResponse::TtlStatus(_) => Charge::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use ephemeris_store::command::{Refusal, Refused};
    use ephemeris_store::ids::Lsn;

    use super::*;

    #[test]
    fn what_the_system_asks_for_itself_is_charged_to_nobody() {
        for request in [PartitionRequest::Statistics, PartitionRequest::TtlStatus] {
            assert_eq!(estimate(&request), None);
        }
    }

    #[test]
    fn a_refused_write_costs_what_was_looked_at_and_an_unexecuted_one_nothing() {
        let refused =
            Refused { operation: 0, refusal: Refusal::Conflict, charge: Charge(1_500_000) };
        let answer = Ok(PartitionResponse::Written { lsn: Lsn(1), result: Err(refused) });
        assert_eq!(charge(&answer), Some(Charge(1_500_000)));
        assert_eq!(charge(&Err(PartitionError::NotHere)), Some(Charge::ZERO));
        let unknown = Err(PartitionError::Unknown(String::new()));
        assert_eq!(charge(&unknown), None, "it may be committed yet: the estimate is kept");
    }
}
