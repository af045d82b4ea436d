//! What the first byte of a value means: the table of the format.

/// How many bytes a length, count or offset takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    One,
    Two,
    Three,
    Four,
}

/// What kind of value follows, and in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    Null,
    Bool(bool),
    /// The marker is the number.
    SmallInteger(u8),
    Number(NumberForm),
    Text(TextForm),
    /// Sixteen bytes as .NET keeps a GUID, shown as text.
    Guid,
    /// Bytes, shown in base64.
    Bytes(Width),
    Array(Extent),
    Object(Extent),
    /// Numbers of one form, without markers of their own.
    NumberArray(Width),
    /// Arrays of equally many numbers of one form.
    NumberArrays(Width),
}

/// How a number is written, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberForm {
    I8,
    U8,
    I16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

/// How a container says where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Empty,
    One,
    /// Its length in bytes.
    Bytes(Width),
    /// Its length in bytes, then how many there are in it.
    BytesAndCount(Width),
}

/// How a string is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextForm {
    /// A name everybody knows.
    System(&'static str),
    /// One of a dictionary that is elsewhere.
    User,
    /// UTF-8 of this length.
    Short(usize),
    /// UTF-8 behind its length.
    Utf8(Width),
    /// Where the same string stood before.
    Reference(Width),
    /// What the string, which is base64, encodes.
    Base64(Width, Base64Alphabet),
    Guid(GuidStyle),
    /// Two characters of an alphabet in a byte, the low half first.
    Nibbles(&'static [u8; 16]),
    /// Characters of so few bits, counted from a base that follows the length.
    PackedFrom(u32),
    /// ASCII, seven bits each.
    Packed(Width),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base64Alphabet {
    Standard,
    UrlSafe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuidStyle {
    Lower,
    Upper,
    /// In double quotes, as etags are.
    LowerQuoted,
}

pub(super) const LOWER_HEX: &[u8; 16] = b"0123456789abcdef";
pub(super) const UPPER_HEX: &[u8; 16] = b"0123456789ABCDEF";
pub(super) const DATE_TIME: &[u8; 16] = b" 0123456789:-.TZ";

/// The names everybody knows, in the order of their markers.
pub(super) const SYSTEM_STRINGS: [&str; 32] = [
    "$s",
    "$t",
    "$v",
    "_attachments",
    "_etag",
    "_rid",
    "_self",
    "_ts",
    "attachments/",
    "coordinates",
    "geometry",
    "GeometryCollection",
    "id",
    "url",
    "Value",
    "label",
    "LineString",
    "link",
    "MultiLineString",
    "MultiPoint",
    "MultiPolygon",
    "name",
    "Name",
    "Type",
    "Point",
    "Polygon",
    "properties",
    "type",
    "value",
    "Feature",
    "FeatureCollection",
    "_id",
];

impl Width {
    pub(super) fn bytes(self) -> usize {
        match self {
            Width::One => 1,
            Width::Two => 2,
            Width::Three => 3,
            Width::Four => 4,
        }
    }
}

impl Marker {
    /// What a byte starts; none if nothing does.
    pub(super) fn of(byte: u8) -> Option<Self> {
        use Width::{Four, One, Two};
        Some(match byte {
            0x00..=0x1F => Marker::SmallInteger(byte),
            0x20..=0xC6 => Marker::Text(TextForm::of(byte)?),
            0xC7..=0xCF | 0xD7..=0xDC => Marker::Number(NumberForm::of(byte)?),
            0xD0 => Marker::Null,
            0xD1 => Marker::Bool(false),
            0xD2 => Marker::Bool(true),
            0xD3 => Marker::Guid,
            0xDD => Marker::Bytes(One),
            0xDE => Marker::Bytes(Two),
            0xDF => Marker::Bytes(Four),
            0xE0..=0xE7 => Marker::Array(Extent::of(byte)),
            0xE8..=0xEF => Marker::Object(Extent::of(byte)),
            0xF0 => Marker::NumberArray(One),
            0xF1 => Marker::NumberArray(Two),
            0xF2 => Marker::NumberArrays(One),
            0xF3 => Marker::NumberArrays(Two),
            0xD4..=0xD6 | 0xF4..=0xFF => return None,
        })
    }
}

impl Extent {
    /// Arrays and objects say it in the same eight ways.
    fn of(byte: u8) -> Self {
        use Width::{Four, One, Two};
        match byte & 0b111 {
            0 => Extent::Empty,
            1 => Extent::One,
            2 => Extent::Bytes(One),
            3 => Extent::Bytes(Two),
            4 => Extent::Bytes(Four),
            5 => Extent::BytesAndCount(One),
            6 => Extent::BytesAndCount(Two),
            _ => Extent::BytesAndCount(Four),
        }
    }
}

impl NumberForm {
    fn of(byte: u8) -> Option<Self> {
        match byte {
            0xC7 => Some(NumberForm::U64),
            0xC8 => Some(NumberForm::U8),
            0xC9 => Some(NumberForm::I16),
            0xCA => Some(NumberForm::I32),
            0xCB => Some(NumberForm::I64),
            0xCC => Some(NumberForm::F64),
            _ => Self::of_array(byte),
        }
    }

    /// The forms of an array's numbers, which may also stand alone.
    pub(super) fn of_array(byte: u8) -> Option<Self> {
        match byte {
            0xCD => Some(NumberForm::F32),
            0xCE => Some(NumberForm::F64),
            0xD7 => Some(NumberForm::U8),
            0xD8 => Some(NumberForm::I8),
            0xD9 => Some(NumberForm::I16),
            0xDA => Some(NumberForm::I32),
            0xDB => Some(NumberForm::I64),
            0xDC => Some(NumberForm::U32),
            // 0xCF, a float of 16 bits, is reserved and never sent.
            _ => None,
        }
    }
}

impl TextForm {
    /// The form of a string that starts with a byte; none if no string does.
    pub(super) fn of(byte: u8) -> Option<Self> {
        use Width::{Four, One, Three, Two};
        Some(match byte {
            0x20..=0x3F => TextForm::System(SYSTEM_STRINGS[usize::from(byte - 0x20)]),
            0x40..=0x67 => TextForm::User,
            0x71 => TextForm::Base64(One, Base64Alphabet::Standard),
            0x72 => TextForm::Base64(Two, Base64Alphabet::Standard),
            0x73 => TextForm::Base64(One, Base64Alphabet::UrlSafe),
            0x74 => TextForm::Base64(Two, Base64Alphabet::UrlSafe),
            0x75 => TextForm::Guid(GuidStyle::Lower),
            0x76 => TextForm::Guid(GuidStyle::Upper),
            0x77 => TextForm::Guid(GuidStyle::LowerQuoted),
            0x78 => TextForm::Nibbles(LOWER_HEX),
            0x79 => TextForm::Nibbles(UPPER_HEX),
            0x7A => TextForm::Nibbles(DATE_TIME),
            0x7B => TextForm::PackedFrom(4),
            0x7C => TextForm::PackedFrom(5),
            0x7D => TextForm::PackedFrom(6),
            0x7E => TextForm::Packed(One),
            0x7F => TextForm::Packed(Two),
            0x80..=0xBF => TextForm::Short(usize::from(byte & 0x3F)),
            0xC0 => TextForm::Utf8(One),
            0xC1 => TextForm::Utf8(Two),
            0xC2 => TextForm::Utf8(Four),
            0xC3 => TextForm::Reference(One),
            0xC4 => TextForm::Reference(Two),
            0xC5 => TextForm::Reference(Three),
            0xC6 => TextForm::Reference(Four),
            _ => return None,
        })
    }
}
