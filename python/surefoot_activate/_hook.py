"""Waits for a module to be imported, at the cost of one string comparison per import.

A module whose callback fails is not imported, and stays so: programs try again (a library
catches the error of the first import and imports another part of itself), and without its
callback the module would do something else than was asked for.
"""

import sys


def after_import(name, callback):
    """Calls `callback(module)` right after the module of this name has been executed."""
    sys.meta_path.insert(0, _Waiting(name, callback))


class _Waiting:
    """A finder that finds nothing itself: it lets the others find the module and wraps what they found."""

    def __init__(self, name, callback):
        self._name = name
        self._callback = callback
        self._failure = None

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        # Stays in place: programs also ask whether torch is there without importing it.
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None or (spec := find(name, path, target)) is None:
                continue
            if spec.loader is not None:
                spec.loader = _Loader(spec.loader, self)
            return spec
        return None

    def execute(self, module, loader):
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        loader.exec_module(module)
        try:
            self._callback(module)
        except Exception as failure:
            self._failure = failure
            raise
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader:
    """Has the finder execute a module, with the module's own loader."""

    def __init__(self, loader, finder):
        self._loader = loader
        self._finder = finder

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        # From here on the module is an ordinary one: pickling, reloading and
        # reading its source find its own loader.
        module.__loader__ = module.__spec__.loader = self._loader
        self._finder.execute(module, self._loader)

    def __getattr__(self, name):
        return getattr(self._loader, name)
