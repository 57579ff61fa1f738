"""Errors of the activation, and how they are printed."""

import sys


class ActivationError(RuntimeError):
    """hip-alloc was requested but cannot be installed; the program must not continue without it."""


class NotUnderHipAlloc(RuntimeError):
    """The program used a feature that only PyTorch's own allocator supports."""


def say(message):
    """Prints a line on standard error, so that the output of the program is not affected."""
    print(f"surefoot: {message}", file=sys.stderr)
