"""The self-test: the mutants of every op, and that survivors and false alarms are detected and reported."""

import dataclasses
import json
import os
import re
import time
from collections import Counter

import pytest
import torch

from touchstone.conformance import faults
from touchstone.conformance.cli import main
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.faults import KINDS, Planted, _generic, _rows, mutant, planted_in
from touchstone.conformance.judging import call, judge
from touchstone.conformance.judging.judgement import PASSED
from touchstone.conformance.judging.trials import CaseTrial, ManyCalls, trials_of
from touchstone.conformance.selftest import other_rules, record, results
from touchstone.conformance.selftest import run as selftest
from touchstone.conformance.selftest.order import Order
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.checks import Check


def own(op):
    return [one for one in registry.planted(op) if one.name not in generic(op)]


def generic(op):
    return {one.name for one in _generic.planted(op, registry.contract(op))}


@pytest.mark.parametrize("op", registry.ops())
def test_every_op_has_faults_and_known_good_kernels_of_its_own(op):
    wrong, right = ([one for one in own(op) if one.is_known_good is is_known_good] for is_known_good in (False, True))
    assert len(wrong) >= 8
    assert len(right) >= 2
    assert all(one.dtypes == faults.ALL for one in right)
    names = [one.name for one in registry.planted(op)]
    assert len(set(names)) == len(names)
    assert all(one.about and not one.about.endswith(".") for one in wrong)
    contract = registry.contract(op)
    assert [misfit for one in registry.planted(op) if (misfit := contract.misfit(one.make()))] == []


def test_there_are_many_faults_of_every_kind():
    everything = [one for op in registry.ops() for one in registry.planted(op)]
    assert sum(not one.is_known_good for one in everything) >= 150
    kinds = Counter(one.kind for one in everything)
    assert set(kinds) == {*KINDS, "known-good"}


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="kind: 'typo' is not one of mask, bounds"):
        mutant("typo")


def test_state_begins_anew_with_each_check():
    @mutant("cache", stateful=True)
    def counts():
        "every call but the first is zero"
        seen = []
        return lambda x: seen.append(1) or (torch.softmax(x, -1) if len(seen) == 1 else torch.zeros_like(x))

    (planted,) = planted_in(type("module", (), {"counts": counts}), "softmax")
    x = torch.ones(2, 3)
    first, second = planted.make(), planted.make()
    assert first(x).sum() > 0 and first(x).sum() == 0 and second(x).sum() > 0


def plant(monkeypatch, *planted):
    monkeypatch.setattr(registry, "planted", lambda op: list(planted))
    monkeypatch.setattr(registry, "has_planted_kernels", lambda name, op: False)


def softmax(x):
    return torch.softmax(x.float(), -1).to(x.dtype)


def nan_is_0(x):
    return softmax(torch.where(x.isnan(), 0, x))


WRONG = Planted("softmax", "wrong", "all is zero", "unwritten", lambda: torch.zeros_like)
RIGHT = Planted("softmax", "right", "as torch", "known-good", lambda: softmax)
UNSEEN = Planted("softmax", "unseen", "nothing is wrong with it", "formula", lambda: softmax)
ACCUSED = Planted("softmax", "accused", "wrong in truth", "known-good", lambda: lambda x: 1.1 * softmax(x))
RARE = Planted("softmax", "rare", "NaN is lost", "special", lambda: nan_is_0)


def test_faults_are_killed_and_known_good_kernels_acquitted(monkeypatch):
    plant(monkeypatch, WRONG, RIGHT)
    result = selftest.judge_op("softmax", "quick")
    assert result.survivors == [] and result.false_alarms == []
    assert result.known_good_checks == result.known_good[0].trials > 15
    assert len(result.mutants[0].killed) > 10
    assert results.passed([result])


def test_survivors_and_false_alarms_are_named(monkeypatch):
    plant(monkeypatch, UNSEEN, ACCUSED)
    result = selftest.judge_op("softmax", "quick")
    assert [one.name for one in result.survivors] == ["unseen"]
    assert [one.name for one in result.false_alarms] == ["accused"]
    told = "\n".join(results.holes([result]))
    assert "nothing kills unseen (formula: nothing is wrong with it)" in told
    assert "the known-good kernel accused is rejected in" in told
    assert not results.passed([result])


def test_families_that_kill_nothing_or_alone_are_known(monkeypatch):
    plant(monkeypatch, RARE)
    result = selftest.judge_op("softmax", "quick")
    assert "values one_nan" in result.mutants[0].families
    assert "values ascending" in result.idle_families
    assert {"values one_nan", "values nan_and_neg_inf"} <= set(result.redundant_families)  # either alone would do
    assert "values normal" not in {*result.mutants[0].families, *result.redundant_families}
    plant(monkeypatch, RARE, WRONG)
    both = selftest.judge_op("softmax", "quick")
    assert "values ascending" not in both.idle_families
    assert "values ascending" in both.redundant_families


def test_a_level_above_quick_asks_for_two_kills():
    once = results.MutantResult("softmax", "once", "mask", "", None, trials=9, killed=["a"])
    twice = results.MutantResult("softmax", "twice", "mask", "", None, trials=9, killed=["a", "b"])
    for level, judged, passed in [("quick", once, True), ("default", once, False), ("default", twice, True)]:
        assert results.passed([results.OpResult("softmax", level, 0, [judged])]) is passed


def test_few_kills_are_narrow_unless_more_were_not_looked_for():
    def narrow(kills, backend):
        one = results.MutantResult("softmax", "one", "mask", "", backend, trials=500, killed=list("abcdefgh")[:kills])
        return results.OpResult("softmax", "default", 0, judged=[one]).narrow == [one]

    assert narrow(2, None) and narrow(4, None) and not narrow(5, None) and not narrow(0, None)
    assert narrow(3, "cupy") and not narrow(4, "cupy")  # left after the fourth


def test_a_fault_that_crashes_is_killed(monkeypatch):
    def crash(x):
        import ctypes

        ctypes.string_at(0)

    plant(monkeypatch, Planted("softmax", "crash", "reads at 0", "bounds", lambda: crash))
    result = selftest.judge_op("softmax", "quick")
    assert result.mutants[0].checks.keys() == {Check.CRASH}


def test_a_fault_that_ends_its_process_spoils_no_other(monkeypatch):
    """Most mutants share one process."""

    def crash(x):
        import ctypes

        ctypes.string_at(0)

    deadly = Planted("softmax", "deadly", "reads at 0", "tail", lambda: crash)
    plant(monkeypatch, WRONG, deadly, RARE, RIGHT)
    result = selftest.judge_op("softmax", "quick")
    assert [one.name for one in result.judged] == ["wrong", "deadly", "rare", "right"]
    assert result.judged[1].checks.keys() == {Check.CRASH}
    assert result.survivors == [] and result.false_alarms == []


@pytest.mark.level("default")
@pytest.mark.slow
def test_one_that_takes_long_is_judged_by_itself(monkeypatch):
    def slow():
        seconds = [6.0]
        return lambda x: (seconds and time.sleep(seconds.pop())) or softmax(x)

    monkeypatch.setattr(selftest, "SECONDS", 2.0)
    plant(monkeypatch, Planted("softmax", "slow", "as torch", "known-good", slow), WRONG)
    alone, judge_planted = [], selftest.judge_planted
    monkeypatch.setattr(
        selftest, "judge_planted", lambda planted, *rest: alone.append(planted.name) or judge_planted(planted, *rest)
    )
    result = selftest.judge_op("softmax", "quick")
    assert alone == ["slow"]  # in this process; what is called in the child is not seen here
    assert result.false_alarms == [] and result.survivors == []
    assert result.known_good[0].trials > 15


def test_values_are_drawn_once_for_all(monkeypatch):
    contract, drawn = registry.contract("softmax"), Counter()

    def counting(family):
        return lambda draw: drawn.update([draw.case]) or family(draw)

    families = {name: counting(family) for name, family in contract.values.items()}
    monkeypatch.setattr(contract, "values", families)
    with selftest.drawn_once(contract):
        case = plain_case(contract, "float32", "normal")
        one, two = contract.build(case), contract.build(case)
    assert drawn == {case: 1}
    assert torch.equal(one.arguments["x"], two.arguments["x"])
    assert one.arguments["x"].data_ptr() != two.arguments["x"].data_ptr()
    assert contract.values is families


def test_generic_faults_share_an_answer_but_no_memory(monkeypatch):
    contract, calls = registry.contract("softmax"), []
    expect = contract.expect
    monkeypatch.setattr(contract, "expect", lambda *args, **kwargs: calls.append(1) or expect(*args, **kwargs))
    made = {one.name: one.make() for one in _generic.planted("softmax", contract)}
    x = torch.randn(3, 5)
    first = made["one_nan"](x)
    assert torch.equal(made["extra_axis"](x)[0], torch.softmax(x.double(), -1).float()) and first[-1, -1].isnan()
    assert len(calls) == 1
    x[0, 0] += 1
    assert torch.equal(made["extra_axis"](x)[0], torch.softmax(x.double(), -1).float())
    assert len(calls) == 2


def test_a_kernel_in_a_backends_language_is_left_after_its_first_kill(monkeypatch):
    plant(monkeypatch, dataclasses.replace(WRONG, backend="triton"), RARE)
    result = selftest.judge_op("softmax", "quick")
    left, rare = result.judged
    assert len(left.killed) == 1 and left.trials < rare.trials
    assert result.thin == [rare] * (len(rare.killed) == 1)


def test_a_sample_takes_one_in_so_many_of_the_mutants_and_of_the_known_good_kernels():
    every = registry.planted("softmax")
    shares = [selftest.sampled("softmax", every, n) for n in (1, 3)]
    assert [one.name for one in shares[0]] == [one.name for one in every]
    for sound in (False, True):
        all_of_them, some = ([one for one in those if one.is_known_good is sound] for those in (every, shares[1]))
        assert len(all_of_them) // 3 <= len(some) <= len(all_of_them) // 3 + 1 and some
    names = {op: {one.name for one in selftest.sampled(op, registry.planted(op), 3)} for op in registry.ops()}
    assert len({frozenset(those) for those in names.values()}) == len(names)  # other generic mutants for other ops


def test_at_level_quick_known_good_kernels_make_fewer_calls():
    every = trials_of(Subject("softmax", registry.planted("softmax")[0].make(), "f", "f@cpu", "cpu"), "quick")[0]
    watched = [trial.id for trial in every if isinstance(trial, CaseTrial) and trial.watched and not trial.single]
    for name, backend in (("one", None), ("other", None), ("third", None), ("emulated", "cupy")):
        sound = dataclasses.replace(RIGHT, name=name, backend=backend)
        held = selftest.held_to(sound, every, "quick")
        assert [trial.count for trial in held if isinstance(trial, ManyCalls)] == [17, 6]
        twice = [trial.id for trial in held if isinstance(trial, CaseTrial) and trial.watched]
        share = selftest.TAKEN if backend else selftest.TAKEN * selftest.SECOND_CALLS
        assert 0.5 * len(watched) / share < len(twice) < 1.5 * len(watched) / share
        assert abs(len(held) - len(every) / selftest.TAKEN) < len(every) / 6
        beyond = [t for t in held if isinstance(t, CaseTrial) and registry.contract("softmax").is_beyond_grid(t.case)]
        assert len(beyond) == 1 if backend else len(beyond) == len(registry.contract("softmax").beyond_grid)
    assert [t.count for t in selftest.held_to(RIGHT, every, "default") if isinstance(t, ManyCalls)] == [50, 6]


def test_a_kill_is_enough_where_not_the_whole_matrix_is_asked_for(monkeypatch):
    plant(monkeypatch, WRONG, RIGHT, UNSEEN)
    whole, some = (selftest.judge_op("softmax", "quick", whole=whole) for whole in (True, False))
    assert len(some.mutants[0].killed) == some.mutants[0].trials == 1 < len(whole.mutants[0].killed)
    assert some.thin == [] and results.summary([some]).rows[0][3] == "-"
    plant(monkeypatch, RARE)
    assert selftest.judge_op("softmax", "quick", whole=False).mutants[0].trials == 1  # the likeliest first
    assert some.known_good_checks == whole.known_good_checks
    assert [one.name for one in some.survivors] == ["unseen"] and some.survivors[0].trials == whole.survivors[0].trials
    assert results.summary([some]).rows[0][-2:] == ["-", "-"]
    assert not any("families that kill nothing" in line for line in results.holes([some]))
    wholes = []
    monkeypatch.setattr(selftest, "each", lambda work, *rest: wholes.append(work.keywords["whole"]))
    selftest.run(["softmax"], "quick")
    selftest.run(["softmax", "matmul"], "quick")
    selftest.run(["softmax", "matmul"], "quick", whole=True)
    selftest.run(["softmax", "matmul"], "default", jobs=2)
    assert wholes == [True, False, True, True]


def trials_in_order(planted, tried=lambda trial: False, killed=(), others=UNSEEN):
    """Of `planted`, after nine `others` were tried on some trials, of which those of some values killed."""
    trials, _ = trials_of(Subject("softmax", softmax, "right", "user@cpu", "cpu"), "quick")
    order, some = Order(registry.contract("softmax"), trials), list(filter(tried, trials))
    for _ in range(9):
        order.learn(others, some, [trial.id for trial in some if trial.case.values in killed])
    found = order.of(planted, trials)
    assert sorted(trial.id for trial in found) == sorted(trial.id for trial in trials)
    return found


@pytest.mark.parametrize(
    ("planted", "first"),
    [
        (RARE, lambda case: "nan" in case.values),  # "NaN is lost"
        (dataclasses.replace(WRONG, kind="empty"), lambda case: not case.filled),
        (dataclasses.replace(WRONG, kind="strides"), lambda case: not case.contiguous),
        (dataclasses.replace(WRONG, about="what exceeds 4096 columns"), lambda case: max(case.size.values()) > 4096),
        (dataclasses.replace(WRONG, about="rows from 70000 on"), registry.contract("softmax").is_beyond_grid),
    ],
)
def test_trials_of_which_a_mutants_words_speak_come_first(planted, first):
    assert first(trials_in_order(planted)[0].case)


def test_trials_that_killed_others_come_first_and_those_that_did_not_later():
    first = trials_in_order(UNSEEN)[0]
    assert first.case.values != "steep"
    for others in (UNSEEN, dataclasses.replace(UNSEEN, kind="scale")):
        assert trials_in_order(UNSEEN, lambda trial: True, ["steep"], others)[0].case.values == "steep"
    assert trials_in_order(UNSEEN, lambda trial: trial.id == first.id)[0] != first


def test_many_calls_come_soon_where_often_nothing_else_shows_a_fault():
    places = {}
    for kind in ("cache", "scale"):
        tried = trials_in_order(dataclasses.replace(UNSEEN, kind=kind))
        places[kind] = next(place for place, trial in enumerate(tried) if isinstance(trial, ManyCalls))
    assert places["cache"] <= 5 < places["scale"]


def test_races_of_threads_are_looked_for_under_the_instruments():
    race, first = dataclasses.replace(UNSEEN, kind="race"), {}
    for backend in ("cupy", None):
        tried = trials_in_order(dataclasses.replace(race, backend=backend))[:5]
        first[backend] = [isinstance(trial, CaseTrial) and trial.instrumented for trial in tried]
    assert all(first["cupy"]) and not all(first[None])


def test_sums_in_sequence_and_by_lanes_are_those_of_a_loop():
    x = torch.randn(3, 1001) * torch.logspace(-3, 3, 1001)
    for count in (1, 8, 256):
        sums = torch.zeros(3, count)
        for part in torch.nn.functional.pad(x, (0, -1001 % count)).split(count, -1):
            sums = sums + part
        while sums.shape[-1] > 1:
            sums = sum(sums.chunk(2, -1))
        assert torch.equal(_rows.lanes(count)(x), sums)
        assert count > 1 or torch.equal(_rows.in_sequence(x), sums[:, 0])
    assert torch.equal(_rows.lanes(256)(x[:, :3]), (x[:, :1] + x[:, 2:3]) + x[:, 1:2])  # a tree, of four lanes here
    assert torch.equal(_rows.in_sequence(x[:, :0]), torch.zeros(3))


def test_of_known_good_kernels_alone_false_alarms_are_told(monkeypatch, capsys):
    plant(monkeypatch, WRONG, RIGHT, UNSEEN)
    assert main(["selftest", "--op", "softmax", "--known-good", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^all +0 +0 +- +1 +\d+ +0 +- +-", out, re.MULTILINE) and "kills nothing" not in out
    plant(monkeypatch, WRONG, ACCUSED)
    assert main(["selftest", "--op", "softmax", "--known-good", "--jobs", "1"]) == 1
    assert "the known-good kernel accused is rejected" in capsys.readouterr().out


def test_the_parts_of_an_op_join_to_what_one_process_finds(monkeypatch):
    plant(monkeypatch, WRONG, RIGHT, UNSEEN)
    parts = [selftest.judge_op("softmax", "quick", part=(index, 2)) for index in range(2)]
    assert [len(part.judged) for part in parts] == [2, 1]
    assert selftest.joined(parts).to_dict() == selftest.judge_op("softmax", "quick").to_dict()


def test_the_page_holds_what_the_record_does(monkeypatch, tmp_path, capsys):
    plant(monkeypatch, WRONG, RIGHT, UNSEEN)
    result = selftest.judge_op("softmax", "quick")
    path = tmp_path / "selftest.json"
    path.write_text(json.dumps(record.to_record([result])))
    assert main(["selftest", "--page", str(path)]) == 0
    page = capsys.readouterr().out
    assert (
        "**1 of 2 mutants are killed, 1 of them by two trials or more; 1 known-good kernels give no false alarms"
        in page
    )
    assert results.summary([result]).plain() in page
    assert "softmax: nothing kills unseen (formula: nothing is wrong with it)" in page


def test_the_command_prints_and_writes(monkeypatch, tmp_path, capsys):
    plant(monkeypatch, WRONG, RIGHT)
    path = tmp_path / "self.json"
    assert main(["selftest", "softmax", "--jobs", "1", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "what the judge catches, level quick, seed 0" in out
    assert "property rows sum to one" in out  # the matrix of a single op
    kept = json.loads(path.read_text())
    assert kept["mutants"] == 1 and kept["survivors"] == 0 and kept["false alarms"] == 0
    plant(monkeypatch, ACCUSED)
    assert main(["selftest", "softmax", "--jobs", "1"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "op: 'nonsense' is not one of"),
        (["softmax", "--level", "slow"], "--level: expected one of quick, default, thorough, got 'slow'"),
        (["--page", str(registry.ROOT / "tox.ini")], "tox.ini: Expecting value"),
        (["--page", str(registry.ROOT / "docs/results/selftest.json")], "selftest.json: no record of selftest --json"),
        (["softmax", "--jobs", "0"], "--jobs: expected a positive number, got 0"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, capsys):
    assert main(["selftest", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_answers_are_kept_for_many_kernels():
    subject = Subject("softmax", softmax, "right", "user@cpu", "cpu")
    trials, _ = trials_of(subject, "quick")
    judge.keep_answers(trials)
    before = call._recent.cache_info().misses
    for trial in trials:
        assert judge.run(subject, trial).status == PASSED
    assert call._recent.cache_info().misses == before


def test_other_rules_see_less(monkeypatch):
    """Small differences on one shape of randn pass; so do NaN, strides and the second call."""
    tail = Planted("softmax", "tail", "past 4096 columns", "tail", lambda: first_4096)
    plant(monkeypatch, WRONG, RARE, tail, RIGHT)
    monkeypatch.setattr(other_rules, "WORK", 2**18)
    found = {one.rule: one for one in other_rules.compare_op("softmax")}
    assert found["assert_close, randn"].caught == ["wrong"]
    assert "tail" not in found["KernelBench 1e-2"].caught
    assert {"wrong", "rare"} & {*found["KernelBench 1e-2"].missed}
    assert all(one.accused == [] and one.acquitted == ["right"] for one in found.values() if one.acquitted)
    table = other_rules.table({"softmax": list(found.values())}, [selftest.judge_op("softmax", "quick")])
    assert table.rows[0][-1] == "3/3"


def first_4096(x):
    y = torch.zeros_like(x)
    y[:, :4096] = softmax(x[:, :4096])
    return y


def test_one_size_is_as_large_as_the_work_allows():
    for op in registry.ops():
        contract = registry.contract(op)
        size = other_rules.one_size(contract)
        case = other_rules.case_of_size(contract, "float32", size, 0)
        assert contract.work(case) <= other_rules.WORK and contract.valid(case)
        letters = {n for n in size.values() if not isinstance(n, tuple)} or set(*size.values())
        assert (len(letters) == 1 and min(letters) >= 8) or size in contract.sizes


def test_last_words_are_shown_only_where_something_went_wrong(capfd):
    with selftest.last_words_kept():
        os.write(2, b"free(): invalid size\n")
    assert capfd.readouterr().err == ""

    def break_down():
        with selftest.last_words_kept():
            os.write(2, b"said before\n")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        break_down()
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "said before\nafterwards\n"
