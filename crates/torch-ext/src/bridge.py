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
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = py_object, [c_void_p, c_char_p, c_void_p]
pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = c_void_p, [py_object, c_char_p]


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


# --- the graph ------------------------------------------------------------------------


@exported("T")
def surefoot_backward(loss):
    torch.autograd.backward([loss])


@exported("T", "T")
def surefoot_take_gradient(leaf):
    gradient, leaf.grad = leaf.grad, None
    return gradient


@exported("TT")
def surefoot_put_gradient(leaf, gradient):
    leaf.grad = gradient


@exported("", type_of_result=c_bool)
def surefoot_gradients_are_recorded():
    return torch.is_grad_enabled()


def generators(devices):
    """The states of the generators of the CPU and of GPUs."""
    return torch.get_rng_state(), [(device, torch.cuda.get_rng_state(device)) for device in devices]


def set_generators(state):
    cpu, others = state
    torch.set_rng_state(cpu)
    for device, state in others:
        torch.cuda.set_rng_state(state, device)


@contextmanager
def drawing_from(state):
    """With the generators in this state, and afterwards as they were."""
    if state is None:
        yield
        return
    outside = generators([device for device, _ in state[1]])
    set_generators(state)
    try:
        yield
    finally:
        set_generators(outside)


class Checkpoint(torch.autograd.Function):
    """A function that is run again in the backward pass."""

    @staticmethod
    def forward(context, closure, state, offload, *inputs):
        outputs = closure(inputs)
        context.closure, context.state, context.away = closure, state, None
        if offload:
            # To pinned memory, if they are on a device; both copies are ordered by its stream.
            hosts = [torch.empty_like(input, device="cpu", pin_memory=not input.is_cpu) for input in inputs]
            context.away = [
                (host.copy_(input, non_blocking=True), input.device, input.requires_grad)
                for host, input in zip(hosts, inputs)
            ]
        else:
            context.save_for_backward(*inputs)
        return tuple(outputs)

    @staticmethod
    def backward(context, *gradients):
        kept = context.away or [(input, input.device, input.requires_grad) for input in context.saved_tensors]
        inputs = [
            tensor.to(home, non_blocking=True).detach().requires_grad_(requires) for tensor, home, requires in kept
        ]
        with torch.enable_grad(), drawing_from(context.state):
            outputs = context.closure(inputs)
        if len(outputs) != len(gradients):
            raise Refusal(
                INVALID_ARGUMENT,
                f"a checkpointed function returned {len(outputs)} tensors when it was run again, and {len(gradients)} "
                "the first time",
            )
        learned = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients)
            if output.requires_grad and gradient is not None
        ]
        if learned:
            torch.autograd.backward(*zip(*learned))
        return None, None, None, *(input.grad if input.requires_grad else None for input in inputs)


@exported("ppzbbpp")
def surefoot_checkpoint(closure, inputs, count, preserve_generators, offload, take, taker):
    closure = Closure(closure)
    inputs = tensors(inputs, count)
    recorded = torch.is_grad_enabled()
    if recorded and not any(input.requires_grad for input in inputs):
        raise Refusal(
            INVALID_ARGUMENT,
            "none of the inputs of a checkpointed function requires a gradient, so that backward would never reach it",
        )
    state = None
    if preserve_generators:
        state = generators({input.device for input in inputs if not input.is_cpu})
    take = CFUNCTYPE(None, c_void_p, c_void_p)(take)
    for output in Checkpoint.apply(closure, state, offload and recorded, *inputs):
        take(taker, given(output))


class Differentiable(torch.autograd.Function):
    """A step whose output is computed already, and whose backward pass is a function."""

    @staticmethod
    def forward(context, closure, output, kept, *inputs):
        context.closure = closure
        context.save_for_backward(*inputs, *kept)
        return output.detach()  # another handle: the caller's does not become part of the graph

    @staticmethod
    def backward(context, gradient):
        wanted = context.needs_input_grad[3:]
        gradients = context.closure([*context.saved_tensors, gradient])
        if len(gradients) != len(wanted):
            raise Refusal(
                INVALID_ARGUMENT, f"a backward pass made {len(gradients)} gradients for {len(wanted)} inputs"
            )
        return None, None, None, *(gradient if wants else None for gradient, wants in zip(gradients, wanted))


@exported("ppzpzT", "T")
def surefoot_differentiable(closure, inputs, count, kept, kept_count, output):
    closure = Closure(closure)
    if output.requires_grad:
        raise Refusal(INVALID_ARGUMENT, "the output of a step must not be recorded already")
    return Differentiable.apply(closure, output, tensors(kept, kept_count), *tensors(inputs, count))


class Linear(torch.autograd.Function):
    """A linear layer over a frozen weight, which is made when it is needed."""

    @staticmethod
    def made(closure):
        weight, *scales = closure() or [None]
        if weight is None or len(scales) > 1 or weight.dim() != 2:
            raise Refusal(INVALID_ARGUMENT, "the weight of a linear layer is one matrix")
        if any(scale.shape != weight.shape[:1] for scale in scales):
            raise Refusal(INVALID_ARGUMENT, "a linear layer has one scale for each output")
        return weight, *scales

    @staticmethod
    def forward(context, closure, bias, input):
        context.closure, context.sizes = closure, input.shape
        weight, *scales = Linear.made(closure)
        if not scales:
            return torch.nn.functional.linear(input, weight, bias)
        output = torch.nn.functional.linear(input, weight).mul_(scales[0])
        return output if bias is None else output.add_(bias)

    @staticmethod
    def backward(context, gradient):
        weight, *scales = Linear.made(context.closure)
        rows = gradient.reshape(-1, gradient.shape[-1])
        for scale in scales:
            # Computed in the type of the scale, and rounded once.
            rows = torch.mul(rows, scale, out=torch.empty_like(rows))
        return None, None, torch.mm(rows, weight).reshape(context.sizes)


@exported("pTt", "T")
def surefoot_linear(closure, input, bias):
    closure = Closure(closure)
    if bias is not None and bias.requires_grad:
        raise Refusal(INVALID_ARGUMENT, "the bias of a frozen linear layer must not require a gradient")
    return Linear.apply(closure, bias, input)


class GroupedLinear(torch.autograd.Function):
    """Rows in groups, each with a matrix of its own: those of group g are from `bounds[g]` to `bounds[g + 1]`."""

    @staticmethod
    def multiply(output, input, closure, bounds, most, form):
        first, count = 0, len(bounds) - 1
        while first < count:
            end = first
            while end < count and end - first < most and bounds[end] < bounds[end + 1]:
                end += 1
            if end > first:
                with _disable_current_modes():  # Rust reads it
                    groups = torch.tensor([first, end])
                made = closure([groups])
                if len(made) != 1 or made[0].dim() != 3 or made[0].shape[0] != end - first:
                    raise Refusal(INVALID_ARGUMENT, "the weights of a range of groups are one matrix each")
                for group, weight in enumerate(made[0].unbind(), first):
                    rows = bounds[group], bounds[group + 1] - bounds[group]
                    torch.mm(input.narrow(0, *rows), form(weight), out=output.narrow(0, *rows))
            first = max(end, first + 1)
        return output

    @staticmethod
    def forward(context, closure, bounds, outputs, most, input):
        context.rest, context.inputs = (closure, bounds, most), input.shape[1]
        output = input.new_empty(input.shape[0], outputs)
        return GroupedLinear.multiply(output, input, closure, bounds, most, torch.t)

    @staticmethod
    def backward(context, gradient):
        result = gradient.new_empty(gradient.shape[0], context.inputs)
        return None, None, None, None, GroupedLinear.multiply(result, gradient, *context.rest, lambda weight: weight)


@exported("pTpzll", "T")
def surefoot_grouped_linear(closure, input, bounds, count, outputs, most):
    closure = Closure(closure)
    bounds = list((c_int64 * count).from_address(bounds)) if count else []
    if input.dim() != 2 or bounds[:1] != [0] or bounds[-1] != input.shape[0] or bounds != sorted(bounds):
        raise Refusal(INVALID_ARGUMENT, "the bounds of groups must ascend from zero to the number of rows")
    return GroupedLinear.apply(closure, bounds, outputs, most, input)


# --- operators that tch lacks ---------------------------------------------------------


@exported("TTb")
@torch.no_grad()
def surefoot_copy(destination, source, non_blocking):
    destination.copy_(source, non_blocking)


@exported("TTTTlld", "T")
def surefoot_flash_texts(query, key, value, bounds, longest, window, scale):
    # Builds for ROCm compute NaN with -1, the other way to say that there is no window.
    sides = {"window_size_left": window - 1, "window_size_right": 0} if window > 0 else {}
    return torch.ops.aten._flash_attention_forward(
        query, key, value, bounds, bounds, longest, longest, 0.0, True, False, scale=scale, **sides
    )[0]


DTYPES = [torch.float16, torch.float32, torch.float64, torch.bfloat16]


def kinship(tensor):
    """What the tensors of one call of a foreach kernel have in common, in the order of groups."""
    device = tensor.device
    return not tensor.is_cpu, device.type, device.index or 0, DTYPES.index(tensor.dtype)


def one_walk(a, b):
    """Whether both have their elements in the same order in memory: the fused kernel ignores strides."""
    return a.is_contiguous() and b.is_contiguous() or a.stride() == b.stride() and is_dense(a)


def is_dense(tensor):
    """Whether the elements follow each other in some order of the dimensions."""
    next = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1 and stride != next:
            return False
        next *= size
    return True


def by_kinship(items, of):
    groups = {}
    for item in items:
        groups.setdefault(kinship(of(item)), []).append(item)
    return [groups[key] for key in sorted(groups)]


@exported("pppppzp")
@torch.no_grad()
def surefoot_fused_adamw(parameters, gradients, averages, squares, steps, count, options):
    lists = [tensors(handles, count) for handles in (parameters, gradients, averages, squares, steps)]
    for index, (parameter, *others, _) in enumerate(zip(*lists)):
        for other in others:
            if kinship(other) != kinship(parameter) or other.shape != parameter.shape or not one_walk(parameter, other):
                raise Refusal(
                    INVALID_ARGUMENT,
                    f"parameter {index} and its gradient and moments must agree in device, dtype, shape and layout",
                )
    rate, beta1, beta2, decay, epsilon = (c_double * 5).from_address(options)
    for group in by_kinship(zip(*lists), lambda item: item[0]):
        parameters, gradients, averages, squares, steps = map(list, zip(*group))
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            parameters, gradients, averages, squares, [], steps, lr=rate, beta1=beta1, beta2=beta2,
            weight_decay=decay, eps=epsilon, amsgrad=False, maximize=False,
        )


def norm_of(list):
    if not list:
        raise Refusal(INVALID_ARGUMENT, "the norm of no tensors at all is undefined")
    groups = by_kinship(list, lambda tensor: tensor)
    norms = [norm for group in groups for norm in torch._foreach_norm(group, 2, dtype=torch.float32)]
    return torch.linalg.vector_norm(torch.stack([norm.to(list[0].device) for norm in norms]), 2)


@exported("pz", "T")
@torch.no_grad()
def surefoot_total_norm(handles, count):
    return norm_of(tensors(handles, count))


@exported("pzd", "T")
@torch.no_grad()
def surefoot_clip_norm(handles, count, most):
    list = tensors(handles, count)
    norm = norm_of(list)
    # 1e-6 as in torch.nn.utils.clip_grad_norm_. A number divided by a tensor is another product in Python.
    factor = torch.full_like(norm, most).div_(norm + 1e-6).clamp_max(1.0)
    for group in by_kinship(list, lambda tensor: tensor):
        torch._foreach_mul_(group, factor.to(group[0].device))
    return norm


# --- products, generators, threads, what is run ---------------------------------------


@exported("", type_of_result=c_bool)
def surefoot_onednn_is_faster():
    return False


@exported("", "b")
def surefoot_use_onednn():
    return False  # its function is known by its C++ types


@exported("", type_of_result=c_uint64)
def surefoot_onednn_products():
    return 0


@exported("u")
def surefoot_manual_seed(seed):
    if torch.cuda.is_available():
        torch.cuda.init()  # or else it would be seeded when Python uses it first
    torch.manual_seed(seed)


@exported("i")
def surefoot_set_num_threads(threads):
    torch.set_num_threads(threads)


@exported("", "i")
def surefoot_num_threads():
    return torch.get_num_threads()


@exported("zzpp")
def surefoot_in_shares(count, grain, share, work):
    code = library.torch_parallel_for(c_int64(0), c_int64(count), c_int64(grain), c_void_p(share), c_void_p(work))
    if code:
        raise Refusal(TORCH, "libtorch's threads did not do their shares")


profile = None


@exported("")
def surefoot_operators_start():
    global profile
    surefoot_operators_stop()
    profile = torch.autograd.profiler.profile()
    profile.__enter__()


@exported("")
def surefoot_operators_stop():
    if profile is not None and profile.entered:
        profile.__exit__(None, None, None)
        profile.entered = False


@exported("pp")
def surefoot_operators_counted(visit, visitor):
    visit = CFUNCTYPE(None, c_char_p, c_uint64, c_void_p)(visit)
    for name, times in Counter(event.name for event in profile.function_events).items():
        visit(name.encode(), times, visitor)


# --- the accelerator --------------------------------------------------------------------


class StreamIdentity(Structure):
    _fields_ = [("id", c_int64), ("device", c_int32), ("type", c_int32)]


def accelerator(index):
    """The device of this number."""
    count = torch.accelerator.device_count()
    if count == 0:
        raise Refusal(NO_ACCELERATOR, "this libtorch sees no accelerator")
    if not 0 <= index < count:
        raise Refusal(INVALID_ARGUMENT, f"there is no device {index}: this machine has {count}")
    return torch.device(torch.accelerator.current_accelerator().type, index)


def stream_at(address):
    raw = StreamIdentity.from_address(address)
    return torch.Stream(stream_id=raw.id, device_index=raw.device, device_type=raw.type)


def identify(stream, address):
    raw = StreamIdentity.from_address(address)
    raw.id, raw.device, raw.type = stream.stream_id, stream.device_index, stream.device_type


@exported("", "b")
def surefoot_has_hip():
    return torch.version.hip is not None


@exported("", "i")
def surefoot_device_count():
    return torch.accelerator.device_count()


@exported("i")
def surefoot_set_device(device):
    torch.accelerator.set_device_index(accelerator(device))


@exported("i")
def surefoot_synchronize(device):
    torch.accelerator.synchronize(accelerator(device))


@exported("i", "b")
def surefoot_is_integrated(device):
    return torch.cuda.get_device_properties(accelerator(device)).is_integrated


@exported("i", "zz")
def surefoot_memory_info(device):
    return torch.accelerator.get_memory_info(accelerator(device))


@exported("")
def surefoot_empty_cache():
    accelerator(0)
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()


@exported("ip")
def surefoot_current_stream(device, out):
    identify(torch.accelerator.current_stream(accelerator(device)), out)


@exported("ip")
def surefoot_new_stream(device, out):
    identify(torch.Stream(accelerator(device)), out)


@exported("p")
def surefoot_set_current_stream(stream):
    torch.accelerator.set_stream(stream_at(stream))


@exported("p")
def surefoot_stream_synchronize(stream):
    stream_at(stream).synchronize()


@exported("Tp")
def surefoot_record_stream(tensor, stream):
    tensor.record_stream(stream_at(stream))


# By their address, which is the handle.
events = {}


@exported("i", "p")
def surefoot_event_new(device):
    event = torch.Event(accelerator(device))
    events[id(event)] = event
    return id(event)


@exported("p", type_of_result=type(None))
def surefoot_event_free(event):
    del events[event]


@exported("pp")
def surefoot_event_record(event, stream):
    events[event].record(stream_at(stream))


@exported("pp")
def surefoot_event_block(event, stream):
    stream_at(stream).wait_event(events[event])


@exported("p")
def surefoot_event_synchronize(event):
    events[event].synchronize()


@exported("p", "b")
def surefoot_event_query(event):
    return events[event].query()


@exported("T", "T")
@torch.no_grad()
def surefoot_pin_memory(tensor):
    accelerator(0)
    # Not `pin_memory()`, which makes no copy of what is pinned.
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


@exported("T", "b")
def surefoot_is_pinned(tensor):
    return tensor.is_pinned()


# Pinned tensors that are mapped, by a number, with the stream of then; and those that are not any longer, with events after which
# no kernel reads them.
mapped, left = {}, []
numbers = itertools.count(1)


@CFUNCTYPE(None, c_void_p, c_void_p)
def unmap(_, number):
    pinned, stream = mapped.pop(number)
    try:
        streams = stream, torch.accelerator.current_stream(stream.device)
        left.append((pinned, [stream.record_event() for stream in streams]))
    except RuntimeError:
        pass  # the device is lost, or the process ends: no kernel will read anything


@exported("Ti", "p")
def surefoot_map_pinned(pinned, device):
    device = accelerator(device)
    if not pinned.is_cpu or not pinned.is_pinned() or not pinned.is_contiguous():
        raise Refusal(INVALID_ARGUMENT, "only a contiguous tensor in pinned host memory can be mapped into the device")
    left[:] = [(pinned, events) for pinned, events in left if not all(event.query() for event in events)]
    number, alias, dtype = next(numbers), c_void_p(), c_int32()
    handle = c_void_p(given(pinned))
    quick.aoti_torch_get_dtype(handle, byref(dtype))
    quick.aoti_torch_delete_tensor_object(handle)
    mapped[number] = pinned, torch.accelerator.current_stream(device)
    shape, strides = (as_integers(list) for list in (pinned.shape, pinned.stride()))
    kind = library.aoti_torch_device_type_cuda()
    code = library.torch_from_blob(
        c_void_p(pinned.data_ptr()), c_int64(pinned.dim()), shape, strides, c_int64(0), dtype, c_int32(kind),
        c_int32(device.index), byref(alias), c_int32(0), None, c_int64(0), unmap, c_void_p(number),
    )  # fmt: skip
    if code:
        del mapped[number]
        raise Refusal(TORCH, "libtorch does not map pinned memory into this device")
    return alias.value


# --- the allocator ------------------------------------------------------------------------


@exported("p")
def surefoot_install_accelerator_allocator(functions):
    malloc, free, record_stream = (c_void_p * 3).from_address(functions)
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise Refusal(NO_ACCELERATOR, "this libtorch has no CUDA and no ROCm, whose allocator could be replaced")
    allocator = torch._C._cuda_customAllocator(malloc, free)
    allocator.set_record_stream_fn(record_stream)
    torch._C._cuda_changeCurrentAllocator(allocator)


# --- fake tensors -------------------------------------------------------------------------


class Fake(TorchDispatchMode):
    """As in `cpp/fake.cpp`: tensors that are made on a device are fake, and their bytes on one device are counted. Those made
    without one are real, and so is what is computed of them alone if it is small or made of integers."""

    COMPUTED, SMALLEST = 1024, 512

    def __init__(self, device):
        super().__init__()
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.device, self.live, self.peak = device, 0, 0
        self.known = {}

    def counted(self, tensor):
        """Counts the memory of a fake tensor, unless it is known, until it is freed."""
        storage = tensor.untyped_storage()
        if tensor.device != self.device or storage._cdata in self.known or storage.nbytes() < self.SMALLEST:
            return
        self.add(storage.nbytes())
        self.known[storage._cdata] = weakref.finalize(storage, self.freed, storage._cdata, storage.nbytes())

    def freed(self, key, bytes):
        del self.known[key]
        self.add(-bytes)

    def add(self, bytes):
        self.live += bytes
        self.peak = max(self.peak, self.live)

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        named = named or {}
        aten = torch.ops.aten
        given = [tensor for tensor in tree_leaves((arguments, named)) if isinstance(tensor, torch.Tensor)]
        schema = function._schema
        if function is aten._fused_sdp_choice.default:
            # Which kernel of the device's attention: it looks at sizes, and at what the device has.
            choice = function(*tree_map_only(torch.Tensor, self.stand_in, arguments), **named)
            return min(choice, 2)  # above is another vendor's, which keeps the same
        if any(isinstance(tensor, FakeTensor) for tensor in given) or not given and named.get("device") is not None:
            if schema.name.endswith("_") and schema.is_mutable:
                return arguments[0]  # in place: nothing is computed
            with self.mode:
                result = function(*arguments, **named)
            tree_map_only(FakeTensor, self.counted, result)
            return result
        result = function(*arguments, **named)
        views = any(value.alias_info is not None for value in schema.returns)
        return result if views or not given else tree_map_only(torch.Tensor, self.imagined, result)

    def imagined(self, real):
        """A large result of real tensors."""
        if not real.is_floating_point() or real.numel() <= self.COMPUTED:
            return real
        with self.mode:
            fake = torch.empty_like(real)
        self.counted(fake)
        return fake

    @staticmethod
    def stand_in(tensor):
        """One of this size, of few numbers."""
        row = torch.empty(tensor.shape[-1:], dtype=tensor.dtype, device=tensor.device)
        return row.expand(tensor.shape).requires_grad_(tensor.requires_grad)


# That of the thread which is in fake mode.
fake = None


@exported("i")
def surefoot_fake_begin(device):
    global fake
    fake = Fake(torch.device("cpu") if device < 0 else accelerator(device))
    fake.__enter__()


@exported("", type_of_result=type(None))
def surefoot_fake_end():
    fake.__exit__(None, None, None)


@exported("pp", type_of_result=type(None))
def surefoot_fake_bytes(live, peak):
    c_uint64.from_address(live).value, c_uint64.from_address(peak).value = fake.live, fake.peak
    fake.peak = fake.live


@exported("", type_of_result=c_bool)
def surefoot_is_faking():
    return torch._C._len_torch_dispatch_stack() > 0


# --- what the library calls is these functions ----------------------------------------------


def install(provide_at, report_at):
    """`provide` and `report` of `bridge.rs`."""
    global report
    report = CFUNCTYPE(None, c_int32, c_char_p)(report_at)
    provide = CFUNCTYPE(None, c_char_p, c_void_p)(provide_at)
    for name, function in functions.items():
        provide(name.encode(), ctypes.cast(function, c_void_p))
    # For as long as the process lives.
    ctypes.pythonapi.Py_IncRef(py_object(functions))
