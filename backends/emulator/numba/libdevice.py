"""libdevice's functions: each becomes one of support.cpp or of the C library that does the same."""

import functools
import re

import llvmlite.binding as llvm

from touchstone.backends.emulator.numba import linking
from touchstone.backends.emulator.numba.errors import UnsupportedCode

_FUNCTION = re.compile(r"^(?:declare|define)[^@]*@\"?(__nv_\w+)\"?\(", re.M)


@functools.cache
def _twin(name: str) -> str:
    """The name of a function here that does what libdevice's does."""
    linking.support()
    if llvm.address_of_symbol(name):
        return name
    bare = name.removeprefix("__nv_")
    for candidate in (bare, bare.removeprefix("fast_"), re.sub(r"_r[nzud]$", "", bare)):
        if llvm.address_of_symbol(candidate):
            return candidate
    raise UnsupportedCode(f"libdevice's {name} has no twin in the emulator")


def replace(text: str) -> str:
    """A module that calls the functions here instead of libdevice's."""
    for name in set(_FUNCTION.findall(text)):
        text = re.sub(rf'@"?{name}"?\(', f"@{_twin(name)}(", text)
    return text
