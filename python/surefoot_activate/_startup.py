"""The code that calls the activation in an environment: each is one line, and checks one variable.

    entry point   PyTorch calls the group `torch.backends` at the end of its import; nothing runs when Python starts
    .pth          Python 3.17 and older run its line when they start
    .start        Python 3.15 and newer call its function when they start (PEP 829), and then ignore the `.pth`

The entry point is used if the environment has a PyTorch that supports the group (2.5 and newer).
"""

import importlib.util
import sys
from pathlib import Path

PACKAGE = "surefoot_activate"
GROUP = "torch.backends"
ENTRY_POINTS = "entry_points.txt"
ENTRY_POINT = f"[{GROUP}]\nsurefoot = {PACKAGE}:activate_after_torch\n"
PTH, START = f"{PACKAGE}.pth", f"{PACKAGE}.start"
# One line: `site` runs a line that begins with "import", and only that.
PTH_LINE = (
    'import os; os.environ.get("HIP_ALLOC", "0") in ("", "0") '
    f'or __import__("{PACKAGE}").activate_at_startup()\n'
)
START_LINE = f"{PACKAGE}:activate_at_startup\n"


def add(site_packages, distribution):
    """Writes the files for this environment, as part of the distribution; returns a short description."""
    if _torch_knows_the_group():
        _write(distribution / ENTRY_POINTS, ENTRY_POINT, site_packages, distribution)
        return f"called by torch: {distribution.name}/{ENTRY_POINTS}"
    names = [PTH]
    _write(site_packages / PTH, PTH_LINE, site_packages, distribution)
    if sys.version_info >= (3, 15):
        _write(site_packages / START, START_LINE, site_packages, distribution)
        names.append(START)
    return f"called as Python starts: {', '.join(names)}"


def remove(site_packages, distribution):
    """Removes it, also from the distribution's RECORD; returns whether there was anything to remove."""
    files = [site_packages / PTH, site_packages / START]
    if distribution and (entry_points := distribution / ENTRY_POINTS).is_file() and entry_points.read_text() == ENTRY_POINT:
        files.append(entry_points)
    there = [file for file in files if file.exists()]
    for file in there:
        file.unlink()
    if distribution:
        record = distribution / "RECORD"
        ours = [_line(file, site_packages) for file in files]
        lines = record.read_text().splitlines(keepends=True)
        record.write_text("".join(line for line in lines if line.rstrip() not in ours))
    return bool(there)


def _write(file, text, site_packages, distribution):
    """Writes the RECORD first: pip can handle a listed file that is missing."""
    with open(distribution / "RECORD", "a", encoding="utf-8") as record:
        record.write(_line(file, site_packages) + "\n")
    file.write_text(text)


def _line(file, site_packages):
    return f"{file.relative_to(site_packages).as_posix()},,"


def _torch_knows_the_group():
    """Read from its source, since importing torch takes seconds."""
    try:
        spec = importlib.util.find_spec("torch")
        return spec is not None and spec.origin is not None and f'"{GROUP}"' in Path(spec.origin).read_text(encoding="utf-8")
    except (ImportError, OSError, ValueError):
        return False
