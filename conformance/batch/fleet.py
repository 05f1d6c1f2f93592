"""Candidates judged by the machines of a Ray cluster: its scheduling, its retries, its resources.

https://docs.ray.io. A task is one candidate, judged in a fork of Ray's worker as on one machine; a machine that is lost
has its candidates judged on another.
"""

import contextlib
import signal
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from touchstone.conformance.batch.attempt import RETRIES, Attempt, Judge, Judged, not_judged
from touchstone.conformance.batch.candidates import Candidate, Settings
from touchstone.conformance.discovery.selection import CannotRun

LOCAL = "local"  # in place of an address: a cluster of this machine alone, for this run
LOST_NODES = 5  # times that a candidate is begun again because its machine or worker was lost
IN_FLIGHT = 1000  # tasks that Ray knows of
LOOK_SECONDS = 0.5
CONNECT_SECONDS = 10.0


def judged(
    judge: Judge, candidates: Sequence[Candidate], settings: Settings, address: str, jobs: int | None, limit: float
) -> Iterator[tuple[Candidate, Judged] | None]:
    """As `pool.judged`. `address`: of a cluster ("auto": the one of this machine), or "local" for one of `jobs`
    processors that is made and ended here. Raises CannotRun where there is no Ray or no cluster."""
    with _connected(address, jobs) as ray:
        gpus = int(settings.device == "cuda")
        if gpus and not ray.cluster_resources().get("GPU"):
            raise CannotRun(f"--ray: the cluster at {address} has no GPU")
        once = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=LOST_NODES)(_task)
        left, running = list(reversed(candidates)), dict[Any, Candidate]()
        try:
            while left or running:
                while left and len(running) < IN_FLIGHT:
                    candidate = left.pop()
                    running[once.remote(judge, candidate, settings, limit)] = candidate
                ended, _ = ray.wait(list(running), num_returns=1, timeout=LOOK_SECONDS)
                for reference in ended:
                    yield running.pop(reference), _result(ray, reference)
                yield None
        finally:
            for reference in running:
                with contextlib.suppress(Exception):
                    ray.cancel(reference, force=True)


@contextlib.contextmanager
def _connected(address: str, jobs: int | None) -> Iterator[Any]:
    """Ray, connected. It takes SIGTERM for itself; whoever had it before has it again."""
    try:
        import ray
    except ImportError as error:
        raise CannotRun('--ray: Ray is not installed: pip install "touchstone-kernels[fleet]"') from error
    _reached(address)
    own = ray.is_initialized()
    handler = signal.getsignal(signal.SIGTERM)
    where = {"num_cpus": jobs, "include_dashboard": False} if address == LOCAL else {"address": address}
    try:
        if not own:
            ray.init(**where, log_to_driver=False, logging_level="ERROR")
        signal.signal(signal.SIGTERM, handler)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise CannotRun(f"--ray: no cluster at {address}: {error}") from error
    try:
        yield ray
    finally:
        if not own:
            ray.shutdown()


def _reached(address: str) -> None:
    """Raises CannotRun where nothing listens at HOST:PORT: Ray would try for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise CannotRun(f"--ray: no cluster at {address}: {error.strerror or error}") from error


def _task(judge: Judge, candidate: Candidate, settings: Settings, limit: float) -> Judged:
    """What Ray's worker does."""
    answer: Judged | str = ""
    for _ in range(1 + RETRIES):
        answer = Attempt(judge, candidate, settings).result(limit)
        if not isinstance(answer, str):
            return answer
    return not_judged(str(answer))


def _result(ray: Any, reference: Any) -> Judged:
    try:
        found: Judged = ray.get(reference)
        return found
    except ray.exceptions.RayTaskError as error:
        return not_judged(f"{type(error.cause).__name__}: {error.cause}")
    except ray.exceptions.RayError as error:
        return not_judged(f"Ray could not judge it: {type(error).__name__}: {error}")
