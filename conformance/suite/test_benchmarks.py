"""The bench through pytest-benchmark: one item per variant or baseline, whose rounds are the samples that were
measured."""

import pytest

from touchstone.conformance.bench.group import DECLINED, MEASURED, NOT_RUN
from touchstone.conformance.bench.records import row


def test_time(timed, result, benchmark):
    if result.status in (DECLINED, NOT_RUN):
        pytest.skip(f"{result.status}: {'; '.join(result.problems)}")
    if result.status != MEASURED:
        pytest.fail(f"{result.status}: {'; '.join(result.problems)}", pytrace=False)
    samples = iter(result.seconds)

    def play():
        timed.clock.seconds += next(samples)

    benchmark.extra_info.update(row(result, samples=False))
    benchmark.pedantic(play, rounds=len(result.seconds), iterations=1, warmup_rounds=0)
