"""What the processes of pytest-xdist do because they are several."""

from types import SimpleNamespace

import pytest

from tests.processes import output_of
from touchstone.conformance.suite import workers


@pytest.mark.parametrize("count", [1, 2, 3, 16])
@pytest.mark.parametrize("every", [1, 7, 10, 1000])
def test_each_part_that_is_dealt_out_begins_with_its_share_of_the_long_ones(count, every):
    items = list(range(100))
    is_long = [item % every == 3 for item in items].__getitem__
    ordered = workers.long_first(items, is_long, count)
    assert sorted(ordered) == items
    rest = [item for item in ordered if not is_long(item)]
    assert rest == sorted(rest)
    left, shares = list(ordered), []
    for worker in range(count):  # as pytest-xdist deals them out
        size = len(left) // (count - worker)
        part, left = left[:size], left[size:]
        long = [item for item in part if is_long(item)]
        assert part[: len(long)] == long
        shares.append(len(long))
    assert max(shares) - min(shares) <= 1


def test_a_worker_looks_through_less_garbage_and_keeps_no_more_of_it():
    code = """if True:
        import gc
        from touchstone.conformance.suite import workers
        counted = []
        gc.callbacks.append(lambda phase, info: counted.append(phase))
        def garbage():
            for _ in range(100_000):
                each = [None]
                each[0] = each
                yield None
        list(garbage())
        before = len(counted)
        workers.collect_less()
        frozen = gc.get_freeze_count()
        counted.clear()
        list(garbage())
        print(before > 10 * len(counted) > 0, frozen > 10_000)
    """
    assert output_of(code).split() == ["True", "True"]


def test_a_worker_that_leaves_runs_what_is_to_run_at_the_end_and_does_no_more():
    code = """if True:
        import atexit
        from touchstone.conformance.suite import workers
        atexit.register(print, "at the end")
        print("before", end=" ")
        try:
            workers.leave()
        finally:
            print("taken to pieces")
    """
    assert output_of(code) == "before at the end\n"


def test_only_a_worker_that_has_told_its_results_leaves(monkeypatch):
    left = []
    monkeypatch.setattr(workers, "leave", lambda: left.append(None))
    told, silent = SimpleNamespace(workeroutput={"exitstatus": 0}), SimpleNamespace(workeroutput={})
    workers.Worker(2, bool).pytest_unconfigure(silent)
    assert not left
    workers.Worker(2, bool).pytest_unconfigure(told)
    assert len(left) == 1
