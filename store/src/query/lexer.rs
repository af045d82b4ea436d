//! Cuts a query text into tokens.

use super::error::{QueryError, Span};

/// A token with its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) span: Span,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum TokenKind {
    /// A keyword in any case, upper-cased.
    Keyword(&'static str),
    /// A name, `true`, `null` and so on included.
    Name(String),
    /// `@name`, without the sign.
    Parameter(String),
    Int(i64),
    Float(f64),
    Text(String),
    /// An operator or a bracket.
    Symbol(&'static str),
    End,
}

/// Words that are no names, whatever their case.
///
/// ALL, FIRST, LAST, RANK and ESCAPE are missing: they mean something only in their places, and are
/// names everywhere else.
const KEYWORDS: [&str; 26] = [
    "AND", "ARRAY", "AS", "ASC", "BETWEEN", "BY", "DESC", "DISTINCT", "EXISTS", "FROM", "GROUP",
    "IN", "JOIN", "LEFT", "LIKE", "LIMIT", "NOT", "OFFSET", "OR", "ORDER", "RIGHT", "SELECT",
    "TOP", "UDF", "VALUE", "WHERE",
];

/// So much of a text that does not end is told.
const TOLD_CHARS_MAX: usize = 200;

/// Longest first, so that the longest match wins.
const SYMBOLS: [&str; 32] = [
    ">>>", "<<", ">>", "<=", ">=", "<>", "!=", "||", "??", "(", ")", "[", "]", "{", "}", ",", ".",
    ":", "?", "*", "/", "%", "+", "-", "=", "<", ">", "&", "|", "^", "~", "!",
];

/// True if a name can stand without brackets and quotes.
pub(super) fn is_identifier(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let is_word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    starts && is_word && !is_reserved(name)
}

/// True for words that are no names.
fn is_reserved(word: &str) -> bool {
    match KEYWORDS.iter().find(|keyword| keyword.eq_ignore_ascii_case(word)) {
        Some(&"UDF") => word == "udf",
        Some(_) => true,
        None => matches!(word, "true" | "false" | "null" | "undefined"),
    }
}

pub(super) fn tokenize(text: &str) -> Result<Vec<Token>, QueryError> {
    let mut lexer = Lexer { rest: text, at: 0 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blank();
        let token = lexer.next_token()?;
        let end = token.kind == TokenKind::End;
        tokens.push(token);
        if end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'t> {
    rest: &'t str,
    /// Characters before `rest`.
    at: u32,
}

impl<'t> Lexer<'t> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Takes the first `bytes` bytes.
    fn take(&mut self, bytes: usize) -> (&'t str, Span) {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        let count = u32::try_from(taken.chars().count()).expect("query texts are short");
        let span = Span { start: self.at, end: self.at + count };
        self.at = span.end;
        (taken, span)
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> (&'t str, Span) {
        let end = self.rest.find(|c| !keep(c)).unwrap_or(self.rest.len());
        self.take(end)
    }

    fn skip_blank(&mut self) {
        loop {
            self.take_while(|c| matches!(c, ' ' | '\t' | '\r' | '\n'));
            if !self.rest.starts_with("--") {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    fn next_token(&mut self) -> Result<Token, QueryError> {
        let Some(first) = self.peek() else {
            let span = Span { start: self.at, end: self.at };
            return Ok(Token { kind: TokenKind::End, span });
        };
        if first.is_ascii_alphabetic() || first == '_' {
            return Ok(self.word());
        }
        if first.is_ascii_digit() || self.starts_fraction() {
            return self.number();
        }
        match first {
            '\'' | '"' => self.text(first),
            '@' => self.parameter(),
            _ => self.symbol(),
        }
    }

    fn word(&mut self) -> Token {
        let (word, span) = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
        let keyword = KEYWORDS.iter().find(|keyword| keyword.eq_ignore_ascii_case(word));
        let kind = match keyword {
            // `udf` is a keyword in lower case only.
            Some(&"UDF") if word != "udf" => TokenKind::Name(word.to_string()),
            Some(keyword) => TokenKind::Keyword(keyword),
            None => TokenKind::Name(word.to_string()),
        };
        Token { kind, span }
    }

    fn starts_fraction(&self) -> bool {
        let mut chars = self.rest.chars();
        chars.next() == Some('.') && chars.next().is_some_and(|c| c.is_ascii_digit())
    }

    fn number(&mut self) -> Result<Token, QueryError> {
        let bytes = self.rest.as_bytes();
        if bytes.len() > 2 && bytes[0] == b'0' && matches!(bytes[1], b'x' | b'X') {
            let digits = bytes[2..].iter().take_while(|b| b.is_ascii_hexdigit()).count();
            if digits > 0 {
                let (text, span) = self.take(2 + digits);
                self.ends_cleanly(text, span)?;
                return Ok(Token { kind: hexadecimal(&text[2..]), span });
            }
        }
        let count = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
        let mut end = count(0);
        let mut whole = true;
        if bytes.get(end) == Some(&b'.') {
            whole = false;
            end += 1 + count(end + 1);
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let digits = bytes.get(end + 1 + sign..).map_or(0, |_| count(end + 1 + sign));
            if digits > 0 {
                whole = false;
                end += 1 + sign + digits;
            }
        }
        let (text, span) = self.take(end);
        self.ends_cleanly(text, span)?;
        let float = || text.parse().map_err(|_| QueryError::syntax(text, span));
        let kind = match text.parse() {
            Ok(number) if whole => TokenKind::Int(number),
            _ => TokenKind::Float(float()?),
        };
        Ok(Token { kind, span })
    }

    /// A number that runs into a name is neither.
    fn ends_cleanly(&self, text: &str, span: Span) -> Result<(), QueryError> {
        match self.peek() {
            Some(c) if c.is_ascii_alphanumeric() || c == '_' => {
                Err(QueryError::syntax(&format!("{text}{c}"), span))
            }
            _ => Ok(()),
        }
    }

    fn parameter(&mut self) -> Result<Token, QueryError> {
        let (sign, sign_span) = self.take(1);
        let (name, span) = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
        if name.is_empty() {
            return Err(QueryError::syntax(sign, sign_span));
        }
        Ok(Token { kind: TokenKind::Parameter(name.to_string()), span: sign_span.to(span) })
    }

    fn symbol(&mut self) -> Result<Token, QueryError> {
        if let Some(symbol) = SYMBOLS.iter().find(|symbol| self.rest.starts_with(**symbol)) {
            let (_, span) = self.take(symbol.len());
            return Ok(Token { kind: TokenKind::Symbol(symbol), span });
        }
        let length = self.peek().map_or(0, char::len_utf8);
        let (text, span) = self.take(length);
        Err(QueryError::invalid_token(text, span))
    }

    fn text(&mut self, quote: char) -> Result<Token, QueryError> {
        let whole = self.rest;
        let (_, start) = self.take(1);
        let mut units: Vec<u16> = Vec::new();
        loop {
            let Some(c) = self.peek() else {
                let end = Span { start: self.at, end: self.at };
                let told: String = whole.chars().take(TOLD_CHARS_MAX).collect();
                return Err(QueryError::unended_text(&told, start.to(end)));
            };
            let (piece, span) = self.take(c.len_utf8());
            match c {
                _ if c == quote => {
                    let text = String::from_utf16_lossy(&units);
                    return Ok(Token { kind: TokenKind::Text(text), span: start.to(span) });
                }
                '\\' => units.push(self.escape(span)?),
                '\0'..='\u{1F}' => return Err(QueryError::syntax(piece, span)),
                _ => units.extend(piece.encode_utf16()),
            }
        }
    }

    fn escape(&mut self, backslash: Span) -> Result<u16, QueryError> {
        let bad = |lexer: &Self| {
            let next = lexer.peek().map(String::from).unwrap_or_default();
            QueryError::syntax(&format!("\\{next}"), backslash)
        };
        let c = self.peek().ok_or_else(|| bad(self))?;
        let unit = match c {
            '\'' | '"' | '\\' | '/' => u16::try_from(u32::from(c)).expect("these are ASCII"),
            'b' => 0x08,
            'f' => 0x0C,
            'n' => 0x0A,
            'r' => 0x0D,
            't' => 0x09,
            'u' => {
                let digits = self.rest.get(1..5).ok_or_else(|| bad(self))?;
                let all_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
                let unit = u16::from_str_radix(digits, 16).ok().filter(|_| all_hex);
                let unit = unit.ok_or_else(|| bad(self))?;
                self.take(5);
                return Ok(unit);
            }
            _ => return Err(bad(self)),
        };
        self.take(1);
        Ok(unit)
    }
}

fn hexadecimal(digits: &str) -> TokenKind {
    if let Ok(number) = i64::from_str_radix(digits, 16) {
        return TokenKind::Int(number);
    }
    let value = digits.chars().fold(0.0, |sum, digit| {
        sum * 16.0 + f64::from(digit.to_digit(16).expect("hexadecimal was checked"))
    });
    TokenKind::Float(value)
}
