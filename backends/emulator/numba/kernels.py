"""Compiled kernels, by the types of their arguments."""

import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from touchstone.backends import without_collection
from touchstone.backends.emulator.numba import build, cache


class Compiled(NamedTuple):
    """A kernel for arguments of certain types."""

    native: build.NativeCode
    types: list[str]  # LLVM's, of its parameters
    exceptions: dict[int, cache.Raised]  # by status code
    classes: dict[int, Any]  # of a kernel with debug=True: the exceptions as numba-cuda keeps them


_RESHAPE = "numba_attempt_nocopy_reshape"  # of numba-cuda's own CUDA C++
_compiled: "weakref.WeakKeyDictionary[Any, dict[Any, Compiled]]" = weakref.WeakKeyDictionary()
_one_layout = False
_contiguous: "weakref.WeakSet[Any]" = weakref.WeakSet()  # code of kernels that do not compile for arrays of any layout


def compiled(kernel: Any, kinds: tuple[Any, ...]) -> Compiled:
    """A `@cuda.jit` kernel for arguments of the types `kinds`; compiled if it is not yet, and kept."""
    from numba.core.errors import TypingError  # of the code that numba-cuda shares with Numba
    from numba.cuda.core.errors import TypingError as CudaTypingError

    known = _compiled.setdefault(kernel, {})
    code = kernel.py_func.__code__
    if _one_layout and code not in _contiguous:
        alike = tuple(map(_of_any_layout, kinds))
        try:
            return known[alike] if alike in known else known.setdefault(alike, _compiled_anew(kernel, alike))
        except (TypingError, CudaTypingError):  # an intrinsic that wants neighbours
            _contiguous.add(code)
    return known[kinds] if kinds in known else known.setdefault(kinds, _compiled_anew(kernel, kinds))


@contextlib.contextmanager
def one_layout() -> Iterator[None]:
    """Within, contiguous arrays are typed as others are, so that a kernel is compiled once for all layouts of its
    arguments.

    A kernel that does not compile so is compiled for the layouts as they are.
    """
    global _one_layout
    before, _one_layout = _one_layout, True
    try:
        yield
    finally:
        _one_layout = before


def layouts_are_one() -> bool:
    """Whether this is within `one_layout`."""
    return _one_layout


def _of_any_layout(kind: Any) -> Any:
    from numba.cuda import types

    return kind.copy(layout="A") if isinstance(kind, types.Array) else kind


def _compiled_anew(kernel: Any, kinds: tuple[Any, ...]) -> Compiled:
    debug = bool(kernel.targetoptions.get("debug"))
    key = None if debug else cache.key(kernel, kinds)  # classes of exceptions are not kept on disk
    entry = cache.load(key)
    classes: dict[int, Any] = {}
    if entry is None:
        from touchstone.backends.emulator.numba import patches  # which imports numba.cuda

        with without_collection(), patches.emulating():
            entry, found = lowered(kernel, kinds)
        classes = found if debug else {}
        cache.keep(key, entry)
    return Compiled(build.load(entry.built), entry.types, entry.exceptions, classes)


def lowered(kernel: Any, kinds: tuple[Any, ...]) -> tuple[cache.Entry, dict[int, Any]]:
    """Compiled anew, for any process, and the exceptions it raises as numba-cuda keeps them; within
    patches.emulating."""
    from numba.cuda import dispatcher, types

    options = kernel.targetoptions
    if options.get("device"):
        raise TypeError(f"{kernel.__name__}: is a device function; only kernels can be launched")
    made = dispatcher.compile_cuda(
        kernel.py_func,
        types.void,
        kinds,
        debug=bool(options.get("debug")),
        fastmath=options.get("fastmath"),
        forceinline=False,
        nvvm_options={"opt": 3},
    )
    library = made.library
    function = library.get_function(made.fndesc.llvm_func_name)
    texts = [str(module) for module in library.modules]
    linked = [*library._linking_files, *(options.get("link") or [])]
    if any(_RESHAPE in text for text in texts):
        linked.append(os.path.join(os.path.dirname(dispatcher.__file__), "reshape_funcs.cu"))
    argument_types = [str(argument.type) for argument in function.args[1:]]
    built = build.build(texts, function.name, argument_types, linked)
    exceptions = {code: _told(*found) for code, found in made.call_helper.exceptions.items()}
    return cache.Entry(built, argument_types, exceptions), dict(made.call_helper.exceptions)


def _told(kind: Any, arguments: Any, place: Any) -> cache.Raised:
    """An exception as Numba keeps it: class, arguments or None, (function, file, line) or None."""
    text = f"{kind.__name__}: {', '.join(map(str, arguments))}" if arguments else kind.__name__
    return cache.Raised(text, str(place[1]) if place else "", int(place[2]) if place else 0)
