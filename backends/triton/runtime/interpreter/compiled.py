"""What `warmup` and a launch return in the interpreter, in the place of a compiled kernel.

Launchers read its registers and shared memory to choose how many programs they start. No compiler has made it, so these
are assumed: figures that kernels of moderate tiles have. Any answer is right for a kernel that is right for every grid.
"""

import functools
import importlib.util
from collections.abc import Mapping
from typing import Any, NoReturn

from triton.backends.compiler import GPUTarget

from touchstone.backends import NotRun, cuda_face
from touchstone.backends.gpus import DEFAULT, GPUS, Gpu

REGISTERS = 64  # assumed, per thread
SHARED = 16384  # assumed, bytes


class Metadata:
    """The options of a launch, with the compiler's defaults, and what the compiler would say of its result."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        major, minor = (cuda_face.answers() or GPUS[DEFAULT]).capability
        self.name, self.shared, self.tmem_size, self.hash = name, SHARED, 0, name
        self.target = GPUTarget("cuda", 10 * major + minor, Gpu.warp)
        self.global_scratch_size = self.profile_scratch_size = 0
        self.num_warps, self.num_stages, self.num_ctas, self.warp_size = 4, 3, 1, Gpu.warp
        self.cluster_dims, self.maxnreg, self.launch_cooperative_grid, self.launch_pdl = (1, 1, 1), None, False, False
        vars(self).update(options)

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(name, f"metadata.{name}")


class InterpretedKernel:
    """In the place of a compiled kernel: it can be launched, and says of itself what launchers ask.

    `constants` are the values of its compile-time parameters.
    """

    def __init__(self, kernel: Any, options: dict[str, Any], constants: Mapping[str, Any]) -> None:
        self._kernel, self._options, self._constants = kernel, options, constants
        self.name = kernel.__name__
        self.n_regs, self.n_spills, self.n_max_threads = REGISTERS, 0, Gpu.threads_per_block
        self.module, self.function = None, 0

    @property
    def metadata(self) -> Metadata:
        return Metadata(self.name, self._options)

    def _init_handles(self) -> None:
        """Nothing to load."""

    def __getitem__(self, grid: Any) -> Any:
        """As of a compiled kernel, the launch takes every parameter, and the compile-time ones are what they were.

        Those at the end may be left out, as `_skips_constants` says.
        """

        def launch(*args, stream=None):
            names = self._kernel.arg_names
            given = [self._constants.get(name, value) for name, value in zip(names, args, strict=False)]
            left = names[len(args) :] if _skips_constants() else ()
            known = {name: self._constants[name] for name in left if name in self._constants}
            further = args[len(names) :]
            self._kernel.run(*given, *further, grid=grid, warmup=False, **known, **self._options)

        return launch

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(name, name)


@functools.cache
def _skips_constants() -> bool:
    """Whether Triton's launcher reads no compile-time parameters, so that those at the end may be left out.

    Since 3.7, where it is one C function for all kernels; before, each kernel had one of its own, which counted its
    arguments (an H200: "function takes exactly 20 arguments (18 given)" with 3.6).
    """
    if importlib.util.find_spec("triton.backends.nvidia") is None:
        return False
    from triton.backends.nvidia import driver

    return hasattr(driver, "annotate_arguments")


def _refuse(attribute: str, what: str) -> NoReturn:
    if attribute.startswith("__"):  # copying and pickling ask for optional methods
        raise AttributeError(attribute)
    raise NotRun(f"the launcher reads .{what} of a compiled kernel, and the interpreter compiles nothing")
