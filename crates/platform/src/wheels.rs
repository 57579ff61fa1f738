//! Which upstream PyTorch wheel has code for which architecture.

use crate::Gfx;

/// The architectures of PyTorch's own wheels, by the local part of their version. Sources: uv,
/// `crates/uv-torch/src/backend.rs` (`LINUX_AMD_GPU_DRIVERS`); before 6.0 the build scripts of PyTorch
/// (`manywheel/build_docker.sh`). No upstream wheel has ever included gfx1031 to gfx1036.
const UPSTREAM: &[(&str, &[&str])] = &[
    ("5.3", &["gfx900", "gfx906", "gfx908", "gfx90a", "gfx1030"]),
    (
        "5.4.2",
        &["gfx900", "gfx906", "gfx908", "gfx90a", "gfx1030"],
    ),
    (
        "5.7",
        &["gfx900", "gfx906", "gfx908", "gfx90a", "gfx1030", "gfx1100"],
    ),
    ("6.0", OLDEST),
    (
        "6.1",
        &[
            "gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1101",
        ],
    ),
    ("6.2", OLDEST),
    ("6.2.4", RDNA4),
    ("6.3", RDNA4),
    ("6.4", RDNA4),
    ("7.0", CDNA4),
    ("7.1", CDNA4),
    (
        "7.2",
        &[
            "gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100",
            "gfx1101", "gfx1102", "gfx1150", "gfx1151", "gfx1200", "gfx1201",
        ],
    ),
];
const OLDEST: &[&str] = &[
    "gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100",
];
const RDNA4: &[&str] = &[
    "gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1101", "gfx1102",
    "gfx1200", "gfx1201",
];
const CDNA4: &[&str] = &[
    "gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101",
    "gfx1102", "gfx1200", "gfx1201",
];

/// The newest upstream index in the table, as the local part of a version.
pub const NEWEST_UPSTREAM: &str = "7.2";

/// The architectures of the upstream wheel with this local part (`7.2`).
#[must_use]
pub fn upstream_architectures(local: &str) -> Option<Vec<Gfx>> {
    let (_, names) = UPSTREAM.iter().find(|(version, _)| *version == local)?;
    Some(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// Major and minor version of `7.13.0a20260422`.
#[must_use]
pub fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Whether the newest upstream wheel has native code for an architecture.
#[must_use]
pub fn is_in_newest_upstream(gfx: Gfx) -> bool {
    upstream_architectures(NEWEST_UPSTREAM).is_some_and(|list| list.contains(&gfx))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_in_the_table_is_an_architecture() {
        for (version, names) in UPSTREAM {
            assert_eq!(
                upstream_architectures(version).map(|list| list.len()),
                Some(names.len()),
                "{version}"
            );
        }
    }
}
