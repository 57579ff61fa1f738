//! Which library a loader missed, and what has it.

/// Beginnings of names of libraries that programs of this field need: what each belongs to, and the package of Debian and Ubuntu
/// that has it.
const KNOWN: &[(&str, &str, &str)] = &[
    ("libopenblas", "OpenBLAS", "libopenblas0"),
    ("liblapack", "LAPACK", "liblapack3"),
    ("libblas", "BLAS", "libblas3"),
    ("libmpi", "OpenMPI", "openmpi-bin"),
    ("libopen-rte", "OpenMPI", "openmpi-bin"),
    ("libibverbs", "RDMA", "libibverbs1"),
    ("librdmacm", "RDMA", "librdmacm1"),
    ("libmkl", "Intel's MKL", "intel-mkl"),
    ("libtbb", "Intel's TBB", "libtbb12"),
    ("libgomp", "GCC's OpenMP", "libgomp1"),
    ("libomp", "LLVM's OpenMP", "libomp5"),
    ("libgfortran", "GCC's Fortran", "libgfortran5"),
    ("libquadmath", "GCC", "libquadmath0"),
    ("libatomic", "GCC", "libatomic1"),
    ("libnuma", "libnuma", "libnuma1"),
    ("libelf", "elfutils", "libelf1"),
    ("libdw", "elfutils", "libdw1"),
    ("libdrm_amdgpu", "libdrm", "libdrm-amdgpu1"),
    ("libdrm", "libdrm", "libdrm2"),
    ("libpci", "pciutils", "libpci3"),
    ("libGL.", "OpenGL", "libgl1"),
    ("libEGL", "OpenGL", "libegl1"),
    ("libOpenGL", "OpenGL", "libopengl0"),
    ("libOpenCL", "OpenCL's loader", "ocl-icd-libopencl1"),
    ("libvulkan", "Vulkan's loader", "libvulkan1"),
    ("libX", "X11", "libxext6"),
    ("libSM", "X11", "libsm6"),
    ("libxcb", "X11", "libxcb1"),
    ("libgthread", "GLib", "libglib2.0-0"),
    ("libglib", "GLib", "libglib2.0-0"),
    ("libtinfo.so.5", "ncurses 5", "libtinfo5"),
    ("libtinfo", "ncurses", "libtinfo6"),
    ("libncurses", "ncurses", "libncurses6"),
    ("libssl.so.1.1", "OpenSSL 1.1", "libssl1.1"),
    ("libcrypto.so.1.1", "OpenSSL 1.1", "libssl1.1"),
    ("libav", "FFmpeg", "ffmpeg"),
    ("libsw", "FFmpeg", "ffmpeg"),
    ("libsndfile", "libsndfile", "libsndfile1"),
    ("libportaudio", "PortAudio", "libportaudio2"),
    ("libjpeg", "libjpeg", "libjpeg62-turbo"),
    ("libpng", "libpng", "libpng16-16"),
    ("libwebp", "WebP", "libwebp7"),
    ("libtcmalloc", "gperftools", "libgoogle-perftools4"),
    ("libjemalloc", "jemalloc", "libjemalloc2"),
    ("libaio", "libaio", "libaio1"),
    ("libsqlite3", "SQLite", "libsqlite3-0"),
    ("libffi", "libffi", "libffi8"),
    ("libcurl", "curl", "libcurl4"),
    ("libpython", "Python, as a shared library", "libpython3-dev"),
];

/// The name of the library that a line says cannot be opened.
pub(super) fn named_in(line: &str) -> Option<&str> {
    let (before, _) = line.split_once(": cannot open shared object")?;
    let path = before.rsplit([' ', ':', '\'', '"']).next()?;
    let name = path.rsplit('/').next()?;
    (name.starts_with("lib") && name.contains(".so")).then_some(name)
}

/// How to install a library, if it is a known one.
pub(super) fn installation_of(name: &str) -> Option<String> {
    let (_, what, package) = KNOWN.iter().find(|(start, ..)| name.starts_with(start))?;
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
