"""The `surefoot` program, for Python: `python -m surefoot doctor` is `surefoot doctor` of this environment.

    program     the path of the program

What it brings beside it: `surefoot_activate` (the allocator under PyTorch) and `surefoot_placement` (verified
moves of tensors).
"""

import os
import sys
import sysconfig

__all__ = ["program"]


def program() -> str:
    """The path of the `surefoot` that was installed with this package; FileNotFoundError names where it was looked for."""
    name = "surefoot.exe" if os.name == "nt" else "surefoot"
    package = os.path.dirname(os.path.abspath(__file__))
    folders = [
        sysconfig.get_path("scripts"),
        # `pip install --user`, and `--prefix` of another environment.
        sysconfig.get_path("scripts", _user_scheme()),
        os.path.join(package, "..", "..", "..", "..", "bin"),
        # `pip install --target FOLDER`.
        os.path.join(package, "..", "bin"),
    ]
    for folder in folders:
        path = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(path):
            return path
    looked = ", ".join(dict.fromkeys(os.path.normpath(folder) for folder in folders))
    raise FileNotFoundError(f"{name} is in none of {looked}: install surefoot again (`pip install --force-reinstall surefoot`)")


def _user_scheme() -> str:
    return sysconfig.get_preferred_scheme("user") if sys.version_info >= (3, 10) else f"{os.name}_user"
