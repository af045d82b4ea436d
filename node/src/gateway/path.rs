//! What a URL path names, told by position alone: a database may be called "colls".

use std::borrow::Cow;

use ephemeris_store::catalog::ScriptKind;
use percent_encoding::percent_decode_str;

use super::error::ApiError;

/// The decoded segments of a path, without the slashes around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segments<'p>(Vec<Cow<'p, str>>);

/// Segments of the path of an item: room for them is taken at once.
const USUAL_SEGMENTS: usize = 6;

/// What is not served where replicas are asked for.
pub(super) const DIRECT_MODE: &str = "Direct mode. Connect in gateway mode (.NET: ConnectionMode.Gateway and \
                                      LimitToEndpoint, Java: gatewayMode). It";

/// A container, by names or by `_rid`s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerPath {
    /// The database.
    pub(crate) database: String,
    /// The container.
    pub(crate) container: String,
}

/// A user, by name or by `_rid`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserPath {
    /// The database.
    pub(crate) database: String,
    /// The user.
    pub(crate) user: String,
}

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// `/`
    Account,
    /// `/dbs`
    Databases,
    /// `/dbs/d`
    Database(String),
    /// `/dbs/d/users`
    Users(String),
    /// `/dbs/d/users/u`
    User(UserPath),
    /// `/dbs/d/users/u/permissions`
    Permissions(UserPath),
    /// `/dbs/d/users/u/permissions/p`
    Permission(UserPath, String),
    /// `/dbs/d/colls`
    Containers(String),
    /// `/dbs/d/colls/c`
    Container(ContainerPath),
    /// `…/docs`
    Items(ContainerPath),
    /// `…/docs/i`
    Item(ContainerPath, String),
    /// `…/pkranges`
    Ranges(ContainerPath),
    /// `…/operations/partitionkeydelete`
    Clear(ContainerPath),
    /// `…/conflicts`
    Conflicts(ContainerPath),
    /// `…/sprocs`, `…/triggers`, `…/udfs`
    Scripts(ContainerPath, ScriptKind),
    /// `…/sprocs/s`, `…/triggers/t`, `…/udfs/f`
    Script(ContainerPath, ScriptKind, String),
    /// `/offers`
    Offers,
    /// `/offers/o`
    Offer(String),
    /// `/admin/…`: Ephemeris's own.
    Admin(String),
    /// Part of the API, and not served.
    NotServed(&'static str),
}

impl<'p> Segments<'p> {
    /// Takes a path apart; each segment is decoded on its own, and `+` is no space.
    pub(crate) fn parse(path: &'p str) -> Result<Self, ApiError> {
        let path = path.trim_matches('/');
        if path.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let mut segments = Vec::with_capacity(USUAL_SEGMENTS);
        for segment in path.split('/') {
            segments.push(decoded(segment)?);
        }
        Ok(Self(segments))
    }

    /// The link of the text that is signed when resources are addressed by `_rid`: the last of them
    /// alone, in lower case.
    pub(crate) fn signed_by_rid(&self) -> String {
        let (_, link) = self.signed();
        link.last().map(|segment| segment.to_lowercase()).unwrap_or_default()
    }

    /// Resource type and link, in segments, of the text that is signed.
    pub(crate) fn signed(&self) -> (&str, &[Cow<'p, str>]) {
        let segments = self.0.as_slice();
        match segments {
            [] => ("", &[]),
            [link @ .., operations, operation]
                if link.len() == 4
                    && operations == "operations"
                    && operation == "partitionkeydelete" =>
            {
                ("colls", link)
            }
            [owner @ .., kind] if segments.len() % 2 == 1 => (kind, owner),
            [.., kind, _] => (kind, segments),
            [_] => unreachable!("one segment is an odd number of them"),
        }
    }

    /// True if it asks where replicas are, to talk to them without the gateway.
    pub(crate) fn is_of_direct_mode(&self) -> bool {
        self.0.first().is_some_and(|first| first == "addresses")
    }

    /// What the path names.
    pub(crate) fn target(&self) -> Result<Target, ApiError> {
        let segments = self.texts();
        Ok(match segments.as_slice() {
            [] => Target::Account,
            ["dbs"] => Target::Databases,
            ["dbs", database] => Target::Database((*database).to_string()),
            ["dbs", database, "users"] => Target::Users((*database).to_string()),
            ["dbs", database, "users", user, below @ ..] => {
                let user =
                    UserPath { database: (*database).to_string(), user: (*user).to_string() };
                below_user(user, below).ok_or_else(|| self.unknown())?
            }
            ["dbs", _, "clientencryptionkeys", ..] => Target::NotServed("Client encryption keys"),
            ["dbs", database, "colls"] => Target::Containers((*database).to_string()),
            ["dbs", database, "colls", container, below @ ..] => {
                let container = ContainerPath {
                    database: (*database).to_string(),
                    container: (*container).to_string(),
                };
                below_container(container, below).ok_or_else(|| self.unknown())?
            }
            ["offers"] => Target::Offers,
            ["offers", offer] => Target::Offer((*offer).to_string()),
            ["admin", rest @ ..] => Target::Admin(rest.join("/")),
            ["addresses", ..] => Target::NotServed(DIRECT_MODE),
            _ => return Err(self.unknown()),
        })
    }

    fn texts(&self) -> Vec<&str> {
        self.0.iter().map(AsRef::as_ref).collect()
    }

    fn unknown(&self) -> ApiError {
        ApiError::UnknownPath(self.0.join("/"))
    }
}

fn decoded(segment: &str) -> Result<Cow<'_, str>, ApiError> {
    percent_decoded(segment)
        .ok_or_else(|| ApiError::BadRequest(format!("The path segment '{segment}' is not UTF-8.")))
}

/// Text that was percent-encoded; none if that is not UTF-8.
pub(super) fn percent_decoded(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let mut decoded = Vec::with_capacity(text.len());
    decoded.extend(percent_decode_str(text));
    String::from_utf8(decoded).ok().map(Cow::Owned)
}

fn below_user(user: UserPath, below: &[&str]) -> Option<Target> {
    match below {
        [] => Some(Target::User(user)),
        ["permissions"] => Some(Target::Permissions(user)),
        ["permissions", permission] => Some(Target::Permission(user, (*permission).to_string())),
        _ => None,
    }
}

fn below_container(container: ContainerPath, below: &[&str]) -> Option<Target> {
    Some(match below {
        [] => Target::Container(container),
        ["docs"] => Target::Items(container),
        ["docs", item] => Target::Item(container, (*item).to_string()),
        ["docs", _, "attachments", ..] => Target::NotServed("Attachments"),
        ["pkranges"] => Target::Ranges(container),
        ["conflicts"] => Target::Conflicts(container),
        ["operations", "partitionkeydelete"] => Target::Clear(container),
        [kind] => Target::Scripts(container, script_kind(kind)?),
        [kind, name] => Target::Script(container, script_kind(kind)?, (*name).to_string()),
        _ => return None,
    })
}

fn script_kind(segment: &str) -> Option<ScriptKind> {
    match segment {
        "sprocs" => Some(ScriptKind::StoredProcedure),
        "triggers" => Some(ScriptKind::Trigger),
        "udfs" => Some(ScriptKind::UserDefinedFunction),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target(path: &str) -> Target {
        Segments::parse(path).unwrap().target().unwrap()
    }

    fn container(database: &str, container: &str) -> ContainerPath {
        ContainerPath { database: database.into(), container: container.into() }
    }

    #[test]
    fn position_tells_what_a_segment_is() {
        assert_eq!(target("/"), Target::Account);
        assert_eq!(target("/dbs/colls/colls/docs"), Target::Container(container("colls", "docs")));
        assert_eq!(
            target("/dbs/d/colls/c/docs/dbs"),
            Target::Item(container("d", "c"), "dbs".into())
        );
        assert_eq!(
            target("/dbs/d/colls/c/udfs"),
            Target::Scripts(container("d", "c"), ScriptKind::UserDefinedFunction)
        );
    }

    #[test]
    fn users_have_permissions() {
        let user = || UserPath { database: "d".into(), user: "users".into() };
        assert_eq!(target("/dbs/d/users"), Target::Users("d".into()));
        assert_eq!(target("/dbs/d/users/users"), Target::User(user()));
        assert_eq!(target("/dbs/d/users/users/permissions/"), Target::Permissions(user()));
        let permission = Target::Permission(user(), "p q".into());
        assert_eq!(target("/dbs/d/users/users/permissions/p%20q"), permission);
    }

    #[test]
    fn a_trailing_slash_changes_nothing() {
        for path in ["/dbs/d/colls/c/docs/i", "/dbs", "/offers/x", "/dbs/d/colls/c/pkranges"] {
            assert_eq!(target(path), target(&format!("{path}/")));
        }
    }

    #[test]
    fn segments_are_decoded_one_by_one() {
        let item = |id: &str| Target::Item(container("d", "c"), id.to_string());
        assert_eq!(target("/dbs/d/colls/c/docs/a%2Fb"), item("a/b"));
        assert_eq!(target("/dbs/d/colls/c/docs/a+b%20c%25"), item("a+b c%"));
        assert_eq!(target("/dbs/d/colls/c/docs/%E6%97%A5"), item("日"));
        assert!(Segments::parse("/dbs/%FF").is_err());
    }

    #[test]
    fn what_is_no_resource_is_refused() {
        for path in [
            "/db",
            "/dbs/d/x",
            "/dbs/d/users/u/x",
            "/dbs/d/users/u/permissions/p/x",
            "/dbs/d/colls/c/nothing",
            "/dbs/d/colls/c/docs/i/x/y/z",
        ] {
            let result = Segments::parse(path).unwrap().target();
            assert!(matches!(result, Err(ApiError::UnknownPath(_))), "{path}");
        }
        assert!(matches!(target("//addresses/?x"), Target::NotServed(_)));
    }

    #[test]
    fn the_signed_text_follows_the_protocol() {
        let signed = |path: &str| {
            let segments = Segments::parse(path).unwrap();
            let (kind, link) = segments.signed();
            (kind.to_string(), link.join("/"), segments.signed_by_rid())
        };
        let expect = |kind: &str, link: &str, rid: &str| {
            (kind.to_string(), link.to_string(), rid.to_string())
        };
        assert_eq!(signed("/"), expect("", "", ""));
        assert_eq!(signed("/dbs"), expect("dbs", "", ""));
        assert_eq!(signed("/dbs/D/"), expect("dbs", "dbs/D", "d"));
        assert_eq!(signed("/dbs/D/colls"), expect("colls", "dbs/D", "d"));
        assert_eq!(signed("/dbs/D/colls/C/docs/I/"), expect("docs", "dbs/D/colls/C/docs/I", "i"));
        let clear = "/dbs/D/colls/C/operations/partitionkeydelete";
        assert_eq!(signed(clear), expect("colls", "dbs/D/colls/C", "c"));
    }

    proptest! {
        #[test]
        fn any_path_is_parsed_or_refused(path in "(/|%[0-9A-F]{0,2}|[a-z]{1,5}|dbs|colls|docs|é){0,12}") {
            if let Ok(segments) = Segments::parse(&path) {
                let _ = (segments.signed(), segments.signed_by_rid(), segments.target());
            }
        }
    }
}
