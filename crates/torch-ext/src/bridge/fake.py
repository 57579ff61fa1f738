"""Fake tensors, as in `cpp/fake.cpp`, by PyTorch's own."""


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
