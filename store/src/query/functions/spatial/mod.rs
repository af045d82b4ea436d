//! Spatial functions over GeoJSON.
//!
//! Coordinates are degrees on the WGS-84 ellipsoid. Containers with coordinates of a plane
//! (`geospatialConfig`) will pass another `Metric`.

mod figure;
mod geojson;
mod measure;
mod vector;

use self::figure::Figure;
use self::geojson::{Metric, Shape};
use super::call::call;
use super::{Args, Function, Moment};
use crate::query::value::Value;

/// The one function whose last digit depends on the processor, by the library behind it.
pub(super) const DISTANCE: &str = "ST_DISTANCE";

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new(DISTANCE, 2, 2, distance),
    Function::new("ST_AREA", 1, 1, area),
    Function::new("ST_WITHIN", 2, 2, within),
    Function::new("ST_INTERSECTS", 2, 2, intersects),
    Function::new("ST_ISVALID", 1, 1, is_valid),
    Function::new("ST_ISVALIDDETAILED", 1, 1, is_valid_detailed),
];

/// What coordinates mean in every container, so far.
const METRIC: Metric = Metric::Geography;

fn distance(args: &Args<'_>, _: &Moment) -> Value {
    of_two(args, |a, b| measure::distance(a, b, METRIC))
}

fn within(args: &Args<'_>, _: &Moment) -> Value {
    of_two(args, |a, b| {
        let (a, b) = Figure::pair(a, b, METRIC);
        a.is_within(&b)
    })
}

fn intersects(args: &Args<'_>, _: &Moment) -> Value {
    of_two(args, |a, b| {
        let (a, b) = Figure::pair(a, b, METRIC);
        Some(a.intersects(&b))
    })
}

fn of_two<R: Into<Value>>(
    args: &Args<'_>,
    body: impl FnOnce(&Shape, &Shape) -> Option<R>,
) -> Value {
    call(args, |(a, b): (&Value, &Value)| {
        let (a, b) = (Shape::parse(a, METRIC).ok()?, Shape::parse(b, METRIC).ok()?);
        body(&a, &b)
    })
}

fn area(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |shape: &Value| {
        let shape = Shape::parse(shape, METRIC).ok()?;
        Some(measure::area(&shape, METRIC))
    })
}

/// False, not undefined, of what is no GeoJSON at all.
fn is_valid(args: &Args<'_>, _: &Moment) -> Value {
    Shape::parse(&args[0], METRIC).is_ok().into()
}

fn is_valid_detailed(args: &Args<'_>, _: &Moment) -> Value {
    let member = |name: &str, value: Value| (name.to_string(), value);
    Value::Object(match Shape::parse(&args[0], METRIC) {
        Ok(_) => vec![member("valid", true.into())],
        Err(flaw) => {
            vec![member("valid", false.into()), member("reason", flaw.to_string().into())]
        }
    })
}

#[cfg(test)]
mod tests;
