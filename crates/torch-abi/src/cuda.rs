//! C++ functions of PyTorch that take nothing but numbers: seeds, threads, GPUs.

use std::ffi::{CStr, c_int};

use crate::library::{Interface, Word};
use crate::operator::{AsWord, FromWord};
pub use crate::unsupported::{
    atc_cudnn_is_available, atc_set_benchmark_cudnn, atc_set_user_enabled_cudnn,
    atc_user_enabled_cudnn,
};
use crate::{Result, or_default};

/// Calls one, by its name on Windows or elsewhere.
///
/// # Safety
/// It takes these words, and returns a word or nothing.
unsafe fn call(unix: &CStr, windows: &CStr, words: &[Word]) -> Result<Word> {
    let torch = Interface::get()?;
    let function = torch.cpp(if cfg!(windows) { windows } else { unix })?;
    // SAFETY: the caller's.
    unsafe { torch.call_cpp(function, words, false) }
}

macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty)?) $(-> $result:ty)? = $unix:literal, $windows:literal;)*) => {
        $(#[doc = concat!("`", stringify!($windows), "`")]
        pub unsafe fn $name($($argument: $type)?) $(-> $result)? {
            // SAFETY: the name says what it takes and returns.
            or_default(|| unsafe { call($unix, $windows, &[$($argument.word())?]).map(FromWord::from_word) })
        })*
    };
}

functions! {
    fn at_get_num_threads() -> c_int = c"_ZN2at15get_num_threadsEv", c"?get_num_threads@at@@YAHXZ";
    fn at_set_num_threads(count: c_int) = c"_ZN2at15set_num_threadsEi", c"?set_num_threads@at@@YAXH@Z";
    fn at_get_num_interop_threads() -> c_int =
        c"_ZN2at23get_num_interop_threadsEv", c"?get_num_interop_threads@at@@YA_KXZ";
    fn at_set_num_interop_threads(count: c_int) =
        c"_ZN2at23set_num_interop_threadsEi", c"?set_num_interop_threads@at@@YAXH@Z";
    fn atc_manual_seed(seed: u64) = c"_ZN5torch4cuda11manual_seedEm", c"?manual_seed@cuda@torch@@YAX_K@Z";
    fn atc_manual_seed_all(seed: u64) = c"_ZN5torch4cuda15manual_seed_allEm", c"?manual_seed_all@cuda@torch@@YAX_K@Z";
    fn atc_synchronize(device: i64) = c"_ZN5torch4cuda11synchronizeEl", c"?synchronize@cuda@torch@@YAX_J@Z";
}

/// How many GPUs there are.
pub unsafe fn atc_cuda_device_count() -> c_int {
    // SAFETY: it takes nothing, and returns an `int8_t`.
    or_default(|| unsafe {
        let count = call(
            c"_ZN5torch4cuda12device_countEv",
            c"?device_count@cuda@torch@@YACXZ",
            &[],
        )?;
        Ok(c_int::from(count as i8))
    })
}

/// Whether there is a GPU.
pub unsafe fn atc_cuda_is_available() -> c_int {
    // SAFETY: as for the others.
    c_int::from(unsafe { atc_cuda_device_count() } > 0)
}

/// Seeds the generators of the CPU and of all GPUs.
pub unsafe fn at_manual_seed(seed: i64) {
    or_default(|| {
        // SAFETY: the first returns a reference to the generator, whose one word is what the second takes as `this`.
        unsafe {
            let generator = call(
                c"_ZN2at6detail22getDefaultCPUGeneratorEv",
                c"?getDefaultCPUGenerator@detail@at@@YAAEBUGenerator@2@XZ",
                &[],
            )? as *const Word;
            call(
                c"_ZN2at16CPUGeneratorImpl16set_current_seedEm",
                c"?set_current_seed@CPUGeneratorImpl@at@@UEAAX_K@Z",
                &[*generator, seed.word()],
            )?;
            if atc_cuda_device_count() > 0 {
                atc_manual_seed_all(seed.cast_unsigned());
            }
        }
        Ok(())
    });
}
