"""The strategies of a transfer, and when each applies, as `docs/transfer.md` specifies. Needs no PyTorch."""

import dataclasses

ALL = ("direct", "retry", "staged", "chunked", "other_stream", "zero_copy", "cast_on_host", "stay_on_host")


@dataclasses.dataclass(frozen=True)
class Facts:
    """Properties of the device and of the tensor."""

    unified_memory: bool = False
    zero_copy: bool = False
    pinned_memory: bool = True
    other_streams: bool = False
    mapped_file: bool = False
    cast: bool = False
    may_stay_on_host: bool = False


def is_open(strategy: str, facts: Facts, last_failure: str | None) -> bool:
    """Whether a strategy is worth a try after the last failure: `refused`, `timed_out`, `wrong_bytes`,
    `out_of_memory_device`, `out_of_memory_pinned`, `cast_failed`, `wrong_cast`, or None at the start."""
    if facts.mapped_file and facts.unified_memory and strategy in ("direct", "retry", "other_stream", "zero_copy"):
        return False
    possible = {
        "staged": facts.pinned_memory,
        "other_stream": facts.other_streams,
        "zero_copy": facts.unified_memory and facts.zero_copy,
        "cast_on_host": facts.cast,
        "stay_on_host": facts.may_stay_on_host,
    }
    if not possible.get(strategy, True):
        return False
    if last_failure in ("cast_failed", "wrong_cast"):
        return strategy in ("cast_on_host", "stay_on_host")
    return not (last_failure == "out_of_memory_device" and strategy in ("staged", "chunked", "other_stream"))
