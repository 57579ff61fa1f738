"""`torch.cuda.memory._record_memory_history` and the snapshots that show what it recorded.

hip-alloc keeps the events: requests, frees, and what went to and came from the driver. It
knows nothing of Python, so at each event it asks here where the program is (`name_stack`, with
none of its locks held), keeps the number that it gets, and a snapshot has the number's frames.

Honoured of PyTorch's arguments: `enabled`, `context`, `max_entries`, `clear_history`,
`skip_actions`, `record_cuda`. `stacks` is taken, and both of its values mean Python's frames:
those of C++ are not collected. `compile_context`, `global_record_annotations` and
`record_pinned_host_memory` are not known here, and a warning says so.
"""

import atexit
import ctypes
import itertools
import sys
import warnings

# Programs that make code as they run could have stacks without end.
MOST_STACKS = 1_000_000
CONTEXTS = (None, "state", "alloc", "all")


class History:
    def __init__(self, library):
        self._library = library
        self._numbers = {}
        self._next = itertools.count(1)
        self._context = None
        self._skipped = frozenset()
        # The library keeps its bare address.
        self._name_stack = ctypes.CFUNCTYPE(ctypes.c_uint64)(self._name_stack_of_caller)
        # Tensors are freed until the very end, when there is no Python left to ask.
        atexit.register(library.record_stacks, None)

    def record(
        self, enabled, context="all", stacks="all", max_entries=2**63 - 1, clear_history=False, compile_context=False,
        global_record_annotations=False, skip_actions=(), record_pinned_host_memory=False, record_cuda=True, *_rest, **_others,
    ):
        """`torch._C._cuda_record_memory_history`."""
        for name, value, allowed in (
            ("enabled", enabled, (None, "state", "all")), ("context", context, CONTEXTS), ("stacks", stacks, ("python", "all")),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r}: expected {', '.join(repr(one) for one in allowed)}")
        unknown = [name for name, value in (
            ("compile_context", compile_context), ("global_record_annotations", global_record_annotations),
            ("record_pinned_host_memory", record_pinned_host_memory),
        ) if value]
        if unknown:
            warnings.warn(f"under HIP_ALLOC=1 the memory history knows no {', '.join(unknown)}", stacklevel=4)
        if enabled is None or not record_cuda:
            self._library.record_stacks(None)
            self._library.record_history(0)
            self._numbers.clear()
            return
        if clear_history:
            self._library.record_history(0)
        self._context, self._skipped = context, frozenset(skip_actions or ())
        self._library.record_stacks(None if context is None else self._name_stack)
        # With 'state' PyTorch notes where what is live comes from, and keeps one entry.
        self._library.record_history(1 if enabled == "state" else max_entries)

    def record_by_old_names(self, enabled, record_context=True, max_entries=1, *_rest, **_others):
        """The form that takes True and False."""
        self.record("all" if enabled else None, "all" if record_context else None, max_entries=max_entries)

    def snapshot(self):
        """What hip-alloc holds and recorded, with frames for stacks."""
        snapshot = self._library.snapshot()
        frames = {number: as_frames(stack) for stack, number in list(self._numbers.items())}
        for segment in snapshot["segments"]:
            for block in segment["blocks"]:
                block["frames"] = frames.get(block.pop("stack", 0), [])
        # With 'state' only what is live has a stack, and with 'alloc' what was asked for, too.
        told = {"alloc": ("alloc", "oom", "segment_alloc"), "state": (), None: ()}.get(self._context)
        for number, trace in enumerate(snapshot["device_traces"]):
            trace = [entry for entry in trace if entry["action"] not in self._skipped]
            for entry in trace:
                stack = entry.pop("stack", 0)
                entry["frames"] = frames.get(stack, []) if told is None or entry["action"] in told else []
            snapshot["device_traces"][number] = trace
        return snapshot

    def traceback(self, address):
        """`torch._C._cuda_allocationTraceback`: the frames of what is live at an address."""
        blocks = (block for segment in self.snapshot()["segments"] for block in segment["blocks"])
        live = (block for block in blocks if block["address"] == address and block["state"] == "active_allocated")
        return next((block["frames"] for block in live if block["frames"]), None)

    def _name_stack_of_caller(self):
        """The number of the stack of the thread that asks, 0 where Python has none (autograd's own threads).

        Stacks that are alike have one number, so a training loop adds none after its first rounds.
        """
        frame = sys._getframe(0).f_back
        places = []
        while frame is not None:
            code = frame.f_code
            places += (code.co_filename, code.co_name, frame.f_lineno)
            frame = frame.f_back
        stack = tuple(places)
        number = self._numbers.get(stack)
        if number is None and places and len(self._numbers) < MOST_STACKS:
            # In one step: another thread may be here.
            number = self._numbers.setdefault(stack, next(self._next))
        return number or 0


def as_frames(stack):
    """A stack in the form of PyTorch's snapshots: the innermost frame first."""
    places = zip(stack[0::3], stack[1::3], stack[2::3])
    return [{"filename": filename, "name": name, "line": line} for filename, name, line in places]
