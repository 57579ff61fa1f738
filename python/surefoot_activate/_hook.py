"""Waits for a module to be imported, at the cost of one string comparison per import.

If the callback of a module fails, the module cannot be imported, not even later: programs may import it again (a
library catches the error of the first import and imports another submodule), and without its
callback the module would not use the allocator that the user requested.
"""

import sys


def after_import(name, callback):
    """Calls `callback(module)` right after the module of this name has been executed."""
    sys.meta_path.insert(0, _Waiting(name, callback))


class _Waiting:
    """A finder that delegates to the other finders and wraps the loader of the module they find."""

    def __init__(self, name, callback):
        self._name = name
        self._callback = callback
        self._failure = None

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        # The finder stays installed: programs also look up the module spec without importing torch.
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
    """Lets the finder execute a module, with the module's own loader."""

    def __init__(self, loader, finder):
        self._loader = loader
        self._finder = finder

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        # From here on the module is an ordinary one: pickling, reloading and
        # reading its source use its own loader.
        module.__loader__ = module.__spec__.loader = self._loader
        self._finder.execute(module, self._loader)

    def __getattr__(self, name):
        return getattr(self._loader, name)
