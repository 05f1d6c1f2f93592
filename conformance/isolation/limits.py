"""What a request may take of a child, time and memory, and the watch that ends a child which takes more."""

import contextlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from touchstone.conformance.isolation.processes import POLL_SECONDS, Child, Death
from touchstone.conformance.spec.checks import Check


@dataclass(frozen=True)
class Limits:
    """What one trial may take: `seconds` of time and `bytes` of resident memory beyond what the child began with.

    The memory is never more than half of what is available when the child starts. Where the machine is busy, the time
    is processor time, up to four times `seconds` on the clock.
    """

    seconds: float = 60.0
    bytes: int = 4 << 30

    def __post_init__(self):
        for name in ("seconds", "bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name}: expected a positive number, got {value!r}")


DEFAULT_LIMITS = Limits()


class Watch:
    """What a child uses, from when it was started. Growth of memory counts from the last `begin`."""

    def __init__(self, child: Child):
        self.child = child
        self._helpers: dict[int, float] = {}  # processor time of what it has started, by process
        self._available = available_memory()
        self.begin()

    def begin(self) -> None:
        self._baseline = self.child.usage()[1]

    def wait(self, limits: Limits, idle: float | None = None, before: float = 0.0) -> Death | None:
        """Until there is an answer (None), or the child has died or gone beyond its limits, and was ended.

        With `idle`, also after so many seconds without processor time. `before`: seconds of the limit that earlier
        requests have taken, at work.
        """
        child = self.child
        began = moved = time.monotonic()
        if child.connection.poll(POLL_SECONDS):
            return None
        allowed = min(limits.bytes, self._available // 2)
        first = last = self.child.usage()[0]
        starved = child.waited()
        while not child.connection.poll(POLL_SECONDS):
            if child.is_gone():
                return child.death()
            seconds, resident = self.child.usage()
            now = time.monotonic()
            if resident - self._baseline > allowed:
                child.kill()
                grown, most = (resident - self._baseline) / 2**30, allowed / 2**30
                return Death(Check.MEMORY, f"resident memory grew by {grown:.2f} GiB; the limit is {most:.2f} GiB")
            if seconds > last:
                last, moved = seconds, now
            if too_long(now - began + before, seconds - first + before, limits.seconds, child.waited() - starved):
                child.abort()
                return Death(Check.HANG, f"no answer after {now - began + before:.0f} s{child.place()}")
            if idle is not None and now - moved >= idle:
                if self._helped():
                    moved = now
                    continue
                child.abort()
                return Death(Check.HANG, f"no answer and no processor time for {idle:.0f} s{child.place()}", early=True)
        return None

    def _helped(self) -> bool:
        """Whether a process that it started, such as a compiler, has used processor time since the last call."""
        before, self._helpers = self._helpers, {}
        with contextlib.suppress(psutil.Error):
            for helper in self.child.process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    times = helper.cpu_times()
                    self._helpers[helper.pid] = times.user + times.system
        return any(seconds > before.get(pid, 0.0) for pid, seconds in self._helpers.items())


def too_long(elapsed: float, processor: float, limit: float, waited: float) -> bool:
    """Beyond the limit and stuck or at work all the time; a process that only waits for its turn, `waited` seconds of
    them with nothing but that, gets four times as long."""
    stuck = processor + waited < elapsed / 50
    return elapsed >= limit and (processor >= limit or stuck or elapsed >= 4 * limit)


def available_memory() -> int:
    """Bytes that can be had without swapping, in this machine or control group."""
    found = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
        found = min(found, most - used + (int(cached[1]) if cached else 0))
    return max(found, 0)
