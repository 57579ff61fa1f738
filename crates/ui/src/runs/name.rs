//! Names of runs, from a command line or the network.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The name of a run's folder: one path component, never `.`, `..` or hidden.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(inline)]
pub struct RunName(String);

/// The error for a text that cannot be the name of a run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be the name of a run: a name is 1 to 200 bytes without `/` and control characters, and does not begin with `.`"
)]
pub struct BadName(String);

impl RunName {
    /// Parses a name.
    ///
    /// # Errors
    /// If it could mean anything but a folder directly below the folder of runs.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let forbidden = |letter: char| matches!(letter, '/' | '\\') || letter.is_control();
        let good =
            (1..=200).contains(&text.len()) && !text.starts_with('.') && !text.contains(forbidden);
        match good {
            true => Ok(Self(text.to_owned())),
            false => Err(BadName(text.chars().take(80).collect())),
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for RunName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        Self::parse(text)
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl Serialize for RunName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for RunName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_path_to_elsewhere_is_not_a_name() {
        for text in [
            "",
            ".",
            "..",
            "../x",
            "/etc",
            "a/b",
            "a\\b",
            "a\0b",
            ".surefoot",
            "a\nb",
            "a\u{1b}[31m",
        ] {
            assert!(RunName::parse(text).is_err(), "{text:?}");
        }
        for text in ["small", "small-2", "a b", "gemäß", "a..b", "%2e%2e"] {
            assert!(RunName::parse(text).is_ok(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_name_is_one_component_of_a_path(text in ".{0,40}") {
            if let Ok(name) = RunName::parse(&text) {
                let path = std::path::Path::new(name.as_str());
                let parts: Vec<_> = path.components().collect();
                prop_assert!(matches!(parts[..], [std::path::Component::Normal(part)] if part == text.as_str()));
            }
        }
    }
}
