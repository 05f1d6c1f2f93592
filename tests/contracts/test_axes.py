"""The axes of the first sixteen ops on which published kernels went wrong: that their cases are there, and that mutants
which nothing else finds are found there."""

from dataclasses import replace

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject, not_called
from touchstone.conformance.judging import calls, judge
from touchstone.conformance.judging.judgement import FAILED, PASSED
from touchstone.conformance.judging.trials import (
    CaseTrial,
    Int64Index,
    ManyCalls,
    PropertyTrial,
    called_once,
    trials_of,
)
from touchstone.conformance.spec.cases import also_case, plain_case, plan
from touchstone.conformance.spec.checks import Check

ATTENTION = ("attention", "attention_backward")
MLP = ("mlp", "mlp_backward", "gated_mlp")
ROWS = (
    "softmax",
    "online_softmax",
    "softmax_backward",
    "layer_norm",
    "layer_norm_backward",
    "rms_norm",
    "rms_norm_backward",
    "add_layer_norm",
    "add_rms_norm",
)
OPS = ("matmul", *ATTENTION, *MLP, *ROWS, "group_norm")


def counted(case):
    """Rows, or batches times heads, whatever they are called."""
    size = case.size
    return (
        size.get("B", 1)
        * size.get("Hq", 1)
        * max([n for name, n in size.items() if name in ("rows", "M", "N", "Sq") and isinstance(n, int)], default=1)
    )


@pytest.mark.parametrize("op", OPS)
def test_there_are_more_rows_than_a_grid_has_blocks_along_y(op):
    contract = registry.contract(op)
    beyond = {case for case in plan(contract, "quick").cases if contract.is_beyond_grid(case)}
    assert {case.sizes for case in beyond} == {tuple(size.items()) for size in contract.beyond_grid}
    assert beyond and all(case.contiguous and counted(case) > 65535 for case in beyond)
    assert all(contract.work(case) > 2e7 for case in beyond)  # more than an interpreter or emulator is given


@pytest.mark.parametrize("side", [16, 32])
def test_there_are_more_tiles_to_transpose_than_a_grid_has_blocks_along_y(side):
    contract = registry.contract("transpose")

    def on_a_grid(x):
        y = x.t().contiguous()
        y[:, 65535 * side :] = 0
        return y

    cases = [case for case in plan(contract, "quick").cases if contract.is_beyond_grid(case)]
    subject = Subject("transpose", on_a_grid, "on_a_grid", "torch@cpu", "cpu", diagnosed=False)
    assert FAILED in [judge.run(subject, CaseTrial(case)).status for case in cases]


def test_how_long_many_sequences_take_is_told_by_a_64th_of_them():
    """And not by as many sequences of a 64th of the rows, which take as long."""
    contract, sequences = registry.contract("attention_varlen"), []

    def nothing(q, k, v, cu_q, cu_k, **params):
        sequences.append(len(cu_q) - 1)
        return torch.zeros_like(q), torch.zeros(q.shape[1], q.shape[0])

    trial = CaseTrial(plain_case(contract, "float32", "normal", 0, contract.beyond_grid[0]))
    judge.run(Subject("attention_varlen", nothing, "nothing", "torch@cpu", "cpu", diagnosed=False), trial)
    assert min(sequences) < 20 and max(sequences) == 1031


def test_above_level_quick_they_come_in_every_dtype():
    contract = registry.contract("softmax")
    dtypes = {case.dtype for case in plan(contract, "default").cases if contract.is_beyond_grid(case)}
    assert dtypes == set(contract.dtypes)


def test_above_level_quick_they_come_with_every_way_to_reduce():
    """A loss for each of so many rows is another output, and another grid, than their sum."""
    contract = registry.contract("cross_entropy")
    beyond = [case for case in plan(contract, "default").cases if contract.is_beyond_grid(case)]
    assert {case.param["reduction"] for case in beyond} == {"mean", "sum", "none"}


@pytest.mark.parametrize("op", OPS)
def test_there_are_more_than_8192_columns(op):
    longest = max(
        n
        for case in plan(registry.contract(op), "quick").cases
        if not registry.contract(op).is_beyond_grid(case)
        for _, size in case.sizes
        for n in (size if isinstance(size, tuple) else (size,))
    )
    assert longest > 8192


@pytest.mark.parametrize("op", ATTENTION)
def test_sizes_of_attention(op):
    sizes = [dict(size) for size in registry.contract(op).sizes]
    groups = [(size["Hq"] // size["Hkv"], size["Hkv"]) for size in sizes if size["Hkv"] > 1]
    assert any(group not in (1, kv_heads) for group, kv_heads in groups)
    assert any(group > 16 for group, _ in groups)
    filled = [size for size in sizes if 0 not in size.values()]
    assert {size["D"] for size in filled} == {size["D"] for size in filled if size["B"] > 1}
    assert any(size["Sk"] > 256 and size["Sk"] - size["Sq"] < 0 < size["Sq"] - 256 for size in filled)


@pytest.mark.parametrize(
    ("op", "family"),
    [
        *((op, "far_below") for op in ("softmax", "online_softmax", *ATTENTION)),
        *((op, "nan_and_neg_inf") for op in ("softmax", "online_softmax", "attention")),
        *((op, family) for op in MLP for family in ("saturated", "all_negative")),
    ],
)
def test_families(op, family):
    assert family in {case.values for case in plan(registry.contract(op), "quick").cases}


def drawn(op, family, dtype="float32", size=None, **params):
    contract = registry.contract(op)
    case = plain_case(contract, dtype, family, size=size)
    case = replace(case, params=tuple((name, params.get(name, value)) for name, value in case.params))
    assert contract.valid(case)
    return contract.build(case).exact, contract.expected(contract.build(case))


def test_far_below_is_below_what_kernels_take_for_minus_infinity():
    x = drawn("softmax", "far_below")[0]["x"]
    assert (x < -5e4).all() and (x[1::2] < -1e30).all()
    assert (drawn("softmax", "far_below", "float16")[0]["x"] < -5e4).all()
    for scale in (None, 0.21):
        exact, expected = drawn("attention", "far_below", scale=scale)
        s = exact["q"] @ exact["k"].repeat_interleave(3, 1).mT * (40**-0.5 if scale is None else scale)
        assert (s < -5e4).all() and (s < -1e30).any()
        assert torch.equal(
            expected["o"].answer, exact["v"].repeat_interleave(3, 1)[:, :, :1].expand((*s.shape[:3], 40))
        )


@pytest.mark.parametrize("op", MLP)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_saturated_preactivations_overflow_where_they_are_squared(op, dtype):
    for family, signs in (("saturated", 2), ("all_negative", 1)):
        exact, expected = drawn(op, family, dtype)
        z = exact["x"] @ exact["w_gate" if op == "gated_mlp" else "w1"]
        assert z.abs().max() > 256 and len(set(z.sign().flatten().tolist())) == signs
        assert all(bool(one.answer.isfinite().all()) for one in expected.values())


FOUND_THERE = [  # op, mutant, what a case has that shows it
    ("softmax", "maximum_starts_at_1e30", dict(values="far_below", dtype="float32")),
    ("softmax", "nan_beside_neg_inf_gives_zeros", dict(values="nan_and_neg_inf", size=(3, 33))),
    ("softmax", "rows_beyond_a_grid", dict(size=(65601, 3))),
    ("online_softmax", "pos_inf_has_lse_nan", dict(values="one_pos_inf", size=(3, 33))),
    ("attention", "maximum_starts_at_1e30", dict(values="far_below", dtype="float32")),
    ("attention", "hidden_keys_score_5e4", dict(values="far_below", params={"causal": True})),
    ("attention", "tiles_of_neg_inf_skipped", dict(values="nan_and_neg_inf", size=(2, 2, 2, 5, 40, 192))),
    ("attention", "divided_by_key_heads", dict()),
    ("attention", "groups_end_at_16", dict(size=(2, 34, 2, 3, 21, 32))),
    ("attention", "empty_splits_count", dict(size=(2, 1, 1, 300, 280, 16), params={"causal": True})),
    ("attention", "first_batch_of_24", dict(size=(2, 1, 1, 1031, 5, 24))),
    ("attention_backward", "lse_below_5e4_is_none", dict(values="far_below")),
    ("mlp", "scaled_by_the_largest", dict(values="all_negative", params={"activation": "relu"})),
    (
        "mlp_backward",
        "slope_squares_in_float16",
        dict(values="saturated", dtype="float16", params={"activation": "gelu_tanh"}),
    ),
    ("gated_mlp", "gates_end_at_1000", dict(values="saturated")),
    ("matmul", "first_8192_only", dict(size=(3, 8209, 9))),
    ("rms_norm", "first_8192_columns", dict(size=(2, 10007))),
]


@pytest.mark.parametrize(("op", "name", "about"), FOUND_THERE, ids=[f"{op}-{name}" for op, name, _ in FOUND_THERE])
def test_mutants_are_found_there(op, name, about):
    contract = registry.contract(op)
    (planted,) = [one for one in registry.planted(op) if one.name == name]
    names = list(contract.sizes[0])
    size = dict(zip(names, about["size"], strict=True)) if "size" in about else None
    case = plain_case(
        contract, about.get("dtype", "float32"), about.get("values", next(iter(contract.values))), size=size
    )
    case = replace(case, params=tuple((n, about.get("params", {}).get(n, value)) for n, value in case.params))
    assert contract.valid(case)
    assert (
        judge.run(Subject(op, planted.make(), name, "torch@cpu", "cpu", diagnosed=False), CaseTrial(case)).status
        == FAILED
    )


def test_the_size_with_the_most_keys_shows_its_last_ones_in_every_family_with_which_it_is_drawn():
    contract = registry.contract("attention")
    (first,) = [one for one in registry.planted("attention") if one.name == "first_8192_keys"]
    (size,) = [size for size in contract.sizes if size["Sk"] > 8192]
    cases = [plain_case(contract, "float16", family, size=size) for family in contract.values]
    drawn = [case for case in cases if contract.valid(case)]
    assert len(drawn) >= 4
    subject = Subject("attention", first.make(), first.name, "torch@cpu", "cpu", diagnosed=False)
    assert [case.values for case in drawn if judge.run(subject, CaseTrial(case)).status != FAILED] == []


ONLY_THERE = [  # mutants that no other case kills
    ("softmax", "maximum_starts_at_1e30", lambda case: case.values == "far_below"),
    (
        "online_softmax",
        "nan_beside_neg_inf_has_lse_neg_inf",
        lambda case: case.values in ("nan_and_neg_inf", "special_column"),  # of one column, which is NaN
    ),
    ("attention", "groups_end_at_16", lambda case: case.size["Hq"] == 34),
    ("attention", "maximum_starts_at_1e30", lambda case: case.values == "far_below"),
    ("attention", "first_8192_keys", lambda case: case.size["Sk"] > 8192),
    (
        "mlp_backward",
        "slope_squares_in_float16",
        lambda case: case.values in ("saturated", "all_negative", "row_scales"),
    ),
    ("layer_norm", "rows_of_16_bits", lambda case: case.size["rows"] > 65535),
]


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.parametrize(("op", "name", "there"), ONLY_THERE, ids=[f"{op}-{name}" for op, name, _ in ONLY_THERE])
def test_mutants_that_only_an_axis_finds(op, name, there):
    (planted,) = [one for one in registry.planted(op) if one.name == name]
    trials, _ = trials_of(Subject(op, not_called, "planted", "planted@cpu", "cpu"), "default")
    mine = [called_once(t) for t in trials if not isinstance(t, ManyCalls) and t.case.dtype in planted.dtypes]
    subject = Subject(op, planted.make(), name, "torch@cpu", "cpu", diagnosed=False)
    killing = [trial for trial in mine if judge.run(subject, trial).status == FAILED]
    assert len(killing) >= 0.01 * len(mine)
    assert [trial.id for trial in killing if not there(trial.case)] == []


def known_good(op):
    return next(one.make() for one in registry.planted(op) if one.is_known_good)


FEW = {"rows": 300, "cols": 40, "M": 300, "K": 8, "D": 8, "H": 8, "B": 9, "Hq": 4, "Hkv": 2, "Sq": 4, "Sk": 4, "C": 6}


@pytest.mark.parametrize("op", OPS)
def test_outputs_beyond_32_bits_are_compared_by_rows(op, monkeypatch):
    """On a GPU there are more than 2^31 elements; here the same is done with fewer."""
    contract = registry.contract(op)
    beyond = contract.int64_index
    elements = [
        torch.Size(contract.output_shape(name, plain_case(contract, "bfloat16", "normal", size=beyond.size))).numel()
        for name in contract.outputs
    ]
    assert max(elements) > 2**31
    few = {n: (5,) if isinstance(size, tuple) else min(size, FEW.get(n, 40)) for n, size in beyond.size.items()}
    monkeypatch.setattr(contract, "int64_index", replace(beyond, size=few))
    trial = Int64Index(plain_case(contract, "bfloat16", "normal", size=few))
    fn = known_good(op)
    right = judge.run(Subject(op, fn, "right", "torch@cpu", "cpu"), trial)
    assert right.status == PASSED and right.fractions, right.findings

    def last_row_lost(*args, **kwargs):
        outputs = fn(*args, **kwargs)
        (outputs[0] if isinstance(outputs, tuple) else outputs)[-1] = 0.0
        return outputs

    assert judge.run(Subject(op, last_row_lost, "wrong", "torch@cpu", "cpu"), trial).status == FAILED


def many_rows(fn):
    contract = registry.contract("softmax")
    trial = CaseTrial(plain_case(contract, "float32", "normal", size=contract.beyond_grid[0]))
    return judge.run(Subject("softmax", fn, "fn", "user@cpu", "cpu"), trial)


def softmax(x):
    return torch.softmax(x, -1)


def test_a_case_that_would_take_long_is_called_with_fewer_rows(monkeypatch):
    rows = []

    def counting(x):
        rows.append(len(x))
        return softmax(x)

    assert many_rows(counting).findings == [] and rows == [1026, 1026, 65601]
    monkeypatch.setattr(calls, "LONGEST", 0.0)
    rows.clear()
    outcome = many_rows(counting)
    assert outcome.status == PASSED and rows == [1026, 1026]
    assert [finding.severity for finding in outcome.findings] == ["note"]
    assert "not called with them" in outcome.findings[0].message
    assert many_rows(lambda x: softmax(x) * 1.1).status == FAILED


CACHED = ("attention_decode", "attention_decode_int4", "attention_paged", "mla_decode")


def status(op, fn, trial):
    outcome = judge.run(Subject(op, fn, "fn", "torch@cpu", "cpu", diagnosed=False), trial)
    assert [str(finding) for finding in outcome.findings if finding.check == Check.RAISED] == []
    return outcome.status


def zeros_of_heads_beyond(fn):
    """Of all sequences' heads in one row, those beyond 65535 have an o of 0."""

    def wrong(*args, **kwargs):
        o, lse = fn(*args, **kwargs)
        o.flatten(0, 1)[65535:] = 0
        return o, lse

    return wrong


@pytest.mark.parametrize("op", CACHED)
def test_heads_beyond_a_grid_have_keys(op):
    contract = registry.contract(op)
    trial = CaseTrial(plain_case(contract, "float32", next(iter(contract.values)), size=contract.beyond_grid[0]))
    assert status(op, zeros_of_heads_beyond(known_good(op)), trial) == FAILED


def law_of(op, name):
    trials, _ = trials_of(Subject(op, not_called, "law", "user@cpu", "cpu"), "quick")
    return next(trial for trial in trials if isinstance(trial, PropertyTrial) and trial.prop.name == name)


def keeping_what_was_longer(fn, place):
    """The answer to a call of the same shapes with more keys, as the operand at `place` has them, is given once more to
    the next one."""
    kept = {}

    def wrong(*args, **kwargs):
        shapes = tuple(tuple(x.shape) for x in args if isinstance(x, torch.Tensor))
        keys, found = int(args[place].max()), fn(*args, **kwargs)
        before = kept.get(shapes)
        kept[shapes] = keys, found
        return tuple(y.clone() for y in (before[1] if before and before[0] > keys else found))

    return wrong


def planned_once(fn, place):
    """Each sequence has the tiles of 64 keys that it had in the first call of these shapes."""
    tiles = {}

    def wrong(*args, **kwargs):
        shapes = tuple(tuple(x.shape) for x in args if isinstance(x, torch.Tensor))
        planned = tiles.setdefault(shapes, -(-args[place] // 64) * 64)
        return fn(*args[:place], torch.minimum(args[place], planned), *args[place + 1 :], **kwargs)

    return wrong


@pytest.mark.parametrize("op", CACHED)
def test_what_an_earlier_call_leaves_behind_is_found(op):
    trial = law_of(op, "an earlier call leaves nothing behind")
    assert status(op, known_good(op), trial) == PASSED
    place = list(registry.contract(op).operands).index("lengths")
    assert status(op, keeping_what_was_longer(known_good(op), place), trial) == FAILED
    assert status(op, planned_once(known_good(op), place), trial) == FAILED


@pytest.mark.parametrize("op", ["dot", "gemv"])
def test_infinity_times_zero_is_not_left_out(op):
    """Of either factor."""
    contract, fn = registry.contract(op), known_good(op)

    def wrong(x, y):
        return fn(x.masked_fill(x.isinf() & (y == 0).any(), 0.0), y)

    trial = CaseTrial(plain_case(contract, "float32", "inf_times_zero"))
    assert status(op, fn, trial) == PASSED
    assert status(op, wrong, trial) == FAILED


def read_as_packed(axis):
    """The stride of an axis is not looked at: that of a contiguous tensor is taken for it."""

    def read(x):
        strides = list(x.stride())
        strides[axis] = torch.empty(x.shape).stride(axis)
        reach = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, strides, strict=True))
        room = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
        return x.as_strided(x.shape, strides) if 0 < reach <= room else torch.zeros_like(x)

    return read


@pytest.mark.parametrize(
    ("op", "operand", "axis", "layout"),
    [
        ("rope", "positions", 0, "sliced"),
        ("rope", "positions", 0, "broadcast"),
        ("rope_backward", "positions", 0, "sliced"),
        ("attention_paged", "block_table", 0, "sliced"),
        ("masked_attention", "bias", 1, "broadcast_second"),
        ("masked_attention", "bias", 2, "sliced"),
        ("masked_attention", "seg_q", 0, "sliced"),
        ("masked_attention", "seg_k", 0, "sliced"),
        ("attention", "k", 1, "broadcast_second"),
        ("attention_backward", "v", 1, "broadcast_second"),
    ],
)
def test_strides_of_indices_masks_and_biases_are_looked_at(op, operand, axis, layout):
    contract, fn = registry.contract(op), known_good(op)
    place, read = list(contract.operands).index(operand), read_as_packed(axis)
    cases = [case for case in plan(contract, "quick").cases if case.layout[operand] == layout and case.filled]

    def wrong(*args, **kwargs):
        given = list(args)
        if given[place] is not None:
            given[place] = read(given[place])
            if within := contract.operands[operand].indexes:
                given[place] = given[place].clamp_min(0) % min(case.size[within] for case in cases)
        return fn(*given, **kwargs)

    assert any(status(op, wrong, CaseTrial(case)) == FAILED for case in cases)


@pytest.mark.parametrize(("op", "operand"), [("matmul", "a"), ("matmul", "b"), ("gemv", "a"), ("softmax", "x")])
def test_a_leading_dimension_that_is_not_the_length_is_looked_at(op, operand):
    contract, fn = registry.contract(op), known_good(op)
    place = list(contract.operands).index(operand)
    cases = [case for case in plan(contract, "quick").cases if case.layout[operand] == "transposed_sliced"]

    def wrong(*args):
        given = list(args)
        x = given[place]
        if x.stride(0) == 1 and x.stride(1) > len(x):
            given[place] = x.as_strided(x.shape, (1, len(x)))
        return fn(*given)

    assert any(status(op, wrong, CaseTrial(case)) == FAILED for case in cases)


def test_numbers_of_segments_that_float32_does_not_tell_apart_are_told_apart():
    op = "masked_attention"
    contract, fn = registry.contract(op), known_good(op)
    case = plain_case(contract, "float32", "hiding")
    case = replace(case, layouts=tuple((n, "contiguous" if n.startswith("seg_") else v) for n, v in case.layouts))

    def wrong(q, k, v, bias, slopes, seg_q, seg_k, **params):
        return fn(q, k, v, bias, slopes, seg_q.float().long(), seg_k.float().long(), **params)

    assert status(op, fn, CaseTrial(case)) == PASSED
    assert status(op, wrong, CaseTrial(case)) == FAILED


@pytest.mark.parametrize("op", ["rms_norm", "softmax", "matmul", "mlp", "group_norm", "attention"])
def test_rows_beyond_a_grid_are_no_whole_tiles(op):
    """Those that are left over after tiles of 16 are 0."""
    contract, fn = registry.contract(op), known_good(op)
    axis = 2 if op == "attention" else 0

    def wrong(*args, **kwargs):
        found = fn(*args, **kwargs)
        y = found[0] if isinstance(found, tuple) else found
        whole = y.shape[axis] // 16 * 16
        y.narrow(axis, whole, y.shape[axis] - whole).zero_()
        return found

    size = contract.beyond_grid[-1 if op == "attention" else 0]
    assert status(op, wrong, CaseTrial(plain_case(contract, "float32", "normal", size=size))) == FAILED


@pytest.mark.parametrize("op", ["attention_varlen", "attention_varlen_backward"])
def test_tokens_beyond_16_bits_are_looked_at(op):
    contract, fn = registry.contract(op), known_good(op)
    trial = CaseTrial(plain_case(contract, "float32", "normal", size=contract.beyond_grid[-1]))

    def wrong(*args, **kwargs):
        found = fn(*args, **kwargs)
        found[0][65535:] = 0
        return found

    assert status(op, fn, trial) == PASSED
    assert status(op, wrong, trial) == FAILED


def test_one_part_alone_is_returned_however_low_its_lse_is():
    op = "merge_states"
    trial, fn = law_of(op, "one part is returned as it is"), known_good(op)

    def wrong(o, lse):
        """A running maximum starts at -1e30."""
        found, total = fn(o, lse)
        low = (lse < -1e30).all(0)
        return found.masked_fill(low[:, None], 0.0), total.masked_fill(low, -torch.inf)

    assert status(op, fn, trial) == PASSED
    assert status(op, wrong, trial) == FAILED


def test_the_last_class_of_a_large_vocabulary_is_asked_for():
    contract = registry.contract("cross_entropy")
    target = contract.build(also_case(contract, "large_vocabulary")).exact["target"]
    assert (target == 66000).any()
