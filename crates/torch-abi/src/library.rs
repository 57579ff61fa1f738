//! PyTorch's C interface, looked up in the libraries that the process has.

use std::error::Error;
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::{C_tensor, Result};

#[cfg(unix)]
use libloading::os::unix::Library;
#[cfg(windows)]
use libloading::os::windows::Library;

/// A value on its way to or from the dispatcher: itself, or a pointer to what is larger than 64 bits.
pub(crate) type Word = u64;
/// A list of words, a string, a library of operators: PyTorch's own.
pub(crate) type Handle = *mut c_void;
/// A function of the C interface: not zero if there was an exception.
pub(crate) type Code = i32;

/// The release whose schemas `operators.txt` has.
pub(crate) const SCHEMAS: u64 = (2 << 56) | (13 << 48);

macro_rules! interface {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that are always needed.
        pub(crate) struct Interface {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// The message of the last exception; before PyTorch 2.13 it is printed alone.
            what: Option<unsafe extern "C" fn() -> *const c_char>,
            new_word: NewWord,
            libraries: Libraries,
        }

        impl Interface {
            fn load(libraries: Libraries) -> Result<Self> {
                Ok(Self {
                    $($name: {
                        let symbol = libraries.find($symbol).ok_or_else(|| {
                            format!(
                                "this PyTorch has no `{}`: 2.10 or a newer one is needed",
                                $symbol.to_string_lossy()
                            )
                        })?;
                        // SAFETY: the C interface has this function with this signature, and keeps it.
                        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(symbol) }
                    },)*
                    what: libraries.find(c"torch_exception_get_what_without_backtrace").map(|symbol| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> *const c_char>(symbol) }
                    }),
                    new_word: libraries.new_word()?,
                    libraries,
                })
            }
        }
    };
}

interface! {
    dispatch = c"torch_call_dispatcher": fn(*const c_char, *const c_char, *mut Word, u64) -> Code;
    new_list = c"torch_new_list_reserve_size": fn(usize, *mut Handle) -> Code;
    push = c"torch_list_push_back": fn(Handle, Word) -> Code;
    list_len = c"torch_list_size": fn(Handle, *mut usize) -> Code;
    list_item = c"torch_list_get_item": fn(Handle, usize, *mut Word) -> Code;
    delete_list = c"torch_delete_list": fn(Handle) -> Code;
    new_string = c"torch_new_string_handle": fn(*const c_char, usize, *mut Handle) -> Code;
    undefined = c"aoti_torch_new_uninitialized_tensor": fn(*mut *mut C_tensor) -> Code;
    share = c"aoti_torch_new_tensor_handle": fn(*mut C_tensor, *mut *mut C_tensor) -> Code;
    delete = c"aoti_torch_delete_tensor_object": fn(*mut C_tensor) -> Code;
    is_defined = c"aoti_torch_is_defined": fn(*mut C_tensor, *mut bool) -> Code;
    is_contiguous = c"aoti_torch_is_contiguous": fn(*mut C_tensor, *mut bool) -> Code;
    data = c"aoti_torch_get_data_ptr": fn(*mut C_tensor, *mut *mut c_void) -> Code;
    dim = c"aoti_torch_get_dim": fn(*mut C_tensor, *mut i64) -> Code;
    sizes = c"aoti_torch_get_sizes": fn(*mut C_tensor, *mut *mut i64) -> Code;
    strides = c"aoti_torch_get_strides": fn(*mut C_tensor, *mut *mut i64) -> Code;
    float_item = c"aoti_torch_item_float64": fn(*mut C_tensor, *mut f64) -> Code;
    int_item = c"aoti_torch_item_int64": fn(*mut C_tensor, *mut i64) -> Code;
    numel = c"aoti_torch_get_numel": fn(*mut C_tensor, *mut i64) -> Code;
    dtype = c"aoti_torch_get_dtype": fn(*mut C_tensor, *mut i32) -> Code;
    layout = c"aoti_torch_get_layout": fn(*mut C_tensor, *mut i32) -> Code;
    device_type = c"aoti_torch_get_device_type": fn(*mut C_tensor, *mut i32) -> Code;
    device_index = c"aoti_torch_get_device_index": fn(*mut C_tensor, *mut i32) -> Code;
    element_size = c"aoti_torch_dtype_element_size": fn(i32) -> usize;
    from_blob = c"aoti_torch_create_tensor_from_blob":
        fn(*const c_void, i64, *const i64, *const i64, i64, i32, i32, i32, *mut *mut C_tensor) -> Code;
    set_requires_grad = c"torch_set_requires_grad": fn(*mut C_tensor, bool) -> Code;
    grad_mode = c"aoti_torch_grad_mode_is_enabled": fn() -> bool;
    set_grad_mode = c"aoti_torch_grad_mode_set_enabled": fn(bool);
    define_library = c"aoti_torch_library_init_def": fn(*const c_char, *const c_char, u32, *mut Handle) -> Code;
    define = c"aoti_torch_library_def": fn(Handle, *const c_char) -> Code;
    implement_library = c"aoti_torch_library_init_impl":
        fn(*const c_char, *const c_char, *const c_char, u32, *mut Handle) -> Code;
    implement = c"torch_library_impl":
        fn(Handle, *const c_char, unsafe extern "C-unwind" fn(*mut Word, u64, u64), u64) -> Code;
}

impl Interface {
    /// That of the PyTorch in this process, which is loaded if there is none.
    pub(crate) fn get() -> Result<&'static Self> {
        static INTERFACE: OnceLock<Result<Interface>> = OnceLock::new();
        let interface = INTERFACE.get_or_init(|| Libraries::find_or_load().and_then(Self::load));
        interface.as_ref().map_err(String::clone)
    }

    /// A C++ function, by the name that the compiler gave it.
    pub(crate) fn cpp(&self, symbol: &CStr) -> Result<*const c_void> {
        let missing = || format!("this PyTorch has no `{}`", symbol.to_string_lossy());
        self.libraries.find(symbol).ok_or_else(missing)
    }

    /// The message of what has just failed.
    pub(crate) fn check(&self, code: Code) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let Some(what) = self.what else {
            return Err(
                "PyTorch failed: its message is above, since releases before 2.13 print it and do not pass it on"
                    .to_owned(),
            );
        };
        // SAFETY: it returns a string of this thread, which lives until the next exception.
        let what = unsafe { CStr::from_ptr(what()) };
        Err(what.to_string_lossy().into_owned())
    }

    /// A word in memory that PyTorch deletes.
    pub(crate) fn boxed(&self, value: Word) -> Result<Word> {
        let mut place = null_mut();
        match self.new_word {
            // SAFETY: a valid place for the result.
            NewWord::Torch(new) => self.check(unsafe { new(&mut place) })?,
            // SAFETY: it takes a size.
            NewWord::Cpp(new) => place = unsafe { new(size_of::<Word>()) },
        }
        if place.is_null() {
            return Err("out of memory: no 8 bytes for an argument".to_owned());
        }
        // SAFETY: memory for a word, which nobody else has.
        unsafe { place.write(value) };
        Ok(place as Word)
    }
}

/// Where memory for a word comes from that PyTorch deletes.
#[derive(Clone, Copy)]
enum NewWord {
    /// PyTorch's own function, since 2.13.
    Torch(unsafe extern "C" fn(*mut *mut Word) -> Code),
    /// C++'s `new`; on Windows `malloc` of the C runtime, which `new` of Microsoft's compiler calls.
    Cpp(unsafe extern "C" fn(usize) -> *mut Word),
}

/// What exports C++ names: c10 has tensors, `torch_cpu` operators.
struct Libraries([Library; 2]);

impl Libraries {
    /// Those of the process; else those in `$LIBTORCH/lib`, as tch's own build has it, or where the system looks.
    fn find_or_load() -> Result<Self> {
        if let Some(loaded) = Self::loaded() {
            return Ok(loaded);
        }
        let set = std::env::var_os("LIBTORCH");
        // Tests are run without what cargo sets for builds.
        let built = option_env!("LIBTORCH").filter(|_| cfg!(test));
        let folder = set
            .or(built.map(Into::into))
            .map(|folder| Path::new(&folder).join("lib"));
        let mut why = String::new();
        // The first brings the libraries for GPUs, too. It stays, since operators are registered in it.
        for name in ["torch", "torch_cpu"] {
            let path = folder
                .as_ref()
                .map_or_else(|| file(name).into(), |folder| folder.join(file(name)));
            // SAFETY: PyTorch's library: its initialisers are those of every program that uses it.
            match unsafe { load(&path) } {
                Ok(library) => std::mem::forget(library),
                Err(error) => {
                    let cause = error.source().map(ToString::to_string);
                    why = format!(
                        "`{}` cannot be loaded: {}",
                        path.display(),
                        cause.unwrap_or(error.to_string())
                    );
                    continue;
                }
            }
            if let Some(loaded) = Self::loaded() {
                return Ok(loaded);
            }
        }
        Err(format!("no PyTorch, whose folder LIBTORCH names: {why}"))
    }

    fn loaded() -> Option<Self> {
        let [c10, cpu] = ["c10", "torch_cpu"].map(|name| already_loaded(&file(name)));
        Some(Self([c10?, cpu?]))
    }

    fn new_word(&self) -> Result<NewWord> {
        if let Some(symbol) = self.find(c"torch_new_stable_ivalue") {
            // SAFETY: the C interface has this function with this signature, and keeps it.
            return Ok(NewWord::Torch(unsafe {
                std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut *mut Word) -> Code>(
                    symbol,
                )
            }));
        }
        #[cfg(unix)]
        let symbol = self.find(c"_Znwm");
        #[cfg(windows)]
        let symbol = already_loaded("ucrtbase.dll").and_then(|runtime| {
            // SAFETY: only the address is used here. PyTorch, which is linked to it, keeps the runtime loaded.
            let found = unsafe { runtime.get::<*const c_void>(b"malloc\0") };
            found.ok().map(|symbol| *symbol)
        });
        let symbol = symbol.ok_or("the process has no library of C++")?;
        // SAFETY: both take a size and return memory.
        Ok(NewWord::Cpp(unsafe {
            std::mem::transmute::<*const c_void, unsafe extern "C" fn(usize) -> *mut Word>(symbol)
        }))
    }

    fn find(&self, symbol: &CStr) -> Option<*const c_void> {
        self.0.iter().find_map(|library| {
            // SAFETY: only the address is used here.
            let found = unsafe { library.get::<*const c_void>(symbol.to_bytes_with_nul()) };
            found.ok().map(|symbol| *symbol)
        })
    }
}

/// The file of a library of PyTorch.
fn file(name: &str) -> String {
    [
        std::env::consts::DLL_PREFIX,
        name,
        std::env::consts::DLL_SUFFIX,
    ]
    .concat()
}

/// Whether a library of PyTorch is in the process.
pub(crate) fn is_loaded(name: &str) -> bool {
    already_loaded(&file(name)).is_some()
}

#[cfg(unix)]
fn already_loaded(name: &str) -> Option<Library> {
    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
    // SAFETY: nothing is loaded, so no initialiser runs.
    unsafe { Library::open(Some(name), flags) }.ok()
}

#[cfg(windows)]
fn already_loaded(name: &str) -> Option<Library> {
    Library::open_already_loaded(name).ok()
}

/// # Safety
/// As `libloading::Library::new`.
#[cfg(unix)]
unsafe fn load(path: &Path) -> std::result::Result<Library, libloading::Error> {
    // SAFETY: the caller's.
    unsafe { Library::open(Some(path), libc::RTLD_NOW | libc::RTLD_GLOBAL) }
}

/// # Safety
/// As `libloading::Library::new`.
#[cfg(windows)]
unsafe fn load(path: &Path) -> std::result::Result<Library, libloading::Error> {
    use libloading::os::windows::{
        LOAD_LIBRARY_SEARCH_DEFAULT_DIRS, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR,
    };
    // Its neighbours are what it needs.
    let flags = match path.is_absolute() {
        true => LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_DEFAULT_DIRS,
        false => 0,
    };
    // SAFETY: the caller's.
    unsafe { Library::load_with_flags(path, flags) }
}
