//! Spatial functions, against `geographiclib` in Python: distances by brute force along edges, areas
//! by edges cut into four hundred pieces.

use proptest::prelude::*;

use super::super::tests::{apply, apply_in, laws, read};
use super::measure;
use super::vector::Vector;
use super::*;
use crate::query::value::Number;

fn shape(kind: &str, coordinates: &str) -> Value {
    read(&format!("{{\"type\": \"{kind}\", \"coordinates\": {coordinates}}}"))
}

fn point(coordinates: &str) -> Value {
    shape("Point", coordinates)
}

fn line(coordinates: &str) -> Value {
    shape("LineString", coordinates)
}

fn polygon(rings: &str) -> Value {
    shape("Polygon", rings)
}

/// A polygon over a square of whole degrees.
fn square(x: i32, y: i32, side: i32) -> Value {
    let (right, top) = (x + side, y + side);
    polygon(&format!("[[[{x},{y}],[{right},{y}],[{right},{top}],[{x},{top}],[{x},{y}]]]"))
}

fn number(value: &Value) -> f64 {
    let Value::Number(number) = value else { panic!("{value:?} is no number") };
    Number::as_f64(*number)
}

fn distance_between(a: &Value, b: &Value) -> f64 {
    number(&apply(DISTANCE, &[a.clone(), b.clone()]))
}

fn is_within(a: &Value, b: &Value) -> bool {
    apply("ST_WITHIN", &[a.clone(), b.clone()]).is_true()
}

fn do_intersect(a: &Value, b: &Value) -> bool {
    let one = apply("ST_INTERSECTS", &[a.clone(), b.clone()]).is_true();
    assert_eq!(one, apply("ST_INTERSECTS", &[b.clone(), a.clone()]).is_true());
    one
}

#[track_caller]
fn close(found: f64, expected: f64, relative: f64) {
    let off = (found - expected).abs() / expected.abs().max(1e-9);
    assert!(off <= relative, "{found} is not {expected}, but off by {off:e}");
}

#[test]
fn distances_between_points_are_geodesic() {
    for (a, b, expected) in [
        ("[12.5683,55.6761]", "[-74.0060,40.7128]", 6_205_088.452_675_977),
        ("[0,0]", "[1,0]", 111_319.490_793_273_57),
        ("[0,0]", "[0,1]", 110_574.388_557_798_78),
        ("[0,0]", "[179.5,0.5]", 19_936_288.578_965_314),
        ("[10,90]", "[50,-90]", 20_003_931.458_625_447),
        ("[179.9,10]", "[-179.9,10]", 21_927.872_477_937_37),
        ("[-122.12,47.67,100]", "[-122.12,47.67]", 0.0),
    ] {
        let (a, b) = (point(a), point(b));
        close(distance_between(&a, &b), expected, 1e-12);
        close(distance_between(&b, &a), expected, 1e-12);
    }
}

#[test]
fn distances_to_lines_and_areas_end_at_the_nearest_place() {
    for (a, b, expected) in [
        (point("[10,50]"), line("[[0,45],[20,48]]"), 328_297.186_401_069_63),
        (point("[5,60]"), line("[[0,0],[10,0.001]]"), 6_654_017.266_821_767),
        (point("[-30,-40]"), line("[[0,45],[120,48]]"), 9_880_742.015_857_782),
        (point("[0,10]"), line("[[5,0],[20,30]]"), 955_224.582_944_607),
        (point("[10.001,50.0005]"), line("[[10,50],[10.002,50]]"), 55.614_056_448_001_46),
        (point("[3,0.5]"), square(0, 0, 1), 222_630.557_479_467_88),
        (square(0, 0, 1), square(5, 3, 1), 496_910.875_526_592_14),
    ] {
        close(distance_between(&a, &b), expected, 1e-9);
        close(distance_between(&b, &a), expected, 1e-9);
    }
}

#[test]
fn what_touches_is_at_no_distance() {
    for (a, b) in [
        (point("[0.5,0]"), line("[[0,0],[1,0]]")),
        (point("[1,0]"), line("[[0,0],[1,0]]")),
        (point("[0.5,0.5]"), square(0, 0, 1)),
        (line("[[-1,0.5],[2,0.5]]"), square(0, 0, 1)),
        (square(0, 0, 1), square(1, 1, 1)),
        (square(0, 0, 9), square(3, 3, 1)),
    ] {
        assert!(distance_between(&a, &b).abs() < f64::EPSILON, "{a:?} {b:?}");
    }
}

#[test]
fn areas_have_great_elliptic_edges() {
    for (rings, expected) in [
        // The example of Cosmos's documentation, which gives 735970283.0522614.
        ("[[[31.8,-5],[32,-5],[32,-4.7],[31.8,-4.7],[31.8,-5]]]", 735_970_283.112_9),
        ("[[[0,0],[1,0],[1,1],[0,1],[0,0]]]", 12_308_776_256.877),
        ("[[[0,80],[90,80],[180,80],[-90,80],[0,80]]]", 2_507_439_310_518.5),
        ("[[[0,-80],[-90,-80],[180,-80],[90,-80],[0,-80]]]", 2_507_439_310_518.5),
        ("[[[179,10],[-179,10],[-179,12],[179,12],[179,10]]]", 48_357_225_905.728),
        ("[[[0,0],[90,0],[0,90],[0,0]]]", 63_758_202_715_511.055),
        // Larger than half the globe, and the other way round.
        (
            "[[[-100,-60],[20,-50],[140,-55],[150,60],[30,70],[-110,65],[-100,-60]]]",
            331_581_997_377_852.4,
        ),
        ("[[[0,0],[0,1],[1,1],[1,0],[0,0]]]", 510_053_312_947_831.6),
        // With a hole, whatever its way.
        (
            "[[[0,0],[9,0],[9,9],[0,9],[0,0]],[[1,1],[2,1],[2,2],[1,2],[1,1]]]",
            number(&apply("ST_AREA", &[square(0, 0, 9)]))
                - number(&apply("ST_AREA", &[square(1, 1, 1)])),
        ),
        (
            "[[[0,0],[9,0],[9,9],[0,9],[0,0]],[[1,1],[1,2],[2,2],[2,1],[1,1]]]",
            number(&apply("ST_AREA", &[square(0, 0, 9)]))
                - number(&apply("ST_AREA", &[square(1, 1, 1)])),
        ),
    ] {
        close(number(&apply("ST_AREA", &[polygon(rings)])), expected, 1e-10);
    }
    let small = polygon("[[[10,50],[10.0001,50],[10.0001,50.0001],[10,50.0001],[10,50]]]");
    close(number(&apply("ST_AREA", &[small])), 79.746_433_65, 1e-7);
    let two = shape(
        "MultiPolygon",
        "[[[[0,0],[1,0],[1,1],[0,1],[0,0]]],[[[179,10],[-179,10],[-179,12],[179,12],[179,10]]]]",
    );
    close(number(&apply("ST_AREA", &[two])), 12_308_776_256.877 + 48_357_225_905.728, 1e-10);
    let nothing = "[[[0,0],[5,5],[9,9],[5,5],[0,0]]]";
    assert!(number(&apply("ST_AREA", &[polygon(nothing)])) < 1.0);
    laws(
        r#"
        ST_AREA({"type": "Point", "coordinates": [1, 2]}) -> 0
        ST_AREA({"type": "LineString", "coordinates": [[1, 2], [3, 4]]}) -> 0
        "#,
    );
}

#[test]
fn points_lie_within_areas_or_not() {
    let campus = polygon(
        "[[[-122.13236581015025,47.64606476313813],[-122.13221982500913,47.633757091363975],\
         [-122.11840598103835,47.641749416109235],[-122.12061400629656,47.64589264786028],\
         [-122.13236581015025,47.64606476313813]]]",
    );
    assert!(is_within(&point("[-122.12824857332558,47.6395516675712]"), &campus));
    assert!(!is_within(&point("[-122.12,47.636]"), &campus));
    // The 60th parallel is left behind by the great circle between two of its places.
    let cap = polygon("[[[0,60],[90,60],[180,60],[-90,60],[0,60]]]");
    assert!(is_within(&point("[0,90]"), &cap));
    assert!(is_within(&point("[45,68]"), &cap));
    assert!(!is_within(&point("[45,67]"), &cap));
    assert!(!is_within(&point("[0,-90]"), &cap));
    let crossing = polygon("[[[179,-1],[-179,-1],[-179,1],[179,1],[179,-1]]]");
    assert!(is_within(&point("[180,0]"), &crossing));
    assert!(is_within(&point("[-180,0]"), &crossing));
    assert!(!is_within(&point("[0,0]"), &crossing));
}

#[test]
fn borders_belong_to_areas() {
    let area = square(0, 0, 10);
    for on in ["[0,0]", "[5,0]", "[10,5]", "[0,7]"] {
        assert!(is_within(&point(on), &area), "{on}");
        assert!(do_intersect(&point(on), &area), "{on}");
    }
    assert!(!is_within(&point("[5,-0.000001]"), &area));
    assert!(is_within(&line("[[0,0],[10,0]]"), &area));
    assert!(is_within(&line("[[0,2],[0,5],[3,3]]"), &area));
    assert!(is_within(&area, &area));
    assert!(is_within(&polygon("[[[0,0],[10,0],[10,3],[0,3],[0,0]]]"), &area));
    assert!(do_intersect(&area, &square(10, 10, 1)));
    assert!(do_intersect(&area, &square(10, 0, 10)));
    assert!(!is_within(&square(10, 0, 10), &area));
}

#[test]
fn a_clockwise_ring_means_everything_outside_of_it() {
    let outside = polygon("[[[0,0],[0,1],[1,1],[1,0],[0,0]]]");
    let inside = square(0, 0, 1);
    assert!(!is_within(&point("[0.5,0.5]"), &outside));
    assert!(is_within(&point("[50,50]"), &outside));
    assert!(is_within(&point("[-179.5,-0.5]"), &outside));
    assert!(is_within(&square(20, 20, 5), &outside));
    assert!(!is_within(&outside, &square(20, 20, 5)));
    assert!(is_within(&square(1, 0, 1), &outside));
    assert!(!is_within(&inside, &outside));
    assert!(do_intersect(&inside, &outside));
    assert!(!do_intersect(&polygon("[[[0.2,0.2],[0.8,0.2],[0.5,0.8],[0.2,0.2]]]"), &outside));
    let elsewhere = polygon("[[[20,20],[20,21],[21,21],[21,20],[20,20]]]");
    assert!(do_intersect(&outside, &elsewhere));
    assert!(!is_within(&outside, &elsewhere));
}

#[test]
fn holes_are_no_part_of_areas() {
    for hole in ["[[2,2],[4,2],[4,4],[2,4],[2,2]]", "[[2,2],[2,4],[4,4],[4,2],[2,2]]"] {
        let area = polygon(&format!("[[[0,0],[10,0],[10,10],[0,10],[0,0]],{hole}]"));
        assert!(!is_within(&point("[3,3]"), &area));
        assert!(is_within(&point("[2,3]"), &area), "the border of a hole");
        assert!(is_within(&point("[5,5]"), &area));
        assert!(!is_within(&square(1, 1, 5), &area));
        assert!(is_within(&square(5, 5, 2), &area));
        assert!(!is_within(&square(2, 2, 2), &area), "what fills the hole");
        assert!(do_intersect(&square(2, 2, 2), &area));
        assert!(!do_intersect(&polygon("[[[2.5,2.5],[3.5,2.5],[3,3.5],[2.5,2.5]]]"), &area));
        assert!(!is_within(&line("[[1,3],[5,3]]"), &area));
        assert!(is_within(&area, &square(0, 0, 10)));
        assert!(!is_within(&square(0, 0, 10), &area));
        assert!(is_within(&area, &area));
    }
    let touching = polygon("[[[0,0],[10,0],[10,10],[0,10],[0,0]],[[0,0],[2,1],[1,2],[0,0]]]");
    assert!(!is_within(&point("[1,1]"), &touching));
    assert!(is_within(&point("[5,5]"), &touching));
}

#[test]
fn lines_cross_touch_or_miss() {
    let diagonal = line("[[0,0],[10,10]]");
    assert!(do_intersect(&diagonal, &line("[[0,10],[10,0]]")));
    assert!(do_intersect(&diagonal, &line("[[10,10],[20,0]]")));
    assert!(!do_intersect(&diagonal, &line("[[0,1],[10,11.5]]")));
    assert!(!do_intersect(&diagonal, &line("[[180,0],[-170,-10]]")), "the other side of the globe");
    assert!(!do_intersect(&line("[[0,-5],[0,5]]"), &line("[[179,0],[-179,0]]")));
    assert!(do_intersect(&line("[[170,-5],[-170,5]]"), &line("[[180,-5],[180,5]]")));
    assert!(do_intersect(&diagonal, &square(4, 4, 1)));
    assert!(!do_intersect(&diagonal, &square(20, 0, 1)));
    let equator = line("[[0,0],[4,0],[9,0]]");
    assert!(is_within(&line("[[1,0],[8,0]]"), &equator));
    assert!(is_within(&line("[[8,0],[3,0],[4,0]]"), &equator));
    assert!(!is_within(&line("[[1,0],[10,0]]"), &equator));
    assert!(!is_within(&line("[[1,0],[2,1],[3,0]]"), &equator));
    assert!(!is_within(&line("[[4,0],[4,1]]"), &equator));
    assert!(is_within(&point("[4,0]"), &equator));
    assert!(is_within(&point("[5,0]"), &equator));
    assert!(!is_within(&point("[5,1]"), &equator));
    assert!(!is_within(&square(0, 0, 1), &equator));
    assert!(is_within(&point("[5,1]"), &point("[5,1]")));
    assert!(!is_within(&point("[5,1]"), &point("[5,1.000001]")));
    assert!(!is_within(&equator, &point("[4,0]")));
    assert!(!is_within(&square(0, 0, 1), &point("[0,0]")));
}

#[test]
fn several_areas_are_one() {
    let two = shape(
        "MultiPolygon",
        "[[[[0,0],[1,0],[1,1],[0,1],[0,0]]],[[[5,5],[9,5],[9,9],[5,9],[5,5]]]]",
    );
    assert!(is_within(&point("[0.5,0.5]"), &two));
    assert!(is_within(&square(6, 6, 2), &two));
    assert!(!is_within(&point("[3,3]"), &two));
    assert!(!is_within(&line("[[0.5,0.5],[6,6]]"), &two));
    assert!(is_within(&two, &square(-1, -1, 20)));
    assert!(!is_within(&two, &square(-1, -1, 5)));
    assert!(do_intersect(&two, &square(8, 8, 5)));
    assert!(do_intersect(&square(6, 6, 1), &two));
    assert!(!do_intersect(&two, &square(2, 2, 2)));
}

#[test]
fn coordinates_of_a_plane() {
    let flat = |value: &Value| Shape::parse(value, Metric::Geometry).expect("it is a shape");
    let distance = |a: &Value, b: &Value| measure::distance(&flat(a), &flat(b), Metric::Geometry);
    let within = |a: &Value, b: &Value| {
        let (a, b) = Figure::pair(&flat(a), &flat(b), Metric::Geometry);
        (a.is_within(&b), a.intersects(&b))
    };
    assert_eq!(distance(&point("[0,0]"), &point("[300,400]")), Some(500.0));
    assert_eq!(distance(&point("[0,7]"), &line("[[-5,0],[5,0]]")), Some(7.0));
    assert_eq!(distance(&square(0, 0, 10), &square(13, 14, 2)), Some(5.0));
    assert_eq!(distance(&point("[5,5]"), &square(0, 0, 10)), Some(0.0));
    assert_eq!(distance(&point("[1e100,0]"), &point("[-1e100,0]")), Some(2e100));
    let beyond = Shape::parse(&point("[0,-1.1e100]"), Metric::Geometry);
    assert_eq!(beyond, Err(geojson::Flaw::Magnitude));
    let clockwise =
        polygon("[[[0,0],[0,10],[10,10],[10,0],[0,0]],[[2,2],[4,2],[4,4],[2,4],[2,2]]]");
    close(measure::area(&flat(&clockwise), Metric::Geometry), 96.0, 1e-15);
    assert_eq!(within(&point("[5,5]"), &clockwise), (Some(true), true));
    assert_eq!(within(&point("[3,3]"), &clockwise), (Some(false), false));
    assert_eq!(within(&point("[500,500]"), &square(0, 0, 1000)), (Some(true), true));
    assert_eq!(within(&square(0, 0, 10), &square(0, 0, 20)), (Some(true), true));
    assert_eq!(within(&square(0, 0, 10), &square(5, 5, 10)), (Some(false), true));
    assert_eq!(within(&point("[1e100,-1e100]"), &square(0, 0, 1)), (Some(false), false));
    let far = 1_000_000_000;
    assert_eq!(within(&square(far, far, 1), &square(far, far, 3)), (Some(true), true));
    assert_eq!(within(&square(far, far, 1), &square(far + 2, far, 3)), (Some(false), false));
}

#[test]
fn validity_is_told_with_the_reason() {
    laws(
        r#"
        ST_ISVALID({"type": "Point", "coordinates": [31.9, -32.8]}) -> true
        ST_ISVALID({"type": "Point", "coordinates": [31.9, -132.8]}) -> false
        ST_ISVALID(null) -> false
        ST_ISVALID(undefined) -> false
        ST_ISVALID("POINT(1 2)") -> false
        ST_ISVALIDDETAILED({"type": "Point", "coordinates": [-84.3, 33.7]}) -> {"valid": true}
        ST_ISVALIDDETAILED({"type": "Point", "coordinates": [133.75, -184.4]}) -> {"valid": false, "reason": "Latitude values must be between -90 and 90 degrees."}
        "#,
    );
    let many = format!("[{}[0,0]]", "[0,1],[1,1],".repeat(2048));
    for (value, reason) in [
        (read("{}"), "The value is not a GeoJSON object"),
        (read("{\"type\": 5, \"coordinates\": []}"), "The value is not a GeoJSON object"),
        (read("{\"type\": \"Point\"}"), "The value is not a GeoJSON object"),
        (read("undefined"), "The value is not a GeoJSON object"),
        (shape("point", "[1,2]"), "The type must be"),
        (shape("MultiPoint", "[[1,2]]"), "The type must be"),
        (shape("Point", "5"), "A position must be"),
        (shape("Point", "[1]"), "A position must be"),
        (shape("Point", "[1,2,3,4]"), "A position must be"),
        (shape("Point", "[1,\"2\"]"), "A position must be"),
        (shape("Point", "[1,NaN]"), "A position must be"),
        (shape("Point", "[180.5,0]"), "Longitude values must be"),
        (shape("LineString", "{}"), "Coordinates must be arrays"),
        (shape("LineString", "[]"), "A LineString must have"),
        (shape("LineString", "[[1,2],[1,2]]"), "A LineString must have"),
        (shape("LineString", "[[0,0],[180,0]]"), "Neighbouring positions"),
        (shape("LineString", "[[0,90],[10,-90]]"), "Neighbouring positions"),
        (shape("LineString", &many), "There must not be more than 4096"),
        (shape("Polygon", "[]"), "A Polygon must have at least one ring"),
        (shape("Polygon", "[[]]"), "A ring must have at least four"),
        (shape("Polygon", "[[[0,0],[1,0],[0,0]]]"), "A ring must have at least four"),
        (shape("Polygon", "[[[0,0],[1,0],[1,1],[0,1]]]"), "The first and the last position"),
        (shape("Polygon", "[[[0,0],[0,0],[1,1],[0,0]]]"), "A ring must have at least three"),
        (shape("MultiPolygon", "[]"), "A Polygon must have at least one ring"),
        (shape("MultiPolygon", "[[[0,0],[1,0],[1,1],[0,0]]]"), "A position must be"),
    ] {
        let result = apply("ST_ISVALIDDETAILED", std::slice::from_ref(&value));
        assert!(!result.member("valid").is_true(), "{value:?}");
        let Value::Text(found) = result.member("reason") else { panic!("{value:?}") };
        assert!(found.starts_with(reason), "{value:?}: {found}");
        assert!(!apply("ST_AREA", std::slice::from_ref(&value)).is_defined());
        for name in [DISTANCE, "ST_WITHIN", "ST_INTERSECTS"] {
            assert!(!apply(name, &[value.clone(), point("[1,2]")]).is_defined());
            assert!(!apply(name, &[point("[1,2]"), value.clone()]).is_defined());
        }
    }
}

/// A ring of so many positions, wavy, around a centre.
fn wavy(count: u32, x: f64, y: f64, radius: f64) -> Value {
    let at = |number: u32| {
        let angle = f64::from(number % count) / f64::from(count) * std::f64::consts::TAU;
        let radius = radius * (1.0 + 0.1 * libm::sin(angle * 40.0));
        Value::from(vec![
            Value::from(x + radius * libm::cos(angle)),
            Value::from(y + radius * libm::sin(angle)),
        ])
    };
    let ring = Value::from((0..=count).map(at).collect::<Vec<_>>());
    typed("Polygon", vec![ring].into())
}

fn typed(kind: &str, coordinates: Value) -> Value {
    let member = |name: &str, value: Value| (name.to_string(), value);
    Value::Object(vec![member("type", kind.into()), member("coordinates", coordinates)].into())
}

#[test]
fn the_largest_shapes_take_their_time_but_not_for_ever() {
    let (large, small) = (wavy(4095, 10.0, 10.0, 8.0), wavy(4095, 10.0, 10.0, 3.0));
    assert!(is_within(&small, &large));
    assert!(!is_within(&large, &small));
    assert!(do_intersect(&small, &large));
    assert!(is_within(&large, &large));
    let far = wavy(4095, 60.0, 10.0, 8.0);
    assert!(!do_intersect(&far, &large));
    let distance = distance_between(&far, &large);
    assert!((3_500_000.0..4_000_000.0).contains(&distance), "{distance}");
}

/// Whether a polygon without holes has a place on the plane, by the even-odd rule.
fn has_naively(ring: &[(f64, f64)], (x, y): (f64, f64)) -> bool {
    let edges = ring.iter().zip(ring.iter().cycle().skip(1));
    let crossings = edges
        .filter(|(a, b)| (a.1 > y) != (b.1 > y) && x < (b.0 - a.0) * (y - a.1) / (b.1 - a.1) + a.0);
    crossings.count() % 2 == 1
}

/// A ring that goes once around the origin, and a place.
fn star() -> impl Strategy<Value = (Vec<(f64, f64)>, (f64, f64))> {
    let corner = |number: u32, count: u32, radius: f64| {
        let angle = f64::from(number) / f64::from(count) * std::f64::consts::TAU;
        (radius * libm::cos(angle), radius * libm::sin(angle))
    };
    let ring = prop::collection::vec(1.0..20.0, 3..12).prop_map(move |radii| {
        let count = u32::try_from(radii.len()).unwrap();
        (0..count).zip(&radii).map(|(number, radius)| corner(number, count, *radius)).collect()
    });
    (ring, (-20.0..20.0, -20.0..20.0))
}

fn position((x, y): (f64, f64)) -> Value {
    Value::from(vec![Value::from(x), Value::from(y)])
}

fn star_shape(ring: &[(f64, f64)]) -> Value {
    let closed = ring.iter().chain(&ring[..1]).map(|corner| position(*corner));
    typed("Polygon", vec![Value::from(closed.collect::<Vec<_>>())].into())
}

fn at(place: (f64, f64)) -> Value {
    typed("Point", position(place))
}

proptest! {
    #[test]
    fn insides_on_the_plane_are_those_of_the_even_odd_rule((ring, place) in star()) {
        let shape = |value| Shape::parse(&value, Metric::Geometry).unwrap();
        let (a, b) = Figure::pair(&shape(at(place)), &shape(star_shape(&ring)), Metric::Geometry);
        prop_assert_eq!(a.is_within(&b), Some(has_naively(&ring, place)));
        prop_assert_eq!(a.intersects(&b), has_naively(&ring, place));
    }

    #[test]
    fn distance_within_and_intersection_agree((ring, place) in star(), (other, _) in star()) {
        let (star, point) = (star_shape(&ring), at(place));
        let turned: Vec<_> = ring.iter().rev().copied().collect();
        prop_assert_eq!(do_intersect(&point, &star), is_within(&point, &star));
        prop_assert_eq!(do_intersect(&point, &star), distance_between(&point, &star) == 0.0);
        prop_assert_ne!(is_within(&point, &star), is_within(&point, &star_shape(&turned)));
        let shrunk: Vec<_> = ring.iter().map(|(x, y)| (x * 0.9, y * 0.9)).collect();
        prop_assert!(is_within(&star_shape(&shrunk), &star_shape(&ring)));
        prop_assert!(!is_within(&star, &star_shape(&shrunk)));
        prop_assert!(do_intersect(&star, &star_shape(&other)), "both have the origin");
    }

    #[test]
    fn no_place_of_an_edge_is_nearer_than_the_distance(
        (ring, place) in star(), edge in 0..12_usize, part in 0.0..1.0_f64,
    ) {
        let (a, b) = (ring[edge % ring.len()], ring[(edge + 1) % ring.len()]);
        let segment = [a, b].map(position).to_vec();
        let line = typed("LineString", segment.into());
        let distance = distance_between(&at(place), &line);
        // A place of the arc between the ends.
        let [from, to] = [a, b].map(|(x, y)| {
            vector::Vector::of(geojson::Position { x, y }, Metric::Geography)
        });
        let on_arc = (from + (to - from) * part).longitude_latitude();
        let there = distance_between(&at(place), &at((on_arc.x, on_arc.y)));
        prop_assert!(distance <= there + 1e-6, "{} {}", distance, there);
    }
}

/// True if an entry of the first is found by who asks for what is no farther than this from the second.
fn is_found(a: &Value, b: &Value, distance: f64, metric: Metric) -> bool {
    let region = Region::around(b, distance, metric).expect("a shape");
    cells_of(a, metric).iter().any(|cell| {
        let is_around = |one: &[u8], other: &[u8]| other.starts_with(one);
        region.cells().iter().any(|sought| {
            let (one, other) = (cell.digits(), sought.digits());
            is_around(one, other) || is_around(other, one)
        })
    })
}

#[test]
fn what_is_far_apart_shares_no_cells() {
    let (copenhagen, new_york) = (point("[12.5683,55.6761]"), point("[-74.0060,40.7128]"));
    let globe = Metric::Geography;
    assert!(is_found(&copenhagen, &new_york, 6_205_089.0, globe));
    assert!(!is_found(&copenhagen, &new_york, 3_000_000.0, globe));
    let across = (point("[179.9999,0]"), point("[-179.9999,0]"));
    assert!(is_found(&across.0, &across.1, 23.0, globe), "the date line is no border");
    assert!(!is_found(&across.0, &across.1, 5.0, globe));
    assert!(is_found(&point("[0,90]"), &point("[77,90]"), 0.0, globe), "there is one pole");
    let (area, outside) = (square(0, 0, 1), polygon("[[[0,0],[0,1],[1,1],[1,0],[0,0]]]"));
    assert!(!is_found(&point("[50,50]"), &area, 0.0, globe));
    assert!(is_found(&point("[50,50]"), &outside, 0.0, globe));
    let plane = Metric::Geometry;
    assert!(is_found(&point("[3,4]"), &point("[0,0]"), 5.0, plane));
    assert!(!is_found(&point("[3000,4000]"), &point("[0,0]"), 5.0, plane));
    assert!(!is_found(&point("[1100,700]"), &point("[1000,700]"), 1.0, plane));
    assert!(is_found(&point("[-0.0,0]"), &point("[0,-1e-320]"), 0.0, plane));
}

#[test]
fn a_shape_has_few_cells() {
    for metric in [Metric::Geography, Metric::Geometry] {
        for (shape, cells_max) in [
            (point("[12.5683,55.6761]"), 1),
            (line("[[0,0],[50,50]]"), 8),
            (square(10, 10, 30), 8),
            (polygon("[[[0,0],[0,1],[1,1],[1,0],[0,0]]]"), 8),
        ] {
            let cells = cells_of(&shape, metric).len();
            assert!((1..=cells_max).contains(&cells), "{shape:?}: {cells}");
            let region = Region::around(&shape, 1000.0, metric).expect("a shape");
            assert!((1..=64).contains(&region.cells().len()));
        }
        assert!(cells_of(&read("{\"type\": \"Point\"}"), metric).is_empty());
    }
    let region = Region::around(&point("[12.5683,55.6761]"), 1000.0, Metric::Geography).unwrap();
    assert!(region.cells().len() <= 32, "{}", region.cells().len());
}

/// A shape of this size around a place on the globe.
fn around(middle: Vector, size: f64, kind: u32, radii: &[f64]) -> Value {
    let other = if middle.z.abs() < 0.9 { (0.0, 0.0, 1.0) } else { (1.0, 0.0, 0.0) };
    let east = Vector { x: other.0, y: other.1, z: other.2 }.cross(middle).unit();
    let north = middle.cross(east);
    let corner = |(number, radius): (u32, &f64)| {
        let count = f64::from(u32::try_from(radii.len()).unwrap());
        let angle = f64::from(number) / count * std::f64::consts::TAU;
        let place =
            east * (size * radius * libm::cos(angle)) + north * (size * radius * libm::sin(angle));
        let place = (middle + place).unit().longitude_latitude();
        (place.x, place.y)
    };
    let ring: Vec<(f64, f64)> = (0..).zip(radii).map(corner).collect();
    match kind {
        0 => at(ring[0]),
        1 => typed("LineString", ring.iter().copied().map(position).collect::<Vec<_>>().into()),
        2 => star_shape(&ring),
        _ => star_shape(&ring.into_iter().rev().collect::<Vec<_>>()),
    }
}

/// Two shapes of any size that are more often near each other than not.
fn neighbours() -> impl Strategy<Value = (Value, Value)> {
    let size = || (-7.0..0.0_f64).prop_map(|exponent| 10.0_f64.powf(exponent));
    let one = || (size(), 0..4_u32, prop::collection::vec(0.5..1.5_f64, 3..8));
    let middle = prop_oneof![
        (-1.0..1.0_f64, -1.0..1.0_f64, -1.0..1.0_f64),
        Just((0.0, 0.0, 1.0)),
        Just((-1.0, 0.0, 0.0)),
    ];
    let apart = (size(), -1.0..1.0_f64, -1.0..1.0_f64, -1.0..1.0_f64);
    (middle, apart, one(), one()).prop_filter_map("no direction", |(middle, apart, a, b)| {
        let middle = Vector { x: middle.0, y: middle.1, z: middle.2 };
        let offset = Vector { x: apart.1, y: apart.2, z: apart.3 } * apart.0;
        let other = middle + offset;
        if middle.length() < 0.1 || other.length() < 0.1 {
            return None;
        }
        let a = around(middle.unit(), a.0, a.1, &a.2);
        Some((a, around(other.unit(), b.0, b.1, &b.2)))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_spatial_functions_find_is_found_by_cells((a, b) in neighbours()) {
        let globe = Metric::Geography;
        let distance = apply(DISTANCE, &[a.clone(), b.clone()]);
        prop_assume!(distance.is_defined());
        let limit = number(&distance) * (1.0 + 1e-12) + 1e-9;
        prop_assert!(is_found(&a, &b, limit, globe) && is_found(&b, &a, limit, globe), "{:?}", limit);
        if do_intersect(&a, &b) || is_within(&a, &b) || is_within(&b, &a) {
            prop_assert!(is_found(&a, &b, 0.0, globe) && is_found(&b, &a, 0.0, globe));
        }
    }

    #[test]
    fn so_it_is_on_the_plane((ring, place) in star(), (other, _) in star(), east in -99.0..99.0_f64) {
        let plane = Metric::Geometry;
        let moved: Vec<_> = other.iter().map(|(x, y)| (x + east, *y)).collect();
        let (a, b) = (star_shape(&ring), star_shape(&moved));
        for (a, b) in [(&a, &b), (&at(place), &b)] {
            let distance = apply_in(plane, DISTANCE, &[a.clone(), b.clone()]);
            let limit = number(&distance) * (1.0 + 1e-12);
            prop_assert!(is_found(a, b, limit, plane) && is_found(b, a, limit, plane));
        }
    }
}
