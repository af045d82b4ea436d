//! Where in space a shape is: the cells it may touch, for indexes.
//!
//! Space is a cube around the globe, or the square that is the plane, halved along every axis again and
//! again. A cell is named by the way to it, one digit for each halving: so the names of all cells inside
//! it begin with its own. A shape is in the few cells of one size that a box around it overlaps. If two
//! shapes have a place in common, so have two of their cells: one of them is inside the other.
//!
//! On the globe this has neither poles nor a date line to go around.

use std::collections::BTreeSet;

use super::figure::Figure;
use super::geojson::{Metric, Shape};
use super::vector::Vector;
use crate::query::value::Value;

/// Halvings of the cube around the globe: the smallest cells are twelve metres wide.
const HALVINGS_ON_GLOBE: u32 = 20;
/// Halvings of the plane: the smallest cells are a ten millionth wide, or, far from the axes, a ten
/// millionth of the distance to them.
const HALVINGS_ON_PLANE: u32 = 32;
/// The plane ends beyond what `asinh` makes of the largest coordinate.
const PLANE_END: f64 = 240.0;

/// Codes of coordinates from the middle of space to its end: half of what 32 bits hold.
const CODES_FROM_ZERO: f64 = 2_147_483_648.0;

/// Cells along each axis for a stored shape: each has an entry.
const SPREAD_STORED: u64 = 2;
/// Cells along each axis for the region of a query: more of them fit it better.
const SPREAD_SOUGHT: u64 = 4;

/// Least metres on the Earth for a radian between two verticals: the curvature of a meridian at the
/// equator.
const METRES_PER_RADIAN: f64 = 6_335_000.0;
/// What is added around shapes for the rounding of what asks about them, in radii of the globe and as
/// part of the largest coordinate of the plane.
const SLACK_ON_GLOBE: f64 = 1e-9;
const SLACK_ON_PLANE: f64 = 1e-12;

/// A polygon whose ring is no farther from its middle, in radii, is small or is all the rest.
const CAP_MAX: f64 = 1.2;

/// A part of space, by the digits of the way to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell(Vec<u8>);

impl Cell {
    /// One digit for each halving, none of them 0.
    pub(crate) fn digits(&self) -> &[u8] {
        &self.0
    }

    /// The larger cells that it is inside of.
    fn enclosing(&self) -> impl Iterator<Item = Cell> {
        (0..self.0.len()).map(|halvings| Cell(self.0[..halvings].to_vec()))
    }
}

/// What a condition asks about: nothing outside of its cells can meet it.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    cells: Vec<Cell>,
    /// Every cell that one of these is inside of, once.
    enclosing: BTreeSet<Cell>,
}

impl Region {
    /// All that is no farther from a shape than so many metres, or units of the plane; none if the value
    /// is no shape.
    pub(crate) fn around(value: &Value, distance: f64, metric: Metric) -> Option<Self> {
        let bounds = Bounds::around(&Shape::parse(value, metric).ok()?, metric);
        let distance = distance.max(0.0);
        let margin = match metric {
            Metric::Geography => distance / METRES_PER_RADIAN,
            Metric::Geometry => distance,
        };
        let cells = bounds.grown(margin).cells(SPREAD_SOUGHT);
        let enclosing = cells.iter().flat_map(Cell::enclosing).collect();
        Some(Self { cells, enclosing })
    }

    /// Its cells; what is inside of them belongs to it.
    pub(crate) fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// The larger cells that its own are inside of, each by itself.
    pub(crate) fn enclosing(&self) -> impl ExactSizeIterator<Item = &Cell> {
        self.enclosing.iter()
    }
}

/// The cells of a stored value; none if it is no shape.
pub(crate) fn cells_of(value: &Value, metric: Metric) -> Vec<Cell> {
    let shape = Shape::parse(value, metric).ok();
    shape.map_or(Vec::new(), |shape| Bounds::around(&shape, metric).cells(SPREAD_STORED))
}

/// A box along the axes.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    metric: Metric,
    low: Vector,
    high: Vector,
}

impl Bounds {
    /// A box around all places of a shape.
    fn around(shape: &Shape, metric: Metric) -> Self {
        let figure = Figure::filled(shape, metric);
        match metric {
            Metric::Geography => Self::on_globe(&figure),
            Metric::Geometry => Self::on_plane(&figure),
        }
    }

    /// A cube around a ball that holds the figure.
    fn on_globe(figure: &Figure) -> Self {
        let metric = Metric::Geography;
        let nothing = Vector { x: 0.0, y: 0.0, z: 0.0 };
        let everything = Self { metric, low: nothing, high: nothing }.grown(1.0);
        let sum = figure.vertices.iter().fold(nothing, |sum, vertex| sum + *vertex);
        if sum.length() < SLACK_ON_GLOBE {
            return everything;
        }
        let middle = sum.unit();
        let vertices = figure.vertices.iter().map(|vertex| (*vertex - middle).length());
        let edges = figure.edges.iter().map(|edge| (edge.middle - middle).length() + edge.reach);
        let reach = vertices.chain(edges).fold(0.0, f64::max);
        // No ring is far from the middle: so a polygon is there, or it is on the other side, too.
        let is_around_middle =
            figure.polygons.is_empty() || (reach <= CAP_MAX && !figure.covers(middle * -1.0));
        if !is_around_middle {
            return everything;
        }
        Self { metric, low: middle, high: middle }.grown(reach + SLACK_ON_GLOBE)
    }

    /// What is between the outermost vertices.
    fn on_plane(figure: &Figure) -> Self {
        let (low, high) = figure.outermost();
        let ends = [low.x, low.y, high.x, high.y];
        let largest = ends.map(f64::abs).into_iter().fold(1.0, f64::max);
        Self { metric: Metric::Geometry, low, high }.grown(largest * SLACK_ON_PLANE)
    }

    fn grown(self, margin: f64) -> Self {
        let margin = Vector { x: margin, y: margin, z: margin };
        Self { low: self.low - margin, high: self.high + margin, ..self }
    }

    /// The smallest cells of which it overlaps no more than so many along each axis.
    fn cells(&self, spread: u64) -> Vec<Cell> {
        let [low, high] = [self.low, self.high].map(|corner| self.codes(corner));
        let halvings = match self.metric {
            Metric::Geography => HALVINGS_ON_GLOBE,
            Metric::Geometry => HALVINGS_ON_PLANE,
        };
        let at = |code: u64, halvings: u32| code >> (u32::BITS - halvings);
        let is_few = |halvings: &u32| {
            let mut ends = low.iter().zip(high);
            ends.all(|(low, high)| at(high, *halvings) - at(*low, *halvings) < spread)
        };
        let halvings = (0..=halvings).rev().find(is_few).expect("the whole is one cell");
        let [xs, ys, zs] = [0, 1, 2].map(|axis| at(low[axis], halvings)..=at(high[axis], halvings));
        let columns = xs.flat_map(|x| ys.clone().map(move |y| (x, y)));
        let places = columns.flat_map(|(x, y)| zs.clone().map(move |z| [x, y, z]));
        let has_shapes = |place: &[u64; 3]| match self.metric {
            Metric::Geography => is_on_globe(place, halvings),
            Metric::Geometry => true,
        };
        places.filter(has_shapes).map(|place| cell(place, halvings)).collect()
    }

    /// Coordinates as whole numbers of 32 bits in the same order.
    fn codes(&self, corner: Vector) -> [u64; 3] {
        match self.metric {
            Metric::Geography => [corner.x, corner.y, corner.z].map(of_cube),
            Metric::Geometry => [of_plane(corner.x), of_plane(corner.y), 0],
        }
    }
}

/// A cell by its number along each axis, after so many halvings.
fn cell(place: [u64; 3], halvings: u32) -> Cell {
    let digit = |halving: u32| {
        let [x, y, z] = place.map(|number| (number >> halving) & 1);
        u8::try_from(1 + x + 2 * y + 4 * z).expect("one of eight")
    };
    Cell((0..halvings).rev().map(digit).collect())
}

/// False for the many cells that are inside the globe or outside of it.
fn is_on_globe(place: &[u64; 3], halvings: u32) -> bool {
    let width = 2.0 / f64::from(1_u32 << halvings);
    let (mut nearest, mut farthest) = (0.0, 0.0);
    for number in place {
        #[expect(clippy::cast_precision_loss, reason = "no more than 20 bits")]
        let low = *number as f64 * width - 1.0;
        let high = low + width;
        let near = low.max(-high).max(0.0);
        let far = high.max(-low);
        nearest += near * near;
        farthest += far * far;
    }
    nearest <= 1.0 + SLACK_ON_GLOBE && farthest >= 1.0 - SLACK_ON_GLOBE
}

/// Numbers from -1 to 1 as whole ones.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast to a whole number stops at its bounds"
)]
fn of_cube(coordinate: f64) -> u64 {
    u64::from(((coordinate + 1.0) * CODES_FROM_ZERO) as u32)
}

/// Nobody knows which part of the plane is in use: so it has room for all coordinates, the larger the
/// less.
fn of_plane(coordinate: f64) -> u64 {
    of_cube(libm::asinh(coordinate) / PLANE_END)
}
