"""A PyTorch that has moved functions that the activation uses: a clear message instead of a crash or a silent failure."""

import os
import sys

import pytest
import torch


def activate_now():
    os.environ["HIP_ALLOC"] = "1"
    import surefoot_activate

    surefoot_activate.activate()
    return torch.cuda.memory.get_allocator_backend()


def without_its_constructor():
    del torch.cuda.memory.CUDAPluggableAllocator
    return activate_now()


def without_record_stream():
    del torch._C._CUDAPluggableAllocator.set_record_stream_fn
    return activate_now()


def without_a_way_to_change_it():
    del torch.cuda.memory.change_current_allocator
    return activate_now()


def with_a_change_that_changes_nothing():
    torch.cuda.memory.change_current_allocator = lambda allocator: None
    return activate_now()


def with_other_arguments():
    class Keyworded(torch.cuda.memory.CUDAPluggableAllocator):
        def __init__(self, *, path, symbols):
            pass

    torch.cuda.memory.CUDAPluggableAllocator = Keyworded
    return activate_now()


@pytest.mark.parametrize(("program", "words"), [
    (without_its_constructor, "has no torch.cuda.memory.CUDAPluggableAllocator, torch.cuda.memory.CUDAPluggableAllocator.allocator,"),
    (without_record_stream, "has no torch._C._CUDAPluggableAllocator.set_record_stream_fn, which"),
    (without_a_way_to_change_it, "has no torch.cuda.memory.change_current_allocator, which"),
    (with_a_change_that_changes_nothing, "its allocator is still the native one"),
    (with_other_arguments, "does not accept hip-alloc as its allocator (TypeError:"),
])
def test_what_the_allocator_cannot_be_installed_with_ends_the_program(run, libraries, program, words):
    process = run(program, fails=True, HIP_ALLOC_LIB=str(libraries["--hip-alloc"]))
    assert process.returncode == 1
    [said] = [line for line in process.stderr.splitlines() if "ActivationError" in line and "raise" not in line]
    assert words in said and "or set HIP_ALLOC=0" in said and torch.__version__ in said


def with_less_to_ask():
    del torch._C._cuda_memorySnapshot, torch._C._cuda_record_memory_history, torch._C._MemPool
    del torch.cuda.memory.memory_summary, torch._C._set_cudnn_benchmark, torch.cuda.CUDAGraph
    backend = activate_now()
    value = torch.arange(100.0).to("cuda").cpu().sum().item()
    return [backend, value, torch.cuda.memory_allocated() >= 0, torch.cuda.mem_get_info()[1] > 0]


def test_what_only_answers_questions_is_missed_with_a_word(run, libraries):
    assert run(with_less_to_ask, HIP_ALLOC_LIB=str(libraries["--hip-alloc"])) == ["pluggable", sum(range(100)), True, True]
    process = run(told_of_less_to_ask, fails=True, HIP_ALLOC_LIB=str(libraries["--hip-alloc"]))
    said = [line for line in process.stderr.splitlines() if line.startswith("surefoot:")]
    assert len(said) == 1 and "torch.cuda.memory_snapshot, torch.cuda.memory._record_memory_history, torch.cuda.memory_summary do not work under hip-alloc" in said[0]


def told_of_less_to_ask():
    with_less_to_ask()
    sys.exit(1)


def of_a_version(version):
    torch.__version__ = version
    return activate_now()


def of_the_future():
    return of_a_version("9.1.0a0+git1234")


def without_a_number():
    return of_a_version("main-2031")


def test_a_newer_version_is_tried_and_named(run, libraries):
    assert run(of_the_future, HIP_ALLOC_LIB=str(libraries["--hip-alloc"])) == "pluggable"


def test_a_version_without_a_number_is_not_taken_for_a_new_one(run, libraries):
    assert run(without_a_number, HIP_ALLOC_LIB=str(libraries["--hip-alloc"])) == "native"


def test_the_versions_that_are_named_are_those_that_are_tested():
    from pathlib import Path

    from surefoot_activate import _install

    pins = (Path(__file__).parent / "requirements-newest.txt").read_text()
    newest = ".".join(map(str, _install.TESTED[1]))
    assert f"torch=={newest}." in pins
