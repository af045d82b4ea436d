//! Shapes as edges and places, and how they lie to each other.
//!
//! Every set of places is taken with its border: what touches, intersects; what lies on the border,
//! lies within.

use super::geojson::{Metric, Polygon, Position, Shape};
use super::vector::{Vector, turn};

/// Places closer than this are one, as a part of the largest coordinate: the rounding of a few
/// operations. On Earth it is a tenth of a micrometre.
const SLACK: f64 = 1e-14;

/// Most places that `within` looks at before it gives up. Two values of 4096 positions each that
/// share no borders need half of it.
const SAMPLES_MAX: usize = 1 << 15;

/// A shape made ready for geometry.
#[derive(Debug)]
pub(super) struct Figure {
    pub(super) vertices: Vec<Vector>,
    pub(super) edges: Vec<Edge>,
    /// Rings of polygons. The inside is left of every one of them.
    pub(super) polygons: Vec<Vec<Ring>>,
    /// A place of each part that hangs together.
    parts: Vec<Vector>,
    metric: Metric,
    slack: f64,
}

/// Whether the holes of polygons are no part of them. To find out which side of a ring is the hole takes
/// time that grows with the rings on both sides.
#[derive(Clone, Copy, Debug)]
enum Holes {
    Open,
    Filled,
}

/// The edges of a ring in their order.
pub(super) type Ring = Vec<Edge>;

/// What lies between two places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) start: Vector,
    pub(super) end: Vector,
    /// The middle of the chord. The edge is in the ball around it over the chord.
    pub(super) middle: Vector,
    pub(super) reach: f64,
}

impl Edge {
    fn new(start: Vector, end: Vector) -> Self {
        let chord = end - start;
        Self { start, end, middle: start + chord * 0.5, reach: chord.length() * 0.5 }
    }

    /// How far left of the edge's line a place lies.
    fn left(&self, place: Vector) -> f64 {
        turn(self.start, self.end, place) / (2.0 * self.reach)
    }

    fn has(&self, place: Vector, slack: f64) -> bool {
        if (place - self.middle).length() > self.reach + slack {
            return false;
        }
        let (to_start, to_end) = (self.start - place, self.end - place);
        to_start.length() <= slack
            || to_end.length() <= slack
            || (self.left(place).abs() <= slack && to_start.dot(to_end) <= 0.0)
    }

    fn is_near(&self, other: &Edge, slack: f64) -> bool {
        (self.middle - other.middle).length() <= self.reach + other.reach + slack
    }

    /// True if the edges cross in a place that is an end of neither.
    fn crosses(&self, other: &Edge, slack: f64) -> bool {
        let sides = [
            -self.left(other.start),
            self.left(other.end),
            other.left(self.start),
            -other.left(self.end),
        ];
        // If the signs agreed in pairs only, the lines would cross on the other side of the globe.
        sides.iter().all(|side| *side > slack) || sides.iter().all(|side| *side < -slack)
    }

    fn touches(&self, other: &Edge, slack: f64) -> bool {
        self.has(other.start, slack)
            || self.has(other.end, slack)
            || other.has(self.start, slack)
            || other.has(self.end, slack)
    }
}

impl Figure {
    /// Two shapes that are to be compared.
    pub(super) fn pair(a: &Shape, b: &Shape, metric: Metric) -> (Figure, Figure) {
        let (mut a, mut b) = (Figure::new(a, metric), Figure::new(b, metric));
        let slack = a.slack.max(b.slack);
        (a.slack, b.slack) = (slack, slack);
        (a, b)
    }

    pub(super) fn new(shape: &Shape, metric: Metric) -> Figure {
        Self::build(shape, metric, Holes::Open)
    }

    /// All its edges, and no hole: where it is about, in time that grows with its places and no faster.
    pub(super) fn filled(shape: &Shape, metric: Metric) -> Figure {
        Self::build(shape, metric, Holes::Filled)
    }

    fn build(shape: &Shape, metric: Metric, holes: Holes) -> Figure {
        let mut figure = Figure {
            vertices: Vec::new(),
            edges: Vec::new(),
            polygons: Vec::new(),
            parts: Vec::new(),
            metric,
            slack: SLACK,
        };
        match shape {
            Shape::Point(position) => figure.vertices.push(Vector::of(*position, metric)),
            Shape::Line(positions) => figure.add_line(positions),
            Shape::Area(polygons) => {
                for polygon in polygons {
                    figure.add_polygon(polygon, holes);
                }
            }
        }
        if figure.parts.is_empty() {
            figure.parts.extend(figure.vertices.first());
        }
        let largest = figure.vertices.iter().map(|place| place.x.abs().max(place.y.abs()));
        figure.slack *= largest.fold(1.0, f64::max);
        figure
    }

    fn add_line(&mut self, positions: &[Position]) {
        self.vertices.extend(positions.iter().map(|one| Vector::of(*one, self.metric)));
        self.edges.extend(self.vertices.windows(2).map(|pair| Edge::new(pair[0], pair[1])));
    }

    fn add_polygon(&mut self, polygon: &Polygon, holes: Holes) {
        let metric = self.metric;
        let mut rings: Vec<Ring> = Vec::with_capacity(polygon.len());
        for ring in polygon {
            let places: Vec<Vector> = ring.iter().map(|one| Vector::of(*one, metric)).collect();
            let edges = ring_of(&places);
            self.vertices.extend_from_slice(&places);
            let is_right_way = match (rings.first(), holes) {
                // On the globe the way decides which side of the ring is inside.
                (None, _) => metric == Metric::Geography || is_counter_clockwise(&places),
                // A hole has the polygon on its left, whatever way it was written.
                (Some(outer), Holes::Open) => {
                    is_left_of(&edges, free_place(outer, &edges, self.slack))
                }
                (Some(_), Holes::Filled) => {
                    self.edges.extend(edges);
                    continue;
                }
            };
            rings.push(if is_right_way { edges } else { reversed(places) });
        }
        self.parts.extend(rings.first().and_then(|outer| outer.first()).map(|edge| edge.start));
        self.edges.extend(rings.iter().flatten());
        self.polygons.push(rings);
    }

    /// The corners of the box between the outermost vertices; on the plane, nothing is beyond it.
    pub(super) fn outermost(&self) -> (Vector, Vector) {
        let ends = |of: fn(&Vector) -> f64| {
            let values = self.vertices.iter().map(of);
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        let ((left, right), (bottom, top)) = (ends(|place| place.x), ends(|place| place.y));
        (Vector { x: left, y: bottom, z: 1.0 }, Vector { x: right, y: top, z: 1.0 })
    }

    /// True if they are so far apart that it needs no geometry, in which the small one could vanish beside
    /// the distance.
    fn is_beyond(&self, other: &Figure) -> bool {
        if self.metric == Metric::Geography {
            return false;
        }
        let is_before = |a: Vector, b: Vector| a.x + self.slack < b.x || a.y + self.slack < b.y;
        let ((low, high), (other_low, other_high)) = (self.outermost(), other.outermost());
        is_before(high, other_low) || is_before(other_high, low)
    }

    /// True if they have a place in common.
    pub(super) fn intersects(&self, other: &Figure) -> bool {
        if self.is_beyond(other) {
            return false;
        }
        let meets = |a: &Edge, b: &Edge| {
            a.is_near(b, self.slack) && (a.crosses(b, self.slack) || a.touches(b, self.slack))
        };
        self.edges.iter().any(|a| other.edges.iter().any(|b| meets(a, b)))
            || self.parts.iter().any(|part| other.covers(*part))
            || other.parts.iter().any(|part| self.covers(*part))
    }

    /// True if no place of this lies outside of the other; none if that is too much to find out.
    pub(super) fn is_within(&self, other: &Figure) -> Option<bool> {
        if self.is_beyond(other) || (other.polygons.is_empty() && !self.polygons.is_empty()) {
            return Some(false);
        }
        let mut samples = self.vertices.len() + other.vertices.len();
        if !self.vertices.iter().all(|vertex| other.covers(*vertex)) {
            return Some(false);
        }
        for edge in &self.edges {
            let near = |b: &&Edge| b.is_near(edge, self.slack);
            if other.edges.iter().filter(near).any(|b| b.crosses(edge, self.slack)) {
                return Some(false);
            }
            let middles = self.middles(edge, other);
            samples += middles.len();
            if samples > SAMPLES_MAX {
                return None;
            }
            if !middles.iter().all(|middle| self.has_no_more(edge, *middle, other)) {
                return Some(false);
            }
        }
        if self.polygons.is_empty() {
            return Some(true);
        }
        // The border of the other must not pass through the inside: beyond it there is a place
        // outside of the other.
        for edge in &other.edges {
            let middles = self.middles(edge, self);
            samples += middles.len();
            if samples > SAMPLES_MAX {
                return None;
            }
            if middles.iter().chain([&edge.start]).any(|place| self.has_inside(*place)) {
                return Some(false);
            }
        }
        Some(true)
    }

    /// True if the other has this place of an edge, and what lies left of it, if that is ours.
    fn has_no_more(&self, edge: &Edge, place: Vector, other: &Figure) -> bool {
        let mut borders = other.edges.iter().filter(|one| one.has(place, self.slack)).peekable();
        if borders.peek().is_none() || self.polygons.is_empty() {
            return other.covers(place);
        }
        let direction = edge.end - edge.start;
        borders.any(|border| (border.end - border.start).dot(direction) > 0.0)
    }

    /// The middles of the pieces into which places of the other cut an edge.
    fn middles(&self, edge: &Edge, other: &Figure) -> Vec<Vector> {
        let along = edge.end - edge.start;
        let mut cuts: Vec<Vector> =
            other.vertices.iter().copied().filter(|place| edge.has(*place, self.slack)).collect();
        cuts.extend([edge.start, edge.end]);
        cuts.sort_by(|a, b| along.dot(*a).total_cmp(&along.dot(*b)));
        let pieces = cuts.windows(2).filter(|pair| (pair[1] - pair[0]).length() > 2.0 * self.slack);
        pieces.map(|pair| self.on_surface((pair[0] + pair[1]) * 0.5)).collect()
    }

    fn on_surface(&self, place: Vector) -> Vector {
        match self.metric {
            Metric::Geography => place.unit(),
            Metric::Geometry => place,
        }
    }

    /// True if the place belongs to the figure, border included.
    pub(super) fn covers(&self, place: Vector) -> bool {
        let is_vertex = self.edges.is_empty()
            && self.vertices.iter().any(|vertex| (*vertex - place).length() <= self.slack);
        is_vertex || self.has_on_border(place) || self.has_in_polygon(place)
    }

    fn has_inside(&self, place: Vector) -> bool {
        !self.has_on_border(place) && self.has_in_polygon(place)
    }

    fn has_on_border(&self, place: Vector) -> bool {
        self.edges.iter().any(|edge| edge.has(place, self.slack))
    }

    fn has_in_polygon(&self, place: Vector) -> bool {
        let is_inside = |rings: &Vec<Ring>| rings.iter().all(|ring| is_left_of(ring, place));
        self.polygons.iter().any(is_inside)
    }
}

/// The edges between places, and from the last to the first.
pub(super) fn ring_of(places: &[Vector]) -> Ring {
    let next = places.iter().cycle().skip(1);
    places.iter().zip(next).map(|(start, end)| Edge::new(*start, *end)).collect()
}

fn reversed(mut places: Vec<Vector>) -> Ring {
    places.reverse();
    ring_of(&places)
}

/// On the plane.
fn is_counter_clockwise(places: &[Vector]) -> bool {
    let first = places[0];
    places.windows(2).map(|pair| turn(first, pair[0], pair[1])).sum::<f64>() > 0.0
}

/// A place of the outer ring that does not lie on a hole's.
fn free_place(outer: &Ring, hole: &Ring, slack: f64) -> Vector {
    let is_free = |edge: &&Edge| !hole.iter().any(|one| one.has(edge.start, slack));
    outer.iter().find(is_free).unwrap_or(&outer[0]).start
}

/// True if the place, which is not on the ring, lies on its left.
///
/// A path leads from it to the middle of that edge whose line is farthest away. It arrives from the
/// left or from the right, and every crossing before that changes sides. A corner on the path
/// counts as left of it, for both its edges.
fn is_left_of(ring: &Ring, place: Vector) -> bool {
    let distances = ring.iter().map(|edge| edge.left(place).abs());
    let farthest = distances.enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    let (goal, _) = farthest.expect("a ring has edges");
    let middle = ring[goal].middle;
    let is_crossed = |edge: &Edge| {
        let (start_left, end_left) =
            (turn(place, middle, edge.start) >= 0.0, turn(place, middle, edge.end) >= 0.0);
        start_left != end_left
            && (edge.left(place) > 0.0) == end_left
            && (edge.left(middle) < 0.0) == end_left
    };
    let others = ring.iter().enumerate().filter(|(number, _)| *number != goal);
    let crossings = others.filter(|(_, edge)| is_crossed(edge)).count();
    (ring[goal].left(place) > 0.0) == (crossings % 2 == 0)
}
