"""Operators that tch lacks, seeds, threads, and which operators a piece of work runs, as in `cpp/operations.cpp`."""


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
    check(library.torch_parallel_for(c_int64(0), c_int64(count), c_int64(grain), c_void_p(share), c_void_p(work)))


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
