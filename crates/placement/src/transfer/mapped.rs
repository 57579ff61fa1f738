//! Detects memory-mapped files.
//!
//! A device copy directly from the pages of a memory-mapped safetensors file hangs on some APUs
//! (ROCm/legacy-rocm-build issue 6182), so the engine has to avoid it. A tensor does not know where its
//! memory comes from, but the kernel does, in `/proc/self/maps`.

/// Whether `address` is in a mapping of a file on disk. `false` if the kernel does not tell.
pub(crate) fn is_file_mapped(address: usize) -> bool {
    std::fs::read_to_string("/proc/self/maps")
        .is_ok_and(|maps| mapping_of(&maps, address).is_some_and(is_file))
}

/// The path of the mapping that contains `address`: the sixth field of its line.
fn mapping_of(maps: &str, address: usize) -> Option<&str> {
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        // permissions, offset, device, inode, path (which may contain spaces)
        (start..end)
            .contains(&address)
            .then(|| rest.splitn(5, ' ').nth(4).unwrap_or_default().trim())
    })
}

/// Some paths are not files on disk: shared memory, anonymous files, and the device nodes through which
/// drivers map pinned memory.
fn is_file(path: &str) -> bool {
    const MEMORY: [&str; 4] = ["/dev/", "/memfd:", "/SYSV", "/anon_hugepage"];
    path.starts_with('/') && !MEMORY.iter().any(|prefix| path.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0001000 r--p 00000000 08:01 131 /usr/bin/surefoot
7f0000000000-7f0000100000 rw-p 00000000 00:00 0 
7f1000000000-7f1000100000 r--s 00000000 08:01 42                         /models/my model.safetensors
7f2000000000-7f2000100000 rw-s 00000000 00:1b 9 /dev/dri/renderD128
7f3000000000-7f3000100000 rw-s 00000000 00:01 7 /memfd:shared (deleted)
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]
";

    fn file(address: usize) -> bool {
        mapping_of(MAPS, address).is_some_and(is_file)
    }

    #[test]
    fn a_mapped_model_is_a_file_and_other_memory_is_not() {
        assert!(file(0x7f10_0000_1000));
        assert_eq!(
            mapping_of(MAPS, 0x7f10_0000_1000),
            Some("/models/my model.safetensors")
        );
        assert!(!file(0x7f00_0000_1000), "anonymous memory");
        assert!(!file(0x7f20_0000_0000), "memory that a driver pinned");
        assert!(!file(0x7f30_0000_0000), "an anonymous file");
        assert!(!file(0x7ffd_0000_1000), "the stack");
        assert!(!file(0x1000), "no mapping at all");
        assert!(!file(0x7f10_0010_0000), "the first byte after it");
    }

    #[test]
    fn this_kernel_is_read() {
        let local = 5_u8;
        assert!(!is_file_mapped(std::ptr::from_ref(&local) as usize));
        assert!(
            is_file_mapped(is_file_mapped as *const () as usize),
            "this program's own code"
        );
    }
}
