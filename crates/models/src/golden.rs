//! Where the tests' reference values are: `tests/reference/golden`, or the folder named by `SUREFOOT_GOLDEN`,
//! which the heavy tier fills with freshly computed ones.

use std::path::{Path, PathBuf};

pub(crate) fn golden(name: &str) -> PathBuf {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden");
    let folder = std::env::var_os("SUREFOOT_GOLDEN").map_or(kept, PathBuf::from);
    folder.join(name)
}
