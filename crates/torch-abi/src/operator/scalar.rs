//! Operators with a `Scalar`, which the C interface does not take: the C++ function of the operator is called, the one
//! that C++ programs call, so that results are theirs to the bit. Exported are its name (`symbol.rs`) and what it
//! takes: references to tensors (a handle is a pointer to an `at::Tensor`, whose one word is the tensor), to `Scalar`s
//! and to `std::optional`s of either, integers, and lists of those.
//!
//! An exception must not reach Rust. So the function is called from an operator of ours, and that by the C interface:
//! what is thrown passes the kernel below, which owns nothing, and PyTorch catches it where it always does.

use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::OnceLock;

use super::symbol::{Argument, MOST, arguments, symbol};
use super::{Operator, Owned};
use crate::library::{Interface, SCHEMAS, Word};
use crate::{C_tensor, Result, SCALAR_FREED, c_string};

/// What the kernel calls, and what came back.
struct Call {
    function: *const c_void,
    words: [Word; MOST],
    count: usize,
    /// Whether it returns a tensor by value; else a word or nothing.
    by_value: bool,
    result: Returned,
}

/// Where C++ puts a class that it returns: larger than what any platform returns in registers.
#[derive(Clone, Copy)]
#[repr(C)]
struct Returned([MaybeUninit<Word>; 4]);

/// A `std::optional` of a tensor or a `Scalar`, or the pointer and length of a list.
#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
struct Place([Word; SCALAR + 2]);

/// How many words a `Scalar` is.
const SCALAR: usize = size_of::<C_scalar>() / size_of::<Word>();

/// The layout of `c10::Scalar`: what it is, nothing, and a number, which may be a complex one.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub struct C_scalar([Word; 4]);

impl C_scalar {
    fn float(value: f64) -> Self {
        Self([0, 0, value.to_bits(), 0])
    }

    fn int(value: i64) -> Self {
        Self([1, 0, value.cast_unsigned(), 0])
    }

    fn is_int(&self) -> bool {
        self.0[0] == 1
    }

    /// As in a schema: with a point it is a float.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let int = text.parse().ok().map(Self::int);
        int.or_else(|| text.parse().ok().map(Self::float))
    }
}

/// A new integer.
pub unsafe fn ats_int(value: i64) -> *mut C_scalar {
    Box::into_raw(Box::new(C_scalar::int(value)))
}

/// A new float.
pub unsafe fn ats_float(value: f64) -> *mut C_scalar {
    Box::into_raw(Box::new(C_scalar::float(value)))
}

/// Its value as an integer.
pub unsafe fn ats_to_int(scalar: *mut C_scalar) -> i64 {
    // SAFETY: tch's scalar, which came from here.
    let scalar = unsafe { &*scalar };
    let bits = scalar.0[2];
    if scalar.is_int() {
        bits.cast_signed()
    } else {
        f64::from_bits(bits) as i64
    }
}

/// Its value as a float.
pub unsafe fn ats_to_float(scalar: *mut C_scalar) -> f64 {
    // SAFETY: as above.
    let scalar = unsafe { &*scalar };
    let bits = scalar.0[2];
    if scalar.is_int() {
        bits.cast_signed() as f64
    } else {
        f64::from_bits(bits)
    }
}

/// Its value as text, which tch frees.
pub unsafe fn ats_to_string(scalar: *mut C_scalar) -> *mut c_char {
    // SAFETY: as above.
    unsafe {
        match (*scalar).is_int() {
            true => c_string(&ats_to_int(scalar).to_string()),
            false => c_string(&ats_to_float(scalar).to_string()),
        }
    }
}

/// Ends it.
pub unsafe fn ats_free(scalar: *mut C_scalar) {
    // SAFETY: tch's scalar, which came from here and is not used again.
    drop(unsafe { Box::from_raw(scalar) });
    SCALAR_FREED.set(true);
}

/// A word as the type of a parameter, whichever it is.
macro_rules! word {
    ($index:literal) => {
        Word
    };
}

/// The kernel of our operator.
///
/// # Safety
/// The one argument on the stack is the address of a `Call` that nobody else uses.
unsafe extern "C-unwind" fn kernel(stack: *mut Word, _arguments: u64, _results: u64) {
    // SAFETY: the caller's.
    let call = unsafe { &mut *(*stack as *mut Call) };
    macro_rules! call {
        ($($index:literal)*) => {
            // SAFETY: C++ with as many parameters as there are words: pointers, integers and truth values, all of which
            // are passed as words are; it returns a class in memory that the caller gives, or a pointer.
            unsafe {
                if call.by_value {
                    let function: unsafe extern "C-unwind" fn($(word!($index)),*) -> Returned =
                        std::mem::transmute(call.function);
                    call.result = function($(call.words[$index]),*);
                } else {
                    let function: unsafe extern "C-unwind" fn($(word!($index)),*) -> Word =
                        std::mem::transmute(call.function);
                    call.result.0[0].write(function($(call.words[$index]),*));
                }
            }
        };
    }
    match call.count {
        0 => call!(),
        1 => call!(0),
        2 => call!(0 1),
        3 => call!(0 1 2),
        4 => call!(0 1 2 3),
        5 => call!(0 1 2 3 4),
        6 => call!(0 1 2 3 4 5),
        7 => call!(0 1 2 3 4 5 6),
        _ => call!(0 1 2 3 4 5 6 7),
    }
}

impl Interface {
    /// Calls a C++ function, and catches its exceptions. Returned is a word: that of a tensor, if there is one `by_value`.
    ///
    /// # Safety
    /// It takes as many words as it is given, and returns a tensor, or else a word or nothing.
    pub(crate) unsafe fn call_cpp(
        &self,
        function: *const c_void,
        words: &[Word],
        by_value: bool,
    ) -> Result<Word> {
        static OPERATOR: OnceLock<Result<()>> = OnceLock::new();
        OPERATOR.get_or_init(|| self.register()).clone()?;
        let result = Returned([MaybeUninit::zeroed(); 4]);
        let mut call = Call {
            function,
            words: [0; MOST],
            count: words.len(),
            by_value,
            result,
        };
        call.words[..words.len()].copy_from_slice(words);
        let mut stack = [&raw mut call as Word];
        let name = c"surefoot::call".as_ptr();
        // SAFETY: our operator takes one integer and returns nothing; its kernel is done with the call before this is.
        self.check(unsafe { (self.dispatch)(name, c"".as_ptr(), stack.as_mut_ptr(), SCHEMAS) })?;
        // SAFETY: it was zero before the call.
        Ok(unsafe { call.result.0[0].assume_init() })
    }

    /// Registers the operator, for good, above autograd: what the kernel calls decides for itself. So it has to be above the
    /// dispatch modes of Python, too, within which nothing is recorded.
    fn register(&self) -> Result<()> {
        let (file, mut library) = (c"torch-abi".as_ptr(), null_mut());
        let space = c"surefoot".as_ptr();
        // SAFETY: valid strings and places; the kernel has the signature of kernels.
        unsafe {
            self.check((self.define_library)(space, file, 0, &mut library))?;
            self.check((self.define)(library, c"call(int call) -> ()".as_ptr()))?;
            for key in [c"CompositeImplicitAutograd", c"PythonTLSSnapshot"] {
                let key = key.as_ptr();
                self.check((self.implement_library)(space, key, file, 0, &mut library))?;
                self.check((self.implement)(library, c"call".as_ptr(), kernel, SCHEMAS))?;
            }
        }
        Ok(())
    }
}

/// The C++ function of an operator, and what it takes.
pub(crate) struct Function {
    address: *const c_void,
    arguments: Vec<Argument>,
}

// SAFETY: the address is of code.
unsafe impl Send for Function {}
// SAFETY: as above; the arguments are not changed.
unsafe impl Sync for Function {}

impl Function {
    fn find(torch: &Interface, operator: &Operator) -> Result<Self> {
        let refusal = || {
            operator.refusal("with a Scalar, and beside it something that is no tensor or integer")
        };
        let arguments = arguments(operator.codes)
            .filter(|_| operator.result == "1")
            .ok_or_else(refusal)?;
        let symbol =
            CString::new(symbol(&operator.name_in_cpp(), &arguments)).map_err(|_| refusal())?;
        Ok(Self {
            address: torch.cpp(&symbol)?,
            arguments,
        })
    }
}

impl Operator {
    /// Calls the C++ function of an operator with a `Scalar`, and returns its tensor.
    ///
    /// # Safety
    /// As `Operator::call`.
    pub(crate) unsafe fn call_with_scalar(
        &self,
        torch: &Interface,
        words: &[Word],
    ) -> Result<*mut C_tensor> {
        let function = self
            .function
            .get_or_init(|| Function::find(torch, self))
            .as_ref()
            .map_err(String::clone)?;
        let mut places = [Place::default(); MOST];
        let mut words = words.iter().copied();
        let mut next = || words.next().unwrap_or_default();
        let (mut passed, mut count) = ([0; MOST], 0);
        let mut made: Option<Owned> = None;
        let mut written = null_mut();
        for (argument, Place(place)) in function.arguments.iter().zip(&mut places) {
            passed[count] = match argument {
                Argument::Tensor { .. } | Argument::Scalar | Argument::Integer => next(),
                Argument::Truth => Word::from(next() != 0),
                Argument::Made => {
                    let (dtype, device) = (next(), next());
                    made.insert(torch.empty(dtype, device)?).0 as Word
                }
                Argument::OptionalTensor | Argument::OptionalScalar => {
                    let words = if matches!(argument, Argument::OptionalTensor) {
                        1
                    } else {
                        SCALAR
                    };
                    let value = next() as *const Word;
                    if !value.is_null() {
                        // SAFETY: a handle or a scalar, which live for the call; nobody ends the copy.
                        place[..words]
                            .copy_from_slice(unsafe { std::slice::from_raw_parts(value, words) });
                        place[words] = 1;
                    }
                    place.as_ptr() as Word
                }
                Argument::Default(scalar) => &raw const *scalar as Word,
                Argument::Integers { .. } if cfg!(windows) => {
                    place[..2].copy_from_slice(&[next(), next()]);
                    place.as_ptr() as Word
                }
                Argument::Integers { .. } => {
                    passed[count] = next();
                    count += 1;
                    next()
                }
            };
            if argument.is_written() {
                written = passed[count] as *mut C_tensor;
            }
            count += 1;
        }
        // SAFETY: the name under which it was found says what it takes; what is pointed to outlives the call.
        let result =
            unsafe { torch.call_cpp(function.address, &passed[..count], written.is_null()) }?;
        match made {
            Some(made) => Ok(made.into_raw()),
            None if written.is_null() => torch.handle(result),
            None => torch.share(written),
        }
    }
}
