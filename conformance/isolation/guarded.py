"""What is called while an untrusted kernel's numbers are shown: of the kernel's author nothing but kernels.

An object that the author puts in the place of a library's would be called in the midst of the true numbers: in that of
a function of Python's, NumPy's, torch's, an interpreter's or Touchstone's; and so would handlers of signals and what a
launch tells. `Guard` finds them by the objects alone, so that nothing that was put there has a say.
`unseeing` hides the numbers from whatever Python of the author's comes to run all the same.
"""

import builtins
import contextlib
import itertools
import operator
import re
import signal
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from touchstone import backends
from touchstone.conformance.isolation import tripwires

_MODULES = re.compile(
    r"builtins|contextlib|functools|operator|os|gc|sys|mmap|signal|warnings|ctypes|multiprocessing\.connection"
    r"|numpy|numpy\.(?:_core|core)\.(?:numeric|fromnumeric|multiarray|umath|_methods|shape_base|function_base)"
    r"|numpy\.lib\._?(?:stride_tricks|function_base)\w*"
    r"|torch|torch\.(?:_tensor|storage|utils\._python_dispatch)"
    r"|touchstone\.backends(?:\.\w+)*"
    r"|touchstone\.conformance\.isolation\.(?:hidden|guarded|executing|shared|tripwires|wire|processes)"
    r"|touchstone\.conformance\.judging\.(?:executor|instruments)"
)
_HOOKS = {"displayhook", "excepthook", "unraisablehook", "breakpointhook", "stdin", "stdout", "stderr"}  # of sys
_REPLACED = {"manual_seed"}  # of torch, by torch itself once torch.compile is there, as operators of one's own want
_BUILTINS = frozenset(vars(builtins))
_LISTS: tuple[list[Any], ...] = (  # of what is called as a launch goes on, and as modules are looked for
    backends.before_launch,
    backends.after_launch,
    backends.failed_launch,
    backends.strayed,
    backends.on_constants,
    sys.meta_path,
    sys.path_hooks,
)
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8  # flags of classes: made by Python, and not to be changed
_SIGNALS = tuple(signal.valid_signals())
_all, _is, _called, _chained = all, operator.is_, operator.call, itertools.chain.from_iterable
_apart, _handler_of, _profile, _profiled = frozenset.isdisjoint, signal.getsignal, sys.setprofile, sys.getprofile


class _Held:
    """A module or a class, and what it has that is called, or is a module."""

    def __init__(self, owner: Any, shadows: frozenset[str]) -> None:
        self.name, self.values = owner.__name__, vars(owner)
        self.shadows = frozenset(shadows - self.values.keys())  # what would be found before others, were it here
        names = [name for name, value in self.values.items() if _counts(owner, name, value)]
        self.names = (*names, *names[:1])  # two at least, so that `get` gives a tuple
        self.get = operator.itemgetter(*self.names) if names else lambda values: ()
        self.were = self.get(self.values)

    def stands(self) -> bool:
        """Whether all is as it was, and nothing was added."""
        try:
            return self.shadows.isdisjoint(self.values) and _all(map(_is, self.get(self.values), self.were))
        except KeyError:
            return False

    def replaced(self) -> str | None:
        """What has something in its place that is not Touchstone's."""
        were = dict(zip(self.names, self.were, strict=True))
        for name, was in were.items():
            if (now := self.values.get(name, was)) is not was and not _is_ours(now):
                return f"{self.name}.{name}"
        for name in self.shadows & self.values.keys():
            if callable(now := self.values[name]) and not _is_ours(now):
                return f"{self.name}.{name}"
        return None


def _counts(owner: Any, name: str, value: Any) -> bool:
    if (owner is sys and name in _HOOKS) or (owner is torch and name in _REPLACED):
        return False
    return callable(value) or isinstance(value, ModuleType | property | staticmethod | classmethod)


def _is_ours(value: Any) -> bool:
    """Whether something is Touchstone's, which patches libraries itself."""
    if isinstance(value, property):
        return _is_ours(value.fget)
    if isinstance(value, staticmethod | classmethod | MethodType):
        return _is_ours(value.__func__)
    if isinstance(value, type):
        home = value.__module__
        return home.startswith("touchstone.") and getattr(sys.modules.get(home), value.__name__, None) is value
    return isinstance(value, FunctionType) and tripwires.is_of_this_package(value.__code__.co_filename)


def _owners() -> Iterator[tuple[Any, frozenset[str]]]:
    """Modules and the classes that they define; with each the names that what is added would stand before."""
    patterns = (_MODULES, *map(re.compile, backends.called))
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and any(pattern.fullmatch(name) for pattern in patterns):
            yield module, _BUILTINS
            kinds = {value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name}
            changed = {kind for kind in kinds if kind.__flags__ & _HEAP and not kind.__flags__ & _IMMUTABLE}
            yield from ((kind, frozenset()) for kind in changed if name != "torch" and kind is not torch.Tensor)
    yield torch.Tensor, frozenset(dir(torch.Tensor))


class Guard:
    """All that as it was when this was made."""

    def __init__(self) -> None:
        held = [_Held(owner, shadows) for owner, shadows in _owners()]
        self._held = [each for each in held if each.names]
        # Touchstone itself changes torch for the time of a call
        self._torchs = [each for each in self._held if each.name.startswith(("torch", "Tensor"))]
        self._others = [each for each in self._held if each not in self._torchs]
        self._getters, self._values = [each.get for each in self._others], [each.values for each in self._others]
        self._shadows = [each.shadows for each in self._others]
        self._were = [one for each in self._others for one in each.were]
        self._handlers = tuple(map(_handler_of, _SIGNALS))
        self._listed = {id(each): each for one in _LISTS for each in one}

    def _stand(self) -> bool:
        """Whether all but torch is as it was, in one go."""
        try:
            found = _chained(map(_called, self._getters, self._values))
            return _all(map(_apart, self._shadows, self._values)) and _all(map(_is, found, self._were))
        except KeyError:
            return False

    def look(self) -> None:
        """Note what was replaced since, or is told of launches."""
        for held in self._torchs if self._stand() else self._held:
            if not held.stands() and (what := held.replaced()) is not None:
                tripwires.note(f"replaces {what}, which is called while its operands are shown")
        if not _all(map(_is, map(_handler_of, _SIGNALS), self._handlers)):
            tripwires.note("handles signals, which may come while its operands are shown")
        for each in [each for one in _LISTS for each in one if id(each) not in self._listed]:
            if tripwires.is_foreign(_file_of(each)):
                tripwires.note("has itself be called where a launch, or an import, is under way")


_guards: list[Guard] = []  # the one of this process


def begin() -> None:
    """Guard what is there, from here on."""
    _guards[:] = [Guard()]


def guard() -> Guard | None:
    return _guards[-1] if _guards else None


def _file_of(value: Any) -> str:
    """Where a function, or the class of an object, was written."""
    function = getattr(value, "__func__", value)
    kind = value if isinstance(value, type) else type(value)
    members = [function, *vars(kind).values()]
    codes = [getattr(getattr(each, "__func__", each), "__code__", None) for each in members]
    return next((code.co_filename for code in codes if isinstance(code, CodeType)), "<unknown>")


@contextlib.contextmanager
def unseeing(hide: Callable[[str], None], show: Callable[[], None]) -> Iterator[None]:
    """Within: where a function of the kernel's author runs, but for what an interpreter made of kernels, `hide(name)`
    was called before, and `show()` is after it."""
    within: list[FrameType] = []

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and not within and _is_somebodys(frame):
            within.append(frame)
            hide(frame.f_code.co_name)
        elif event == "return" and within and frame is within[0]:
            within.clear()
            show()

    before = _profiled()
    _profile(seen)
    try:
        yield
    finally:
        _profile(before)


_known: dict[CodeType, bool] = {}


def _is_somebodys(frame: FrameType) -> bool:
    code = frame.f_code
    found = _known.get(code)
    if found is None:
        others = tripwires.is_foreign(code.co_filename) or tripwires.is_generated(frame)
        found = _known[code] = others and code not in backends.kernel_code
    return found
