//! The cache folder shared by all commands.

use std::path::PathBuf;

/// `$SUREFOOT_CACHE`, `$XDG_CACHE_HOME/surefoot` or `~/.cache/surefoot`; on Windows
/// `%LOCALAPPDATA%\surefoot` instead of the last two.
pub fn folder() -> PathBuf {
    let folder = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let own = folder("SUREFOOT_CACHE");
    if cfg!(windows) {
        return own
            .or_else(|| Some(folder("LOCALAPPDATA")?.join("surefoot")))
            .unwrap_or_else(|| std::env::temp_dir().join("surefoot"));
    }
    own.or_else(|| Some(folder("XDG_CACHE_HOME")?.join("surefoot")))
        .or_else(|| Some(folder("HOME")?.join(".cache/surefoot")))
        .unwrap_or_else(|| std::env::temp_dir().join("surefoot"))
}

/// A hash of some bytes (FNV-1a, 64 bits), to distinguish versions; not cryptographic.
pub fn fingerprint(bytes: impl Iterator<Item = u8>) -> String {
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}
