"""`python -m surefoot …`: the program, with the same arguments, exit code and signals."""

import os
import subprocess
import sys

from . import program


def main() -> None:
    try:
        path = program()
    except FileNotFoundError as problem:
        sys.exit(f"surefoot: {problem}")
    # What this Python is for is what the program should look at, also where no environment is active.
    if sys.prefix != sys.base_prefix:
        os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
    if os.name == "nt":
        sys.exit(subprocess.run([path, *sys.argv[1:]]).returncode)
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
