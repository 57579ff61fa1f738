"""Makes HIP_ALLOC=1 work in an environment for good: `python -m surefoot_activate install`.

What Python runs as it starts is a line of a `.pth` file in `site-packages`; beside it go
this package with the library, and `surefoot_placement`. Nothing else of the environment is touched, and without
`HIP_ALLOC=1` the line costs one look at a variable.
"""

import argparse
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from . import _library
from ._errors import ActivationError

PACKAGE = "surefoot_activate"
PLACEMENT = "surefoot_placement"
PTH = f"{PACKAGE}.pth"
# One line: `site` runs a line that begins with "import", and only that.
LINE = (
    'import os; os.environ.get("HIP_ALLOC", "0") in ("", "0") '
    f'or __import__("{PACKAGE}").activate_at_startup()\n'
)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog=f"python -m {PACKAGE}", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    install_command = commands.add_parser("install", help="install it into this Python's environment")
    install_command.add_argument("--library", type=Path, help=f"the {_library.NAME} to install (default: the one found)")
    commands.add_parser("remove", help="take it out again")
    chosen = parser.parse_args(arguments)
    site_packages = Path(sysconfig.get_path("purelib"))
    try:
        if chosen.command == "install":
            install(site_packages, chosen.library or _library.find())
            print(f"installed into {site_packages}: `HIP_ALLOC=1 python …` uses hip-alloc from now on")
        else:
            removed = remove(site_packages)
            print(f"removed from {site_packages}" if removed else f"was not installed in {site_packages}")
    except (ActivationError, OSError) as problem:
        print(f"surefoot: {problem}", file=sys.stderr)
        return 1
    return 0


def install(site_packages, library):
    """Copies the package with its library, and then the line that runs it; replaces an older one whole."""
    if not Path(library).is_file():
        raise ActivationError(f"{library}: there is no such file")
    _library.Library(library)  # says what is wrong with it before anything changes
    source, target = Path(__file__).resolve().parent, site_packages / PACKAGE
    if source == target.resolve():
        raise ActivationError(f"{target} is the installed one already")
    new = site_packages / f".{PACKAGE}-{os.getpid()}"
    try:
        for package in (PACKAGE, PLACEMENT):
            shutil.copytree(source.with_name(package), new / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        shutil.copyfile(library, new / PACKAGE / _library.NAME)
        # A running program has the old files open and keeps them.
        remove(site_packages)
        for package in (PLACEMENT, PACKAGE):
            (new / package).rename(site_packages / package)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    (site_packages / PTH).write_text(LINE)


def remove(site_packages):
    """Takes the line out first: a Python that starts meanwhile must not look for a package that is gone."""
    packages, line = [site_packages / PACKAGE, site_packages / PLACEMENT], site_packages / PTH
    was_there = line.exists() or any(package.exists() for package in packages)
    line.unlink(missing_ok=True)
    for package in packages:
        if package.exists():
            shutil.rmtree(package)
    return was_there
