"""Devices, streams, events and memory of the accelerator, as in `cpp/accelerator.cpp`, and its allocator."""


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
    give_back()
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


@exported("p", "p")
def surefoot_stream_handle(stream):
    return stream_at(stream).native_handle


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


def give_back():
    """Drops what was mapped and is read no more."""
    left[:] = [(pinned, events) for pinned, events in left if not all(event.query() for event in events)]


@exported("Ti", "p")
def surefoot_map_pinned(pinned, device):
    device = accelerator(device)
    if not pinned.is_cpu or not pinned.is_pinned() or not pinned.is_contiguous():
        raise Refusal(INVALID_ARGUMENT, "only a contiguous tensor in pinned host memory can be mapped into the device")
    if not hasattr(library, "torch_from_blob"):
        raise Refusal(NOT_IMPLEMENTED, "this PyTorch cannot map host memory into the device; 2.12 can")
    give_back()
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
    check(code)
    return alias.value


@exported("p")
def surefoot_install_accelerator_allocator(functions):
    malloc, free, record_stream = (c_void_p * 3).from_address(functions)
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise Refusal(NO_ACCELERATOR, "this libtorch has no CUDA and no ROCm, whose allocator could be replaced")
    allocator = torch._C._cuda_customAllocator(malloc, free)
    allocator.set_record_stream_fn(record_stream)
    torch._C._cuda_changeCurrentAllocator(allocator)
