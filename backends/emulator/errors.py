"""What the emulator holds against a kernel."""


class KernelError(RuntimeError):
    """A kernel did what a GPU does not define; the message names kernel, line, block and thread."""


class OutOfBounds(KernelError):
    """An access outside every argument, shared array and global variable."""


class Misaligned(KernelError):
    """An access at an address that is no multiple of the type's alignment."""


class UninitialisedShared(KernelError):
    """A read of shared memory that no thread of the block has written."""


class DivergentBarrier(KernelError):
    """A block's barrier that some of its threads do not reach."""


class Deadlock(KernelError):
    """Threads wait for what does not come."""


class InactiveLanes(KernelError):
    """A warp operation that names lanes which take no part in it."""


class StaleShared(KernelError):
    """A stage of shared memory that is filled again before anybody has read it, while an older one is read again."""


class RaceCondition(KernelError):
    """Two threads access the same memory, one of them writes, and nothing orders them."""
