"""Runs a program on the simulated device: `python under_device_sim.py python train.py`.

Settings of the simulator are environment variables (`DEVICE_SIM_CAPACITY=16G`, ...);
`crates/device-sim/src/settings.rs` describes them.
"""

import os
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

# Names under which programs look for a driver; the simulator provides all.
# The Triton of PyTorch 2.8 links its launcher against the name without a version.
LINKS = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")


def find_library(name, variable):
    """The path in the variable, or else the newest build; raises FileNotFoundError with the command that builds it."""
    if named := os.environ.get(variable):
        return Path(named)
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    builds = [build for profile in ("release", "debug") if (build := target / profile / name).is_file()]
    if not builds:
        raise FileNotFoundError(f"no {name} under {target}: run `cargo build --release -p device-sim -p hip-alloc`")
    return max(builds, key=lambda build: build.stat().st_mtime)


def environment(library, folder):
    """The variables that make a program use the simulator; links are created in `folder`."""
    library, folder = Path(library).resolve(), Path(folder)
    for name in LINKS:
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(library)
    return {
        "LD_PRELOAD": _first(library, "LD_PRELOAD"),
        "LD_LIBRARY_PATH": _first(folder, "LD_LIBRARY_PATH"),
    }


def _first(path, variable):
    rest = os.environ.get(variable)
    return f"{path}:{rest}" if rest else str(path)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    library = find_library("libdevice_sim.so", "SUREFOOT_DEVICE_SIM")
    # The folder must outlive the exec below, so it has a fixed name.
    folder = Path(tempfile.gettempdir(), f"surefoot-device-sim-{os.getuid()}-{abs(hash_of(library)):x}")
    folder.mkdir(exist_ok=True)
    os.execvpe(sys.argv[1], sys.argv[1:], {**os.environ, **environment(library, folder)})


def hash_of(path):
    """A number for a path that is the same in every process."""
    number = 0
    for byte in os.fsencode(Path(path).resolve()):
        number = (number * 131 + byte) % (1 << 61)
    return number


if __name__ == "__main__":
    main()
