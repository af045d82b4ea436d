//! Offers: the throughput of databases and containers; read, query, replace.

use std::sync::Arc;

use axum::http::{HeaderName, StatusCode};
use ephemeris_store::catalog::{CatalogCommand, InvalidThroughput, Offer, OfferTarget, Throughput};
use ephemeris_store::charge::Charge;
use ephemeris_store::ids::{ResourceId, container_link, database_link};
use serde_json::{Map, Value, json};

use super::error::{ApiError, Failure};
use super::reply::{Reply, with_system_properties};
use super::{Call, Gateway, feed};
use crate::placement::DirectoryView;

const MIN_THROUGHPUT: HeaderName = HeaderName::from_static("x-ms-cosmos-min-throughput");

/// The offer's id: four characters, as clients know them.
fn id(offer: &Offer) -> String {
    format!("{:04x}", offer.number)
}

/// An offer as clients see it.
fn to_json(offer: &Offer) -> Map<String, Value> {
    let id = id(offer);
    let (resource, rid) = match offer.target {
        OfferTarget::Database(number) => {
            (database_link(number), ResourceId::Database(number).to_string())
        }
        OfferTarget::Container(number) => {
            (container_link(number), ResourceId::Container(number).to_string())
        }
    };
    let content = match offer.throughput {
        Throughput::Manual(rate) => json!({ "offerThroughput": rate }),
        Throughput::Autoscale(autoscale) => json!({
            "offerThroughput": autoscale.maximum / 10,
            "offerAutopilotSettings": autoscale.to_json(),
        }),
    };
    let json = Map::from_iter([
        ("id".to_string(), json!(id)),
        ("resource".to_string(), json!(resource)),
        ("offerResourceId".to_string(), json!(rid)),
        ("offerType".to_string(), json!("Invalid")),
        ("offerVersion".to_string(), json!("V2")),
        ("content".to_string(), content),
    ]);
    let stamp = offer.resource;
    with_system_properties(json, &id, &format!("offers/{id}/"), stamp.etag, stamp.ts.0)
}

fn reply(offer: &Offer) -> Reply {
    Reply::json(StatusCode::OK, Value::Object(to_json(offer)).to_string())
        .etag(offer.resource.etag)
        .header(MIN_THROUGHPUT, offer.throughput.minimum().to_string())
}

/// `GET /offers`, or `POST` with a query
pub(crate) async fn list(gateway: &Gateway, call: &Call) -> Result<Reply, Failure> {
    let view = gateway.fresh_view(call).await?;
    let listed = |offer: &Arc<Offer>| (u64::from(offer.number), to_json(offer));
    feed::answer(gateway, call, ("", "Offers"), view.state().offers().map(listed))
}

/// `GET /offers/o`
pub(crate) async fn read(gateway: &Gateway, call: &Call, name: &str) -> Result<Reply, Failure> {
    let view = gateway.fresh_view(call).await?;
    let offer = find(&view, name)?;
    let reply = reply(offer).charge(Charge::METADATA_READ);
    Ok(reply.unless_known(call.headers.read_condition()?, offer.resource.etag))
}

/// `PUT /offers/o`
pub(crate) async fn replace(gateway: &Gateway, call: &Call, name: &str) -> Result<Reply, Failure> {
    let throughput = throughput_in(&call.json()?).map_err(Failure::in_body)?;
    let precondition = call.headers.precondition()?;
    let view = gateway.fresh_view(call).await?;
    let offer = find(&view, name)?.number;
    let command = CatalogCommand::ReplaceThroughput { offer, throughput, precondition };
    gateway.change_catalog(call, command).await?;
    let view = gateway.node.directory().current();
    Ok(reply(find(&view, name)?).charge(Charge::METADATA_WRITE))
}

fn find<'v>(view: &'v DirectoryView, name: &str) -> Result<&'v Offer, ApiError> {
    let offer = view.state().offers().find(|offer| id(offer).eq_ignore_ascii_case(name));
    offer.map(AsRef::as_ref).ok_or_else(|| ApiError::NotFound("Resource Not Found.".to_string()))
}

/// The throughput in the body of an offer; autoscale wins, as its body shows a manual rate too.
fn throughput_in(body: &Value) -> Result<Throughput, ApiError> {
    let content = &body["content"];
    let autoscale = &content["offerAutopilotSettings"];
    if !autoscale.is_null() {
        return Ok(Throughput::autoscale(autoscale)?);
    }
    let rate = content["offerThroughput"].as_i64().ok_or(InvalidThroughput::Malformed)?;
    Ok(Throughput::manual(rate)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_throughput_of_an_offer_is_read() {
        let of = |content: Value| throughput_in(&json!({ "content": content }));
        assert_eq!(of(json!({ "offerThroughput": 500 })).unwrap(), Throughput::Manual(500));
        let both = json!({
            "offerThroughput": 400,
            "offerAutopilotSettings": { "maxThroughput": 4000 },
        });
        assert_eq!(of(both).unwrap().maximum(), 4000);
        for wrong in [
            json!(null),
            json!({}),
            json!({ "offerThroughput": "500" }),
            json!({ "offerThroughput": 401 }),
            json!({ "offerAutopilotSettings": {} }),
        ] {
            assert!(of(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
