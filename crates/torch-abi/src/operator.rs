//! Calls an operator by its schema, through PyTorch's dispatcher.

mod handle;
mod scalar;
mod symbol;

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::library::{Handle, Interface, SCHEMAS, Word};
pub(crate) use handle::Owned;
use scalar::Function;
pub use scalar::{C_scalar, ats_float, ats_free, ats_int, ats_to_float, ats_to_int, ats_to_string};

use crate::{C_tensor, Result, or_default};

/// One function of `operators.txt`.
pub(crate) struct Operator {
    way: Way,
    pub(crate) name: &'static CStr,
    pub(crate) overload: &'static CStr,
    pub(crate) codes: &'static str,
    pub(crate) result: &'static str,
    pub(crate) function: OnceLock<Result<Function>>,
}

/// How it can be called.
pub(crate) enum Way {
    /// By the C interface.
    Dispatcher,
    /// By the C++ function of the operator, since the C interface takes no `Scalar`.
    Scalar,
    /// C++ has conversions here that no schema has.
    Refused,
}

/// One that is called here, by the dispatcher.
macro_rules! operator {
    ($name:literal $(. $overload:literal)?, $codes:literal, $result:literal) => {{
        use $crate::operator::{Operator, Way};
        static OPERATOR: Operator = Operator::new(Way::Dispatcher, $name, operator!(@ $($overload)?), $codes, $result);
        &OPERATOR
    }};
    (@) => { c"" };
    (@ $overload:literal) => { $overload };
}
pub(crate) use operator;

/// More than any operator has arguments (30). The rest of a stack is zero, so that an argument which a newer release
/// has in addition is nothing, zero or false.
const STACK: usize = 48;

impl Operator {
    /// What a line of `operators.txt` says.
    pub(crate) const fn new(
        way: Way,
        name: &'static CStr,
        overload: &'static CStr,
        codes: &'static str,
        result: &'static str,
    ) -> Self {
        Self {
            way,
            name,
            overload,
            codes,
            result,
            function: OnceLock::new(),
        }
    }

    /// Calls it with its parameters, and writes its tensors to `out`. Another result is returned as a word, or zero
    /// after an error, which is kept for `get_and_reset_last_err`.
    ///
    /// # Safety
    /// `words` are the parameters of the codes, valid for the call, and `out` has room for the tensors.
    pub(crate) unsafe fn call(&self, out: *mut *mut C_tensor, words: &[Word]) -> Word {
        or_default(|| {
            let torch = Interface::get()?;
            // SAFETY: the caller's.
            unsafe {
                match self.way {
                    Way::Dispatcher => self.dispatch(torch, out, words),
                    Way::Scalar => {
                        *out = self.call_with_scalar(torch, words)?;
                        Ok(0)
                    }
                    Way::Refused => Err(self.refusal("whose C++ overloads cannot be told apart")),
                }
            }
        })
    }

    /// The name in C++, where the overload's follows an underscore.
    pub(crate) fn name_in_cpp(&self) -> String {
        let name = self.name.to_string_lossy();
        let name = name.strip_prefix("aten::").unwrap_or(&name);
        match self.overload.to_string_lossy() {
            overload if overload.is_empty() => name.to_owned(),
            overload => format!("{name}_{overload}"),
        }
    }

    pub(crate) fn refusal(&self, why: &str) -> String {
        let [name, overload] = [self.name, self.overload].map(|text| text.to_string_lossy());
        let dot = if overload.is_empty() { "" } else { "." };
        format!(
            "`{name}{dot}{overload}` cannot be called through PyTorch's C interface: it is an operator {why}"
        )
    }

    /// # Safety
    /// As `call`.
    pub(crate) unsafe fn dispatch(
        &self,
        torch: &Interface,
        out: *mut *mut C_tensor,
        words: &[Word],
    ) -> Result<Word> {
        let mut stack = [0; STACK];
        let mut words = words.iter().copied();
        let mut codes = self.codes.bytes().peekable();
        let mut at = 0;
        while let Some(code) = codes.next() {
            if code == b'>' {
                continue;
            }
            if code == b'o' {
                let [dtype, device] = [(); 2].map(|()| words.next().unwrap_or_default());
                stack[at] = torch.boxed(dtype)?;
                stack[at + 2] = torch.boxed(device_word(device))?;
                at += 4;
                continue;
            }
            // SAFETY: the caller's.
            let value = unsafe { torch.argument(code, &mut words) }?;
            let optional = codes.next_if_eq(&b'?').is_some();
            stack[at] = if optional { torch.boxed(value)? } else { value };
            at += 1;
        }
        // SAFETY: the stack has a value for every argument of the schema, and room for its results.
        torch.check(unsafe {
            (torch.dispatch)(
                self.name.as_ptr(),
                self.overload.as_ptr(),
                stack.as_mut_ptr(),
                SCHEMAS,
            )
        })?;
        match self.result.parse::<usize>() {
            Ok(tensors) => {
                for (index, &tensor) in stack[..tensors].iter().enumerate() {
                    // SAFETY: a handle that is ours now, and the caller's room for it.
                    unsafe { *out.add(index) = tensor as *mut C_tensor };
                }
                Ok(0)
            }
            Err(_) if self.result == "L" => {
                // SAFETY: the schema has a list of tensors as its result.
                let tensors = unsafe { torch.tensors(stack[0] as Handle) }?;
                Ok(tensors as Word)
            }
            Err(_) => Ok(stack[0]),
        }
    }
}

impl Interface {
    /// What the dispatcher takes for an argument, and frees.
    ///
    /// # Safety
    /// The words are those of the code.
    unsafe fn argument(&self, code: u8, words: &mut impl Iterator<Item = Word>) -> Result<Word> {
        let mut next = || words.next().unwrap_or_default();
        // SAFETY: the words of these codes are a pointer and a length, as the caller says.
        unsafe {
            Ok(match code {
                b'T' => self.tensor(next())?,
                b't' => self.optional_tensor(next())?,
                b'i' | b'f' | b'K' | b'Y' => next(),
                b'b' => Word::from(next() != 0),
                b'd' => device_word(next()),
                // A dtype or layout below zero is none.
                b'k' | b'y' => match next() {
                    value if value.cast_signed() < 0 => 0,
                    value => self.boxed(value)?,
                },
                b'I' | b'F' => match [next(), next()] {
                    [value, 0] => self.boxed(value)?,
                    _ => 0,
                },
                b'A' | b'D' => self.list(slice(next(), next()), Ok)?,
                b'a' => match [next(), next()] {
                    [0, _] => 0,
                    [start, length] => self.boxed(self.list(slice(start, length), Ok)?)?,
                },
                b'L' => self.list(slice(next(), next()), |tensor| self.tensor(tensor))?,
                b'l' => self.list(slice(next(), next()), |tensor| self.optional_tensor(tensor))?,
                b's' => {
                    let mut string = null_mut();
                    self.check((self.new_string)(
                        next() as *const c_char,
                        next() as usize,
                        &mut string,
                    ))?;
                    string as Word
                }
                b'm' => self.boxed(0)?,
                _ => 0,
            })
        }
    }

    /// A handle of the dispatcher's own.
    fn tensor(&self, tensor: Word) -> Result<Word> {
        self.share(tensor as *mut C_tensor)
            .map(|shared| shared as Word)
    }

    fn optional_tensor(&self, tensor: Word) -> Result<Word> {
        match tensor {
            0 => Ok(0),
            tensor => self.boxed(self.tensor(tensor)?),
        }
    }

    fn list(&self, items: &[Word], item: impl Fn(Word) -> Result<Word>) -> Result<Word> {
        let mut list = null_mut();
        // SAFETY: a valid place for the result; the list is passed on.
        unsafe {
            self.check((self.new_list)(items.len(), &mut list))?;
            for &value in items {
                self.check((self.push)(list, item(value)?))?;
            }
        }
        Ok(list as Word)
    }

    /// A list of tensors as tch has it: it ends in null, and tch frees it.
    ///
    /// # Safety
    /// `list` is one of tensors, and is deleted.
    unsafe fn tensors(&self, list: Handle) -> Result<*mut *mut C_tensor> {
        let mut count = 0;
        // SAFETY: the array has room for all items and null.
        unsafe {
            self.check((self.list_len)(list, &mut count))?;
            let array: *mut Word = libc::calloc(count + 1, size_of::<Word>()).cast();
            if array.is_null() {
                return Err(format!("no memory for a list of {count} tensors"));
            }
            for index in 0..count {
                self.check((self.list_item)(list, index, array.add(index)))?;
            }
            self.check((self.delete_list)(list))?;
            Ok(array.cast())
        }
    }
}

/// # Safety
/// A pointer to as many items of eight bytes, which live for the call; it may be null if there are none.
unsafe fn slice<'a>(start: Word, length: Word) -> &'a [Word] {
    match length.cast_signed() {
        // SAFETY: the caller's.
        1.. => unsafe { std::slice::from_raw_parts(start as *const Word, length as usize) },
        _ => &[],
    }
}

/// A device as tch has it, as the C interface has it: its type in the upper half, its index in the lower.
pub(crate) fn device_word(device: Word) -> Word {
    let [kind, index] = device_parts(device as c_int);
    (Word::from(kind.cast_unsigned()) << 32) | Word::from(index.cast_unsigned())
}

/// Its type and index.
pub(crate) fn device_parts(device: c_int) -> [i32; 2] {
    match device {
        0.. => [CUDA, device],
        -2 => [MPS, -1],
        -3 => [VULKAN, -1],
        _ => [CPU, -1],
    }
}

/// Numbers of `c10::DeviceType`.
pub(crate) const CPU: i32 = 0;
pub(crate) const CUDA: i32 = 1;
pub(crate) const VULKAN: i32 = 10;
pub(crate) const MPS: i32 = 13;

/// A parameter in C.
pub(crate) trait AsWord {
    /// Its bits; what is shorter keeps its sign.
    fn word(self) -> Word;
}

/// A result in C.
pub(crate) trait FromWord {
    /// What the bits are.
    fn from_word(word: Word) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {
        $(impl AsWord for $type {
            fn word(self) -> Word {
                i64::from(self).cast_unsigned()
            }
        })*
    };
}
integers!(i8, c_int, i64);

impl AsWord for u64 {
    fn word(self) -> Word {
        self
    }
}

impl AsWord for f64 {
    fn word(self) -> Word {
        self.to_bits()
    }
}

impl<T> AsWord for *const T {
    fn word(self) -> Word {
        self as Word
    }
}

impl<T> AsWord for *mut T {
    fn word(self) -> Word {
        self as Word
    }
}

impl FromWord for () {
    fn from_word(_: Word) {}
}

impl FromWord for c_int {
    fn from_word(word: Word) -> Self {
        word as Self
    }
}

impl FromWord for i64 {
    fn from_word(word: Word) -> Self {
        word.cast_signed()
    }
}

impl FromWord for f64 {
    fn from_word(word: Word) -> Self {
        Self::from_bits(word)
    }
}

impl<T> FromWord for *mut T {
    fn from_word(word: Word) -> Self {
        word as Self
    }
}
