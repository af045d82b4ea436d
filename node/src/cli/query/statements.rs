//! Cuts lines into statements: queries, which end with a semicolon or an empty line, and commands,
//! which are lines that begin with a dot.

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Statement {
    /// A line that begins with a dot, without it.
    Command(String),
    /// A query.
    Query(String),
}

/// Collects lines until a statement is whole.
#[derive(Debug, Default)]
pub(super) struct Statements {
    text: String,
}

impl Statements {
    /// Takes a line; returns what is whole with it.
    pub(super) fn push(&mut self, line: &str) -> Vec<Statement> {
        let is_blank = !self.is_open();
        if let Some(command) = line.trim_start().strip_prefix('.').filter(|_| is_blank) {
            self.text.clear();
            return vec![Statement::Command(command.trim().to_string())];
        }
        if line.trim().is_empty() {
            return self.take().into_iter().collect();
        }
        let mut whole = Vec::new();
        let mut rest = line;
        while let Some(end) = semicolon(rest) {
            self.text.push_str(&rest[..end]);
            whole.extend(self.take());
            rest = &rest[end + 1..];
        }
        self.text.push_str(rest);
        self.text.push('\n');
        whole
    }

    /// What is left when there are no more lines.
    pub(super) fn finish(mut self) -> Option<Statement> {
        self.take()
    }

    /// True in the middle of a statement.
    pub(super) fn is_open(&self) -> bool {
        !says_nothing(&self.text)
    }

    /// Forgets what was begun.
    pub(super) fn clear(&mut self) {
        self.text.clear();
    }

    fn take(&mut self) -> Option<Statement> {
        let text = std::mem::take(&mut self.text);
        let text = text.trim();
        (!says_nothing(text)).then(|| Statement::Query(text.to_string()))
    }
}

/// True for blanks and comments alone.
fn says_nothing(text: &str) -> bool {
    text.lines().map(str::trim_start).all(|line| line.is_empty() || line.starts_with("--"))
}

/// The first semicolon that stands neither in quotes nor in a comment. Neither goes past a line's
/// end.
fn semicolon(line: &str) -> Option<usize> {
    let mut quote = None;
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => {
                chars.next();
            }
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '-') if line[at..].starts_with("--") => return None,
            (None, ';') => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Vec<Statement> {
        let mut statements = Statements::default();
        let mut all: Vec<_> = text.lines().flat_map(|line| statements.push(line)).collect();
        all.extend(statements.finish());
        all
    }

    fn query(text: &str) -> Statement {
        Statement::Query(text.to_string())
    }

    #[test]
    fn a_semicolon_an_empty_line_or_the_end_ends_a_query() {
        assert_eq!(
            cut("SELECT 1;SELECT\n2\n\nSELECT 3"),
            ["SELECT 1", "SELECT\n2", "SELECT 3"].map(query)
        );
        assert_eq!(cut(";;\n\n ; "), []);
    }

    #[test]
    fn semicolons_in_quotes_and_comments_are_text() {
        for text in [
            r#"SELECT ';' AS a, "it's;" AS b"#,
            r"SELECT 'it\';s' AS a",
            "SELECT 1 -- one; or two\n + 2",
            r"SELECT '\\' AS a",
        ] {
            assert_eq!(cut(&format!("{text}\n;")), [query(text)], "{text}");
        }
        assert_eq!(cut(r"SELECT '\\'; SELECT 2"), [query(r"SELECT '\\'"), query("SELECT 2")]);
    }

    #[test]
    fn comments_alone_are_no_query() {
        let command = |text: &str| Statement::Command(text.to_string());
        assert_eq!(
            cut("-- what this is\n\nSELECT 1;\n-- and now\n.quit\n-- the end\n"),
            [query("SELECT 1"), command("quit")]
        );
        assert_eq!(cut("-- sums\nSELECT 1;"), [query("-- sums\nSELECT 1")]);
    }

    #[test]
    fn a_dot_begins_a_command_only_where_no_query_has_begun() {
        let command = |text: &str| Statement::Command(text.to_string());
        assert_eq!(cut(".use shop\n .mode json "), ["use shop", "mode json"].map(command));
        assert_eq!(cut("SELECT c\n.a FROM c"), [query("SELECT c\n.a FROM c")]);
        assert_eq!(cut("SELECT 1;\n.quit"), [query("SELECT 1"), command("quit")]);
    }
}
