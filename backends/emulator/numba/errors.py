"""What the emulator cannot run."""

from touchstone.backends.emulator.errors import KernelError


class UnsupportedCode(KernelError):
    """A kernel uses something that the emulator has no twin of; the message names it."""
