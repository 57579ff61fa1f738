"""Records the requests of real PyTorch to its allocator, as a trace for `surefoot replay`.

Run it on the simulated device, with large copies moving nothing and room for any
model (kernels do nothing there, so the values of the training are meaningless):

    DEVICE_SIM_CAPACITY=96G DEVICE_SIM_DATA=none python python/tests/under_device_sim.py \
        python bench/traces/record.py llama_lora llama_lora.trace
    zstd -19 --rm llama_lora.trace

A trace is text: `a <id> <bytes> [stream]`, `f <id>`, `s` where a step begins.
PyTorch's own memory history is the source, so sizes are what was asked for, not
what its allocator rounded them to, and a free is when the program let go.
"""

import argparse
import sys

import torch

from held_out import HELD_OUT
from kinds import KINDS
from unseen import UNSEEN
from workloads import WORKLOADS

# A request of this size marks the start of a step: nothing else uses it.
STEP = 1_234_567_891


def main():
    arguments = parse_arguments()
    torch.manual_seed(0)
    torch.cuda.memory._record_memory_history(context=None, max_entries=50_000_000)
    steps = {**WORKLOADS, **HELD_OUT, **UNSEEN, **KINDS}[arguments.workload]()
    for step in range(arguments.steps):
        mark_step()
        next(steps)
        print(f"\rstep {step + 1}/{arguments.steps}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    [history] = torch.cuda.memory._snapshot()["device_traces"]
    with open(arguments.trace, "w") as trace:
        summary = write(history, trace)
    print("{events} events, {steps} steps, peak live {peak:.2f} GiB".format(**summary), file=sys.stderr)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=sorted({**WORKLOADS, **HELD_OUT, **UNSEEN, **KINDS}))
    parser.add_argument("trace", help="the file to write")
    parser.add_argument("--steps", type=int, default=12)
    return parser.parse_args()


def mark_step():
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(STEP))


def write(history, trace):
    """Writes PyTorch's events as trace lines; ids count up, addresses and streams get small numbers."""
    ids, sizes, streams = {}, {}, {0: 0}
    events = steps = live = peak = 0
    for event in history:
        address, size = event["addr"], event["size"]
        if event["action"] == "alloc" and size == STEP:
            steps += 1
            trace.write("s\n")
        elif event["action"] == "alloc":
            identity = ids[address] = events
            sizes[address] = size
            stream = streams.setdefault(event["stream"], len(streams))
            trace.write(f"a {identity} {size} {stream}\n" if stream else f"a {identity} {size}\n")
            live += size
            peak = max(peak, live)
            events += 1
        elif event["action"] == "free_requested" and address in ids:
            trace.write(f"f {ids.pop(address)}\n")
            live -= sizes.pop(address)
    return {"events": events, "steps": steps, "peak": peak / 2**30}


if __name__ == "__main__":
    main()
