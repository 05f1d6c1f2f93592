"""Setting a kernel library up right when somebody imports it, however late that is."""

import contextlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any


class Later(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the package `name` as ever, and calls `prepare` right then, once."""

    def __init__(self, name: str, prepare: Callable[[], Any]) -> None:
        self.name, self.prepare = name, prepare
        self.watching = False
        self.then: Callable[[], Any] | None = None  # called after `prepare`

    @contextlib.contextmanager
    def within(self, make: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
        """Within, from the moment on at which the package is loaded: `make()`. Nothing where it is not, and nobody
        watches for it."""
        with contextlib.ExitStack() as stack:
            if self.name in sys.modules:
                stack.enter_context(make())
            elif self.watching:
                self.then = lambda: stack.enter_context(make())
            try:
                yield
            finally:
                self.then = None

    def watch(self) -> None:
        if not self.watching:
            self.watching = True
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        self.watching = False
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> ModuleType | None:
        return self.loader.create_module(spec)  # type: ignore[union-attr]

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)  # type: ignore[union-attr]
        self.prepare()
        if self.then is not None:
            self.then()
