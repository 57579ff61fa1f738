"""Gradients, and steps of the graph that call functions of Rust, as in `cpp/checkpoint.cpp`, `differentiable.cpp` and `linear.cpp`."""


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
    """A step whose outputs are computed already, and whose backward pass is a function."""

    @staticmethod
    def forward(context, closure, outputs, kept, *inputs):
        context.closure = closure
        context.save_for_backward(*kept)
        # Other handles: the caller's do not become part of the graph.
        return tuple(output.detach() for output in outputs)

    @staticmethod
    def backward(context, *of_outputs):
        wanted = context.needs_input_grad[3:]
        gradients = context.closure([*context.saved_tensors, *of_outputs])
        if len(gradients) != len(wanted):
            raise Refusal(
                INVALID_ARGUMENT, f"a backward pass made {len(gradients)} gradients for {len(wanted)} inputs"
            )
        return None, None, None, *(gradient if wants else None for gradient, wants in zip(gradients, wanted))


@exported("ppzpzpzpp")
def surefoot_differentiable(closure, inputs, count, kept, kept_count, outputs, output_count, take, taker):
    closure = Closure(closure)
    outputs = tensors(outputs, output_count)
    if any(output.requires_grad for output in outputs):
        raise Refusal(INVALID_ARGUMENT, "the output of a step must not be recorded already")
    take = CFUNCTYPE(None, c_void_p, c_void_p)(take)
    for output in Differentiable.apply(closure, outputs, tensors(kept, kept_count), *tensors(inputs, count)):
        take(taker, given(output))


@exported("ppzpzpp")
def surefoot_launched(name, reads, read_count, writes, write_count, launch, context):
    CFUNCTYPE(None, c_void_p)(launch)(context)


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
                # Before the next ones are made.
                del made, weight
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
