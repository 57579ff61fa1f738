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
    "{0:?} cannot be the name of a run: a name is 1 to 200 bytes without `/` and control or invisible characters, does \
     not begin with `.`, and has no blank at either end"
)]
pub struct BadName(String);

impl RunName {
    /// Parses a name.
    ///
    /// # Errors
    /// If it could mean anything but a folder directly below the folder of runs.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let forbidden = |letter: char| {
            let is_blank = letter.is_whitespace() && letter != ' ';
            matches!(letter, '/' | '\\') || letter.is_control() || is_blank || is_invisible(letter)
        };
        let good = (1..=200).contains(&text.len())
            && !text.starts_with('.')
            && text.trim() == text
            && !text.contains(forbidden);
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

/// Letters that nothing is drawn for, or that change the order of others: two names with them look like one.
fn is_invisible(letter: char) -> bool {
    matches!(
        letter,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    )
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
            " ",
            " a",
            "a ",
            "a\u{a0}b",
            "a\u{2028}b",
            "a\u{200b}",
            "\u{202e}gnp.exe",
            "\u{feff}a",
            "\u{3164}",
        ] {
            assert!(RunName::parse(text).is_err(), "{text:?}");
        }
        for text in [
            "small", "small-2", "a b", "gemäß", "שלום", "猫", "a..b", "%2e%2e",
        ] {
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
