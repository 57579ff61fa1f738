"""What `cpp/` does in other builds, where the library is without C++ and Python has loaded PyTorch (`bridge.rs`).

Each function that is `exported` has the name and the parameters of one in `raw.rs`, from where it is called on any thread.
Tensors are passed as handles, pointers to an `at::Tensor`; functions of Rust as pointers, which are called without the GIL.
"""

import ctypes
import itertools
import os
import threading
import weakref
from collections import Counter
from contextlib import contextmanager
from ctypes import (
    CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p, py_object,
)

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

# `Code` in `error.rs`.
TORCH, OUT_OF_MEMORY, ACCELERATOR, NO_ACCELERATOR, INVALID_ARGUMENT, NOT_IMPLEMENTED = range(1, 7)


class Refusal(Exception):
    """An error of a class that only this library has, or of a function of Rust."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


# --- handles ------------------------------------------------------------------------

path = os.path.join(os.path.dirname(torch.__file__), "lib", "torch_cpu.dll" if os.name == "nt" else "libtorch_cpu.so")
# The first keeps the GIL, for what only counts references.
quick, library = ctypes.PyDLL(path), ctypes.CDLL(path)
# Since PyTorch 2.13.
what = getattr(library, "torch_exception_get_what_without_backtrace", None)
if what:
    what.restype = c_char_p
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = py_object, [c_void_p, c_char_p, c_void_p]
pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = c_void_p, [py_object, c_char_p]


def check(code):
    """Raises what a function of PyTorch's C interface has caught."""
    if code:
        raise Refusal(TORCH, what().decode() if what else "PyTorch failed; its message is above")


def borrowed(handle):
    """The tensor of a handle that stays the caller's; `None` if it is undefined."""
    shared = c_void_p()
    if not handle or quick.aoti_torch_new_tensor_handle(c_void_p(handle), byref(shared)):
        raise Refusal(INVALID_ARGUMENT, "a tensor is null")
    # Not the function for a single one, which leaks its handle.
    return torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs([new_capsule(shared, None, None)])[0]


def given(tensor):
    """A handle for whom it is given to."""
    return pointer_of(torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor), None)


def as_integers(numbers):
    return (c_int64 * len(numbers))(*numbers)


def tensors(handles, count):
    return [borrowed(handle) for handle in (c_void_p * count).from_address(handles)] if count else []


# --- functions for Rust ---------------------------------------------------------------

# By the letter that stands for a parameter: its type, and what a function gets for it.
KINDS = {
    "T": (c_void_p, borrowed),
    "t": (c_void_p, lambda handle: borrowed(handle) if handle else None),
    "i": (c_int32, int),
    "l": (c_int64, int),
    "z": (c_size_t, int),
    "u": (c_uint64, int),
    "b": (c_bool, bool),
    "d": (c_double, float),
    "p": (c_void_p, lambda address: address or 0),
}
functions = {}


def exported(parameters, result="", type_of_result=None):
    """A function of these parameters, which returns a code. `result` is what it writes to places that the last
    parameters point to; with a `type_of_result` it returns that in place of a code, and cannot fail."""
    types, converters = zip(*map(KINDS.get, parameters)) if parameters else ((), ())
    places = [KINDS[letter][0] for letter in result]

    def export(function):
        def call(*arguments):
            try:
                value = function(*(convert(argument) for convert, argument in zip(converters, arguments)))
                values = value if len(places) > 1 else (value,)
                for kind, type, place, value in zip(result, places, arguments[len(types) :], values):
                    if kind == "T" and value is not None:
                        value = given(value)
                    type.from_address(place).value = value
                return 0 if type_of_result is None else value
            except BaseException as error:
                if type_of_result is not None:
                    raise
                return failed(error)

        returned = c_int32 if type_of_result is None else None if type_of_result is type(None) else type_of_result
        functions[function.__name__] = CFUNCTYPE(returned, *types, *(c_void_p for _ in places))(call)
        return function

    return export


def failed(error):
    """The code of an exception, whose message is kept for Rust."""
    detail = 0
    if isinstance(error, Refusal):
        code = error.code
    elif isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        code = OUT_OF_MEMORY
    elif isinstance(error, torch.AcceleratorError):
        code, detail = ACCELERATOR, error.error_code
    elif isinstance(error, NotImplementedError):
        code = NOT_IMPLEMENTED
    else:
        code = TORCH
    report(detail, (str(error) or type(error).__name__).encode())
    return code


class RawClosure(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("run", CFUNCTYPE(c_int32, c_void_p, POINTER(c_void_p), c_size_t, c_void_p)),
        ("failure", CFUNCTYPE(c_char_p, c_void_p)),
        ("drop", CFUNCTYPE(None, c_void_p)),
    ]


# What closures that run have returned so far.
results = {}


class Closure:
    """A function of Rust, dropped with the last node of the graph that may call it."""

    def __init__(self, address):
        self.raw = RawClosure.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(RawClosure)))
        self.alone = threading.Lock()

    def __call__(self, inputs=()):
        handles = (c_void_p * len(inputs))(*map(given, inputs))
        returned = []
        results[id(returned)] = returned
        try:
            with self.alone:
                code = self.raw.run(self.raw.data, handles, len(inputs), id(returned))
                if code:
                    raise Refusal(code, self.raw.failure(self.raw.data).decode())
        finally:
            del results[id(returned)]
            for handle in handles:
                library.aoti_torch_delete_tensor_object(c_void_p(handle))
        return returned

    def __del__(self):
        self.raw.drop(self.raw.data)


@exported("pT")
def surefoot_results_push(returned, tensor):
    results[returned].append(tensor)


def install(provide_at, report_at):
    """`provide` and `report` of `bridge.rs`."""
    global report
    report = CFUNCTYPE(None, c_int32, c_char_p)(report_at)
    provide = CFUNCTYPE(None, c_char_p, c_void_p)(provide_at)
    for name, function in functions.items():
        provide(name.encode(), ctypes.cast(function, c_void_p))
    # For as long as the process lives.
    ctypes.pythonapi.Py_IncRef(py_object(functions))
