"""`torch.cuda.memory_summary` under hip-alloc: PyTorch's table, with the rows that apply.

PyTorch's own has rows for its two pools and for split blocks; hip-alloc has neither, and a
zero that means "not counted" would be read as a number.
"""

ROWS = (
    ("allocated_bytes", "Allocated memory"),
    ("active_bytes", "Active memory"),
    ("reserved_bytes", "GPU reserved memory"),
    ("inactive_split_bytes", "Reserved, not active"),
    ("allocation", "Allocations"),
    ("segment", "GPU reserved blocks"),
)
WIDTH = 75


def summary(device, nested):
    """The table as text, from `torch.cuda.memory_stats_as_nested_dict`."""
    lines = [
        "=" * WIDTH,
        f"PyTorch CUDA memory summary, device ID {device}".center(WIDTH),
        "allocator: hip-alloc (HIP_ALLOC=1)".center(WIDTH),
        "-" * WIDTH,
        f"CUDA OOMs: {nested['num_ooms']}".center(WIDTH),
        "=" * WIDTH,
        _row("Metric".center(21), ["Cur Usage", "Peak Usage", "Tot Alloc", "Tot Freed"]),
    ]
    for name, title in ROWS:
        stat = nested[name]["all"]
        form = _size if name.endswith("bytes") else _count
        # The slack's own peak is not counted; it is never above that of reserved memory.
        peak = "" if name == "inactive_split_bytes" else form(stat["peak"])
        lines += ["-" * WIDTH, _row(title, [form(stat["current"]), peak, form(stat["allocated"]), form(stat["freed"])])]
    lines.append("=" * WIDTH)
    return "|" + "|\n|".join(lines) + "|\n"


def _row(title, cells):
    return f" {title:<21} |" + "|".join(f"{cell:>11} " for cell in cells)


def _size(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 10000 or unit == "GiB":
            return f"{count} {unit}"
        count //= 1024


def _count(count):
    return str(count)
