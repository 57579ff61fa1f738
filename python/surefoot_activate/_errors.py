"""What goes wrong while activating, and how it is said."""

import sys


class ActivationError(RuntimeError):
    """The program asked for hip-alloc and cannot have it; running on would be something else than it asked for."""


class NotUnderHipAlloc(RuntimeError):
    """A feature of PyTorch's own allocator was used."""


def say(message):
    """A line on standard error; results of the program stay clean."""
    print(f"surefoot: {message}", file=sys.stderr)
