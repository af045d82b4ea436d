//! Distances and areas, in metres on the WGS-84 ellipsoid or in the units of a plane.
//!
//! Edges are great elliptic arcs, where a plane through the centre of the Earth cuts its surface. In
//! longitude and latitude these are the same lines as the great circles of a sphere.

use geographiclib_rs::{Geodesic, InverseGeodesic as _};

use super::figure::{Edge, Figure, Ring, ring_of};
use super::geojson::{Metric, Position, Shape};
use super::vector::{Vector, turn};

/// The flattening of WGS-84, and its half axes in metres.
const FLATTENING: f64 = 1.0 / 298.257_223_563;
const EQUATORIAL_RADIUS: f64 = 6_378_137.0;
const POLAR_RADIUS: f64 = EQUATORIAL_RADIUS * (1.0 - FLATTENING);

/// The square of the eccentricity.
const ECCENTRICITY_2: f64 = FLATTENING * (2.0 - FLATTENING);

/// How much nearer a place may be on the ellipsoid than on the sphere, compared with others.
const ELLIPSOID_DOUBT: f64 = 1.02;

/// Half the width of the arc, in radians, in which the nearest place of an edge is sought. On the
/// sphere it is off by less than a three-hundredth of the distance.
const SEARCH_WIDTH: f64 = 0.01;

/// Steps of that search: each leaves 0.62 of the width, all of them less than ten micrometres.
const SEARCH_STEPS: u32 = 48;

/// The distance between the nearest places of two shapes; none if it is no number.
pub(super) fn distance(a: &Shape, b: &Shape, metric: Metric) -> Option<f64> {
    if let (Shape::Point(a), Shape::Point(b)) = (a, b) {
        return Some(between(*a, *b, metric)).filter(|distance| distance.is_finite());
    }
    let (a, b) = Figure::pair(a, b, metric);
    if a.intersects(&b) {
        return Some(0.0);
    }
    // Of figures that do not meet, one of the nearest places is a vertex.
    let mut nearest = Nearest { metric, distance: f64::INFINITY, reach: f64::INFINITY, pair: None };
    nearest.look(&a.vertices, &b.edges);
    nearest.look(&b.vertices, &a.edges);
    nearest.refined()
}

fn between(a: Position, b: Position, metric: Metric) -> f64 {
    match metric {
        Metric::Geography => Geodesic::wgs84().inverse(a.y, a.x, b.y, b.x),
        Metric::Geometry => (Vector::of(a, metric) - Vector::of(b, metric)).length(),
    }
}

/// The pair of a vertex and an edge that is nearest so far, along a straight line.
///
/// A straight line through the Earth orders pairs as the way on its surface does, up to a hundred
/// thousandth of a distance of 1000 km, a ten millionth of one of 100 km, and so on.
struct Nearest {
    metric: Metric,
    distance: f64,
    /// The same without regard to the ellipsoid.
    reach: f64,
    pair: Option<(Vector, Edge)>,
}

impl Nearest {
    fn look(&mut self, vertices: &[Vector], edges: &[Edge]) {
        for vertex in vertices {
            for edge in edges {
                let least = (*vertex - edge.middle).length() - edge.reach;
                if least <= self.reach * ELLIPSOID_DOUBT {
                    self.compare(*vertex, edge);
                }
            }
        }
    }

    fn compare(&mut self, vertex: Vector, edge: &Edge) {
        let foot = self.foot(vertex, edge);
        let distance = (self.in_space(foot) - self.in_space(vertex)).length();
        if distance < self.distance {
            self.distance = distance;
            self.reach = (foot - vertex).length();
            self.pair = Some((vertex, *edge));
        }
    }

    /// The place of an edge that is nearest on the plane or on the sphere.
    fn foot(&self, vertex: Vector, edge: &Edge) -> Vector {
        let chord = edge.end - edge.start;
        match self.metric {
            Metric::Geometry => {
                let part = (vertex - edge.start).dot(chord) / chord.dot(chord);
                edge.start + chord * part.clamp(0.0, 1.0)
            }
            Metric::Geography => {
                let arc = Arc::of(edge);
                let foot = arc.start * vertex.dot(arc.start) + arc.ahead * vertex.dot(arc.ahead);
                let is_behind_start = foot.dot(arc.ahead) >= 0.0;
                let is_before_end = foot.cross(edge.end).dot(arc.start.cross(arc.ahead)) >= 0.0;
                if is_behind_start && is_before_end && foot.dot(foot) > 0.0 {
                    return foot.unit();
                }
                let is_end = vertex.dot(edge.end) > vertex.dot(edge.start);
                if is_end { edge.end } else { edge.start }
            }
        }
    }

    /// A place in metres from the centre of the Earth, or on the plane.
    fn in_space(&self, place: Vector) -> Vector {
        match self.metric {
            Metric::Geometry => place,
            Metric::Geography => {
                let radius = EQUATORIAL_RADIUS / (1.0 - ECCENTRICITY_2 * place.z * place.z).sqrt();
                let z = place.z * (1.0 - ECCENTRICITY_2);
                Vector { z, ..place } * radius
            }
        }
    }

    /// The distance of the nearest pair on the surface: by golden sections around the place that
    /// is nearest on the sphere.
    fn refined(&self) -> Option<f64> {
        let (vertex, edge) = self.pair.as_ref()?;
        if self.metric == Metric::Geometry {
            return Some(self.distance);
        }
        let golden = 0.5 * (5.0_f64.sqrt() - 1.0);
        let (arc, vertex) = (Arc::of(edge), *vertex);
        let foot = self.foot(vertex, edge);
        let (at, end) = (arc.angle_to(foot), arc.angle_to(edge.end));
        let distance = |angle: f64| {
            let (sin, cos) = libm::sincos(angle);
            let place = arc.start * cos + arc.ahead * sin;
            let [from, to] = [vertex, place].map(Vector::longitude_latitude);
            between(from, to, Metric::Geography)
        };
        let (mut low, mut high) = ((at - SEARCH_WIDTH).max(0.0), (at + SEARCH_WIDTH).min(end));
        for _ in 0..SEARCH_STEPS {
            let step = (high - low) * golden;
            let (left, right) = (high - step, low + step);
            if distance(left) < distance(right) { high = right } else { low = left }
        }
        Some(distance(0.5 * (low + high)).min(distance(at)))
    }
}

/// An arc of a great circle: where it starts, and the direction there.
struct Arc {
    start: Vector,
    ahead: Vector,
}

impl Arc {
    fn of(edge: &Edge) -> Arc {
        let chord = edge.end - edge.start;
        Arc { start: edge.start, ahead: edge.start.cross(chord).cross(edge.start).unit() }
    }

    /// How far ahead a place on its circle is, in radians.
    fn angle_to(&self, place: Vector) -> f64 {
        libm::atan2(place.dot(self.ahead), place.dot(self.start))
    }
}

/// The area of all polygons.
pub(super) fn area(shape: &Shape, metric: Metric) -> f64 {
    let figure = Figure::new(shape, metric);
    let of_rings: fn(&[Ring]) -> f64 = match metric {
        Metric::Geography => globe_area,
        Metric::Geometry => plane_area,
    };
    figure.polygons.iter().map(|rings| of_rings(rings)).sum::<f64>() + 0.0
}

fn plane_area(rings: &[Ring]) -> f64 {
    let signed = |ring: &Ring| {
        let first = ring[0].start;
        ring.iter().map(|edge| turn(first, edge.start, edge.end)).sum::<f64>() * 0.5
    };
    rings.iter().map(signed).sum()
}

/// What is left of the outer ring, less what is right of the others.
fn globe_area(rings: &[Ring]) -> f64 {
    let (outer, holes) = rings.split_first().expect("a polygon has an outer ring");
    let right = |hole: &Ring| on_one_side(-spherical(hole), -flattening(hole));
    on_one_side(spherical(outer), flattening(outer)) - holes.iter().map(right).sum::<f64>()
}

/// Coefficients of the area between the equator and a parallel by the sine `s` of its latitude, over
/// odd powers of `s`, in units of half the square of the polar radius: `e^2k (2k+2) / (2k+1)`.
const ZONE: [f64; 8] = {
    let mut coefficients = [0.0; 8];
    let (mut k, mut power) = (0, 1.0);
    while k < 8 {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let order = (2 * k) as f64;
        coefficients[k] = power * (order + 2.0) / (order + 1.0);
        power *= ECCENTRICITY_2;
        k += 1;
    }
    coefficients
};

/// Areas on a unit sphere become those of the Earth, if it were a sphere of the same surface.
fn zone_sum() -> f64 {
    ZONE.iter().sum()
}

/// A negative sum above this, 200 square centimetres, is the noise of adding up, and not the area of
/// the whole Earth.
const NOISE: f64 = -1e-15;

/// The area left of a ring, from its part on the sphere and what the flattening adds. A negative
/// sum is the area on the right, and stands for all the rest.
fn on_one_side(spherical: f64, flattening: f64) -> f64 {
    let whole = 4.0 * std::f64::consts::PI * zone_sum();
    let sum = spherical * zone_sum() + flattening;
    let sum = if (NOISE..0.0).contains(&sum) { 0.0 } else { sum.rem_euclid(whole) };
    sum * 0.5 * POLAR_RADIUS * POLAR_RADIUS
}

/// The area left of a ring on the unit sphere, by triangles from its first place; multiples of the
/// whole sphere are left in.
fn spherical(ring: &Ring) -> f64 {
    let first = ring[0].start;
    let excess = |edge: &Edge| {
        let Edge { start: b, end: c, .. } = *edge;
        let height = 1.0 + first.dot(b) + b.dot(c) + c.dot(first);
        2.0 * libm::atan2(turn(first, b, c), height)
    };
    ring.iter().map(excess).sum()
}

/// What the ellipsoid has more than the sphere, left of a ring, in the units of `ZONE`.
///
/// By Green's theorem it is a sum over edges. Zones less their share of the sphere vanish at the
/// poles, and so do the poles from the integral: with `s` the sine of the latitude it is
/// `-n_z ∫ K(s)`, along the arc whose unit normal is `n`.
fn flattening(ring: &Ring) -> f64 {
    ring.iter().map(|edge| -along(edge)).sum()
}

/// Longest piece of an arc, in radians, that three points of Gauss stand for.
const PIECE_MAX: f64 = 0.1;

/// How many pieces there are in all edges of polygons on the globe.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a few for each of a few thousand edges"
)]
pub(super) fn pieces(shape: &Shape) -> u64 {
    let Shape::Area(polygons) = shape else { return 0 };
    let in_ring = |ring: &Vec<Position>| {
        let places: Vec<Vector> =
            ring.iter().map(|one| Vector::of(*one, Metric::Geography)).collect();
        let edges = ring_of(&places);
        edges.iter().map(|edge| pieces_of(Arc::of(edge).angle_to(edge.end))).sum::<f64>()
    };
    polygons.iter().flatten().map(in_ring).sum::<f64>() as u64
}

fn pieces_of(angle: f64) -> f64 {
    (angle / PIECE_MAX).ceil().max(1.0)
}

fn along(edge: &Edge) -> f64 {
    let arc = Arc::of(edge);
    let angle = arc.angle_to(edge.end);
    let pieces = pieces_of(angle);
    let half = 0.5 * angle / pieces;
    let offset = half * 0.6_f64.sqrt();
    let at = |angle: f64| {
        let (sin, cos) = libm::sincos(angle);
        excess_per_normal(arc.start.z * cos + arc.ahead.z * sin)
    };
    let (mut sum, mut piece) = (0.0, 0.0);
    while piece < pieces {
        let middle = (2.0 * piece + 1.0) * half;
        sum +=
            half * (5.0 * at(middle - offset) + 8.0 * at(middle) + 5.0 * at(middle + offset)) / 9.0;
        piece += 1.0;
    }
    arc.start.cross(arc.ahead).z * sum
}

/// `K(s) = -s Σ c_k (1 + s² + … + s^(2k-2))`: the zone up to `s` less its share of the sphere,
/// divided by `1 - s²`.
fn excess_per_normal(s: f64) -> f64 {
    let (mut sum, mut powers, mut power) = (0.0, 0.0, 1.0);
    for coefficient in &ZONE[1..] {
        powers += power;
        power *= s * s;
        sum += coefficient * powers;
    }
    -s * sum
}
