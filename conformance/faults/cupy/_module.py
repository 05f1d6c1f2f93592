"""CUDA C with a switch for what is wrong with it."""

import re
from functools import cached_property

from touchstone.backends.cupy.runtime.module import Module

_ENUM = re.compile(r"^enum Fault \{(.*?)\};", re.DOTALL | re.MULTILINE)


class Faulty(Module):
    """A `.cu` file with an `enum Fault { none, ... };` whose kernels take one of it, `int fault`, as last parameter.

    The switch is an argument and no definition, so that one compilation serves all faults.
    """

    @cached_property
    def faults(self) -> tuple[str, ...]:
        """The names in the file's enum."""
        (body,) = _ENUM.findall(self.path.read_text())
        return tuple(re.findall(r"^\s*(\w+),", body, re.MULTILINE))

    def launch(self, kernel, grid, block, *arguments, fault: str = "none", **options) -> None:
        """Launch with `fault` switched on; a name that is not in the enum is the launcher's own fault."""
        number = self.faults.index(fault) if fault in self.faults else 0
        super().launch(kernel, grid, block, *arguments, number, **options)
