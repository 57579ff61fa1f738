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
/// Workgroups that a launch can have: HIP counts its threads in 32 bits.
pub const MOST_GROUPS: u64 = u32::MAX as u64 / THREADS;
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
    #[error("{0} workgroups are too many for one launch")]
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

/// A norm of rows: what `input` and `change` add up to, normalised, times `weight` and the sample's `factor`, plus its `shift` and
/// `residual`. What is null of these is left out. A number is in fp32 or in the [`Kind`] of the launch.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Norm {
    /// `[rows, width]`
    pub input: *const c_void,
    /// The same in 16 bits, or null.
    pub change: *const c_void,
    /// `[width]` in fp32, or null.
    pub weight: *const c_void,
    /// For each sample a vector in fp32, or null.
    pub factor: *const c_void,
    /// For each sample a vector in fp32, or null.
    pub shift: *const c_void,
    /// Like `output`, or null.
    pub residual: *const c_void,
    /// Where `input + change` goes, in the type of `input`, if there is a change.
    pub sum: *mut c_void,
    /// `[rows, width]`
    pub output: *mut c_void,
    /// `[rows, 2]` in fp32: of each row the mean, and one over the root of its variance.
    pub statistics: *mut c_void,
    /// Numbers of a row.
    pub width: u32,
    /// Rows of a sample.
    pub rows: u32,
    /// From one sample's vector to the next one's.
    pub stride: u32,
    /// 1 if `input` and `sum` are in fp32, else 0.
    pub is_full: u32,
    /// 1 if `output` and `residual` are in fp32, else 0.
    pub gives_full: u32,
    /// 1 if the mean is subtracted; otherwise 0, and it counts as zero.
    pub is_centred: u32,
    /// One over the width.
    pub inverse: f32,
    /// Added to the variance.
    pub epsilon: f32,
}

/// The gradients of a [`Norm`], whose fields have the same meaning here.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NormBackward {
    /// That of the output, in its type.
    pub gradient: *const c_void,
    /// What was normalised: the input, or the sum if there was a change.
    pub input: *const c_void,
    /// As before.
    pub weight: *const c_void,
    /// As before.
    pub factor: *const c_void,
    /// What the norm wrote.
    pub statistics: *const c_void,
    /// The gradient of the sum in its type, or null.
    pub of_sum: *const c_void,
    /// Where that of the input goes, in its type.
    pub of_input: *mut c_void,
    /// Where the same goes for the change, in 16 bits, or null.
    pub of_change: *mut c_void,
    /// As before.
    pub width: u32,
    /// As before.
    pub rows: u32,
    /// As before.
    pub stride: u32,
    /// As before.
    pub is_full: u32,
    /// As before.
    pub gives_full: u32,
    /// As before.
    pub is_centred: u32,
    /// As before.
    pub inverse: f32,
}

/// Heads of queries or keys, `[tokens, heads, width]` in 16 bits: each may be normalised (without a mean), then the first `turned`
/// numbers are rotated in pairs (a, b) to (a·cos − b·sin, b·cos + a·sin).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Heads {
    /// What is rotated; in the backward pass, too, or without a norm any numbers of the same size.
    pub input: *const c_void,
    /// `[width]` in fp32, or null.
    pub weight: *const c_void,
    /// The first cosine.
    pub cosines: *const c_void,
    /// The first sine.
    pub sines: *const c_void,
    /// Where the result goes, which in the backward pass is the gradient of `input`.
    pub output: *mut c_void,
    /// Null, or in the backward pass the gradient of what was rotated.
    pub gradient: *const c_void,
    /// Heads of a token.
    pub heads: u32,
    /// Numbers of a head.
    pub width: u32,
    /// How many of them are rotated.
    pub turned: u32,
    /// Tokens of a sample.
    pub tokens: u32,
    /// In the tables, from one sample to the next; zero if they have the same angles.
    pub sample: u32,
    /// In the tables, from one token to the next.
    pub token: u32,
    /// In the tables, from one pair to the next.
    pub pair: u32,
    /// 1 if the tables are in fp32, else 0.
    pub is_full: u32,
    /// In a head, from the first number of a pair to that of the next one.
    pub next: u32,
    /// In a head, from the first number of a pair to its second.
    pub partner: u32,
    /// One over the width if heads are normalised, else zero.
    pub inverse: f32,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// The kernels, each for both kinds, in the order of [`Function`].
const NAMES: [[&CStr; 2]; 6] = [
    [c"nf4_to_bf16", c"nf4_to_fp16"],
    [c"mxfp4_to_bf16", c"mxfp4_to_fp16"],
    [c"norm_bf16", c"norm_fp16"],
    [c"norm_backward_bf16", c"norm_backward_fp16"],
    [c"heads_bf16", c"heads_fp16"],
    [c"heads_backward_bf16", c"heads_backward_fp16"],
];

#[derive(Clone, Copy)]
enum Function {
    Nf4,
    Mxfp4,
    Norm,
    NormBackward,
    Heads,
    HeadsBackward,
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
    /// As in [`NAMES`].
    functions: [[*mut c_void; 2]; NAMES.len()],
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
            functions: [[std::ptr::null_mut(); 2]; NAMES.len()],
            _runtime: runtime,
        };
        let mut module = std::ptr::null_mut();
        // SAFETY: the place of the result, and a bundle of code objects, which the runtime copies.
        let status = unsafe { load(&mut module, BUNDLE.0.as_ptr().cast()) };
        kernels.check("hipModuleLoadData", status)?;
        for (function, names) in NAMES.iter().enumerate() {
            for (kind, name) in names.iter().enumerate() {
                let function = &mut kernels.functions[function][kind];
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
        // Words of a block, as a power of two.
        let (function, mut shift): (_, u32) = match format {
            Format::Nf4 => (Function::Nf4, 3),
            Format::Mxfp4 => (Function::Mxfp4, 2),
        };
        let mut arguments: [*mut c_void; 6] = [
            (&raw mut packed).cast(),
            (&raw mut scales).cast(),
            (&raw mut values).cast(),
            (&raw mut words).cast(),
            (&raw mut shift).cast(),
            (&raw mut levels).cast(),
        ];
        let groups = words.div_ceil(THREADS);
        // SAFETY: the kernel's arguments in number, order and size; what they point to is as the caller promises. No lane goes
        // beyond `words`.
        unsafe { self.launch((function, kind), groups, &mut arguments, stream) }
    }

    /// Computes a norm of so many `rows` on `stream`, a `hipStream_t`; returns before it is done.
    ///
    /// # Errors
    /// If the launch fails.
    ///
    /// # Safety
    /// As [`dequantize`](Self::dequantize), for `rows` rows, of which those of a sample are consecutive.
    pub unsafe fn norm(
        &self,
        mut norm: Norm,
        (kind, rows): (Kind, u64),
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let mut arguments = [(&raw mut norm).cast()];
        // SAFETY: the kernel's argument, and the rest is as the caller promises.
        unsafe { self.launch((Function::Norm, kind), rows, &mut arguments, stream) }
    }

    /// Computes the gradients of a norm.
    ///
    /// # Errors
    /// If the launch fails.
    ///
    /// # Safety
    /// As [`norm`](Self::norm).
    pub unsafe fn norm_backward(
        &self,
        mut norm: NormBackward,
        (kind, rows): (Kind, u64),
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let mut arguments = [(&raw mut norm).cast()];
        // SAFETY: the kernel's argument, and the rest is as the caller promises.
        unsafe { self.launch((Function::NormBackward, kind), rows, &mut arguments, stream) }
    }

    /// Rotates the heads of so many `tokens` of all samples, or their gradient back if there is one.
    ///
    /// # Errors
    /// If the launch fails.
    ///
    /// # Safety
    /// As [`dequantize`](Self::dequantize), for `tokens` tokens, of which those of a sample are consecutive.
    pub unsafe fn heads(
        &self,
        mut heads: Heads,
        (kind, tokens): (Kind, u64),
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let function = match heads.gradient.is_null() {
            true => Function::Heads,
            false => Function::HeadsBackward,
        };
        let mut arguments = [(&raw mut heads).cast()];
        // SAFETY: the kernel's argument, and the rest is as the caller promises.
        unsafe { self.launch((function, kind), tokens, &mut arguments, stream) }
    }

    /// Launches a kernel in so many workgroups.
    ///
    /// # Safety
    /// `arguments` point to those of the kernel, which may be used on `stream`, one of the device that is current.
    unsafe fn launch(
        &self,
        (function, kind): (Function, Kind),
        groups: u64,
        arguments: &mut [*mut c_void],
        stream: *mut c_void,
    ) -> Result<(), Error> {
        if groups == 0 {
            return Ok(());
        }
        if groups > MOST_GROUPS {
            return Err(Error::TooMany(groups));
        }
        // SAFETY: as the caller promises; the runtime copies the arguments before it returns.
        let status = unsafe {
            (self.launch)(
                self.functions[function as usize][kind as usize],
                groups as u32,
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
