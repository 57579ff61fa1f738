//! GPU architectures, as HIP names them.

/// A GPU architecture, such as `gfx1201`: the last two characters are its minor version and its stepping, and what is
/// before them is its major version.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// `gfx1201`
    pub name: String,
    /// 12
    pub major: i32,
    /// 0
    pub minor: i32,
}

impl Architecture {
    /// The one with this name, if it is one.
    pub fn named(name: &str) -> Option<Self> {
        let digits = name
            .strip_prefix("gfx")
            .filter(|digits| digits.is_ascii())?;
        let (major, rest) = digits.split_at_checked(digits.len().checked_sub(2)?)?;
        u32::from_str_radix(rest, 16).ok()?;
        Some(Self {
            name: name.to_owned(),
            major: major.parse().ok()?,
            minor: i32::from_str_radix(&rest[..1], 16).ok()?,
        })
    }
}

impl Default for Architecture {
    fn default() -> Self {
        Self {
            name: "gfx1151".to_owned(),
            major: 11,
            minor: 5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_version() {
        assert_eq!(
            Architecture::named("gfx1151"),
            Some(Architecture::default())
        );
        let version = |name| Architecture::named(name).map(|it| (it.major, it.minor));
        assert_eq!(version("gfx1201"), Some((12, 0)));
        assert_eq!(version("gfx90a"), Some((9, 0)));
        for wrong in ["", "gfx", "gfx1", "sm_86", "gfx12zz", "gfx\u{e9}\u{e9}"] {
            assert_eq!(version(wrong), None, "{wrong}");
        }
    }
}
