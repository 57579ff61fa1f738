"""hip-alloc on the simulated device itself: its memory, its limits, its streams."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import under_device_sim
from device import report
from test_activation import MIB, info, train_and_look

BUILT_FOR = "2.13."


def test_memory_comes_from_the_device(run):
    result = run(train_and_look, hip_alloc=True)
    assert result["held"] >= result["reserved"] > 0


def test_memory_info_is_honest_where_the_runtime_is_not(run):
    for free, total in run(info, hip_alloc=True, DEVICE_SIM_UNIFIED="8G", DEVICE_SIM_REPORT_TOTAL="4G"):
        assert 0 < free <= total <= 8 << 30


def exhaust():
    kept = torch.arange(1000.0).to("cuda")
    try:
        torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as problem:
        again = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        return [str(problem), again.numel(), kept.cpu().sum().item(), torch.cuda.memory_stats()["num_ooms"]]


def test_out_of_memory_is_pytorchs_own_error_and_leaves_all_intact(run):
    message, again, kept, count = run(exhaust, hip_alloc=True, DEVICE_SIM_CAPACITY="1G")
    assert "Tried to allocate 2.00 GiB" in message
    assert (again, kept, count) == (100 * MIB, sum(range(1000)), 1)


def streams():
    """Memory that is freed on one stream while another still uses it must not be reused."""
    from device import configure

    side = torch.cuda.Stream()
    configure("device_time=kernel:300ms")
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    address = tensor.data_ptr()
    with torch.cuda.stream(side):
        tensor.add_(1)
        tensor.record_stream(side)
    del tensor
    while_busy = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").data_ptr()
    torch.cuda.synchronize()
    afterwards = [torch.empty(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
    return [address == while_busy, address in [tensor.data_ptr() for tensor in afterwards]]


def test_record_stream_keeps_memory_until_the_stream_is_done(run):
    early, late = run(streams, hip_alloc=True)
    assert not early
    assert late


def lose_the_device():
    from device import configure

    tensors = [torch.ones(1 << 20, device="cuda") for _ in range(100)]
    side = torch.cuda.Stream()
    for tensor in tensors:
        tensor.record_stream(side)
    configure("lose=*@1+:illegal_address")
    seen = []
    for use in [torch.cuda.synchronize, tensors.clear] + [lambda: torch.empty(1 << 29, device="cuda")] * 20:
        try:
            use()
        except torch.OutOfMemoryError as problem:
            seen.append(f"out of memory: {problem}")
        except RuntimeError as problem:
            seen.append(str(problem))
    print(json.dumps(seen))
    sys.exit(1)


def test_a_lost_device_is_told_once_and_is_no_lack_of_memory(run):
    """A program that retries with smaller batches when memory runs out must not retry forever."""
    process = run(lose_the_device, fails=True, hip_alloc=True)
    seen = json.loads(process.stdout)
    assert len(seen) >= 20 and not any("out of memory" in message for message in seen)
    lines = [line for line in process.stderr.splitlines() if line.startswith("hip-alloc:")]
    assert len(lines) == 1 and "device 0 is lost" in lines[0], lines


def fraction():
    total = torch.cuda.mem_get_info()[1]
    kept = torch.arange(1000.0).to("cuda")
    torch.cuda.set_per_process_memory_fraction(0.5)
    seen = {
        "told": torch.cuda.get_per_process_memory_fraction(),
        "total": torch.cuda.mem_get_info()[1] / total,
        "within": torch.empty(int(0.4 * total), dtype=torch.uint8, device="cuda").numel() > 0,
    }
    try:
        torch.empty(int(0.6 * total), dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as problem:
        seen["beyond"] = str(problem)
    pieces = []
    try:
        while len(pieces) < 1000:
            pieces.append(torch.empty(16 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        seen["pieces"] = len(pieces) * 16 * MIB / total
    seen["held"] = torch.cuda.memory_reserved() / total
    pieces.clear()
    torch.cuda.set_per_process_memory_fraction(1.0)
    seen["lifted"] = torch.empty(int(0.6 * total), dtype=torch.uint8, device="cuda").numel() > 0
    seen["intact"] = kept.cpu().sum().item() == sum(range(1000))
    return seen


def test_a_memory_fraction_is_a_limit(run):
    seen = run(fraction, hip_alloc=True, DEVICE_SIM_CAPACITY="8G")
    assert seen["told"] == 0.5 and abs(seen["total"] - 0.5) < 0.001
    assert seen["within"] and seen["lifted"] and seen["intact"]
    assert "4.00 GiB" in seen["beyond"] and "set_per_process_memory_fraction" in seen["beyond"]
    assert 0.45 < seen["pieces"] <= seen["held"] <= 0.5


def benchmarked_convolutions():
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.backends.cudnn.benchmark = True
        with torch.backends.cudnn.flags(benchmark=True):
            inside = torch.backends.cudnn.benchmark
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, stride=2), torch.nn.AdaptiveAvgPool2d(1)
    ).to("cuda")
    between = []
    for size in (32, 48, 32, 48, 32, 48):
        model(torch.randn(4, 3, size, size).to("cuda")).sum().backward()
        model.zero_grad()
        between.append(torch.cuda.memory_allocated())
    return [[str(warning.message) for warning in caught], inside, between]


def test_a_program_that_wants_cudnn_to_benchmark_is_told_and_runs(run):
    """Without this the first convolution raises an error: the trials need `cacheInfo`."""
    warned, inside, between = run(benchmarked_convolutions, hip_alloc=True)
    assert len(warned) == 2 and all("HIP_ALLOC=1" in warning for warning in warned)
    assert not inside
    assert between == [between[0]] * 6


def use_one_of_several():
    """`empty_cache` and the statistics of all devices, after the first one was used."""
    kept = torch.ones(10, device="cuda:0")
    torch.cuda.empty_cache()
    sums = [torch.cuda.memory_allocated(device) for device in range(3)]
    torch.cuda.reset_peak_memory_stats(2)
    torch.cuda.set_per_process_memory_fraction(0.5, 1)
    before = [device["held_bytes"] > 0 for device in report()["devices"]]
    contexts = [device["context"] for device in report()["devices"]]
    try:
        torch.empty(6 << 30, dtype=torch.uint8, device="cuda:1")
        limited = False
    except torch.OutOfMemoryError:
        limited = True
    return sums[0] >= kept.nbytes and sums[1:] == [0, 0], before, contexts, limited


def test_a_device_that_was_not_used_is_left_alone(run):
    told, held, contexts, limited = run(use_one_of_several, hip_alloc=True, DEVICE_SIM_DEVICES="3", DEVICE_SIM_CAPACITY="8G")
    assert told and limited, "what was set before its first use holds"
    assert held == contexts == [True, False, False]


def fail_to_trim():
    from device import configure

    kept = [torch.empty(64 * MIB, dtype=torch.uint8, device=f"cuda:{device}") for device in range(2)]
    kept.clear()
    import surefoot_activate._library as library

    trim = library.Library.trim

    def failing(self, device, keep=0):
        if device == 0:
            raise RuntimeError("hip_alloc_trim failed")
        trim(self, device, keep)

    library.Library.trim = failing
    try:
        torch.cuda.empty_cache()
        seen = None
    except RuntimeError as problem:
        seen = str(problem)
    configure("reset_faults")
    return seen, [torch.cuda.memory_reserved(device) for device in range(2)]


def test_an_error_of_empty_cache_is_raised_after_all_devices_were_trimmed(run):
    seen, [first, second] = run(fail_to_trim, hip_alloc=True, DEVICE_SIM_DEVICES="2")
    assert seen == "hip_alloc_trim failed"
    assert first >= 64 * MIB and second == 0


LORA_STEPS = "SUREFOOT_LORA_STEPS"


def lora(steps):
    """A LoRA of frozen layers of several widths, whose backward pass reads each of their weights."""
    torch.manual_seed(0)
    # Weights and, at full length, activations of 12 MiB, each of which fills a segment of PyTorch's allocator.
    widths = [1536, 4096, 1536, 4096]
    layers = [torch.randn(out, into, device="cuda", dtype=torch.bfloat16) for into, out in zip(widths, widths[1:], strict=False)]
    adapters = []
    for weight in layers:
        down = torch.randn(8, weight.shape[1], device="cuda", dtype=torch.bfloat16, requires_grad=True)
        up = torch.zeros(weight.shape[0], 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        adapters.append((down, up))
    optimizer = torch.optim.SGD([each for pair in adapters for each in pair], lr=1e-4)
    for step in range(steps):
        hidden = torch.randn(1536 - 64 * (step % 5), widths[0], device="cuda", dtype=torch.bfloat16)
        for weight, (down, up) in zip(layers, adapters, strict=True):
            hidden = hidden @ weight.T + (hidden @ down.T) @ up.T
        hidden.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return steps


def lora_of_some_steps():
    return lora(300)


def lora_of_many_steps():
    return lora(int(os.environ[LORA_STEPS]))


STEPS = int(os.environ.get(LORA_STEPS, "2000"))
FAULT = "Memory access fault by GPU"


@pytest.fixture
def overread(simulator, tmp_path):
    """Variables of a program on a simulated gfx1201, whose matrix products read 4 KiB behind each operand. PyTorch's library has
    the name that it has in a build for HIP, by which the allocator knows such a build."""
    (tmp_path / "libc10_hip.so").symlink_to(Path(torch.__file__).resolve().parent / "lib/libc10_cuda.so")
    device = {"DEVICE_SIM_ARCHITECTURE": "gfx1201", "DEVICE_SIM_OVERREAD": "4K", "DEVICE_SIM_CAPACITY": "8G"}
    return {**simulator, **device, "LD_LIBRARY_PATH": f"{simulator['LD_LIBRARY_PATH']}:{tmp_path}"}


def test_kernels_that_read_behind_an_operand_fault_without_a_guard_and_never_by_default(run, overread):
    """hipBLASLt's on gfx12 do."""
    theirs = run(lora_of_some_steps, fails=True, **overread)
    assert theirs.returncode != 0 and FAULT in theirs.stderr
    off = run(lora_of_some_steps, fails=True, hip_alloc=True, HIP_ALLOC_CONF="guard:off", **overread)
    assert off.returncode != 0 and FAULT in off.stderr
    assert run(lora_of_many_steps, hip_alloc=True, timeout=3600, **{LORA_STEPS: str(STEPS), **overread}) == STEPS


TRAINED = """
name: lora
device: gpu
threads: 1
model: {name_or_path: model}
adapter: {r: 8, target_modules: all-linear}
data: {path: data.jsonl, block_size: 512, packing: false}
sample: {max_new_tokens: 0}
train: {per_device_train_batch_size: 1, logging_steps: 100, eval_steps: 0, save_steps: 0}
"""


def write_llama(folder, width=1536, wide=4096):
    """A Llama of two layers in bfloat16, whose widest weights fill a segment of PyTorch's allocator; its tokens are bytes."""
    from safetensors.torch import save_file

    sizes = {"model.embed_tokens.weight": (256, width), "lm_head.weight": (256, width), "model.norm.weight": (width,)}
    for layer in ("model.layers.0.", "model.layers.1."):
        sizes |= {layer + f"{norm}_layernorm.weight": (width,) for norm in ("input", "post_attention")}
        sizes |= {layer + f"self_attn.{name}_proj.weight": (width, width) for name in "qkvo"}
        sizes |= {layer + f"mlp.{name}_proj.weight": (wide, width) for name in ("gate", "up")}
        sizes |= {layer + "mlp.down_proj.weight": (width, wide)}
    folder.mkdir()
    save_file({name: torch.full(size, 0.01, dtype=torch.bfloat16) for name, size in sizes.items()}, folder / "model.safetensors")
    shape = {"hidden_size": width, "intermediate_size": wide, "num_hidden_layers": 2, "num_attention_heads": 12, "vocab_size": 256}
    rest = {"rms_norm_eps": 1e-6, "rope_theta": 1e4, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 0}
    architecture = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps({**architecture, **shape, **rest}))
    letters = {chr(byte if 33 <= byte < 127 else 256 + byte): byte for byte in range(256)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": letters, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "pre_tokenizer": level, "decoder": level, "model": model}))


def test_our_trainer_faults_without_a_guard_too_and_never_by_default(libraries, overread, tmp_path):
    """It was built against a CPU libtorch; a CUDA wheel of the same version has the same libraries, and more."""
    if not torch.__version__.startswith(BUILT_FOR):
        pytest.skip(f"the trainer is built for libtorch {BUILT_FOR}*, and this is {torch.__version__}")
    program = under_device_sim.find_library("surefoot", "SUREFOOT_PROGRAM").with_name("surefoot-trainer")
    write_llama(tmp_path / "model")
    (tmp_path / "lora.yaml").write_text(TRAINED)
    rows = ({"prompt": f"on {n % 10}", "completion": " " + "the 42. " * (n % 50 + 1)} for n in range(200))
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    built = Path(torch.__file__).resolve().parent / "lib"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HIP_ALLOC", "DEVICE_SIM"))}
    environment.update(overread, HIP_ALLOC_LIB=str(libraries["--hip-alloc"].resolve()))
    environment["LD_LIBRARY_PATH"] += "".join(f":{folder}" for folder in [built, *sorted(built.parents[1].glob("nvidia/*/lib"))])
    environment.update(LD_PRELOAD=f"{overread['LD_PRELOAD']}:{built / 'libtorch_cuda.so'}", SUREFOOT_CACHE=str(tmp_path / "cache"))

    def train(name, steps, **variables):
        settings = ["--set", f"name={name}", "--set", f"train.max_steps={steps}"]
        command = [program, "train", "lora.yaml", *settings]
        return subprocess.run(command, env={**environment, **variables}, cwd=tmp_path, capture_output=True, text=True, timeout=3600)

    for name, variables in {"theirs": {"HIP_ALLOC": "0"}, "unguarded": {"HIP_ALLOC_CONF": "guard:off"}}.items():
        process = train(name, 300, **variables)
        assert process.returncode != 0 and FAULT in process.stderr, process.stderr
    process = train("default", STEPS)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith(f"done: {STEPS:,} steps\n")
