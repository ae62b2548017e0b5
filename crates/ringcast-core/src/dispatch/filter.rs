//! Which row keys a consumer wants.

use wildmatch::WildMatch;

use super::MAX_FILTER_BYTES;
use crate::Error;

/// A pattern over whole row keys: `*` stands for any characters, `?` for exactly one (of Unicode, not a byte), and every
/// other character for itself. Nothing is a path separator, and there is no escape.
///
/// Matching takes at most pattern length × key length steps, whatever the pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyFilter {
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Exact(Box<str>),
    Prefix(Box<str>),
    Pattern(WildMatch),
}

impl KeyFilter {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// When it is empty or longer than [`MAX_FILTER_BYTES`].
    pub fn new(pattern: &str) -> Result<Self, Error> {
        Error::check_range("filter length in bytes", pattern.len() as u64, 1, MAX_FILTER_BYTES as u64)?;
        let special = |text: &str| text.contains(['*', '?']);
        let kind = match pattern.strip_suffix('*') {
            Some(prefix) if !special(prefix) => Kind::Prefix(prefix.into()),
            None if !special(pattern) => Kind::Exact(pattern.into()),
            _ => Kind::Pattern(WildMatch::new(pattern)),
        };
        Ok(Self { kind })
    }

    /// Whether the pattern stands for `key`.
    #[must_use]
    pub fn accepts(&self, key: &str) -> bool {
        match &self.kind {
            Kind::Exact(text) => **text == *key,
            Kind::Prefix(prefix) => key.starts_with(&**prefix),
            Kind::Pattern(pattern) => pattern.matches(key),
        }
    }
}
