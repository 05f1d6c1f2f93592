"""Candidates judged by processes of this machine, so many at a time."""

from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait

from touchstone.conformance.batch.attempt import RETRIES, Attempt, Judge, Judged, not_judged, stop
from touchstone.conformance.batch.candidates import Candidate, Settings

LOOK_SECONDS = 0.5  # at the clock, while nothing ends


def judged(
    judge: Judge, candidates: Sequence[Candidate], settings: Settings, slots: Sequence[str | None], limit: float
) -> Iterator[tuple[Candidate, Judged] | None]:
    """Each candidate with what came of it, as it ends, and None from time to time; to be closed.

    `slots`: as many as are judged at a time, each with the GPU that is its own, or None. One that is not judged within
    `limit` seconds, or whose judge dies, is tried once more.
    """
    waiting = deque((candidate, 0) for candidate in candidates)
    free, running, tries = deque(slots), list[Attempt](), dict[str, int]()
    try:
        while waiting or running:
            while waiting and free:
                candidate, tries[candidate.id] = waiting.popleft()
                running.append(Attempt(judge, candidate, settings, free.popleft()))
            ready = wait([attempt.child.connection for attempt in running], LOOK_SECONDS)
            for attempt in [one for one in running if one.child.connection in ready or one.seconds > limit]:
                answer = attempt.result(limit)
                running.remove(attempt)
                free.append(attempt.gpu)
                candidate = attempt.candidate
                if isinstance(answer, str) and tries[candidate.id] < RETRIES:
                    waiting.appendleft((candidate, tries[candidate.id] + 1))
                else:
                    yield candidate, not_judged(answer) if isinstance(answer, str) else answer
            yield None
    finally:
        stop(running)
