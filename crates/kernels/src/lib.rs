#![doc = include_str!("../README.md")]

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::Library;
use platform::rocm_libraries::HIP_RUNTIMES;

/// Machine code for all architectures, as `clang-offload-bundler` lays it out; the runtime takes what fits the GPU.
static BUNDLE: Aligned<[u8; include_bytes!("../kernels.bundle").len()]> =
    Aligned(*include_bytes!("../kernels.bundle"));

/// On a page of its own, as code objects lie in files that are mapped.
#[repr(C, align(4096))]
struct Aligned<T>(T);

/// Lanes of a workgroup.
const THREADS: u64 = 256;
/// `hipSuccess`
const SUCCESS: c_int = 0;

/// A failure of the HIP runtime.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library lacks a function.
    #[error("this is no HIP runtime: {0}")]
    NoRuntime(#[from] libloading::Error),
    /// None of its names is that of a library of this process.
    #[error("this process has not loaded AMD's HIP runtime")]
    NotLoaded,
    /// A call failed.
    #[error("{call}: {reason} (error {status})")]
    Call {
        /// The function of HIP.
        call: &'static str,
        /// Its number, a `hipError_t`.
        status: i32,
        /// What the runtime says of it.
        reason: String,
    },
    /// More than a launch can have.
    #[error("{0} words are too many for one launch")]
    TooMany(u64),
}

/// How weights of 4 bits are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Scales in fp32 for 64 weights, of which the earlier one of a byte is in its high nibble.
    Nf4,
    /// Exponents of powers of two, plus 127 (E8M0), for 32 weights, of which the earlier one of a byte is in its low nibble.
    Mxfp4,
}

/// A type of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// bfloat16
    Bf16,
    /// IEEE's half precision
    Fp16,
}

/// Weights of 4 bits and where their values go, all on the device.
#[derive(Clone, Copy, Debug)]
pub struct Dequantize {
    /// How they are stored.
    pub format: Format,
    /// What the values are.
    pub kind: Kind,
    /// Two weights a byte, on an address that is a multiple of 4.
    pub packed: *const c_void,
    /// One for each block.
    pub scales: *const c_void,
    /// Values of 16 bits, on an address that is a multiple of 16.
    pub values: *mut c_void,
    /// Number of words: each is four bytes of `packed` and eight values.
    pub words: u64,
    /// What the nibbles stand for, before they are multiplied by a scale.
    pub levels: [f32; 16],
}

type LoadModule = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> c_int;
type FindFunction = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
type Launch = unsafe extern "C" fn(
    *mut c_void,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
type LastError = unsafe extern "C" fn() -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// The kernels, loaded on one device.
#[derive(Debug)]
pub struct Kernels {
    launch: Launch,
    error_string: ErrorString,
    last_error: LastError,
    /// By format and kind.
    dequantize: [[*mut c_void; 2]; 2],
    /// Whose functions these are.
    _runtime: Library,
}

// SAFETY: the handles are the runtime's, which may be used by any thread of the process.
unsafe impl Send for Kernels {}
// SAFETY: as above; nothing is changed through them.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Loads them, by the HIP runtime that this process has loaded, on the device that is current to this thread.
    ///
    /// # Errors
    /// If the process has no such runtime, and as [`load`](Self::load).
    pub fn of_this_process() -> Result<Self, Error> {
        let runtime = runtime_of_this_process().ok_or(Error::NotLoaded)?;
        // SAFETY: AMD's runtime, by its names, which the process uses.
        unsafe { Self::load(runtime) }
    }

    /// Loads them on the device that is current to this thread, for good.
    ///
    /// # Errors
    /// If `runtime` is no HIP runtime, or it has no code here for its GPU.
    ///
    /// # Safety
    /// `runtime` is the HIP runtime that the process uses, `libamdhip64`.
    pub unsafe fn load(runtime: Library) -> Result<Self, Error> {
        // SAFETY: the names are those of HIP's functions, and the types those of its header.
        let (load, find, launch, error_string, last_error) = unsafe {
            (
                *runtime.get::<LoadModule>(c"hipModuleLoadData")?,
                *runtime.get::<FindFunction>(c"hipModuleGetFunction")?,
                *runtime.get::<Launch>(c"hipModuleLaunchKernel")?,
                *runtime.get::<ErrorString>(c"hipGetErrorString")?,
                *runtime.get::<LastError>(c"hipGetLastError")?,
            )
        };
        let mut kernels = Self {
            launch,
            error_string,
            last_error,
            dequantize: [[std::ptr::null_mut(); 2]; 2],
            _runtime: runtime,
        };
        let mut module = std::ptr::null_mut();
        // SAFETY: the place of the result, and a bundle of code objects, which the runtime copies.
        let status = unsafe { load(&mut module, BUNDLE.0.as_ptr().cast()) };
        kernels.check("hipModuleLoadData", status)?;
        let names = [
            [c"nf4_to_bf16", c"nf4_to_fp16"],
            [c"mxfp4_to_bf16", c"mxfp4_to_fp16"],
        ];
        for (format, names) in names.iter().enumerate() {
            for (kind, name) in names.iter().enumerate() {
                let function = &mut kernels.dequantize[format][kind];
                // SAFETY: the place of the result, a module that was loaded, and a name that ends with zero.
                let status = unsafe { find(function, module, name.as_ptr()) };
                kernels.check("hipModuleGetFunction", status)?;
            }
        }
        Ok(kernels)
    }

    /// Computes the values of weights on `stream`, a `hipStream_t`; returns before it is done.
    ///
    /// # Errors
    /// If the launch fails.
    ///
    /// # Safety
    /// The device that is current is the one on which these were loaded, and `stream` one of its streams or null. The
    /// pointers are what their fields say, for `words` words, and the memory lives until the stream has come to this.
    pub unsafe fn dequantize(&self, weights: Dequantize, stream: *mut c_void) -> Result<(), Error> {
        let Dequantize {
            format,
            kind,
            mut packed,
            mut scales,
            mut values,
            mut words,
            mut levels,
        } = weights;
        if words == 0 {
            return Ok(());
        }
        let grid = words.div_ceil(THREADS);
        let grid = u32::try_from(grid).map_err(|_| Error::TooMany(words))?;
        // Words of a block, as a power of two.
        let mut shift: u32 = match format {
            Format::Nf4 => 3,
            Format::Mxfp4 => 2,
        };
        let mut arguments: [*mut c_void; 6] = [
            (&raw mut packed).cast(),
            (&raw mut scales).cast(),
            (&raw mut values).cast(),
            (&raw mut words).cast(),
            (&raw mut shift).cast(),
            (&raw mut levels).cast(),
        ];
        let function = self.dequantize[format as usize][kind as usize];
        // SAFETY: the kernel's arguments, in number, order and size, which the runtime copies before it returns; what
        // they point to is as the caller promises. No lane goes beyond `words`.
        let status = unsafe {
            (self.launch)(
                function,
                grid,
                1,
                1,
                THREADS as u32,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.check("hipModuleLaunchKernel", status)
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<(), Error> {
        if status == SUCCESS {
            return Ok(());
        }
        // What failed here is told here: PyTorch would find it after its next launch, and take it for its own.
        // SAFETY: the function takes nothing, and forgets the error of this thread.
        unsafe { (self.last_error)() };
        // SAFETY: the function takes any number, and returns a text that is never freed.
        let reason = unsafe { CStr::from_ptr((self.error_string)(status)) };
        Err(Error::Call {
            call,
            status,
            reason: reason.to_string_lossy().into_owned(),
        })
    }
}

/// The HIP runtime of this process, by the names that its files have.
#[cfg(unix)]
fn runtime_of_this_process() -> Option<Library> {
    use libloading::os::unix::{Library, RTLD_LAZY};
    /// dlopen(3): only what is there.
    const RTLD_NOLOAD: c_int = 4;
    let program = Library::this();
    // SAFETY: the symbol is only looked up.
    if unsafe { program.get::<*const c_void>(b"hipModuleLoadData") }.is_ok() {
        return Some(program.into());
    }
    HIP_RUNTIMES.iter().find_map(|name| {
        // SAFETY: nothing is loaded, so no initialiser runs; that the runtime stays loaded is up to PyTorch, which never
        // unloads it.
        let library = unsafe { Library::open(Some(*name), RTLD_LAZY | RTLD_NOLOAD) };
        library.ok().map(Into::into)
    })
}

/// The HIP runtime of this process, by the names that its files have.
#[cfg(windows)]
fn runtime_of_this_process() -> Option<Library> {
    HIP_RUNTIMES.iter().find_map(|name| {
        let library = libloading::os::windows::Library::open_already_loaded(*name);
        library.ok().map(Into::into)
    })
}
