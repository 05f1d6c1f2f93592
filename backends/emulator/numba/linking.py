"""Native code that kernels call: the engine, support.cpp, mma.cpp, and the CUDA C++ that a kernel is linked with."""

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from touchstone.backends.emulator import binary, compiler
from touchstone.backends.emulator.numba.errors import UnsupportedCode
from touchstone.backends.storage.artefacts import store
from touchstone.backends.storage.files import portable

_HERE = Path(__file__).parent
_linked: list[Path] = []  # what kernels of this process were linked with


@functools.cache
def support() -> tuple[ctypes.CDLL, Path]:
    """What kernels call, compiled if it is not yet, and the engine's library that it calls."""
    engine, output = compiler.engine(), library()
    ctypes.CDLL(str(engine), mode=ctypes.RTLD_GLOBAL)  # first: what is linked with it asks for it by its name
    loaded = ctypes.CDLL(str(output), mode=ctypes.RTLD_GLOBAL)
    llvm.load_library_permanently(str(engine))
    llvm.load_library_permanently(str(output))
    return loaded, engine


def library() -> Path:
    """That of what kernels call; compiled if it is not yet."""
    engine, command = compiler.engine(), compiler.command()
    flags = ["-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-fvisibility=hidden", *compiler.processor_flags()]
    text = (_HERE / "support.cpp").read_text()
    key = compiler.digest(text, engine.name, *command, *flags)
    asked = [*command, *flags, f"-I{compiler.ENGINE}", str(_HERE / "support.cpp"), str(engine), "-lm"]
    name = f"libtouchstone_numba_{key}.so"
    return store().file(name, lambda output: compiler.build(asked, output, "the emulator's support for Numba"))


def callable_names() -> frozenset[str]:
    """What is there for kernels to call: in the engine, beside it, and in what kernels were linked with."""
    return frozenset().union(*map(binary.exported, (compiler.engine(), library(), *_linked)))


class Source(NamedTuple):
    """CUDA C++ that a kernel is linked with."""

    name: str
    data: str
    kind: str = "cu"


def resolve(names: list[str], linked_with: Sequence[Source]) -> None:
    """Compile what a kernel is linked with, if one of `names` is not known yet."""
    missing = [name for name in names if not llvm.address_of_symbol(name)]
    if any(name.startswith(("tsn_mma_", "tsn_ldmatrix_")) for name in missing):
        _link(source_of(_HERE / "mma.cpp"))
    for file in linked_with if missing else ():
        _link(file)
    missing = [name for name in missing if not llvm.address_of_symbol(name)]
    if missing:
        raise UnsupportedCode(f"a function that the emulator does not know: {', '.join(sorted(missing))}")


def _compiled_source(text: str, name: str, engine: Path, watched: bool) -> Path:
    """The library of CUDA C++; `watched`: its accesses are checked, though not by line."""
    command = compiler.command()
    flags = [
        "-std=c++17",
        "-O2",
        "-g1",
        "-fPIC",
        "-ffp-contract=off",
        "-fno-strict-aliasing",
        "-fwrapv",
        "-w",
        *compiler.processor_flags(),
        *(compiler.sanitizers(command) if watched else ()),
    ]
    headers = str(compiler.cuda_headers())
    key = compiler.digest(text, compiler.own_text(), engine.name, compiler.headers_state(), *command, *flags)

    def make(output: Path) -> None:
        source, code = output.with_name("source.cpp"), output.with_name("code.o")
        source.write_text(text)
        include = [f"-I{compiler.INCLUDE}", f"-I{compiler.ENGINE}", "-isystem", headers]
        compiler.build([*command, *flags, *include, "-c", str(source)], code, name)
        compiler.build([*command, "-shared", str(code), str(engine), "-lm"], output, name)

    return store().file(f"{compiler.plain_name(name)}_{key}.so", make)


def source_of(file: Any) -> Source:
    """What numba-cuda's LinkableCode or a path stands for; of the wrong kind it raises when it is needed."""
    if isinstance(file, (str, os.PathLike)):
        name = str(file)
        plain = name.endswith((".cu", ".cpp"))
        return Source(name, Path(file).read_text() if plain else "", "cu" if plain else "other")
    return Source(file.name, file.data.decode() if isinstance(file.data, bytes) else str(file.data), file.kind)


def _link(file: Source) -> None:
    name, text = file.name, file.data
    if file.kind != "cu":
        raise UnsupportedCode(f"a kernel linked with {name}: the emulator takes CUDA C++ (.cu) only")
    reason = compiler.why_not()
    if reason:
        raise RuntimeError(reason)
    own = "_nbst(" in text or Path(name).parent == _HERE or "numba_cuda" in Path(name).parts
    headers = f'#include <new>\n#include "touchstone.h"\n#line 1 "{portable(name)}"\n'
    engine = compiler.engine()
    path = _compiled_source(headers + text, Path(name).stem, engine, watched=not own)
    if foreign := binary.foreign(path.read_bytes(), callable_names()):
        raise compiler.CompileError(f"{name}: device code uses {', '.join(foreign[:4])}, which no GPU has")
    _linked.append(path)
    llvm.load_library_permanently(str(path))
