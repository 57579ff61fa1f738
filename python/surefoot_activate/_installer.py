"""Makes HIP_ALLOC=1 work in an environment for good: `python -m surefoot_activate install`.

Where `pip install surefoot` has put this package into the environment, only what calls it is added; else
the package goes there with the library, and `surefoot_placement`. What calls it (`_startup`) costs one look at a
variable without `HIP_ALLOC=1`. All of it is listed in the RECORD of a distribution, so that pip takes it out again.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from . import _library, _startup
from ._errors import ActivationError

PACKAGE = "surefoot_activate"
PLACEMENT = "surefoot_placement"
# The wheel that contains the packages; without it, a distribution with the name of the first package is created.
WHEEL = "surefoot"
OWN = "surefoot_activate-{release}.dist-info"


def main(arguments=None):
    parser = argparse.ArgumentParser(prog=f"python -m {PACKAGE}", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    commands = parser.add_subparsers(dest="command", required=True)
    install_command = commands.add_parser("install", help="install it into this Python's environment")
    install_command.add_argument("--library", type=Path, help=f"the {_library.NAME} to install (default: the one found)")
    commands.add_parser("remove", help="uninstall it")
    chosen = parser.parse_args(arguments)
    wheel = _wheel()
    site_packages = wheel.parent if wheel else Path(sysconfig.get_path("purelib"))
    called_by = None
    try:
        if chosen.command == "install":
            if wheel:
                distribution = add_to_wheel(wheel)
            else:
                distribution = install(site_packages, chosen.library or _library.find())
            called_by = _startup.add(site_packages, distribution)
            changed = True
            message = f"installed into {site_packages}: `HIP_ALLOC=1 python …` uses hip-alloc from now on ({called_by})"
        else:
            changed = _startup.remove(site_packages, wheel) if wheel else remove(site_packages)
            message = f"removed from {site_packages}" if changed else f"was not installed in {site_packages}"
    except (ActivationError, OSError) as problem:
        print(f"surefoot: {problem}", file=sys.stderr)
        return 1
    report = {
        "command": chosen.command, "changed": changed, "site_packages": str(site_packages), "called_by": called_by,
        "message": message,
    }
    print(json.dumps(report) if chosen.json else message)
    return 0


def _wheel():
    """The `dist-info` folder of the wheel in this environment that has our package; None without it."""
    try:
        wheel = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in wheel.files or []:
        if file.name == "RECORD" and file.parent.name.endswith(".dist-info"):
            folder = Path(wheel.locate_file(file)).resolve().parent
            return folder if (folder.parent / PACKAGE / "__init__.py").is_file() else None
    return None


def add_to_wheel(wheel):
    """Leaves the files installed by pip unchanged; reports errors in them before anything is changed."""
    _library.Library(wheel.parent / PACKAGE / _library.NAME)
    _startup.remove(wheel.parent, wheel)
    return wheel


def install(site_packages, library):
    """Copies the package with its library, replacing an older version completely; returns its `dist-info` folder."""
    if not Path(library).is_file():
        raise ActivationError(f"{library}: no such file")
    _library.Library(library)  # reports errors before anything is changed
    source, target = Path(__file__).resolve().parent, site_packages / PACKAGE
    if source == target.resolve():
        raise ActivationError(f"{target} is already the installed package")
    new = site_packages / f".{PACKAGE}-{os.getpid()}"
    try:
        for package in (PACKAGE, PLACEMENT):
            ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.dll")
            shutil.copytree(source.with_name(package), new / package, ignore=ignored, copy_function=shutil.copyfile)
        shutil.copyfile(library, new / PACKAGE / _library.NAME)
        # A running program keeps using the old files, which it has open: on Windows the library under another name.
        remove(site_packages)
        for package in (PLACEMENT, PACKAGE):
            (new / package).rename(site_packages / package)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return _describe(site_packages)


def _describe(site_packages):
    """Writes the metadata of a distribution, so that `pip list` shows it and `pip uninstall` removes it."""
    folder = site_packages / OWN.format(release=_library.RELEASE)
    folder.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: surefoot-activate\nVersion: {_library.RELEASE}\nSummary: hip-alloc under PyTorch\n"
    (folder / "METADATA").write_text(metadata)
    (folder / "INSTALLER").write_text("surefoot\n")
    packages = [site_packages / PACKAGE, site_packages / PLACEMENT]
    files = [file for each in [*packages, folder] for file in sorted(each.rglob("*")) if file.is_file()]
    lines = [f"{file.relative_to(site_packages).as_posix()},,\n" for file in [*files, folder / "RECORD"]]
    (folder / "RECORD").write_text("".join(lines))
    return folder


def remove(site_packages):
    """Removes the start-up code first: a Python that starts meanwhile must not import a package that no longer exists."""
    if os.name == "nt":
        _set_libraries_aside(site_packages)
    packages = [site_packages / PACKAGE, site_packages / PLACEMENT]
    distributions = list(site_packages.glob(OWN.format(release="*")))
    was_called = _startup.remove(site_packages, None)
    was_there = was_called or any(folder.exists() for folder in [*packages, *distributions])
    for folder in [*distributions, *packages]:
        if folder.exists():
            shutil.rmtree(folder)
    return was_there


def _set_libraries_aside(site_packages):
    """Windows lets nobody delete a library that a program has loaded, but rename it. Before anything else is removed."""
    library = site_packages / PACKAGE / _library.NAME
    if library.exists():
        library.rename(site_packages / f".{PACKAGE}-{os.getpid()}.old")
    for old in site_packages.glob(f".{PACKAGE}-*.old"):
        with contextlib.suppress(PermissionError):
            old.unlink()
