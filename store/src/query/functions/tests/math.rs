//! Mathematics and integers.

use super::laws;

#[test]
fn functions_of_doubles() {
    laws(
        r"
        ABS(-1) -> 1
        ABS(0) -> 0
        ABS(-2.5) -> 2.5
        ABS(-Infinity) -> Infinity
        ABS(-9007199254740993) -> 9007199254740993
        ABS(-9223372036854775808) -> 9223372036854775808
        SIGN(-7.5) -> -1
        SIGN(0) -> 0
        SIGN(Infinity) -> 1
        SIGN(NaN) -> NaN
        SQUARE(1.5) -> 2.25
        SQRT(2) -> 1.4142135623730951
        SQRT(-1) -> NaN
        EXP(0) -> 1
        EXP(10) -> 22026.465794806718
        POWER(2, 3) -> 8
        POWER(2.5, 3) -> 15.625
        POWER(0, 0) -> 1
        POWER(-8, 0.5) -> NaN
        POWER(10, 22) -> 1e22
        LOG(5) -> 1.6094379124341003
        LOG(8) -> 2.0794415416798357
        LOG(2, 10) -> 0.3010299956639812
        LOG(8, 2) -> 3
        LOG(125, 5) -> 2.9999999999999996
        LOG(243, 3) -> 5
        LOG(0) -> -Infinity
        LOG(-1) -> NaN
        LOG10(100) -> 2
        LOG10(0) -> -Infinity
        PI() -> 3.141592653589793
        ",
    );
}

#[test]
fn angles() {
    laws(
        r"
        SIN(45.175643) -> 0.929607286611012
        COS(14.78) -> -0.5994654261946543
        TAN(0) -> 0
        COT(124.1332) -> -0.040311998371148884
        COT(0) -> Infinity
        ASIN(-1) -> -1.5707963267948966
        ASIN(1.1) -> NaN
        ACOS(-1) -> 3.141592653589793
        ACOS(2) -> NaN
        ATAN(1) -> 0.7853981633974483
        ATN2(1, 0) -> 1.5707963267948966
        ATN2(0, -1) -> 3.141592653589793
        ATN2(35.175643, 129.44) -> 0.265344532064832
        DEGREES(3.141592653589793) -> 180
        DEGREES(1.5707963267948966) -> 90
        RADIANS(-45.01) -> -0.7855726963226477
        RADIANS(180) -> 3.141592653589793
        ",
    );
}

#[test]
fn rounding_keeps_integers_exact() {
    laws(
        r"
        CEILING(62.6) -> 63
        CEILING(-123.45) -> -123
        FLOOR(62.6) -> 62
        FLOOR(-123.45) -> -124
        TRUNC(2.9) -> 2
        TRUNC(-2.9) -> -2
        ROUND(2.4) -> 2
        ROUND(2.5) -> 3
        ROUND(-3.5) -> -4
        ROUND(0.49999999999999994) -> 0
        ROUND(9007199254740993) -> 9007199254740993
        CEILING(9007199254740993) -> 9007199254740993
        FLOOR(-9223372036854775808) -> -9223372036854775808
        TRUNC(NaN) -> NaN
        FLOOR(Infinity) -> Infinity
        ",
    );
}

#[test]
fn bins_of_numbers_start_at_zero() {
    laws(
        r"
        NumberBin(37.752) -> 37
        NumberBin(37.752, 10) -> 30
        NumberBin(37.752, 0.1) -> 37.7
        NumberBin(37.752, 0.01) -> 37.75
        NumberBin(37.752, -100) -> 100
        NumberBin(5, -4) -> 8
        NumberBin(-1, 10) -> -10
        NumberBin(37.752, 0) -> undefined
        NumberBin(null, 1) -> undefined
        NumberBin(1, undefined) -> undefined
        ",
    );
}

#[test]
fn integers_of_64_bits_wrap_around() {
    laws(
        r"
        IntAdd(20, 10) -> 30
        IntAdd(9223372036854775807, 1) -> -9223372036854775808
        IntSub(-9223372036854775808, 1) -> 9223372036854775807
        IntSub(10, 20.0) -> -10
        IntMul(9007199254740993, 3) -> 27021597764222979
        IntMul(9223372036854775807, 2) -> -2
        IntDiv(10, 2) -> 5
        IntDiv(-7, 2) -> -3
        IntDiv(10, 0) -> undefined
        IntDiv(-9223372036854775808, -1) -> -9223372036854775808
        IntMod(12, -5) -> 2
        IntMod(-12, 5) -> -2
        IntMod(12, 0) -> undefined
        IntMod(-9223372036854775808, -1) -> 0
        IntBitAnd(15, 25) -> 9
        IntBitOr(56, 100) -> 124
        IntBitXor(56, 100) -> 92
        IntBitNot(65) -> -66
        IntBitAnd(-1, 1099511627775) -> 1099511627775
        IntBitLeftShift(16, 4) -> 256
        IntBitLeftShift(1, 63) -> -9223372036854775808
        IntBitLeftShift(1, 64) -> 1
        IntBitLeftShift(1, -1) -> -9223372036854775808
        IntBitRightShift(16, 4) -> 1
        IntBitRightShift(-16, 2) -> -4
        IntBitRightShift(-1, 63) -> -1
        ",
    );
}

#[test]
fn both_spellings_of_bits_are_one_function() {
    laws(
        r"
        IntBitwiseAnd(15, 25) -> 9
        IntBitwiseOr(56, 100) -> 124
        IntBitwiseXor(56, 100) -> 92
        IntBitwiseNot(65) -> -66
        IntBitwiseLeftShift(16, 4) -> 256
        IntBitwiseRightShift(16, 4) -> 1
        ",
    );
}

#[test]
fn what_is_no_integer_of_64_bits_is_refused() {
    laws(
        r#"
        IntAdd(3, 0.5) -> undefined
        IntAdd(3, 9223372036854775808) -> undefined
        IntAdd(3, 1e300) -> undefined
        IntAdd(NaN, 1) -> undefined
        IntAdd(Infinity, 1) -> undefined
        IntAdd("1", 1) -> undefined
        IntAdd(null, 1) -> undefined
        IntAdd(undefined, 1) -> undefined
        IntDiv(10, 0.1) -> undefined
        IntBitLeftShift(16, 0.4) -> undefined
        IntBitNot(0.5) -> undefined
        "#,
    );
}

#[test]
fn what_is_no_number_is_refused() {
    let names = "ABS SIGN SQUARE SQRT EXP LOG LOG10 SIN COS TAN COT ASIN ACOS ATAN DEGREES RADIANS \
                 CEILING FLOOR TRUNC ROUND NumberBin";
    for name in names.split(' ') {
        for argument in ["undefined", "null", "true", "\"1\"", "[1]", "{}"] {
            laws(&format!("{name}({argument}) -> undefined"));
        }
    }
    laws(
        r#"
        POWER(2, "3") -> undefined
        POWER(null, 3) -> undefined
        ATN2(1, undefined) -> undefined
        LOG(8, null) -> undefined
        "#,
    );
}

#[test]
fn random_numbers_come_from_the_moment() {
    let moment = super::Moment::new(super::NOW, super::NOW, 42);
    let body = super::find("rand", super::Metric::default()).expect("it is there").body;
    let numbers: Vec<f64> = (0..1000)
        .map(|_| {
            let super::Value::Number(number) = body(&[], &moment) else { panic!("no number") };
            number.as_f64()
        })
        .collect();
    assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
    assert!(numbers.windows(2).all(|pair| (pair[0] - pair[1]).abs() > 0.0));
    let again = super::Moment::new(super::NOW, super::NOW, 42);
    assert!((again.random() - numbers[0]).abs() < f64::EPSILON, "a seed decides");
}
