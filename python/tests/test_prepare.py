"""safe_prepare with real Accelerate on the simulated device: models, optimizers and loaders in every state."""

import concurrent.futures
import re
import socket
import tempfile
import types

import pytest
import torch
from device import configure

from surefoot_placement import PlacementError, PlacementReport, safe_prepare, to_device


def parts(steps=0):
    """A model, its optimizer after some steps on the CPU, and a loader."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
    data = torch.utils.data.TensorDataset(torch.arange(64 * 32).float().view(64, 32), torch.arange(64) % 2)
    return model, optimizer, torch.utils.data.DataLoader(data, batch_size=16)


def step(accelerator, model, optimizer, loader):
    """One epoch; the devices of the batches."""
    devices = []
    for features, labels in loader:
        devices.append(features.device.type)
        loss = torch.nn.functional.cross_entropy(model(features), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return devices


def repaired():
    """Every kind of damage, for the weights, the state of the optimizer and the batches."""
    from accelerate import Accelerator

    seen = {}
    for fault in ("zeros", "nan", "truncate", "flip"):
        model, optimizer, loader = parts(steps=2)
        weights = [each.detach().clone() for each in model.parameters()]
        moments = [{name: value.clone() for name, value in state.items()} for state in optimizer.state.values()]
        to_device(torch.ones(4), "cuda")
        accelerator, report = Accelerator(), PlacementReport()
        configure("copy=" + ",".join(f"h2d>=1K@{number}:{fault}" for number in range(1, 40, 3)))
        model, optimizer, loader = safe_prepare(accelerator, model, optimizer, loader, verify="always", report=report)
        batches = [features.cpu() for features, _ in loader]
        configure("reset_faults")
        now = optimizer.state
        seen[fault] = {
            "weights": all(torch.equal(a.cpu(), b) for a, b in zip(model.parameters(), weights)),
            "moments": all(torch.equal(now[p][name].cpu(), was[name]) for p, was in zip(model.parameters(), moments) for name in was),
            "batches": torch.equal(torch.cat(batches).view(-1), torch.arange(64 * 32).float()),
            "failures": len(report.failures) > 2, "unknown": report.unknown,
        }
        accelerator.free_memory()
    return seen


def test_every_damage_is_found_and_repaired(run):
    for fault, seen in run(repaired).items():
        assert seen == {"weights": True, "moments": True, "batches": True, "failures": True, "unknown": []}, fault


def resumed():
    from accelerate import Accelerator

    model, optimizer, loader = parts(steps=2)
    accelerator, report = Accelerator(), PlacementReport()
    model, optimizer, loader = safe_prepare(accelerator, model, optimizer, loader, report=report)
    states = optimizer.state.values()
    devices = {name: sorted({state[name].device.type for state in states}) for name in ("step", "exp_avg", "exp_avg_sq")}
    return [devices, report.tensors, step(accelerator, model, optimizer, loader), float(next(iter(states))["step"])]


def test_the_state_of_an_optimizer_goes_where_its_weights_are(run):
    devices, tensors, batches, steps = run(resumed)
    assert devices == {"step": ["cpu"], "exp_avg": ["cuda"], "exp_avg_sq": ["cuda"]}
    # Weights, the gradients they have, two moments each; batches come later.
    assert tensors == 4 + 4 + 8
    assert batches == ["cuda"] * 4 and steps == 2 + 4


def prepared_twice():
    from accelerate import Accelerator

    accelerator = Accelerator()
    once = safe_prepare(accelerator, *parts())
    places = [each.data_ptr() for each in once[0].parameters()]
    report = PlacementReport()
    model, optimizer, loader = safe_prepare(accelerator, *once, report=report)
    moved = report.tensors
    return [moved, places == [each.data_ptr() for each in model.parameters()], step(accelerator, model, optimizer, loader), report.tensors]


def test_preparing_twice_moves_nothing_and_places_batches_once(run):
    assert run(prepared_twice) == [0, True, ["cuda"] * 4, 8]


class Arrives(torch.nn.Parameter):
    """A weight that overrides `to` and becomes a new object on a device, like those that are quantised when moved."""

    def to(self, *arguments, **options):
        there = torch.Tensor.to(self.data, *arguments, **options)
        return Arrives(there, requires_grad=self.requires_grad)


def replaced():
    from accelerate import Accelerator

    model, _, loader = parts()
    model[0].weight = Arrives(model[0].weight.data)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    report = PlacementReport()
    accelerator = Accelerator()
    model, optimizer, loader = safe_prepare(accelerator, model, optimizer, loader, report=report)
    updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [updated == {id(parameter) for parameter in model.parameters()}, report.unknown]


def test_an_optimizer_follows_weights_that_are_new_objects(run):
    assert run(replaced) == [True, ["0.weight (Arrives)"]]


def shared():
    """One weight in two models, and a model that is already on the device."""
    from accelerate import Accelerator

    encoder, decoder, there = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32), torch.nn.Linear(4, 4).to("cuda")
    decoder.weight = encoder.weight
    report = PlacementReport()
    encoder, decoder, there = safe_prepare(Accelerator(), encoder, decoder, there, report=report)
    return [encoder.weight is decoder.weight, encoder.weight.device.type, report.tensors]


def test_a_weight_of_two_models_moves_once(run):
    assert run(shared) == [True, "cuda", 3]


def nonsense():
    from accelerate import Accelerator

    said = []
    for options in ({"verify": "maybe"}, {"dtype": "int8"}):
        try:
            safe_prepare(Accelerator(), parts()[2], **options)
        except ValueError as problem:
            said.append(str(problem))
    try:
        safe_prepare(Accelerator(), torch.nn.Linear(3, 3, device="meta"))
    except PlacementError as problem:
        said.append(str(problem))
    return said


def test_nonsense_is_refused_also_where_there_is_no_model(run):
    verify, dtype, meta = run(nonsense)
    assert "expected one of off, first" in verify and "only floating-point" in dtype and "weight is on the meta device" in meta


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def process(rank, count):
    """The variables that a launcher sets for a process."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}


def distributed(cpu):
    from accelerate import Accelerator, InitProcessGroupKwargs

    accelerator, report = Accelerator(cpu=cpu, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")]), PlacementReport()
    model, optimizer, loader = parts()
    if accelerator.process_index:  # DDP makes the weights of all those of process 0
        torch.nn.init.zeros_(model[0].weight)
    model, optimizer, loader = safe_prepare(accelerator, model, optimizer, loader, verify="always", report=report)
    devices = step(accelerator, model, optimizer, loader)
    total = float(sum(each.detach().double().sum().cpu() for each in model.parameters()))
    return [accelerator.distributed_type.value, accelerator.num_processes, type(model).__name__, sorted(set(devices)), len(devices), report.verified, total]


def one_of_two():
    return distributed(cpu=True)


def the_only_one():
    return distributed(cpu=False)


def test_two_processes_train_one_model(run):
    port = free_port()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        one, other = pool.map(lambda rank: run(one_of_two, MASTER_PORT=port, **process(rank, 2)), range(2))
    assert one[:6] == other[:6] == ["MULTI_CPU", 2, "DistributedDataParallel", ["cpu"], 2, 4 + 2 * 2]
    assert one[6] == other[6], "the gradients of both"


def test_one_process_of_a_launcher_trains_on_its_device(run):
    kind, count, _, devices, batches, verified, _ = run(the_only_one, MASTER_PORT=free_port(), **process(0, 1))
    assert [kind, count, devices, batches, verified] == ["MULTI_GPU", 1, ["cuda"], 4, 4 + 4 * 2]


def sharded():
    from accelerate import Accelerator, InitProcessGroupKwargs
    from accelerate.utils import FullyShardedDataParallelPlugin

    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(), kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
    model, optimizer, loader = parts()
    try:
        safe_prepare(accelerator, model, optimizer, loader)
    except PlacementError as problem:
        return [str(problem), sorted({each.device.type for each in model.parameters()}), len(accelerator._models)]


def test_a_sharded_model_is_refused_before_it_moves(run):
    said, devices, prepared = run(sharded, MASTER_PORT=free_port(), **process(0, 1))
    assert said.startswith("safe_prepare does not support FSDP, which shards the model") and "DDP" in said
    assert (devices, prepared) == (["cpu"], 0)


@pytest.mark.parametrize("kind, named", [("DEEPSPEED", "DeepSpeed"), ("MEGATRON_LM", "Megatron-LM"), ("XLA", "XLA (TPU)")])
def test_what_places_models_by_itself_is_refused(kind, named):
    from accelerate.utils import DistributedType

    accelerator = types.SimpleNamespace(device="cpu", distributed_type=DistributedType(kind), prepare=None)
    with pytest.raises(PlacementError, match=re.escape(f"does not support {named}, which")):
        safe_prepare(accelerator, *parts())


def test_parallelism_that_divides_a_model_is_refused():
    from accelerate.utils import DistributedType, ParallelismConfig

    accelerator = types.SimpleNamespace(
        device="cpu", distributed_type=DistributedType.MULTI_GPU, parallelism_config=ParallelismConfig(tp_size=2), prepare=None
    )
    with pytest.raises(PlacementError, match="tensor parallelism, which divides the model"):
        safe_prepare(accelerator, *parts())


def test_a_model_in_several_places_is_refused_and_one_in_one_place_is_not():
    from accelerate import Accelerator, dispatch_model

    model = dispatch_model(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)), {"0": "cpu", "1": "disk"}, main_device="cpu", offload_dir=tempfile.mkdtemp())
    with pytest.raises(PlacementError, match="argument 1, a Sequential with device_map .*'disk'.*load it without device_map"):
        safe_prepare(Accelerator(cpu=True), torch.nn.Linear(2, 2), model)
    model = torch.nn.Linear(2, 2)
    model.hf_device_map = {"": "cpu"}
    safe_prepare(Accelerator(cpu=True), model)
