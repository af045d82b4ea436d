//! Dates and times.

use super::super::tests::{NOW, laws};

#[test]
fn what_is_a_date_and_time() {
    for valid in [
        "2023-03-06",
        "2023-03-06Z",
        "2023-03-06 15:29:00Z",
        "2023-03-06T15:29:00Z",
        "2023-03-06T15:29:59",
        "2023-03-06T15:29:59.9",
        "2023-03-06T15:29:59.1234567Z",
        "0001-01-01",
        "9999-12-31T23:59:59.9999999",
        "2024-02-29",
        "2000-02-29",
    ] {
        laws(&format!("IS_DATETIME(\"{valid}\") -> true"));
    }
    for invalid in [
        "",
        "Z",
        "2023",
        "2023-03",
        "2023-3-6",
        "23-03-06",
        "2023-13-01",
        "2023-00-01",
        "2023-02-29",
        "1900-02-29",
        "2023-04-31",
        "2023-01-00",
        "0000-01-01",
        "10000-01-01",
        "2023-03-06T",
        "2023-03-06T15",
        "2023-03-06T15:29",
        "2023-03-06T24:00:00",
        "2023-03-06T15:60:00",
        "2023-03-06T15:29:60",
        "2023-03-06t15:29:00",
        "2023-03-06_15:29:00",
        "2023-03-06T15:29:59.",
        "2023-03-06T15:29:59.Z",
        "2023-03-06T15:29:59.12345678",
        "2023-03-06T15:29:59,5",
        "2023-03-06T15:29:59+02:00",
        "2023-03-06T15:29:59z",
        "2023-03-06T15:29:59ZZ",
        " 2023-03-06",
        "2023-03-06 ",
        "２０23-03-06",
        "2023-03-06T-5:29:59",
        "+023-03-06",
    ] {
        laws(&format!("IS_DATETIME(\"{invalid}\") -> false"));
        laws(&format!("DateTimeToTicks(\"{invalid}\") -> undefined"));
    }
}

#[test]
fn adding() {
    laws(
        r#"
        DateTimeAdd("yyyy", 1, "2020-07-03T00:00:00.0000000") -> "2021-07-03T00:00:00.0000000Z"
        DateTimeAdd("mm", -2, "2020-07-03") -> "2020-05-03T00:00:00.0000000Z"
        DateTimeAdd("dd", 1, "2020-07-03") -> "2020-07-04T00:00:00.0000000Z"
        DateTimeAdd("hh", -1, "2020-07-03") -> "2020-07-02T23:00:00.0000000Z"
        DateTimeAdd("mi", 90, "2020-07-03") -> "2020-07-03T01:30:00.0000000Z"
        DateTimeAdd("ss", -25, "2020-07-03") -> "2020-07-02T23:59:35.0000000Z"
        DateTimeAdd("ms", 1500, "2020-07-03") -> "2020-07-03T00:00:01.5000000Z"
        DateTimeAdd("mcs", 1, "2020-07-03") -> "2020-07-03T00:00:00.0000010Z"
        DateTimeAdd("ns", 100, "2020-07-03") -> "2020-07-03T00:00:00.0000001Z"
        DateTimeAdd("ns", 199, "2020-07-03") -> "2020-07-03T00:00:00.0000001Z"
        DateTimeAdd("ns", -99, "2020-07-03") -> "2020-07-03T00:00:00.0000000Z"
        DateTimeAdd("mm", 1, "2023-01-31") -> "2023-02-28T00:00:00.0000000Z"
        DateTimeAdd("yyyy", 1, "2024-02-29") -> "2025-02-28T00:00:00.0000000Z"
        DateTimeAdd("mm", -13, "2024-03-31") -> "2023-02-28T00:00:00.0000000Z"
        DateTimeAdd("YEAR", 1, "2020-07-03") -> "2021-07-03T00:00:00.0000000Z"
        DateTimeAdd("yyyy", 1, "9999-01-01") -> undefined
        DateTimeAdd("yyyy", -1, "0001-12-31") -> undefined
        DateTimeAdd("ns", -100, "0001-01-01") -> undefined
        DateTimeAdd("yyyy", 9223372036854775807, "2020-07-03") -> undefined
        DateTimeAdd("mm", 9223372036854775807, "2020-07-03") -> undefined
        DateTimeAdd("day", -9223372036854775808, "2020-07-03") -> undefined
        DateTimeAdd("dd", 0.5, "2020-07-03") -> undefined
        DateTimeAdd("dd", "1", "2020-07-03") -> undefined
        DateTimeAdd("week", 1, "2020-07-03") -> undefined
        DateTimeAdd(null, 1, "2020-07-03") -> undefined
        DateTimeAdd("dd", 1, "2020-07-32") -> undefined
        DateTimeAdd("dd", 1, undefined) -> undefined
        "#,
    );
}

#[test]
fn parts_have_several_names() {
    for (names, number) in [
        ("year yyyy yy", 2016),
        ("month mm m", 5),
        ("day dd d", 29),
        ("hour hh", 8),
        ("minute mi n", 30),
        ("second ss s", 7),
        ("millisecond ms", 130),
        ("microsecond mcs", 130_161),
        ("nanosecond ns", 130_161_700),
    ] {
        for name in names.split(' ') {
            laws(&format!("DateTimePart(\"{name}\", \"2016-05-29T08:30:07.1301617\") -> {number}"));
        }
    }
    laws(
        r#"
        DateTimePart("week", "2016-05-29") -> undefined
        DateTimePart("", "2016-05-29") -> undefined
        DateTimePart("yyyy", "2016-05-29T25:00:00") -> undefined
        DateTimePart("yyyy", null) -> undefined
        Year("2016-05-29T08:30:00") -> 2016
        Month("2016-05-29T08:30:00") -> 5
        Day("2016-05-29T08:30:00") -> 29
        Year("0001-01-01") -> 1
        Year("2016") -> undefined
        Month(null) -> undefined
        Day(undefined) -> undefined
        "#,
    );
}

#[test]
fn differences_count_borders_crossed() {
    laws(
        r#"
        DateTimeDiff("yyyy", "2019-02-04T16:00:00", "2018-03-05T05:00:00") -> -1
        DateTimeDiff("mm", "2019-02-04T16:00:00", "2018-03-05T05:00:00") -> -11
        DateTimeDiff("hh", "2019-02-04T16:00:00", "2018-03-05T05:00:00") -> -8075
        DateTimeDiff("ss", "2018-03-05T05:00:00", "2019-02-04T16:00:00") -> 29070000
        DateTimeDiff("hh", "2023-05-01T09:59:00", "2023-05-01T10:01:00") -> 1
        DateTimeDiff("yyyy", "2020-12-31T23:59:59.9999999", "2021-01-01") -> 1
        DateTimeDiff("dd", "2021-01-01", "2020-12-31T23:59:59.9999999") -> -1
        DateTimeDiff("dd", "1969-12-31T01:00:00", "1969-12-31T23:00:00") -> 0
        DateTimeDiff("hh", "1969-12-31T23:30:00", "1970-01-01T00:30:00") -> 1
        DateTimeDiff("mi", "2021-01-01T00:00:59", "2021-01-01T00:01:00") -> 1
        DateTimeDiff("ms", "2021-01-01T00:00:00.0009", "2021-01-01T00:00:00.001") -> 1
        DateTimeDiff("mcs", "2021-01-01", "2021-01-02") -> 86400000000
        DateTimeDiff("ns", "2021-01-01", "2021-01-01T00:00:00.0000001") -> 100
        DateTimeDiff("diffDays", "2021-01-01", "2021-01-02") -> undefined
        DateTimeDiff("dd", "2021-01-01", "tomorrow") -> undefined
        DateTimeDiff("dd", 1, 2) -> undefined
        DateTimeDiff("ns", "0001-01-01", "9999-12-31") -> 3.155378112e20
        "#,
    );
}

#[test]
fn bins_go_down_from_an_origin() {
    laws(
        r#"
        DateTimeBin("2021-01-08T18:35:00", "dd") -> "2021-01-08T00:00:00.0000000Z"
        DateTimeBin("2021-01-08T18:35:00", "hh") -> "2021-01-08T18:00:00.0000000Z"
        DateTimeBin("2021-01-08T18:35:00.5", "ss") -> "2021-01-08T18:35:00.0000000Z"
        DateTimeBin("2021-01-08T18:35:00", "hh", 5) -> "2021-01-08T15:00:00.0000000Z"
        DateTimeBin("2021-01-08T18:35:00", "dd", 7) -> "2021-01-07T00:00:00.0000000Z"
        DateTimeBin("2021-01-08T18:35:00", "dd", 7, "1601-01-01") -> "2021-01-04T00:00:00.0000000Z"
        DateTimeBin("2021-01-08T18:35:00.1234567", "ms") -> "2021-01-08T18:35:00.1230000Z"
        DateTimeBin("2021-01-08T18:35:00.1234567", "mcs") -> "2021-01-08T18:35:00.1234560Z"
        DateTimeBin("2021-01-08T18:35:00.1234567", "ns") -> "2021-01-08T18:35:00.1234567Z"
        DateTimeBin("2021-01-08T18:35:00.1234567", "ns", 300) -> "2021-01-08T18:35:00.1234566Z"
        DateTimeBin("1969-12-31T23:59:59", "hh") -> "1969-12-31T23:00:00.0000000Z"
        DateTimeBin("1999-12-31", "dd", 10, "2000-01-01") -> "1999-12-22T00:00:00.0000000Z"
        DateTimeBin("0001-01-01", "dd", 7) -> undefined
        DateTimeBin("2021-01-08", "dd", 9223372036854775807) -> "1970-01-01T00:00:00.0000000Z"
        DateTimeBin("2021-01-08", "dd", 0) -> undefined
        DateTimeBin("2021-01-08", "dd", -1) -> undefined
        DateTimeBin("2021-01-08", "dd", 1.5) -> undefined
        DateTimeBin("2021-01-08", "mm") -> undefined
        DateTimeBin("2021-01-08", "yyyy") -> undefined
        DateTimeBin("2021-01-08", "dd", 7, "1600-12-31T23:59:59.9999999") -> undefined
        DateTimeBin("2021-01-08", "dd", 7, null) -> undefined
        DateTimeBin("2021-01-08", "dd", undefined) -> undefined
        DateTimeBin("2021-01-08 ", "dd") -> undefined
        "#,
    );
}

#[test]
fn dates_of_parts() {
    laws(
        r#"
        DateTimeFromParts(2017, 4, 20) -> "2017-04-20T00:00:00.0000000Z"
        DateTimeFromParts(2017, 4, 20, 13, 15) -> "2017-04-20T13:15:00.0000000Z"
        DateTimeFromParts(2017, 4, 20, 13, 15, 20, 3456789) -> "2017-04-20T13:15:20.3456789Z"
        DateTimeFromParts(2017, 4, 20, 13, 15, 20, 1) -> "2017-04-20T13:15:20.0000001Z"
        DateTimeFromParts(-2000, -1, -1) -> undefined
        DateTimeFromParts(2017, 2, 29) -> undefined
        DateTimeFromParts(10000, 1, 1) -> undefined
        DateTimeFromParts(2017, 4, 20, 24) -> undefined
        DateTimeFromParts(2017, 4, 20, 13, 60) -> undefined
        DateTimeFromParts(2017, 4, 20, 13, 15, 60) -> undefined
        DateTimeFromParts(2017, 4, 20, 13, 15, 20, 10000000) -> undefined
        DateTimeFromParts(2017, 4, 20, 13, 15, 20, -1) -> undefined
        DateTimeFromParts(2017, 4.5, 20) -> undefined
        DateTimeFromParts("2017", 4, 20) -> undefined
        DateTimeFromParts(2017, 4, undefined) -> undefined
        DateTimeFromParts(2017, 4, 9223372036854775807) -> undefined
        "#,
    );
}

#[test]
fn ticks_and_timestamps() {
    laws(
        r#"
        DateTimeToTicks("1970-01-01") -> 0
        DateTimeToTicks("2020-01-02T03:04:05.6789123Z") -> 15779342456789123
        DateTimeToTicks("1969-12-31T23:59:59.9999999") -> -1
        DateTimeToTicks("0001-01-01") -> -621355968000000000
        DateTimeToTicks("9999-12-31T23:59:59.9999999") -> 2534023007999999999
        DateTimeToTicks(null) -> undefined
        DateTimeToTimestamp("2020-07-09T23:20:13.4575530Z") -> 1594336813457
        DateTimeToTimestamp("1969-12-31T23:59:59.9999") -> -1
        DateTimeToTimestamp(1) -> undefined
        TicksToDateTime(15943368134575530) -> "2020-07-09T23:20:13.4575530Z"
        TicksToDateTime(-1) -> "1969-12-31T23:59:59.9999999Z"
        TicksToDateTime(-621355968000000000) -> "0001-01-01T00:00:00.0000000Z"
        TicksToDateTime(-621355968000000001) -> undefined
        TicksToDateTime(2534023008000000000) -> undefined
        TicksToDateTime(9223372036854775807) -> undefined
        TicksToDateTime(0.5) -> undefined
        TicksToDateTime("0") -> undefined
        TimestampToDateTime(1594227912345) -> "2020-07-08T17:05:12.3450000Z"
        TimestampToDateTime(-1) -> "1969-12-31T23:59:59.9990000Z"
        TimestampToDateTime(253402300800000) -> undefined
        TimestampToDateTime(9223372036854775807) -> undefined
        TimestampToDateTime(1.5) -> undefined
        TimestampToDateTime(null) -> undefined
        "#,
    );
}

#[test]
fn layouts() {
    laws(
        r#"
        DateTimeFormat("2024-10-10 14:40:20", "yyyyMMdd") -> "20241010"
        DateTimeFormat("2024-10-10 14:40:20", "yyyy-MM-dd [HH:mm:ss]") -> "2024-10-10 [14:40:20]"
        DateTimeFormat("2024-10-10 14:40:20", "To\\da\\y i\\s: yyyy-MM-ddTHH:mm:ss.fff") -> "Today is: 2024-10-10T14:40:20.000"
        DateTimeFormat("2024-10-10 14:40:20", "To\\da\\y i\\s: yyyy-MM-ddTHH:mm:ss.FFF") -> "Today is: 2024-10-10T14:40:20."
        DateTimeFormat("2024-10-10T01:02:03.1200000", "f ff fff fffffff") -> "1 12 120 1200000"
        DateTimeFormat("2024-10-10T01:02:03.1200000", "F FF FFF FFFFFFF") -> "1 12 12 12"
        DateTimeFormat("2024-10-10T01:02:03.0045000", "F FF FFF FFFF") -> "  004 0045"
        DateTimeFormat("2004-05-06T07:08:09", "y yy yyy yyyy yyyyy") -> "4 04 2004 2004 02004"
        DateTimeFormat("0004-05-06", "yyyy yyy") -> "0004 004"
        DateTimeFormat("2004-05-06T07:08:09", "M d H h m s") -> "5 6 7 7 8 9"
        DateTimeFormat("2004-05-06T00:08:09", "hh h HH HHH t tt ttt") -> "12 12 00 00 A AM AM"
        DateTimeFormat("2004-05-06T13:08:09", "h t tt") -> "1 P PM"
        DateTimeFormat("2004-05-06", "ddd, dddd MMM MMMM") -> "Thu, Thursday May May"
        DateTimeFormat("2026-11-21", "ddd MMM MMMMM") -> "Sat Nov November"
        DateTimeFormat("2004-05-06", "") -> ""
        DateTimeFormat("2004-05-06", "é 日 \\\\ 'q' \"") -> "é 日 \\ 'q' \""
        DateTimeFormat("2004-05-06", "ffffffff") -> undefined
        DateTimeFormat("2004-05-06", "yyyy\\") -> undefined
        DateTimeFormat("2004-05-06", null) -> undefined
        DateTimeFormat("2004-05", "yyyy") -> undefined
        "#,
    );
}

#[test]
fn the_present_is_the_instant_of_the_page_or_of_the_first_page() {
    assert_eq!(NOW.0, 1_795_264_496_789);
    laws(
        r#"
        GetCurrentDateTime() -> "2026-11-21T12:34:56.7890000Z"
        GetCurrentTicks() -> 17952644967890000
        GetCurrentTimestamp() -> 1795264496789
        GetCurrentDateTimeStatic() -> "2026-11-21T12:33:56.7890000Z"
        GetCurrentTicksStatic() -> 17952644367890000
        GetCurrentTimestampStatic() -> 1795264436789
        Now() -> "2026-11-21T12:34:56.7890000Z"
        Now("yyyy", 1) -> "2027-11-21T12:34:56.7890000Z"
        Now("ms", -4) -> "2026-11-21T12:34:56.7850000Z"
        Now("yyyy") -> undefined
        Now("week", 1) -> undefined
        Now("yyyy", 9000) -> undefined
        Ago("yyyy", 1) -> "2025-11-21T12:34:56.7890000Z"
        Ago("yyyy", -1) -> "2027-11-21T12:34:56.7890000Z"
        Ago("ss", 56) -> "2026-11-21T12:34:00.7890000Z"
        Ago("mm", 9) -> "2026-02-21T12:34:56.7890000Z"
        Ago("mm", 0.5) -> undefined
        Ago("fortnight", 1) -> undefined
        Ago("dd", null) -> undefined
        Ago("ns", -9223372036854775808) -> undefined
        "#,
    );
}

#[test]
fn a_clock_beyond_the_calendar_tells_no_time() {
    use super::super::*;
    for now in [253_402_300_800_000, u64::MAX] {
        let moment = Moment::new(Millis(now), Millis(now), 0);
        for name in ["GetCurrentDateTime", "GetCurrentTicks", "GetCurrentTimestampStatic", "Now"] {
            let function = find(name, Metric::default()).expect("it is there");
            assert!(!(function.body)(&[], &moment).is_defined(), "{name} at {now}");
        }
    }
}
