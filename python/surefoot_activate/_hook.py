"""Waits for a module to be imported, at the cost of one string comparison per import."""

import sys


def after_import(name, callback):
    """Calls `callback(module)` right after the module of this name has been executed."""
    sys.meta_path.insert(0, _Waiting(name, callback))


class _Waiting:
    """A finder that finds nothing itself: it lets the others find the module and wraps what they found."""

    def __init__(self, name, callback):
        self._name = name
        self._callback = callback

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

    def executed(self, module):
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._callback(module)


class _Loader:
    """Executes a module as its own loader does, and then tells the finder."""

    def __init__(self, loader, finder):
        self._loader = loader
        self._finder = finder

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        # From here on the module is an ordinary one: pickling, reloading and
        # reading its source find its own loader.
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.executed(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)
