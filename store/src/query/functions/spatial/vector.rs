//! Places as vectors of three dimensions, for round and flat coordinates alike.
//!
//! On the globe a place is a point of the unit sphere, and an edge the shorter arc of the great
//! circle between two of them. On the plane it is `(x, y, 1)`, and an edge is straight. In both an
//! edge lies in a plane through the origin, so that the same sign tells on which side of it a place is.

use std::ops::{Add, Mul, Sub};

use super::geojson::{Metric, Position};

/// A place, or a difference of two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Vector {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) z: f64,
}

impl Vector {
    pub(super) fn of(position: Position, metric: Metric) -> Vector {
        match metric {
            Metric::Geometry => Vector { x: position.x, y: position.y, z: 1.0 },
            Metric::Geography => {
                let (sin_longitude, cos_longitude) = sin_cos_degrees(position.x);
                let (z, radius) = sin_cos_degrees(position.y);
                Vector { x: radius * cos_longitude, y: radius * sin_longitude, z }
            }
        }
    }

    /// Longitude and latitude of a place on the globe.
    pub(super) fn longitude_latitude(self) -> Position {
        let radius = (self.x * self.x + self.y * self.y).sqrt();
        Position {
            x: libm::atan2(self.y, self.x).to_degrees(),
            y: libm::atan2(self.z, radius).to_degrees(),
        }
    }

    pub(super) fn dot(self, other: Vector) -> f64 {
        self.x * other.x + self.y * other.y + self.z * other.z
    }

    pub(super) fn cross(self, other: Vector) -> Vector {
        Vector {
            x: self.y * other.z - self.z * other.y,
            y: self.z * other.x - self.x * other.z,
            z: self.x * other.y - self.y * other.x,
        }
    }

    pub(super) fn length(self) -> f64 {
        self.dot(self).sqrt()
    }

    pub(super) fn unit(self) -> Vector {
        self * (1.0 / self.length())
    }
}

/// The volume that three places span with the origin: positive if the way over them turns left.
///
/// Differences come first. They are exact for places close to each other, whose products are not.
pub(super) fn turn(a: Vector, b: Vector, c: Vector) -> f64 {
    a.dot((b - a).cross(c - a))
}

/// Exact at all multiples of a quarter turn, where radians are not.
fn sin_cos_degrees(degrees: f64) -> (f64, f64) {
    let quarter = (degrees / 90.0).round();
    let (sin, cos) = libm::sincos((degrees - quarter * 90.0).to_radians());
    match quarter.rem_euclid(4.0) {
        1.0 => (cos, -sin),
        2.0 => (-sin, -cos),
        3.0 => (-cos, sin),
        _ => (sin, cos),
    }
}

impl Add for Vector {
    type Output = Vector;

    fn add(self, other: Vector) -> Vector {
        Vector { x: self.x + other.x, y: self.y + other.y, z: self.z + other.z }
    }
}

impl Sub for Vector {
    type Output = Vector;

    fn sub(self, other: Vector) -> Vector {
        Vector { x: self.x - other.x, y: self.y - other.y, z: self.z - other.z }
    }
}

impl Mul<f64> for Vector {
    type Output = Vector;

    fn mul(self, factor: f64) -> Vector {
        Vector { x: self.x * factor, y: self.y * factor, z: self.z * factor }
    }
}
