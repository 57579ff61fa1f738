//! Which library a loader missed, and what has it.

use crate::tables::LIBRARIES;

/// The name of the library that a line says cannot be opened.
pub(super) fn named_in(line: &str) -> Option<&str> {
    let (before, _) = line.split_once(": cannot open shared object")?;
    let path = before.rsplit([' ', ':', '\'', '"']).next()?;
    let name = path.rsplit('/').next()?;
    (name.starts_with("lib") && name.contains(".so")).then_some(name)
}

/// How to install a library, if it is a known one.
pub(super) fn installation_of(name: &str) -> Option<String> {
    let (_, what, package) = LIBRARIES
        .iter()
        .find(|(start, ..)| name.starts_with(start))?;
    Some(format!(
        "{name} is part of {what}: install that (Debian and Ubuntu: {package}, or the package of that name with another number)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_named_with_what_has_it() {
        for (line, name, what) in [
            (
                "ImportError: libmpi_cxx.so.40: cannot open shared object file: No such file or directory",
                "libmpi_cxx.so.40",
                Some("OpenMPI"),
            ),
            (
                "hipblaslt-bench: error while loading shared libraries: libopenblas.so.0: cannot open shared object file",
                "libopenblas.so.0",
                Some("OpenBLAS"),
            ),
            (
                "OSError: /opt/x/libdrm_amdgpu.so.1: cannot open shared object file",
                "libdrm_amdgpu.so.1",
                Some("libdrm-amdgpu1"),
            ),
            (
                "OSError: libfoo.so: cannot open shared object file",
                "libfoo.so",
                None,
            ),
        ] {
            assert_eq!(named_in(line), Some(name));
            let installation = installation_of(name);
            assert_eq!(installation.is_some(), what.is_some(), "{name}");
            assert!(installation.is_none_or(|text| text.contains(what.unwrap_or_default())));
        }
        assert_eq!(named_in("OSError: x: cannot open shared object file"), None);
        assert_eq!(named_in("cannot open"), None);
    }
}
