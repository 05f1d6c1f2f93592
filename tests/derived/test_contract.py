"""Derived contracts as contracts: cases, answers, tiers, self-test, and kernels judged by them."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.derived import functions
from tests.derived.functions import FUNCTIONS, drawn, rms_norm
from touchstone import Refused, check_against, derive, describe
from touchstone.conformance.derived import modules, samples, selftest
from touchstone.conformance.derived.contract import MORE_AMPLIFIED
from touchstone.conformance.discovery import derivation, registry
from touchstone.conformance.findings import kept
from touchstone.conformance.findings.replay import replay
from touchstone.conformance.spec.cases import plain_case, plan
from touchstone.conformance.spec.compare import compare
from touchstone.conformance.spec.onednn import without_onednn

QUICK = {"device": "cpu", "level": "quick"}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def expected_of(contract, dtype="float32", family="normal"):
    contract.name = "function"
    inputs = contract.build(plain_case(contract, dtype, family))
    return inputs, contract.expected(inputs)


def rms_right(x, weight):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * weight.float()).to(x.dtype).contiguous()


def rms_stored(x, weight):
    """As eager: each intermediate is rounded."""
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight).contiguous()


def rms_wrong(x, weight):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5) * weight.float()).to(x.dtype).contiguous()


RMS = [rms_norm, drawn((12, 40), (40,))]


def test_a_right_kernel_passes_and_the_report_says_how_strong_the_contract_is():
    report = check_against(RMS[0], rms_right, RMS[1], **QUICK)
    assert report.passed, report
    assert any(note.startswith("this contract rejects 12 of 12 wrong versions") for note in report.notes)


def wild(x):
    return torch.floor(torch.sin((x + 0.3) * 1e9) * 3)


def no_kernel(x):
    return torch.zeros(x.shape, dtype=x.dtype)


def test_a_kernel_of_which_nothing_can_be_judged_does_not_pass():
    report = check_against(wild, no_kernel, drawn((8, 40)), **QUICK)
    assert report.verdict == "failed" and not report.failures, report
    compared, judged = report.elements["y"]
    assert compared > 1000 and judged == 0
    assert f"FAILED: nothing was judged; judged on 2 of {len(report.outcomes)} trials, 0 of {compared}" in str(report)
    assert "no element of its outputs can be judged" in report.summary() and report.covered == 1.0
    assert report.standing["values"].verdict == "not judged"
    assert ": 0 of " in next(
        line for line in describe(wild, drawn((8, 40)), mutants=1).splitlines() if "no kernel passes by it" in line
    )


def test_an_output_of_which_next_to_nothing_is_judged_is_named():
    report = check_against(
        lambda x: (wild(x), x * 2), lambda x: (no_kernel(x), (x * 2).contiguous()), drawn((8, 40)), **QUICK
    )
    assert report.passed and report.covered == 1.0
    assert report.summary().startswith("PASSED, but next to nothing of y0 was judged; judged on ")
    assert "0 of " in report.summary() and "elements of y0" in report.summary() and "of y1" not in report.summary()


@pytest.mark.level("default")
def test_a_wrong_kernel_fails_and_the_finding_is_repeated_in_another_process_and_made_smaller():
    report = check_against(RMS[0], rms_wrong, RMS[1], **QUICK)
    found = [f for f in report.failures if f.check == "values"]
    assert found
    registry._own.clear()  # as in a process that has not derived it
    registry.contract.cache_clear()
    result = replay(found[0].id, file=kept.FILE, anywhere=True, minimise=True, seconds=2)
    assert result["failed"]
    assert "kernel(" in result["script"]


@pytest.mark.level("default")
def test_a_kernel_is_judged_in_a_fresh_process():
    report = check_against(RMS[0], rms_right, RMS[1], **QUICK, isolate="spawn")
    assert report.passed, report


def flattened(x, weight):
    return x.view(x.shape[0], -1) * weight


def test_layouts_that_the_reference_does_not_take_are_asked_of_no_kernel():
    contract = derive(flattened, drawn((6, 4, 5), (20,)))
    assert contract.operands["x"].layouts == ("contiguous", "step", "offset", "broadcast")
    assert {"step", "broadcast_last"} <= set(contract.operands["weight"].layouts)
    right = lambda x, weight: flattened(x.float(), weight.float()).to(x.dtype)  # noqa: E731
    report = check_against(flattened, right, drawn((6, 4, 5), (20,)), **QUICK)
    assert report.passed, report
    assert (
        "layouts of x left out: transposed sliced far1 far2: the reference raises or answers otherwise" in report.notes
    )
    ignoring = lambda x, weight: right(x, torch.as_strided(weight, weight.shape, (1,)))  # noqa: E731
    assert not check_against(flattened, ignoring, drawn((6, 4, 5), (20,)), **QUICK).passed


VIEWS = {
    "view_as": (lambda x, y: x.view_as(y), (torch.randn(6, 35), torch.randn(30, 7))),
    "transpose": (lambda x: x.transpose(0, 1), (torch.randn(6, 35),)),
    "narrow": (lambda x: x.narrow(1, 3, 9), (torch.randn(6, 35),)),
    "expand": (lambda x: x[:, :1].expand(6, 5), (torch.randn(6, 35),)),
    "contiguous, of some layouts the operand": (lambda x: x.t().contiguous(), (torch.randn(6, 35),)),
    "the operand": (lambda x: x, (torch.randn(6, 35),)),
    "of several columns one after another": (
        torch.linalg.solve,
        (torch.eye(5) + torch.rand(5, 5) / 9, torch.randn(5, 1)),
    ),
    "of one row the operand": (lambda x: x.sum_to_size(1, x.shape[1]), (torch.randn(6, 35),)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_an_operand_is_right_where_the_reference_gives_one(name):
    function, example = VIEWS[name]
    report = check_against(function, lambda *given: function(*given), example, **QUICK)
    assert report.passed, report
    assert check_against(function, lambda *given: function(*given).clone(), example, **QUICK).passed


def test_a_view_of_an_operand_is_wrong_where_the_reference_gives_none():
    other = lambda x, y: (x.t(), y)  # noqa: E731
    swapped = lambda x, y: (x.t(), x)  # noqa: E731
    report = check_against(other, swapped, (torch.randn(6, 35), torch.randn(6, 35)), **QUICK)
    assert "y1 shares memory with the input x" in str(report)


def test_a_reference_that_reads_what_lies_around_its_operands_is_refused():
    # Copies have storages of their own, in which an operand lies at 0; in a larger one what lies at 2 is another's.
    reference = lambda x: torch.as_strided_copy(x, (3, 3), (1, 2), 2)  # noqa: E731
    with pytest.raises(Refused, match=r"otherwise where its operands lie elsewhere in memory.*as_strided"):
        derive(reference, (torch.randn(4, 6),))


def test_layouts_in_which_the_reference_answers_otherwise_are_asked_of_no_kernel():
    reference = lambda x: torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset())  # noqa: E731
    contract = derive(reference, (torch.randn(4, 6),))
    assert "contiguous" in contract.operands["x"].layouts and "transposed" not in contract.operands["x"].layouts


def test_layouts_in_which_the_answer_has_another_shape_are_asked_of_no_kernel():
    selected = lambda x, mask: torch.masked_select(x, mask)  # noqa: E731
    contract = derive(selected, (torch.randn(4, 5), torch.arange(20).reshape(4, 5) % 3 == 0))
    assert "broadcast" in contract.operands["x"].layouts
    assert not {"broadcast", "broadcast_last"} & set(contract.operands["mask"].layouts)


def test_far_layouts_of_which_the_reference_copies_the_gaps_are_asked_of_no_kernel():
    replaced = lambda x, y: torch.slice_scatter(x, y, 1, 0, 4)  # noqa: E731
    assert derive(replaced, drawn((5, 9), (5, 4))).found.layouts == {"x": "far0 far1"}
    # a view of an operand has its gaps, and is no copy
    assert derive(lambda x, y: x.narrow(0, 1, 2), drawn((5, 9), (5, 4))).found.layouts == {}
    # what torch sums has room for its terms, whatever the layout
    loss = lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid())  # noqa: E731
    assert derive(loss, drawn((5, 6), (5, 6))).found.layouts == {}


def test_an_answer_that_is_nan_alone_is_none_of_what_lies_elsewhere():
    assert derive(lambda x: x.sum() * math.nan, drawn((4, 6))).found.layouts == {}


def test_an_operand_of_whole_numbers_that_no_case_holds_is_not_given_to_the_reference():
    seen = []

    def picked(x, index):
        seen.append(index)
        return x[index]

    contract = derive(picked, (torch.randn(9, 4), torch.tensor([2, 5, 3, 3])), dtypes=["float32"])
    given, seen[:] = torch.randn(9, 4, dtype=torch.float64), []
    for index in ([2, 6, 3, 3], [2, -1, 3, 3]):
        with pytest.raises(ValueError, match="index: expected whole numbers from 0 to 5"):
            contract.expect({"x": given, "index": torch.tensor(index).double()}, {}, dtype=torch.float32)
    assert not seen
    for index in ([5, 0, 1, 1], []):
        found = contract.expect({"x": given, "index": torch.tensor(index).double()}, {}, dtype=torch.float32)
        assert torch.equal(found["y"].answer, given[index])


def test_a_reference_whose_shape_depends_on_values_is_refused():
    with pytest.raises(Refused, match=r"the shape of an output depends on the values: .*; return fixed shapes"):
        derive(lambda x: x.nonzero(), (torch.randint(0, 2, (5, 5, 5)).float() * torch.randn(5, 5, 5),))


def test_a_kernel_may_raise_in_a_dtype_in_which_the_reference_does():
    sign = lambda x: torch.linalg.slogdet(x)[1]  # noqa: E731
    report = check_against(sign, lambda x: sign(x), (torch.randn(5, 5),), **QUICK)
    assert report.passed and any("the reference raises too" in str(one.reason) for one in report.outcomes), report


@pytest.mark.parametrize("sizes", [(25, 5), (25, 257)])
def test_a_kernel_may_raise_in_layouts_in_which_the_reference_does(sizes):
    function = lambda x: x.view(5, 5, -1)  # noqa: E731
    report = check_against(function, lambda x: function(x), (torch.randn(sizes),), **QUICK)
    assert report.passed, report
    picky = lambda x: function(x) if x.is_contiguous() else 1 / 0  # noqa: E731
    assert not check_against(function, picky, (torch.randn(sizes),), **QUICK).passed


NESTED = {
    "dict": (lambda x: {"a": 2 * x, "b": x.sum(1)}, lambda x: {"b": x.sum(1), "a": 2 * x}),
    "list in a tuple": (lambda x: (2 * x, [x.sum(1), x.amax(1)]), lambda x: [2 * x, (x.sum(1), x.amax(1))]),
    "dict in a tuple": (lambda x: (2 * x, {"b": x.sum(1)}), lambda x: (2 * x, x.sum(1))),
}


@pytest.mark.parametrize("name", NESTED)
def test_outputs_may_lie_in_sequences_and_dicts_as_those_of_the_reference(name):
    reference, kernel = NESTED[name]
    report = check_against(reference, kernel, (torch.randn(6, 35),), **QUICK)
    assert report.passed, report
    wrong = {"a": lambda x: x.sum(1), "b": lambda x: 2 * x}
    exchanged = lambda x: {key: make(x) for key, make in wrong.items()}  # noqa: E731
    assert not check_against(reference, exchanged, (torch.randn(6, 35),), **QUICK).passed


def test_operands_without_elements_have_answers_whatever_their_strides():
    contract = derive(*RMS)
    for stride in (1, 0):
        given = {"x": torch.zeros(12, 0), "weight": torch.zeros(1).as_strided((0,), (stride,))}
        assert contract.expect(given, {}, dtype=torch.float16)["y"].answer.shape == (12, 0)


def test_intermediates_stored_in_16_bits_pass_with_a_note_unless_they_are_allowed_or_forbidden():
    verdicts = {}
    for store in ("none", "dots", "ops"):
        contract = derive(*RMS, store=store)
        inputs, expected = expected_of(contract, "bfloat16")
        x, weight = (inputs.exact[name].to(torch.bfloat16) for name in ("x", "weight"))
        verdicts[store] = compare(rms_stored(x, weight), expected["y"], torch.bfloat16)
        assert compare(rms_right(x, weight), expected["y"], torch.bfloat16).fraction <= 1
    assert all(verdict.ok for verdict in verdicts.values())
    assert "stores intermediates in bfloat16 as eager does" in verdicts["dots"].note
    assert not verdicts["ops"].note


def test_what_eager_stores_is_looked_for_before_rare_flips():
    runs = []

    def counted(x, weight):
        runs.append(x.dtype)
        return rms_norm(x, weight)

    inputs, expected = expected_of(derive(counted, RMS[1]), "bfloat16")
    runs.clear()
    x, weight = (inputs.exact[name].to(torch.bfloat16) for name in ("x", "weight"))
    assert compare(rms_stored(x, weight), expected["y"], torch.bfloat16).ok
    assert len(runs) == 1 + samples.SAMPLES + samples.AMPLIFIED
    assert not compare(-rms_stored(x, weight), expected["y"], torch.bfloat16).ok
    assert len(runs) > samples.SAMPLES + MORE_AMPLIFIED


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_samples_of_a_rejected_output_are_run_once(dtype):
    """It is judged several times, in further calls and in looking for the cause."""
    runs = []

    def counted(x, weight):
        runs.append(x.dtype)
        return rms_norm(x, weight)

    inputs, expected = expected_of(derive(counted, RMS[1]), dtype)
    wrong = -rms_stored(*(inputs.exact[name] for name in ("x", "weight")))
    verdict = compare(wrong.to(expected["y"].dtype), expected["y"], expected["y"].dtype)
    runs.clear()
    again = compare(wrong.to(expected["y"].dtype), expected["y"], expected["y"].dtype)
    assert torch.float64 not in runs and not again.ok and again.fraction == verdict.fraction


def test_what_the_reference_stores_itself_needs_no_note():
    def llama(x, weight):
        y = x.float()
        return weight * (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    inputs, expected = expected_of(derive(llama, RMS[1]), "bfloat16")
    x, weight = (inputs.exact[name].to(torch.bfloat16) for name in ("x", "weight"))
    verdict = compare(llama(x, weight), expected["y"], torch.bfloat16)
    assert verdict.ok and not verdict.note


@torch.backends.mkldnn.flags(enabled=False)  # which adds in float32 where the CPU has instructions for 16 bits
def test_what_torchs_own_kernels_of_16_bits_get_wrong_passes_with_a_note_that_says_so():
    """On the CPU a transposed convolution of 16 bits adds in 16 bits: whoever calls it gives what the reference gives,
    and a kernel that adds so in another order is wrong."""
    x, weight = drawn((2, 16, 12), (16, 5, 31))
    contract = derive(lambda x, weight: F.conv_transpose1d(x, weight), [x, weight], dtypes=["float16"])
    contract.name = "function"
    plain = plain_case(contract, "float16", "normal")
    inputs = contract.build(replace(plain, layouts=(("x", "contiguous"), ("weight", "transposed"))))
    x, weight = inputs.arguments["x"], inputs.arguments["weight"]
    expected = contract.expected(inputs)
    right = F.conv_transpose1d(x.float(), weight.float()).half()
    taps = [F.pad((x.mT @ weight[..., tap]).mT, (tap, 30 - tap)) for tap in range(31)]
    otherwise = sum(taps[::2] + taps[1::2])
    assert not (verdict := compare(right, expected["y"], torch.float16)).note and verdict.ok
    for eager in (F.conv_transpose1d(x, weight), F.conv_transpose1d(x, weight.contiguous())):
        verdict = compare(eager, expected["y"], torch.float16)
        assert verdict.ok and "as far off as torch's own float16 kernels" in verdict.note
    for wrong in (otherwise, F.conv_transpose1d(x, weight).neg(), F.conv_transpose1d(x, weight) * 1.02):
        assert not compare(wrong, expected["y"], torch.float16).ok


def test_indices_that_torchs_own_kernels_of_16_bits_give_pass_with_a_note():
    """Squared distances beyond 65504 are all infinite in float16, and eager takes the first of them."""

    def nearest(x, c):
        return (x[:, None] - c).square().sum(-1).argmin(-1)

    contract = derive(nearest, drawn((20, 30), (7, 30)), dtypes=["float16", "float32"])
    inputs, expected = expected_of(contract, "float16", "large")
    x, c = inputs.exact["x"], inputs.exact["c"]
    right, eager = nearest(x, c), nearest(x.half(), c.half())
    assert bool((right != eager).any())
    assert not (verdict := compare(right, expected["y"], torch.float16)).note and verdict.ok
    for got in (eager, torch.where(torch.arange(20) % 2 == 0, right, eager)):
        verdict = compare(got, expected["y"], torch.float16)
        assert verdict.ok and "as far off as torch's own float16 kernels" in verdict.note
    wrong = torch.where(eager == 6, 5, 6)
    assert not compare(torch.where(right == wrong, eager, wrong), expected["y"], torch.float16).ok
    assert not compare(eager, expected_of(contract, "float32", "large")[1]["y"], torch.float32).ok


def test_exact_cases_are_found_and_demand_bit_equality():
    contract = derive(lambda a, b: torch.relu(a @ b), drawn((12, 40), (40, 9)))
    for dtype in contract.dtypes:
        assert expected_of(contract, dtype, "integers")[1]["y"].exact
    inputs, expected = expected_of(contract, "float32", "integers")
    right = (inputs.exact["a"] @ inputs.exact["b"]).float()
    assert compare(right, expected["y"], torch.float32).ok
    assert not compare(right * (1 + 2.0**-23), expected["y"], torch.float32).ok
    assert not expected_of(contract)[1]["y"].exact
    assert not expected_of(derive(*FUNCTIONS["softmax"]), "float32", "integers")[1]["y"].exact


def test_integers_are_judged_but_near_ties():
    def nearest(a, b):
        return (a @ b).argmax(-1)

    contract = derive(nearest, drawn((40, 30), (30, 9)))
    inputs, expected = expected_of(contract)
    right = nearest(inputs.exact["a"], inputs.exact["b"])
    assert contract.outputs["y"].dtype(plain_case(contract, "float32", "normal")) is torch.int64
    assert compare(right, expected["y"], torch.float32).ok
    wrong = compare((right + 1) % 9, expected["y"], torch.float32)
    assert not wrong.ok and int(wrong.bad.sum()) >= 38
    zeros = contract.expect({name: t * 0 + 1 for name, t in inputs.exact.items()}, {}, dtype=torch.float32)
    assert compare(right * 0, zeros["y"], torch.float32).ok


PICKING = {
    "argmax": lambda a, b: (a @ b).argmax(-1),
    "argmin of all": lambda a, b: (a @ b).argmin(),
    "max": lambda a, b: (a @ b).max(0, keepdim=True).indices,
    "topk": lambda a, b: (a @ b).topk(3, 0).indices,
    "argsort": lambda a, b: (a @ b).argsort(-1),
}


@pytest.mark.parametrize("name", PICKING)
def test_indices_among_nearly_equal_elements_are_judged_by_what_they_pick(name):
    """Columns of b come in pairs that differ by a rounding: a kernel may take either of a pair, and no other."""
    function = PICKING[name]
    a, b = drawn((6, 30), (30, 4))
    b = torch.cat([b, b * (1 + 2.0**-23)], 1)
    contract = derive(function, [a, b], keep=["a", "b"], dtypes=["float32"])
    _, expected = expected_of(contract, family="given")
    right = function(a.double(), b.double())
    other = function(a.double(), b[:, [4, 5, 6, 7, 0, 1, 2, 3]].double())
    if name in ("argmax", "argsort"):
        other = (other + 4) % 8
    elif name == "argmin of all":
        other = other // 8 * 8 + (other % 8 + 4) % 8
    assert compare(right, expected["y"], torch.float32).ok
    if name in ("argmax", "argmin of all", "argsort"):  # the others pick among the rows
        assert compare(other, expected["y"], torch.float32).ok
    for wrong in ((right + 1) % 4, right - 8, right * 0 + 2):
        assert not compare(wrong, expected["y"], torch.float32).ok
    if name in ("topk", "argsort"):  # one element twice, as good as it is
        twice = right.clone()
        twice[0 if name == "topk" else slice(None), 0] = twice[
            1 if name == "topk" else slice(None), 1 if name == "argsort" else 0
        ]
        assert not compare(twice, expected["y"], torch.float32).ok


TIED = {
    "topk": lambda x: x.topk(3, -1)[1],
    "sort": lambda x: x.sort(-1)[1],
    "kthvalue": lambda x: x.kthvalue(4, -1)[1],
    "median": lambda x: x.median(-1)[1],
    "mode": lambda x: x.mode(-1)[1],
}


@pytest.mark.parametrize("name", TIED)
def test_of_equal_elements_any_may_be_picked_but_where_torch_says_which(name):
    """Columns come in pairs: a kernel may take the other of each."""
    x = drawn((6, 8))[0]
    contract = derive(TIED[name], [torch.cat([x, x], 1)], keep=["x"], dtypes=["float32"])
    _, expected = expected_of(contract, family="given")
    right = TIED[name](torch.cat([x, x], 1))
    assert compare((right + 8) % 16, expected["y"], torch.float32).ok
    assert not compare((right + 1) % 16, expected["y"], torch.float32).ok
    if right.ndim > 1:
        assert not compare(right[:, :1].expand(right.shape), expected["y"], torch.float32).ok
    for strict in (lambda x: x.argmax(-1), lambda x: x.max(-1)[1], lambda x: x.sort(dim=-1, stable=True)[1]):
        contract = derive(strict, [torch.cat([x, x], 1)], keep=["x"], dtypes=["float32"])
        _, expected = expected_of(contract, family="given")
        assert not compare((strict(torch.cat([x, x], 1)) + 8) % 16, expected["y"], torch.float32).ok


def test_too_many_elements_near_a_discontinuity_say_nothing_and_are_counted():
    def steps(x):
        return torch.floor((x - x.mean()) * 2.0**21).remainder(2)

    contract = derive(steps, drawn((12, 40)))
    _, expected = expected_of(contract)
    assert expected["y"].excused is not None and bool(expected["y"].excused.all())
    assert any("near a discontinuity" in what for what in contract.notes)


def test_one_element_near_a_discontinuity_does_not_excuse_a_small_output():
    def leaning(x):
        mean = x.mean(-1)
        return torch.where(mean > 0, mean + 1, mean - 1)

    x = torch.cat([torch.full((1, 40), 0.1) * torch.tensor([1.0, -1.0]).repeat(20), drawn((7, 40))[0]])
    x[0, -1] += 1e-8
    contract = derive(leaning, [x], keep=["x"], dtypes=["float32"])
    _, expected = expected_of(contract, family="given")
    right = expected["y"].answer
    other = torch.where(torch.arange(8) == 0, -right, right)
    assert compare(right.float(), expected["y"], torch.float32).ok
    assert compare(other.float(), expected["y"], torch.float32).ok
    for row, error in ((0, 50.0), (1, 1e-3)):
        wrong = right + error * (torch.arange(8) == row)
        assert not compare(wrong.float(), expected["y"], torch.float32).ok


def test_what_stored_intermediates_make_unstable_excuses_nothing_else():
    """A third of the rows have a mean so near 0 that bfloat16 may give it the other sign."""

    def leaning(x, w):
        mean = (x * w).mean(-1)
        return torch.where(mean > 0, mean + 1, mean - 1)

    x, w = drawn((48, 40), (40,))
    far = torch.where(torch.arange(48) % 3 == 0, 1e-4, 0.5) * torch.where(torch.arange(48) % 2 == 0, 1, -1)
    x[:, -1] += (far - (x * w).mean(-1)) * 40 / w[-1]
    contract = derive(leaning, [x, w], keep=["x", "w"], dtypes=["bfloat16"])
    inputs, expected = expected_of(contract, "bfloat16", "given")
    x, w = (t.bfloat16() for t in inputs.exact.values())
    right, stored = leaning(x.float(), w.float()).bfloat16(), leaning(x, w)
    assert compare(right, expected["y"], torch.bfloat16).ok and compare(stored, expected["y"], torch.bfloat16).ok
    stored[0] += 0.25  # beyond what float32 explains, and inside of what a mean of either sign may be
    assert not compare(torch.where(torch.arange(48) % 3 == 1, right + 0.25, stored), expected["y"], torch.bfloat16).ok


def test_families_without_finite_answers_are_moved_or_left_out():
    found = derive(lambda x: torch.log(x), [torch.rand(12, 40) + 0.5]).found
    assert found.moves["normal"] == "abs"
    assert "normal" in derive(lambda x: torch.sqrt(1 - x) + torch.log(x), [torch.rand(12, 40)]).found.moves
    found = derive(
        lambda x: torch.where(x == 0.25, x, torch.nan), [torch.full((12, 40), 0.25) + torch.arange(40.0)]
    ).found
    assert "normal" in found.left_out
    assert "NaN or infinite" in found.left_out["normal"]


def of_lower_parts(a, b):
    """The product of lower triangles, of which a kernel need not read the others."""
    return torch.stack([a[i, : i + 1] @ b[: i + 1] for i in range(len(a))])


def counted(edges, x):
    return (edges <= x[..., None]).sum(-1)


def eliminated(a, b):
    """Without pivots."""
    rows = torch.cat([a, b], 1)
    for i in range(len(a)):
        pivot = rows[i] / rows[i, i]
        rows = torch.where(torch.arange(len(a))[:, None] == i, pivot, rows - rows[:, i, None] * pivot)
    return rows[:, len(a) :]


def substituted(a, b):
    found = []
    for i in range(len(a)):
        known = a[i, :i] @ torch.stack(found) if i else 0.0
        found.append((b[i] - known) * (1 / a[i, i]))
    return torch.stack(found)


def mean_by(p, x):
    return (p * x).sum(-1) / p.sum(-1)


EYE = torch.eye(30)
STRUCTURED = {
    "definite": (
        torch.linalg.solve,
        [drawn((30, 30))[0].cov() + EYE, drawn((30, 20))[0]],
        lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a)),
    ),
    "heavy diagonal": (torch.linalg.solve, [drawn((30, 30))[0] + 30 * EYE, drawn((30, 20))[0]], eliminated),
    "heavy triangle": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        [drawn((30, 30))[0].tril() + 6 * EYE, drawn((30, 20))[0]],
        substituted,
    ),
    "probabilities": (mean_by, [drawn((12, 40))[0].softmax(-1), drawn((12, 40))[0]], lambda p, x: (p * x).sum(-1)),
    "logarithms of probabilities": (
        lambda p, x: mean_by(p.exp(), x),
        [drawn((12, 40))[0].log_softmax(-1), drawn((12, 40))[0]],
        lambda p, x: (p.exp() * x).sum(-1),
    ),
    "triangular": (torch.matmul, [drawn((30, 30))[0].tril(), drawn((30, 20))[0]], of_lower_parts),
    "diagonal": (torch.matmul, [drawn((30,))[0].diag(), drawn((30, 20))[0]], lambda a, b: a.diag()[:, None] * b),
    "symmetric": (torch.matmul, [drawn((30, 30))[0].cov(), drawn((30, 20))[0]], lambda a, b: a.mT @ b),
    "sorted": (
        lambda edges, x: torch.searchsorted(edges, x, right=True),
        [drawn((30,))[0].sort().values, drawn((5, 20))[0]],
        counted,
    ),
}


@pytest.mark.parametrize("name", STRUCTURED)
def test_what_holds_of_an_example_and_a_kernel_may_rely_on_holds_of_all_values(name):
    reference, example, relying = STRUCTURED[name]
    contract = derive(reference, example, dtypes=["float32"])
    contract.name = "function"
    plain = [plain_case(contract, "float32", family) for family in contract.values if family != "nonfinite_x"]
    sizes = [plain_case(contract, "float32", "normal", 0, size) for size in contract.sizes]
    assert len(sizes) > 4
    first = next(iter(contract.operands))
    laid = [
        replace(plain[1], layouts=((first, each), *plain[1].layouts[1:])) for each in contract.operands[first].layouts
    ]
    laid += [replace(plain[1], mirrored=first), replace(plain[1], altered=first)]
    assert name == "sorted" or {"transposed", "step"} <= set(contract.operands[first].layouts)
    for case in [*plain, *laid, *(case for case in sizes if 0 not in case.size.values())]:
        inputs = contract.build(case)
        given = [t.float() for t in inputs.exact.values()]
        assert compare(relying(*given), contract.expected(inputs)["y"], torch.float32).ok, case


def singular(x):
    """Of whole numbers it has no solution, but at the first size, where families are tried."""
    if len(x) != 12 and bool((x == x.round()).all()):
        raise torch.linalg.LinAlgError("singular")
    return x * 2


@pytest.mark.parametrize("raises", [True, False])
def test_where_the_reference_raises_for_a_singular_matrix_nothing_is_judged(raises):
    def kernel(x):
        return singular(x) if raises else (x * 2).contiguous()

    def whole(case):
        return case.values == "integers"

    report = check_against(singular, kernel, drawn((12, 40)), device="cpu", where=whole)
    assert report.passed, report
    said = "the reference raises too: " if raises else "no element of its outputs can be judged"
    assert report.declined and all(said in outcome.reason for outcome in report.outcomes if outcome.reason)


def test_the_self_test_passes_over_values_for_which_the_reference_raises():
    contract = derive(singular, drawn((12, 40)), dtypes=["float32"])
    contract.name = "singular"
    assert "integers" in contract.values
    contract.found.sizes[0]["A"], contract.sizes[0]["A"] = 37, 37
    found = selftest.examine(contract, 6)
    assert not found.accused and found.strength.real == found.strength.killed > 0
    assert found.forms == (len(list(selftest.tried_cases(contract))) - 1) * 6


@pytest.mark.parametrize("view", [True, False])
def test_an_output_may_be_a_view_of_what_is_computed_where_the_reference_gives_one(view):
    report = check_against(
        lambda x: (x * 2).mT if view else (x * 2).mT.contiguous(), lambda x: (x * 2).mT, drawn((12, 40)), **QUICK
    )
    assert report.passed is view and any("expected a contiguous tensor" in str(f) for f in report.findings)
    assert check_against(lambda x: (x * 2).mT, lambda x: (x * 2).mT.contiguous(), drawn((12, 40)), **QUICK).passed


def test_the_logarithm_of_a_determinant_that_is_0_but_for_rounding_may_be_infinite():
    (x,) = drawn((6, 6))
    regular = x + 6 * torch.eye(6)
    x[:, 1] = x[:, 0] * (1 + 1e-7 * x[:, 2])
    for matrix, may_be in ((x, True), (regular, False)):
        _, expected = expected_of(derive(torch.linalg.slogdet, [matrix], dtypes=["float32"]), family="given")
        assert compare(torch.tensor(-math.inf), expected["y1"], torch.float32).ok is may_be
        assert not expected["y1"].answer.isinf()


def test_matrices_that_are_mostly_0_are_left_out_where_they_would_be_singular():
    for function in (torch.linalg.pinv, lambda x: torch.linalg.svdvals(x @ x.mT)):
        assert "sparse" in derive(function, drawn((9, 9)), dtypes=["float32"]).found.left_out
    assert "sparse" in derive(torch.matmul, drawn((9, 9), (9, 9)), dtypes=["float32"]).values


def test_a_batch_of_structured_matrices_may_be_empty():
    matrices = drawn((3, 12, 12))[0] + 12 * torch.eye(12)
    for each in (matrices, matrices.tril(), matrices @ matrices.mT):
        sizes = derive(torch.linalg.solve, [each, drawn((3, 12, 4))[0]], dtypes=["float32"]).sizes
        assert any(0 in size.values() for size in sizes)


@pytest.mark.parametrize("name", ["definite", "heavy diagonal", "heavy triangle"])
def test_matrices_that_determine_a_solution_do_so_at_all_sizes_and_in_all_families(name):
    reference, example, _ = STRUCTURED[name]
    contract = derive(reference, example, dtypes=["float32"])
    assert contract.found.axes[0].places == ((0, 0), (0, 1), (1, 0)) and contract.found.axes[0].step == 1
    for family in ("normal", "large", "rows", "ascending"):
        _, expected = expected_of(contract, family=family)
        answer = expected["y"].answer
        far = answer + 1e-3 * answer.abs().amax(0)
        assert not compare(far.float(), expected["y"], torch.float32).ok, family


def test_an_eps_that_counts_where_operands_are_equal_is_missed():
    """The distance of equal rows is eps times the root of their length; beside a margin of 1 no other case shows it."""

    def loss(a, p, n, eps=1e-6):
        near, far = ((a - other + eps).square().sum(-1).sqrt() for other in (p, n))
        return (near - 2 * far + 1).mean()

    contract = derive(loss, drawn((12, 40), (12, 40), (12, 40)), dtypes=["float32"])
    assert "equal" in contract.values and "equal" not in derive(*RMS).values
    inputs, expected = expected_of(contract, family="equal")
    a, p, n = (t.float() for t in inputs.exact.values())
    assert torch.equal(a, p) and torch.equal(p, n)
    assert compare(loss(a, p, n), expected["y"], torch.float32).ok
    assert not compare(loss(a, p, n, eps=0), expected["y"], torch.float32).ok


def test_a_maximum_that_leaves_out_the_last_elements_is_missed():
    """Of 129 to 1025 elements beside three, which are the largest in fewer than one of a hundred draws."""

    def without_the_last(x):
        whole = max(1, x.shape[1] // 128)
        return torch.stack([part.amax(1) for part in x.split(128, 1)[:whole]]).amax(0)

    report = check_against(lambda x: x.amax(1), without_the_last, drawn((8, 100, 24)), dtypes=["float32"], **QUICK)
    assert not report.passed and any("-ends" in f.case for f in report.findings)


def test_values_far_above_their_spread_are_tried_in_float32_whatever_the_draws():
    """16 bits do not show a variance in one pass."""
    contract = derive(rms_norm, RMS[1])
    contract.name = "function"
    for seed in range(4):
        assert plain_case(contract, "float32", "offset", seed) in plan(contract, "quick", seed).cases


def test_values_stay_in_a_domain_and_kept_operands_stay_as_they_are():
    x, p = (*drawn((12, 40)), torch.linspace(0.1, 0.9, 40))
    contract = derive(lambda x, p: x * torch.log(p), [x, p], keep=["x"], domain={"p": (0.1, 0.9)})
    inputs, _ = expected_of(contract, family="large")
    assert torch.equal(inputs.exact["x"], x.double())
    assert float(inputs.exact["p"].min()) >= 0.1 - 1e-6 and float(inputs.exact["p"].max()) <= 0.9 + 1e-6


def test_an_element_that_is_altered_stays_where_the_function_has_answers():
    example = [x.sigmoid() for x in drawn((5, 6), (5, 6))]
    loss = lambda x, y: F.binary_cross_entropy(x, y)  # noqa: E731
    for contract, low, high in (
        (derive(loss, example), example[0].min(), example[0].max()),
        (derive(rms_norm, RMS[1], domain={"x": (-1, 1)}), -1, 1),
    ):
        contract.name = "function"
        plain, inputs = (
            contract.build(replace(plain_case(contract, "float32", "normal"), altered=name)) for name in (None, "x")
        )
        changed = plain.exact["x"] != inputs.exact["x"]
        assert changed.sum() == 1 and low <= inputs.exact["x"][changed] <= high


def test_a_kernel_may_raise_on_values_on_which_the_reference_does():
    example = [x.sigmoid() for x in drawn((5, 6), (5, 6))]
    inputs, _ = expected_of(contract := derive(lambda x, y: F.binary_cross_entropy(x, y), example))
    outside = replace(inputs, exact={name: x + 2 for name, x in inputs.exact.items()})
    assert contract.raises(outside) and not contract.raises(inputs)


def test_nonfinite_inputs_are_judged_as_the_reference_has_them():
    contract = derive(*FUNCTIONS["softmax"])
    _, expected = expected_of(contract, family="nonfinite")
    assert bool(torch.isnan(expected["y"].answer).any())
    assert "nonfinite" not in derive(*FUNCTIONS["softmax"], special="off").values


def test_where_torch_passes_over_nan_a_kernel_need_not():
    """torch's kernel adds what is above 0, and NaN is not; clamped, it is NaN."""

    def in_parts(x, target):
        right = x.gather(1, target[:, None])
        return ((1 - right + x).clamp_min(0).sum(1) - 1).mean() / x.shape[1]

    def reference(x, target):
        return F.multi_margin_loss(x, target)

    contract = derive(reference, [*drawn((10, 5)), torch.arange(10) % 5], dtypes=["float32"])
    for family in ("nonfinite", "normal"):
        inputs, expected = expected_of(contract, family=family)
        x, target = inputs.exact["x"].float(), inputs.exact["target"].long()
        for right in (reference, in_parts):
            assert compare(right(x, target), expected["y"], torch.float32).ok
        if family == "normal":
            assert not compare(right(x, target) + 1, expected["y"], torch.float32).ok
        else:
            assert not bool(torch.isclose(reference(x, target), in_parts(x, target), equal_nan=True))


def test_another_right_algorithm_is_an_alternative():
    def one_pass(x):
        return (x * x).mean(-1) - x.mean(-1).square()

    def two_passes(x):
        return (x - x.mean(-1, keepdim=True)).square().mean(-1)

    x = drawn((12, 40))[0] + 100
    for references, ok in (((), False), ((one_pass,), True)):
        contract = derive(two_passes, [x], references=references, keep=["x"])
        inputs, expected = expected_of(contract, family="given")
        got = one_pass(inputs.exact["x"].float())
        assert compare(got, expected["y"], torch.float32).ok is ok


def test_a_module_has_its_state_as_operands_and_a_kernel_may_be_a_module():
    model = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU())
    contract = derive(model, [torch.randn(6, 8)])
    state = ["_0_weight", "_0_bias", "_1_weight", "_1_bias", "_1_running_mean", "_1_running_var"]
    assert list(contract.operands) == ["input", *state]
    assert contract.form() == "fn(input, " + ", ".join(f"{name}=..." for name in state) + ")"
    model, kernel = (torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.ReLU()) for _ in range(2))
    report = check_against(model, kernel, [torch.randn(6, 8)], **QUICK, dtypes=["float32"])
    assert report.passed, report
    with pytest.raises(ValueError, match=r"kernel: it does not take the reference's parameters(.|\n)*Missing key"):
        check_against(model, torch.nn.Linear(8, 5), [torch.randn(6, 8)])


class Recurrent(torch.nn.Module):
    """One step from a state that is a plain attribute, which it keeps."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(12, 4)
        self.state = torch.zeros(6, 4)

    def forward(self, x, state=None):
        if state is not None:
            self.state.copy_(state)
        self.state = torch.tanh(self.linear(torch.cat((x, self.state), 1)))
        return self.state


class Workspace(Recurrent):
    """Counts its calls."""

    def __init__(self):
        super().__init__()
        self.calls = torch.zeros(())

    def forward(self, x, state=None):
        self.calls = self.calls + 1
        return super().forward(x, state) * self.calls


def test_what_a_module_keeps_in_attributes_is_as_it_was_built_in_each_call_but_a_kernels_own_is_not():
    inputs = drawn((6, 8), (6, 4))
    for given in (inputs, inputs[:1]):
        model = Recurrent()
        contract = derive(model, given)
        state = {f"linear_{name}": t for name, t in model.linear.named_parameters()}
        answer = contract.function(*given, *state.values())
        kernel = modules.as_kernel(Recurrent(), model)
        for dtype in (torch.float64, torch.bfloat16, torch.float32):
            moved = {name: t.to(dtype) for name, t in state.items()}
            got = kernel(*(t.to(dtype) for t in given), **moved)
            assert got.dtype is dtype
        assert torch.equal(got, answer)
        kernel = modules.as_kernel(Workspace(), model)
        assert torch.equal(kernel(*given, **state), answer)
        assert torch.equal(kernel(*given, **state), 2 * answer)


def test_parameters_of_a_module_have_families_of_their_own():
    contract = derive(torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.LayerNorm(5)), [torch.randn(6, 8)])
    given = {name: expected_of(contract, family=name)[0].exact for name in contract.values}
    assert torch.equal(given["small_parameters"]["_0_weight"], given["normal"]["_0_weight"] * 2**-10)
    assert float(given["offset_parameters"]["_0_bias"].min()) > 2900
    assert torch.equal(given["offset_parameters"]["_0_weight"], given["large"]["_0_weight"])
    assert set(given["integers"]["_0_weight"].unique().tolist()) <= {0, 1, 2}
    assert bool(given["nonfinite"]["input"].isnan().any()) and bool(given["nonfinite"]["_0_bias"].isfinite().all())
    found = derive(rms_norm, RMS[1]).values
    assert {"nonfinite_x", "nonfinite_weight"} <= set(found) and "small_parameters" not in found


@pytest.mark.level("default")
def test_parameters_that_are_numbers_are_passed_as_the_reference_has_them():
    def scaled(x, factor, y, mode=None):
        return x * factor + y

    def kernel(x, factor, y, mode):
        assert mode == "plain"
        return (x.float() * factor + y.float()).to(x.dtype).contiguous()

    report = check_against(scaled, kernel, [*drawn((12, 40)), 0.7, *drawn((12, 40)), "plain"], **QUICK)
    assert report.passed, report
    wrong = check_against(
        scaled,
        lambda x, factor, y, mode: kernel(x, 2 * factor, y, mode),
        [*drawn((12, 40)), 0.7, *drawn((12, 40)), "plain"],
        **QUICK,
    )
    assert not wrong.passed


def test_a_contract_that_accuses_right_forms_withdraws_itself():
    grid = torch.rand(2, 5, 5, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    contract = derive(lambda x, grid: F.grid_sample(x, grid, align_corners=False), [*drawn((2, 3, 8, 8)), grid])
    found = selftest.SelfTest(accused=["y is 3 of the budget of the form 'tiles' in a case"])
    with pytest.raises(Refused, match="not to be trusted: it accuses right forms of the reference itself: y is 3"):
        selftest.demand_trust(found)
    assert contract.operands["grid"].axes.split()[-1] in {a.letter for a in contract.found.axes if not a.step}


@pytest.mark.level("default")
def test_the_self_test_sees_a_budget_that_is_too_narrow(monkeypatch):
    from touchstone.conformance.derived import samples

    monkeypatch.setattr(samples, "K", 0.001)
    monkeypatch.setattr(samples.Sampled.extra, "__defaults__", (0.001,))
    contract = derive(*FUNCTIONS["matmul"], dtypes=["float32"])
    contract.name = "function"
    assert selftest.examine(contract, 0).accused


def test_description():
    text = describe(*RMS, mutants=4)
    assert "rms_norm, called as fn(x, weight)" in text
    assert "x: (A, B)\n  weight: (B)\n  -> y: (A, B)" in text
    assert "this contract rejects 4 of 4 wrong versions of the reference" in text
    assert "right forms of the reference accused: 0 of" in text


@pytest.mark.level("default")
def test_the_name_of_an_op_and_its_contract_are_the_same_on_every_run():
    names = {derivation.load_derived(*RMS, level="quick", seed=seed) for seed in (0, 0, 1)}
    assert len(names) == 2
    name = derivation.load_derived(*RMS, level="quick")
    again = derivation.restored(str(registry.op_file(name)))
    first = registry.contract(name)
    again.name = first.name
    case = plain_case(first, "float32", "normal")
    one, other = (c.expected(c.build(case))["y"] for c in (first, again))
    assert torch.equal(one.answer, other.answer) and torch.equal(one.extra, other.extra)


def writes(x):
    x.add_(1)
    return x * 2


CALLS = {"n": 0}


def counts(x):
    CALLS["n"] += 1
    return x * CALLS["n"]


MISTAKES = {
    "no function": ((3, drawn((2, 2))), {}, TypeError, "reference: expected a function or a torch.nn.Module, got int"),
    "no inputs": ((torch.exp, []), {}, TypeError, "inputs: expected a list of tensors"),
    "no tensor": ((lambda x: x, [1.0]), {}, ValueError, "inputs: expected at least one tensor"),
    "a dict": ((torch.exp, [{}]), {}, TypeError, r"inputs: \[0\]: expected a tensor, a number or None, got dict"),
    "too many": ((rms_norm, drawn((2, 2), (2,), (2,))), {}, ValueError, "inputs: the reference takes x, weight; got 3"),
    "raises": ((lambda a, b: a @ b, drawn((2, 3), (2, 3))), {}, ValueError, "reference: it does not run on the inputs"),
    "writes": ((writes, drawn((2, 3))), {}, ValueError, "reference: it writes its input x"),
    "counts": ((counts, drawn((2, 3))), {}, ValueError, "reference: it is not deterministic"),
    "no output": ((lambda x: 3, drawn((2, 3))), {}, ValueError, "reference: it returns no tensor"),
    "dtype": ((torch.exp, drawn((2, 3))), {"dtypes": ["float64"]}, ValueError, "dtypes: .*float64"),
    "dtypes": ((torch.exp, drawn((2, 3))), {"dtypes": "float32"}, TypeError, "dtypes: expected a sequence"),
    "store": ((torch.exp, drawn((2, 3))), {"store": "all"}, ValueError, "store: .*'all'"),
    "special": ((torch.exp, drawn((2, 3))), {"special": "on"}, ValueError, "special: .*'on'"),
    "keep": ((RMS[0], RMS[1]), {"keep": ["y"]}, ValueError, "keep: .*'y'"),
    "domain": ((RMS[0], RMS[1]), {"domain": {"y": (0, 1)}}, ValueError, "domain: .*'y'"),
    "sizes": ((RMS[0], RMS[1]), {"sizes": {"Z": [1]}}, ValueError, "sizes: .*'Z'"),
    "size": ((RMS[0], RMS[1]), {"sizes": {"A": [-1]}}, ValueError, "sizes: A: expected whole numbers"),
    "references": ((RMS[0], RMS[1]), {"references": [3]}, TypeError, "references: expected functions"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name):
    arguments, options, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        derive(*arguments, **options)


def test_a_mistake_in_a_call_is_named():
    with pytest.raises(TypeError, match="kernel: expected a function or a torch.nn.Module, got int"):
        check_against(*RMS[:1], 3, RMS[1])
    with pytest.raises(ValueError, match="level: .*'fast'"):
        check_against(RMS[0], rms_right, RMS[1], level="fast")
    with pytest.raises(TypeError, match=r"kernel: .*called as fn\(x, weight\)"):
        check_against(RMS[0], lambda x: x, RMS[1], **QUICK)
    with pytest.raises(TypeError, match="kernel: a module goes with a reference that is one"):
        check_against(RMS[0], torch.nn.ReLU(), RMS[1], **QUICK)


class Activated(torch.nn.Module):
    """A norm of what biases are added to, and a slope for each channel."""

    def __init__(self):
        super().__init__()
        self.conv, self.act = torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.PReLU(6)

    def forward(self, x):
        return self.act(F.instance_norm(self.conv(x * 0.2))).clamp(-1.5, 2.0)


def test_a_variance_in_one_pass_behind_a_bias_is_rejected_whatever_slopes_follow():
    torch.manual_seed(0)
    contract = derive(Activated(), drawn((2, 3, 9, 8)), dtypes=["float32"])
    contract.name = "activated"
    found = [(str(m), rejected) for m, rejected in selftest.examine(contract, 60).mutants if "one pass" in str(m)]
    assert found and all(rejected for _, rejected in found)


def by_matrix(x):
    """Real and imaginary parts of a Fourier transform along the last axis, by products with a matrix."""
    steps = torch.arange(x.shape[-1], dtype=torch.float64)
    angles = 2 * torch.pi * torch.outer(steps, steps) / max(x.shape[-1], 1)
    return x.float() @ torch.cos(angles).float(), -(x.float() @ torch.sin(angles).float())


def spectrum_by_matrix(x):
    (a, b), (c, d) = (by_matrix(part.mT) for part in by_matrix(x))
    found = torch.sqrt((a - d) ** 2 + (b + c) ** 2).mT
    return found[..., : x.shape[-1] // 2 + 1].to(x.dtype).contiguous()


def turned_in_parts(x, angle):
    even, odd = x.float()[..., ::2], x.float()[..., 1::2]
    c, s = torch.cos(angle.float()), torch.sin(angle.float())
    return torch.stack((even * c - odd * s, even * s + odd * c), -1).flatten(-2).to(x.dtype).contiguous()


class Filter(torch.nn.Module):
    """With weights of complex numbers, which are no operands."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.complex(*drawn((8, 21), (8, 21))))
        self.register_buffer("turn", torch.polar(torch.ones(21), drawn((21,))[0]))

    def forward(self, x):
        return torch.fft.irfft((torch.fft.rfft(x) * self.turn) @ self.weight.mT, n=14)


class Larger(Filter):
    def forward(self, x):
        return super().forward(x) * 1.01


def test_a_module_may_have_complex_parameters_and_buffers():
    contract = derive(Filter(), drawn((6, 40)), dtypes=["float32"])
    contract.name = "filter"
    found = selftest.examine(contract)
    assert not found.accused and found.strength.killed == found.strength.real >= 6
    assert check_against(Filter(), Filter(), drawn((6, 40)), dtypes=["float32"], **QUICK).passed
    assert not check_against(Filter(), Larger(), drawn((6, 40)), dtypes=["float32"], **QUICK).passed


OF_COMPLEX = {"spectrum": spectrum_by_matrix, "turned": turned_in_parts}


@pytest.mark.parametrize("name", OF_COMPLEX)
def test_complex_numbers_within_a_function_may_be_computed_in_parts(name):
    reference, example = FUNCTIONS[name]
    right = OF_COMPLEX[name]
    report = check_against(reference, right, example, **QUICK)
    assert report.passed, report
    wrong = check_against(reference, lambda *given: right(*(t.half().float() for t in given)), example, **QUICK)
    assert not wrong.passed and wrong.findings


AVERAGED = {  # means of thousands of terms, in which errors of the terms cancel
    "variation": (lambda x: x.view(9, 40, 40).diff().abs().mean(), drawn((9, 40, 40))),  # of no other size
    "huber": (lambda x: F.huber_loss(x, x.flip(0)), drawn((60, 60))),
    "entropy": (lambda x, y: F.binary_cross_entropy_with_logits(x, torch.sigmoid(y)), drawn((64, 60), (64, 60))),
    "convolution": (lambda x, w: F.conv2d(x, w).square().mean(), drawn((2, 3, 40, 40), (8, 3, 3, 3))),
}


@pytest.mark.parametrize("name", AVERAGED)
def test_a_mean_of_thousands_of_terms_hides_no_lower_precision_ahead_of_it(name):
    contract = derive(*AVERAGED[name])
    contract.name = name
    found = selftest.examine(contract, 60)
    narrow = [(str(mutant), rejected) for mutant, rejected in found.mutants if mutant.narrow]
    assert not found.accused and len(narrow) >= 6
    assert [mutant for mutant, rejected in narrow if not rejected] == []


@pytest.mark.parametrize("training", [True, False])
def test_the_forms_of_a_batch_norm_have_its_outputs(training):
    x, *others = drawn((4, 3, 5), (3,), (3,), (3,))
    moments = others.pop(), torch.ones(3)

    def normed(x, weight, bias, mean, variance):
        if any(each.shape != x.shape[1:2] for each in (weight, bias, mean, variance)):
            raise ValueError("a number for each channel")  # which this operation does not look at: it reads beyond
        moments = mean.clone(), variance.clone()
        return torch.ops.aten._native_batch_norm_legit(x, weight, bias, *moments, training, 0.1, 1e-5)

    contract = derive(normed, [x, *others, *moments], dtypes=["float32"])
    contract.name = "normed"
    assert not selftest.examine(contract, 0).accused


MOVING = {
    "median": lambda x: x.median(-1).values,
    "sort": lambda x: x.sort(-1).values,
    "kthvalue": lambda x: x.kthvalue(3, -1).values,
    "gather": lambda x: x.gather(-1, torch.arange(36).reshape(3, 12) * 5 % 12),
    "pad": lambda x: F.pad(x[None], (1, 2), mode="replicate"),
    "cat": lambda x: torch.cat((x, x), 1),
    "unfold": lambda x: F.unfold(x[None, None], 2),
    "tril": lambda x: x.tril(),
    "flip": lambda x: x.flip(-1),
}


@pytest.mark.parametrize("name", MOVING)
def test_what_only_picks_or_moves_elements_has_wrong_versions_that_are_rejected(name):
    contract = derive(MOVING[name], drawn((3, 12)), dtypes=["float32"])
    contract.name = name
    strength = selftest.examine(contract).strength
    assert strength.real == strength.killed > 0


@pytest.mark.level("default")
def test_right_forms_pass_and_mutants_do_not():
    """What a contract is for: no right form accused in three dtypes, at least 97 % of real mutants rejected."""
    killed = real = 0
    survivors = []
    for name, (function, values) in functions.FUNCTIONS.items():
        contract = derive(function, values)
        contract.name = name
        found = selftest.examine(contract, 40)
        assert not found.accused, name
        killed, real = killed + found.strength.killed, real + found.strength.real
        survivors += [f"{name}: {survivor}" for survivor in found.strength.survivors]
    assert real > 200
    assert killed >= 0.97 * real, survivors


WRONG = {  # an op by itself -> how many wrong versions of it there are
    "argmax": (lambda x: x.argmax(-1), 2),
    "topk": (lambda x: torch.topk(x, 3), 1),
    "cummax": (lambda x: torch.cummax(x, 1), 1),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 1), 4),
    "max_pool": (lambda x: F.max_pool1d(x, 4, 2, 2, 3, return_indices=True), 1),
    "average_pool": (lambda x: F.avg_pool1d(x, 5), 3),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), 4),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_op_by_itself_has_wrong_versions_and_they_are_rejected(name):
    function, count = WRONG[name]
    contract = derive(function, drawn((12, 40)), dtypes=["float32"])
    contract.name = name
    strength = selftest.examine(contract).strength
    assert strength.real >= count
    assert strength.killed == strength.real, strength.survivors


def test_each_step_of_an_lstm_has_wrong_versions_and_other_forms():
    torch.manual_seed(0)
    contract = derive(torch.nn.LSTM(3, 4), drawn((5, 2, 3)), dtypes=["float32"])
    contract.name = "lstm"
    found = selftest.examine(contract)
    assert not found.accused
    assert found.strength.real >= 12
    assert found.strength.killed == found.strength.real, found.strength.survivors
    first = next(selftest.tried_cases(contract))
    eager, other = (selftest.as_form(contract, first, kind)[0] for kind in ("eager", "forms"))
    assert not torch.equal(eager, other)


@pytest.mark.parametrize("decimals", [3, -1, 0])
def test_rounding_to_decimals_is_not_exact(decimals):
    contract = derive(lambda x: torch.round(x, decimals=decimals), drawn((12, 40)))
    contract.name = "rounded"
    assert not selftest.examine(contract, 0).accused
    inputs, found = expected_of(contract, family="large")
    written = inputs.exact["x"].float().round_(decimals=decimals)
    assert compare(written, found["y"], torch.float32).ok


def test_onednn_is_left_out_where_flags_are_frozen_too(monkeypatch):
    """As torch.testing freezes them when it is imported."""
    names = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(names, "__allow_nonbracketed_mutation_flag", False)
    with pytest.raises(RuntimeError, match="not allowed"):
        torch.backends.mkldnn.enabled = True
    with without_onednn():
        assert not torch.backends.mkldnn.enabled
    assert torch.backends.mkldnn.enabled


def test_what_a_contract_is_made_of_is_kept_as_text_and_a_reference_in_memory_is_not():
    """bfloat16, integers, numbers and infinity come back as they were; a closure is named when it is needed."""
    scale, table = 2.0, torch.arange(12) % 5

    def picked(x, at, top):
        return (x * scale)[:, at].clamp(max=top)

    name = derivation.load_derived(picked, [torch.randn(9, 5).bfloat16(), table, float("inf")], level="quick")
    first, again = registry.contract(name), derivation.restored(str(registry.op_file(name)))
    assert (again.found, again.options, again.names, again.tested) == (
        (first.found, first.options, first.names, first.tested)
    )
    for one, other in zip(again.example, first.example, strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype if isinstance(one, torch.Tensor) else one == other
    with pytest.raises(ValueError, match="picked .*was in the memory of the process that derived"):
        again.function(*again.example)


def first_of(x, fill):
    """Where NaN is, `fill`."""
    return torch.where(torch.isnan(x), fill, x)


def picked(found, x):
    """Values and indices of elements of `x`, by the indices that an op found."""
    return x.gather(-1, found[1]), found[1]


EDGES = drawn((40,))[0].sort().values
ORDERS = {
    "searchsorted": lambda x, fill: torch.searchsorted(EDGES.to(x.dtype), first_of(x, fill)),
    "bucketize": lambda x, fill: torch.bucketize(first_of(x, fill), EDGES.to(x.dtype)) * 2,
    "sort": lambda x, fill: picked(first_of(x, fill).sort(-1), x),
    "topk": lambda x, fill: picked(first_of(x, fill).topk(5, -1), x),
    "kthvalue": lambda x, fill: picked(first_of(x, fill).kthvalue(7, -1, True), x),
}


@pytest.mark.parametrize("name", ORDERS)
def test_where_nan_stands_in_an_order_is_not_judged(name):
    """torch's own backends put it first or last."""
    contract = derive(lambda x: ORDERS[name](x, torch.nan), drawn((12, 30)), dtypes=["float32"])
    inputs, expected = expected_of(contract, family="nonfinite")
    x, first = inputs.exact["x"].float(), {}
    for fill in (torch.nan, torch.inf, -torch.inf):
        outputs = ORDERS[name](x, fill)
        for output, got in zip(expected, outputs if isinstance(outputs, tuple) else [outputs], strict=True):
            assert compare(got, expected[output], torch.float32).ok, (output, fill)
            first.setdefault(output, got)
    rest = ~torch.isnan(x).any(-1)
    for output, got in first.items():
        wrong = torch.where(rest.reshape(-1, 1), got + 1, got)
        assert not compare(wrong, expected[output], torch.float32).ok
    assert any("NaN may reach or stand otherwise" in what for what in contract.notes)


@pytest.mark.parametrize("function", [lambda x: x.max(-1), lambda x: x.median(-1), lambda x: x.argmax(-1)])
def test_where_torch_says_what_becomes_of_nan_it_is_judged(function):
    contract = derive(function, drawn((12, 30)), dtypes=["float32"])
    inputs, expected = expected_of(contract, family="nonfinite")
    x = inputs.exact["x"].float()
    outputs = function(torch.where(torch.isnan(x), -torch.inf, x))
    got = dict(zip(expected, outputs if isinstance(outputs, tuple) else [outputs], strict=True))
    assert any(not compare(value, expected[name], torch.float32).ok for name, value in got.items())
