//! Reads GeoJSON, and says what is wrong with it.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::vector::Vector;
use crate::query::value::{Number, Value};

/// Most positions of one value, as Cosmos has it.
pub(super) const POSITIONS_MAX: usize = 4096;

/// Largest coordinate of a plane: areas of more are beyond doubles.
const COORDINATE_MAX: f64 = 1e100;

/// Places whose sum is shorter than this (on a globe of radius 1) lie opposite each other: six
/// millimetres on Earth. No arc between them is shorter than all others.
const OPPOSITE: f64 = 1e-9;

/// What coordinates mean: the `geospatialConfig` of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Metric {
    /// Degrees of longitude and latitude on the WGS-84 ellipsoid.
    #[default]
    Geography,
    /// A plane.
    Geometry,
}

/// Longitude and latitude in degrees, or coordinates of the plane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Position {
    pub(super) x: f64,
    pub(super) y: f64,
}

/// What a value of GeoJSON shows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    Point(Position),
    /// No position is like the one before it.
    Line(Vec<Position>),
    Area(Vec<Polygon>),
}

/// The rings of a polygon, the outer one first. The last position of a ring is not repeated, and
/// none is like its neighbour.
pub(super) type Polygon = Vec<Vec<Position>>;

/// Why a value is no GeoJSON that we take.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum Flaw {
    #[error("The value is not a GeoJSON object with a type and coordinates.")]
    NotGeoJson,
    #[error("The type must be Point, LineString, Polygon or MultiPolygon.")]
    Type,
    #[error("Coordinates must be arrays, nested as the type demands.")]
    Nesting,
    #[error("A position must be an array of two or three numbers.")]
    Position,
    #[error("Longitude values must be between -180 and 180 degrees.")]
    Longitude,
    #[error("Latitude values must be between -90 and 90 degrees.")]
    Latitude,
    #[error("Coordinates must be between -1e100 and 1e100.")]
    Magnitude,
    #[error("A LineString must have at least two different positions.")]
    ShortLine,
    #[error("A Polygon must have at least one ring, and a MultiPolygon at least one Polygon.")]
    Empty,
    #[error("A ring must have at least four positions.")]
    ShortRing,
    #[error("The first and the last position of a ring must be the same.")]
    OpenRing,
    #[error("A ring must have at least three different positions.")]
    FlatRing,
    #[error("Neighbouring positions must not lie on opposite sides of the globe.")]
    Opposite,
    #[error("There must not be more than 4096 positions.")]
    TooMany,
}

impl Shape {
    /// Reads a value.
    pub(super) fn parse(value: &Value, metric: Metric) -> Result<Shape, Flaw> {
        let (Value::Text(kind), coordinates) = (value.member("type"), value.member("coordinates"))
        else {
            return Err(Flaw::NotGeoJson);
        };
        if !coordinates.is_defined() {
            return Err(Flaw::NotGeoJson);
        }
        let mut reader = Reader { metric, left: POSITIONS_MAX };
        match kind.as_str() {
            "Point" => Ok(Shape::Point(reader.position(coordinates)?)),
            "LineString" => Ok(Shape::Line(reader.line(coordinates)?)),
            "Polygon" => Ok(Shape::Area(vec![reader.polygon(coordinates)?])),
            "MultiPolygon" => {
                let polygons = array(coordinates)?;
                let polygons: Vec<Polygon> =
                    polygons.iter().map(|one| reader.polygon(one)).collect::<Result<_, _>>()?;
                if polygons.is_empty() { Err(Flaw::Empty) } else { Ok(Shape::Area(polygons)) }
            }
            _ => Err(Flaw::Type),
        }
    }
}

struct Reader {
    metric: Metric,
    /// How many more positions there may be.
    left: usize,
}

impl Reader {
    fn position(&mut self, value: &Value) -> Result<Position, Flaw> {
        let Value::Array(numbers) = value else { return Err(Flaw::Position) };
        let number = |value: &Value| match value {
            Value::Number(number) => Some(Number::as_f64(*number)).filter(|n| n.is_finite()),
            Value::Undefined
            | Value::Null
            | Value::Bool(_)
            | Value::Text(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        };
        let numbers: Option<Vec<f64>> = numbers.iter().take(4).map(number).collect();
        // A third number is the height, which is of no account.
        let Some(&[x, y] | &[x, y, _]) = numbers.as_deref() else { return Err(Flaw::Position) };
        match self.metric {
            Metric::Geography if !(-180.0..=180.0).contains(&x) => return Err(Flaw::Longitude),
            Metric::Geography if !(-90.0..=90.0).contains(&y) => return Err(Flaw::Latitude),
            Metric::Geometry if x.abs().max(y.abs()) > COORDINATE_MAX => {
                return Err(Flaw::Magnitude);
            }
            Metric::Geography | Metric::Geometry => {}
        }
        self.left = self.left.checked_sub(1).ok_or(Flaw::TooMany)?;
        Ok(Position { x, y })
    }

    fn positions(&mut self, value: &Value) -> Result<Vec<Position>, Flaw> {
        array(value)?.iter().map(|one| self.position(one)).collect()
    }

    fn line(&mut self, value: &Value) -> Result<Vec<Position>, Flaw> {
        let mut line = self.positions(value)?;
        self.check_neighbours(&line)?;
        self.drop_repeated(&mut line);
        if line.len() < 2 { Err(Flaw::ShortLine) } else { Ok(line) }
    }

    fn polygon(&mut self, value: &Value) -> Result<Polygon, Flaw> {
        let rings = array(value)?;
        if rings.is_empty() {
            return Err(Flaw::Empty);
        }
        rings.iter().map(|ring| self.ring(ring)).collect()
    }

    fn ring(&mut self, value: &Value) -> Result<Vec<Position>, Flaw> {
        let mut ring = self.positions(value)?;
        if ring.len() < 4 {
            return Err(Flaw::ShortRing);
        }
        if ring.first() != ring.last() {
            return Err(Flaw::OpenRing);
        }
        self.check_neighbours(&ring)?;
        self.drop_repeated(&mut ring);
        ring.pop();
        if ring.len() < 3 { Err(Flaw::FlatRing) } else { Ok(ring) }
    }

    fn drop_repeated(&self, line: &mut Vec<Position>) {
        line.dedup_by_key(|position| Vector::of(*position, self.metric));
    }

    fn check_neighbours(&self, line: &[Position]) -> Result<(), Flaw> {
        if self.metric == Metric::Geometry {
            return Ok(());
        }
        let opposite = |a: Position, b: Position| {
            let [a, b] = [a, b].map(|position| Vector::of(position, self.metric));
            (a + b).length() < OPPOSITE
        };
        let any = line.windows(2).any(|pair| opposite(pair[0], pair[1]));
        if any { Err(Flaw::Opposite) } else { Ok(()) }
    }
}

fn array(value: &Value) -> Result<&[Value], Flaw> {
    let Value::Array(elements) = value else { return Err(Flaw::Nesting) };
    Ok(elements)
}
