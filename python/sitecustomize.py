"""Imported by Python as it starts, when this folder is on PYTHONPATH: switches hip-alloc on if HIP_ALLOC=1.

Only one `sitecustomize` is imported, so the one that this hides is run too.
"""

import os
import sys
from importlib.machinery import PathFinder

_here = os.path.dirname(os.path.abspath(__file__))


def _run_hidden():
    elsewhere = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != _here]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        # Under its own name it would find this module, which is still being imported.
        spec.loader.exec_module(sys.modules[__name__])


if os.environ.get("HIP_ALLOC", "0") not in ("", "0"):
    import surefoot_activate

    try:
        surefoot_activate.activate()
    except surefoot_activate.ActivationError as problem:
        # Python would bury this under its own trouble with a failed `site`, or
        # run on; a program that asked for hip-alloc must not run without it.
        print(f"surefoot: {problem}", file=sys.stderr, flush=True)
        os._exit(2)

_run_hidden()
