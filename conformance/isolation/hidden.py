"""Memory that is to a launcher what a GPU's is to its host: the operands of an untrusted kernel on the CPU.

While no kernel runs, other numbers lie there than the operands', drawn at random. Kernels find the operands, and so
do the copies that the library makes of tensors. So whatever works the answer out elsewhere, in the library, another
one, or another process, and by whichever name it is called, gets that of other numbers.
"""

import contextlib
import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from touchstone import backends
from touchstone.conformance.isolation.shared import WINDOW
from touchstone.conformance.judging.instruments import COPIES


class Hidden:
    """The memory of one operand: `bytes` is what the launcher has, `shared` holds what the judge gave."""

    def __init__(self, shared: torch.Tensor, own: torch.Tensor, dtype: torch.dtype, draw: torch.Generator) -> None:
        self.shared, self.bytes = shared, own
        count = -(-shared.numel() // dtype.itemsize)
        drawn = torch.randn(count, generator=draw, device="cpu").to(dtype).view(torch.uint8)[: shared.numel()]
        # NumPy's, since a dispatch mode would take torch's calls for the launcher's
        self._here, self._there, self._drawn = own.numpy(), shared.numpy(), drawn.numpy()
        self._here[:] = self._drawn

    def show(self) -> None:
        """Have the operand's numbers in its memory, and what the launcher has written there itself."""
        self.tell()
        self._here[:] = self._there

    def hide(self) -> None:
        """Have other numbers there."""
        self._there[:] = self._here
        self._here[:] = self._drawn

    def tell(self) -> None:
        """Have the judge see what the launcher has written over the numbers that it saw."""
        written = self._here != self._drawn
        if written.any():
            self._there[written] = self._here[written]


class Host(TorchDispatchMode):
    """Within: `memories` are shown while a kernel runs, and while the library copies a tensor."""

    def __init__(self, memories: Sequence[Hidden]) -> None:
        super().__init__()
        self._memories = memories

    def __enter__(self):
        backends.before_launch.append(self._show)
        backends.after_launch.append(self._hide)
        return super().__enter__()

    def __exit__(self, *error):
        backends.before_launch.remove(self._show)
        backends.after_launch.remove(self._hide)
        return super().__exit__(*error)

    def _show(self) -> None:
        for memory in self._memories:
            memory.show()

    def _hide(self) -> None:
        for memory in self._memories:
            memory.hide()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, and with it triton, on the first call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        copies = func._schema.name.removeprefix("aten::") in COPIES and not backends.kernel_running()
        with self._shown() if copies else contextlib.nullcontext():
            return func(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        self._show()
        try:
            yield
        finally:
            self._hide()


class Window:
    """Memory for operands, at the offsets that they have in what is shared; the same addresses in each trial."""

    def __init__(self) -> None:
        self._mapping = mmap.mmap(-1, WINDOW)

    def bytes(self, offset: int, size: int) -> torch.Tensor:
        """`size` bytes from `offset`."""
        return torch.frombuffer(self._mapping, dtype=torch.uint8, count=size, offset=offset)
