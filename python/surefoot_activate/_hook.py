"""Waits for a module to be imported, at the cost of one string comparison per import."""

import importlib.util
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
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._callback)
        return spec


class _Loader:
    """Executes a module as its own loader does, and then calls back."""

    def __init__(self, loader, callback):
        self._loader = loader
        self._callback = callback

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        # From here on the module is an ordinary one: pickling, reloading and
        # reading its source find its own loader.
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._callback(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)
