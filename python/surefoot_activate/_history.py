"""`torch.cuda.memory._record_memory_history` and the snapshots that show what it recorded.

hip-alloc keeps the events: requests, frees, and what went to and came from the driver. At each
it asks Python's C interface where the program is and keeps a number, and a snapshot has the
number's frames: what its code objects are called, and which lines that was, is looked up then.

Honoured of PyTorch's arguments: `enabled`, `context`, `max_entries`, `clear_history`,
`skip_actions`, `record_cuda`. `stacks` is taken, and both of its values mean Python's frames:
those of C++ are not collected. `compile_context`, `global_record_annotations` and
`record_pinned_host_memory` are not known here, and a warning says so.
"""

import atexit
import functools
import sys
import threading
import warnings

CONTEXTS = (None, "state", "alloc", "all")


class History:
    def __init__(self, library):
        self._library = library
        self._enabled = False
        self._context = None
        # The metadata texts by their tags; 0 means none.
        self._tags, self._metadata = {"": 0}, ""
        # While code objects are being read, no other thread may release them.
        self._keeping = threading.Lock()
        self._skipped = frozenset()
        # Tensors are still freed at exit, when the interpreter is no longer usable.
        atexit.register(self._forget_stacks)

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
            warnings.warn(f"under HIP_ALLOC=1 the memory history does not support {', '.join(unknown)}", stacklevel=4)
        self._enabled = enabled is not None and record_cuda
        if not self._enabled:
            self._forget_stacks()
            self._library.record_history(0)
            return
        if clear_history:
            self._library.record_history(0)
        self._context, self._skipped = context, frozenset(skip_actions or ())
        self._ask_for_stacks()
        # With 'state' PyTorch records the stacks of live allocations, and keeps one entry.
        self._library.record_history(1 if enabled == "state" else max_entries)

    def record_by_old_names(self, enabled, record_context=True, max_entries=1, *_rest, **_others):
        """The legacy interface with booleans."""
        self.record("all" if enabled else None, "all" if record_context else None, max_entries=max_entries)

    def is_enabled(self):
        """`torch._C._cuda_isHistoryEnabled`."""
        return self._enabled

    def set_metadata(self, metadata):
        """`torch._C._cuda_setMemoryMetadata`: a text that is attached to every event from now on."""
        self._metadata = str(metadata)
        if self._enabled:
            self._ask_for_stacks()

    def get_metadata(self):
        """`torch._C._cuda_getMemoryMetadata`."""
        return self._metadata

    def _ask_for_stacks(self):
        tag = self._tags.setdefault(self._metadata, len(self._tags))
        self._library.record_stacks(self._context is not None, tag)

    def _forget_stacks(self):
        with self._keeping:
            self._library.forget_stacks()
            self._tags = {"": 0}

    def snapshot(self):
        """The memory that hip-alloc holds and the recorded events, with frames for stacks."""
        snapshot = self._library.snapshot()
        with self._keeping:
            self._add_frames(snapshot)
        return snapshot

    def _add_frames(self, snapshot):
        texts = {tag: text for text, tag in self._tags.items()}
        named = functools.cache(functools.partial(self._stack, texts))
        for segment in snapshot["segments"]:
            segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
            for block in segment["blocks"]:
                block["frames"], _ = named(block.pop("stack", 0))
        # With 'state' only live allocations have a stack, with 'alloc' all allocations.
        told = {"alloc": ("alloc", "oom", "segment_alloc"), "state": (), None: ()}.get(self._context)
        for number, trace in enumerate(snapshot["device_traces"]):
            trace = [entry for entry in trace if entry["action"] not in self._skipped]
            for entry in trace:
                frames, entry["user_metadata"] = named(entry.pop("stack", 0))
                entry["frames"] = frames if told is None or entry["action"] in told else []
            snapshot["device_traces"][number] = trace

    def traceback(self, address):
        """`torch._C._cuda_allocationTraceback`: the frames of what is live at an address."""
        blocks = (block for segment in self.snapshot()["segments"] for block in segment["blocks"])
        live = (block for block in blocks if block["address"] == address and block["state"] == "active_allocated")
        return next((block["frames"] for block in live if block["frames"]), None)

    def _stack(self, texts, number):
        """The frames of a stack number in the format of PyTorch's snapshots, innermost first, and the metadata text at that time."""
        tag, frames = self._library.stack(number) if number else (0, [])
        return [
            {"filename": code.co_filename, "name": code.co_name, "line": line_of(code, place)} for code, place in frames
        ], texts.get(tag, "")


def line_of(code, place):
    """The line number for a position in a code object; before Python 3.11 the position is the line."""
    if sys.version_info < (3, 11):
        return place
    lines = (line for start, end, line in code.co_lines() if start <= place < end)
    return next(lines, None) or code.co_firstlineno
