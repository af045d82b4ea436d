//! Spatial functions over GeoJSON.
//!
//! 1. `geojson` reads values, `vector` makes places of positions, `figure` asks how shapes lie to each
//!    other, `measure` how far apart and how large they are.
//! 2. `cells` says where in space a shape is, for indexes.
//!
//! Coordinates are degrees on the WGS-84 ellipsoid, or those of a plane, as the container's
//! `geospatialConfig` says. Each function is there for both.

mod cells;
mod figure;
mod geojson;
mod measure;
mod vector;

use std::marker::PhantomData;
use std::slice;

pub(crate) use self::cells::{Region, cells_of};
use self::figure::Figure;
pub use self::geojson::Metric;
use self::geojson::{POSITIONS_MAX, Shape};
use super::call::call;
use super::{Args, Function, Moment, cost};
use crate::query::value::Value;

/// The one function whose last digit depends on the processor, by the library behind it.
pub(crate) const DISTANCE: &str = "ST_DISTANCE";
pub(crate) const WITHIN: &str = "ST_WITHIN";
pub(crate) const INTERSECTS: &str = "ST_INTERSECTS";

/// The functions over degrees.
pub(super) const ON_GLOBE: &[Function] = &Functions::<Globe>::ALL;
/// The functions over a plane, under the same names.
pub(super) const ON_PLANE: &[Function] = &Functions::<Plane>::ALL;

/// What coordinates mean, as a type: bodies of functions are plain functions.
trait Coordinates {
    const METRIC: Metric;
}

/// The least size of a position.
const POSITION_SIZE: usize = 20;
/// Pairs of places that are compared in the time of one operation.
const PAIRS_OF_OPERATION: usize = 4;
/// Operations' worth of finding the nearest place of an edge on the ellipsoid: a hundred geodesics.
const REFINING: u64 = 1000;
/// Operations' worth of a piece of an edge, for the area.
const AREA_OF_PIECE: u64 = 4;

/// Places of one shape are compared with those of the other, and those of holes with those of the ring
/// around them.
fn cost_of_places(args: &Args<'_>) -> u64 {
    let between: usize = args.iter().map(|shape| places(shape.member("coordinates"))).product();
    let inside: usize = args.iter().map(|shape| pairs_of_holes(shape)).sum();
    cost::whole(args) + ((between + inside) / PAIRS_OF_OPERATION) as u64
}

fn places(coordinates: &Value) -> usize {
    (coordinates.size() / POSITION_SIZE).clamp(1, POSITIONS_MAX)
}

fn pairs_of_holes(shape: &Value) -> usize {
    let coordinates = shape.member("coordinates");
    let polygons = match (shape.member("type"), coordinates) {
        (Value::Text(kind), Value::Array(polygons)) if kind == "MultiPolygon" => &polygons[..],
        _ => slice::from_ref(coordinates),
    };
    let pairs = |polygon: &Value| {
        let Value::Array(rings) = polygon else { return 0 };
        let Some((outer, holes)) = rings.split_first() else { return 0 };
        places(outer) * holes.iter().map(places).sum::<usize>().min(POSITIONS_MAX)
    };
    polygons.iter().map(pairs).sum()
}

struct Globe;

struct Plane;

impl Coordinates for Globe {
    const METRIC: Metric = Metric::Geography;
}

impl Coordinates for Plane {
    const METRIC: Metric = Metric::Geometry;
}

struct Functions<C>(PhantomData<C>);

impl<C: Coordinates> Functions<C> {
    const ALL: [Function; 6] = [
        Function::new(DISTANCE, 2, 2, Self::distance).at(Self::cost_of_distance),
        Function::new("ST_AREA", 1, 1, Self::area).at(cost_of_places).beside(Self::cost_of_pieces),
        Function::new(WITHIN, 2, 2, Self::within).at(cost_of_places),
        Function::new(INTERSECTS, 2, 2, Self::intersects).at(cost_of_places),
        Function::new("ST_ISVALID", 1, 1, Self::is_valid).at(cost::whole),
        Function::new("ST_ISVALIDDETAILED", 1, 1, Self::is_valid_detailed).at(cost::whole),
    ];

    fn cost_of_distance(args: &Args<'_>) -> u64 {
        let refining = if Self::refines(args) { REFINING } else { 0 };
        cost_of_places(args) + refining
    }

    /// True if the distance is one from or to an edge, along the ellipsoid.
    fn refines(args: &Args<'_>) -> bool {
        let [Value::Text(a), Value::Text(b)] = [0, 1].map(|at| args[at].member("type")) else {
            return false;
        };
        C::METRIC == Metric::Geography && [a, b].into_iter().any(|kind| kind != "Point")
    }

    /// An edge that goes far is taken piece by piece.
    fn cost_of_pieces(args: &Args<'_>) -> u64 {
        match (C::METRIC, Shape::parse(&args[0], C::METRIC)) {
            (Metric::Geography, Ok(shape)) => measure::pieces(&shape) * AREA_OF_PIECE,
            (Metric::Geometry, Ok(_)) | (_, Err(_)) => 0,
        }
    }

    fn distance(args: &Args<'_>, _: &Moment) -> Value {
        Self::of_two(args, |a, b| measure::distance(a, b, C::METRIC))
    }

    fn within(args: &Args<'_>, _: &Moment) -> Value {
        Self::of_two(args, |a, b| {
            let (a, b) = Figure::pair(a, b, C::METRIC);
            a.is_within(&b)
        })
    }

    fn intersects(args: &Args<'_>, _: &Moment) -> Value {
        Self::of_two(args, |a, b| {
            let (a, b) = Figure::pair(a, b, C::METRIC);
            Some(a.intersects(&b))
        })
    }

    fn of_two<R: Into<Value>>(
        args: &Args<'_>,
        body: impl FnOnce(&Shape, &Shape) -> Option<R>,
    ) -> Value {
        call(args, |(a, b): (&Value, &Value)| {
            let (a, b) = (Shape::parse(a, C::METRIC).ok()?, Shape::parse(b, C::METRIC).ok()?);
            body(&a, &b)
        })
    }

    fn area(args: &Args<'_>, _: &Moment) -> Value {
        call(args, |shape: &Value| {
            let shape = Shape::parse(shape, C::METRIC).ok()?;
            Some(measure::area(&shape, C::METRIC))
        })
    }

    /// False, not undefined, of what is no GeoJSON at all.
    fn is_valid(args: &Args<'_>, _: &Moment) -> Value {
        Shape::parse(&args[0], C::METRIC).is_ok().into()
    }

    fn is_valid_detailed(args: &Args<'_>, _: &Moment) -> Value {
        let member = |name: &str, value: Value| (name.to_string(), value);
        let members = match Shape::parse(&args[0], C::METRIC) {
            Ok(_) => vec![member("valid", true.into())],
            Err(flaw) => {
                vec![member("valid", false.into()), member("reason", flaw.to_string().into())]
            }
        };
        Value::Object(members.into())
    }
}

#[cfg(test)]
mod tests;
