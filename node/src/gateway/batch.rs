//! Transactional batches: up to a hundred operations on one logical partition, all or none.
//!
//! A batch is one log entry: its operations happen at one instant, with one LSN. If one cannot be
//! carried out, the answer is 207: that operation tells why, all others say 424, nothing changed. If it has to
//! wait for something, all of it is answered 429.
//! One that is not to be atomic is a `bulk` request.

mod bulk;
mod operation;
mod pieces;

use axum::http::StatusCode;
use ephemeris_store::charge::Charge;
use ephemeris_store::patch::ConditionBudget;

use self::operation::{Prepared, array, dependent_row, refused_row, row};
use super::error::{ApiError, Failure};
use super::items;
use super::path::ContainerPath;
use super::reply::Reply;
use super::resolve::Resolved;
use super::{Call, Gateway};

/// `POST /dbs/d/colls/c/docs` with `x-ms-cosmos-is-batch-request`
pub(crate) async fn execute(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    let resolved = gateway.container(call, path).await?;
    let atomic = call.headers.text("x-ms-cosmos-batch-atomic")?;
    if atomic.is_some_and(|atomic| atomic.eq_ignore_ascii_case("false")) {
        return bulk::execute(gateway, call, &resolved).await;
    }
    let operations = operation::parse(&call.body).map_err(Failure::in_body)?;
    let key = items::named_key(call, &resolved)?;
    let mut prepared = Vec::with_capacity(operations.len());
    let mut budget = ConditionBudget::REQUEST;
    for (index, operation) in operations.iter().enumerate() {
        match operation.prepare(&resolved, &key, &mut budget) {
            Ok(one) => prepared.push(one),
            Err(error) => {
                let body = refusal_body(operations.len(), index, &error, Charge::REFUSED_BODY);
                let reply = Reply::json(StatusCode::MULTI_STATUS, body).substatus(&error);
                return Ok(reply.charge(Charge::REFUSED_BODY).data(resolved.headers()));
            }
        }
    }
    carry_out(gateway, call, &resolved, prepared).await
}

async fn carry_out(
    gateway: &Gateway,
    call: &Call,
    resolved: &Resolved,
    prepared: Vec<Prepared>,
) -> Result<Reply, Failure> {
    let content = call.headers.content();
    let count = prepared.len();
    let (writes, shown): (Vec<_>, Vec<_>) =
        prepared.into_iter().map(|one| (one.write, (one.body, one.content.and(content)))).unzip();
    let executed = items::execute(gateway, call, resolved, writes).await?;
    let headers = executed.headers(resolved);
    match executed.result {
        Ok(written) => {
            let charge = written.iter().map(|one| one.charge).sum();
            let number = resolved.container.number;
            let rows = written.into_iter().zip(shown);
            let rows = rows.map(|(one, (body, content))| row(one, body, content, number));
            let reply = Reply::json(StatusCode::OK, array(rows));
            Ok(reply.charge(charge).data(headers))
        }
        Err(refused) => {
            let error = ApiError::from(refused.refusal);
            if matches!(error, ApiError::StaleMap | ApiError::NotExecuted(_)) {
                return Err(error.into());
            }
            let index = usize::from(refused.operation);
            let body = refusal_body(count, index, &error, refused.charge);
            let reply = Reply::json(StatusCode::MULTI_STATUS, body).substatus(&error);
            Ok(reply.charge(refused.charge).data(headers))
        }
    }
}

/// The rows of a batch that changed nothing: one says why, the others that it was not they.
fn refusal_body(count: usize, refused: usize, error: &ApiError, charge: Charge) -> Vec<u8> {
    let row = |index| {
        if index == refused { refused_row(error, charge) } else { dependent_row() }
    };
    array((0..count).map(row))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rows(count: usize, refused: usize, error: &ApiError) -> Vec<Value> {
        let body = refusal_body(count, refused, error, Charge(1_670_000));
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn a_refusal_is_told_at_its_operation_and_the_others_depended_on_it() {
        let errors = [
            (ApiError::BadRequest("no".into()), 400, 0),
            (ApiError::KeyMismatch, 400, 1001),
            (ApiError::NotFound("gone".into()), 404, 0),
            (ApiError::Conflict("taken".into()), 409, 0),
            (ApiError::PreconditionFailed, 412, 0),
            (ApiError::TooLarge("much".into()), 413, 0),
        ];
        for (error, status, substatus) in errors {
            let rows = rows(3, 1, &error);
            let dependent = json!({ "statusCode": 424, "requestCharge": 0 });
            assert_eq!([&rows[0], &rows[2]], [&dependent, &dependent]);
            let told = json!({
                "statusCode": status,
                "subStatusCode": substatus,
                "requestCharge": 1.67,
                "message": error.to_string(),
            });
            assert_eq!(rows[1], told);
        }
        assert_eq!(rows(1, 0, &ApiError::PreconditionFailed).len(), 1);
    }
}
