"""What failing cases are said to have in common, and when nothing is."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from touchstone import check
from touchstone.conformance.discovery import registry
from touchstone.conformance.judging.judgement import FAILED, PASSED, Finding, Outcome
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.reporting import common, traits
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.checks import Check, Requirement

SIZES = [(rows, cols) for rows in (1, 3, 17) for cols in (5, 24, 64, 1000)]


def case(rows, cols, dtype="float32", values="normal", op="softmax", **layouts):
    made = plain_case(registry.contract(op), dtype, values, size=dict(rows=rows, cols=cols))
    return replace(made, layouts=tuple((name, layouts.get(name, layout)) for name, layout in made.layouts))


def told(fails, cases):
    return common.in_common([c for c in cases if fails(c)], [c for c in cases if not fails(c)])


@pytest.mark.parametrize(
    ("fails", "text"),
    [
        (lambda c: c.size["cols"] > 64, ("all 6 cases", "and none of 18", "cols from 1000 on (right up to 64)")),
        (
            lambda c: c.size["cols"] < 24,
            ("all 6 cases", "and none of 18", "cols up to 5 (right from 24 on), cols no multiple of 2 (or of 8)"),
        ),
        (lambda c: c.dtype == "float16", ("all 12 cases", "and none of 12", "dtype float16")),
        (lambda c: c.dtype == "float16" and c.size["cols"] != 64, ("all 9 cases", "but only 3 of 15", "dtype float16")),
        (
            lambda c: c.size["cols"] != 64,
            ("all 18 cases", "and none of 6", "cols no multiple of 16 (or of 64), cols no power of two"),
        ),
        (lambda c: True, None),
        (lambda c: False, None),
        (lambda c: c.size["rows"] * c.size["cols"] == 72, None),
        (lambda c: c.size["cols"] == 24 and c.size["rows"] == 3, None),
    ],
)
def test_what_cases_have_in_common(fails, text):
    assert told(fails, [case(*size, dtype) for size in SIZES for dtype in ("float32", "float16")]) == (
        text and f"{text[0]} that fail so, {text[1]} that pass: {text[2]}"
    )


def test_nothing_is_said_of_a_size_that_single_steps_have_told():
    cases = [case(*size, dtype) for size in SIZES for dtype in ("float32", "float16")]
    wrong, right = ([c for c in cases if (c.size["cols"] > 64) is so] for so in (True, False))
    assert common.in_common(wrong, right).endswith("cols from 1000 on (right up to 64)")
    assert common.in_common(wrong, right, without={"cols"}) is None
    told = "y: wrong: everything; right with cols 64 and 128, wrong with cols 65, all else being equal"
    assert common.STEPPED.findall(told) == ["cols"] and not common.STEPPED.findall("right with eps=0, or without bias")


def test_layouts_parameters_and_values():
    plain = [case(3, cols, op="layer_norm") for cols in range(5, 21)]
    bare = [case(3, cols, op="layer_norm", bias="none") for cols in range(5, 13)]
    assert common.in_common(bare, plain).endswith("that pass: bias not given")
    sliced = [case(3, cols, op="layer_norm", x="sliced") for cols in range(5, 13)]
    assert common.in_common(sliced, plain).endswith("that pass: x not contiguous, x sliced")
    eps = [replace(c, params=(("eps", 0.1),)) for c in plain]
    assert common.in_common(eps, plain).endswith("that pass: eps=0.1")
    large = [replace(c, values="tiny") for c in plain]
    assert common.in_common(large, plain).endswith("that pass: values tiny")


def test_what_is_told_among_the_cases_that_share_a_dtype():
    """16-bit sums of long rows: float32 cases of long rows pass, and 16-bit ones of short rows."""
    sizes = [(rows, cols) for rows in (1, 3, 17) for cols in (5, 24, 33, 48, 64, 100, 200, 1000)]
    cases = [case(*size, dtype) for size in sizes for dtype in ("float32", "float16")]
    assert told(lambda c: c.dtype == "float16" and c.size["cols"] >= 64, cases) == (
        "all 12 cases that fail so have dtype float16, and none of 12 with it that pass: "
        "cols from 64 on (right up to 48)"
    )
    both = [*cases, *(case(*size, "bfloat16") for size in sizes)]
    assert told(lambda c: c.dtype != "float32" and c.size["cols"] >= 64, both).startswith(
        "all 24 cases that fail so have a dtype of 16 bits, and none of 24 with it that pass: cols from 64 on"
    )
    few = [c for c in cases if c.size["cols"] >= 200]  # where nothing of the dtype passes there is nothing to compare
    assert "with it" not in told(lambda c: c.dtype == "float16", few)
    scattered = told(lambda c: c.dtype == "float16" and c.size["cols"] in (24, 200), cases)
    assert scattered is None or "with it" not in scattered


def test_among_few_cases_one_size_far_beyond_the_others_tells_nothing():
    cases = [case(rows, 5, "float32") for rows in range(3, 30)]
    within = [case(rows, 5, "float16") for rows in (3, 4, 5, 6, 7)]
    large = [case(1000, 2000, "float16", values=values) for values in ("tiny", "equal", "steep")]
    passing = [*cases, *within, *(replace(c, dtype="float32") for c in large)]
    assert "have dtype float16" not in str(common.in_common(large, passing))


def test_what_two_of_many_cases_have_in_common_is_easily_chance():
    """Where as many things are looked at as a case of attention has."""
    contract = registry.contract("attention_paged")
    plain = plain_case(contract, "float32", "normal")
    others = [replace(plain, seed=seed) for seed in range(57)]
    few = [replace(case, layouts=(("q", "heads_inside"), *case.layouts[1:])) for case in others[:4]]
    assert common.in_common(few[:2], others) is None
    assert "q heads_inside" in common.in_common(few, others)


def test_several_options_that_all_have_one_or_another_of():
    contract = registry.contract("activation")
    sizes = [dict(rows=rows, cols=cols) for rows in (1, 3, 17) for cols in (5, 24, 64)]

    def cases(name):
        made = (plain_case(contract, "float32", "normal", size=size) for size in sizes)
        return [replace(one, params=(("activation", name),)) for one in made]

    wrong = [*cases("gelu"), *cases("gelu_tanh")]
    right = [one for name in ("relu", "silu", "mish", "elu", "sigmoid") for one in cases(name)]
    assert common.in_common(wrong, right).endswith("and none of 45 that pass: activation=gelu or gelu_tanh")
    assert "activation" not in str(common.in_common(wrong, [*right, *cases("gelu")[:3]]))


def test_a_bound_that_is_no_tile_is_told_by_cases_of_several_sizes():
    def cases(numbers, count=3):
        return [case(cols, 5, values=f"values{i}") for cols in numbers for i in range(count)]

    assert common.in_common(cases([6]), cases([1, 2, 3, 4, 5])) is None
    assert "rows from 9 on (right up to 7)" in common.in_common(cases([9]), cases([1, 2, 3, 5, 7]))
    assert "rows from 22 on (right up to 19)" in common.in_common(
        cases([22, 25, 27, 28, 30]), cases([11, 13, 14, 15, 19])
    )
    assert "rows from" not in str(common.in_common(cases([22, 25, 27, 28]), cases([11, 12, 13, 14, 15, 19, 23])))


def test_a_bound_that_some_pass_too_is_told_by_cases_of_several_sizes():
    def told(wrong, right):
        return str(common.in_common([case(n, 5) for n in wrong], [case(n, 5) for n in right]))

    small = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    assert "but only 1 of 17 that pass: rows from 33 on" in told([33, 34, 35, 36, 37, 38], [*small, 40])
    same = [33] * 6
    of_one_size = [replace(case(n, 5), seed=seed) for seed, n in enumerate(same)]
    assert "rows from" not in str(common.in_common(of_one_size, [*(case(n, 5) for n in small), case(40, 5)]))


@pytest.mark.parametrize(
    ("wrong", "right", "text"),
    [
        ((3, 7, 24, 48), (1, 2, 4, 8, 16, 32, 64), "rows no power of two"),
        ((64, 128, 192, 320), (32, 63, 65, 100, 130, 257, 96), "rows a multiple of 64"),
        ((257, 300, 700, 1000), (5, 64, 100, 200, 256, 512, 768, 1024), "rows beyond 256 and no multiple of it"),
        ((257, 300, 700, 1000), (5, 64, 100, 256, 512, 768, 1024), "rows beyond 128 (or 256) and no multiple of it"),
        ((3, 7), (1, 2, 4, 8), None),
        ((64, 128), (32, 63, 65), None),
        ((257, 300), (5, 64, 256, 512), None),
    ],
)
def test_sizes_and_tiles(wrong, right, text):
    told = common.in_common([case(n, 5) for n in wrong], [case(n, 5) for n in right])
    assert told is None or "beyond" in told or "power" not in told if text is None else text in told


def test_a_size_that_is_an_odd_number_of_times_another_and_the_number_of_axes():
    odd, even = ([(5 * times, 5) for times in some] for some in ((1, 3, 5, 7), (2, 4, 6, 8)))
    told = common.in_common([case(*size) for size in odd], [case(*size) for size in even])
    assert "rows/cols odd" in told
    contract = registry.contract("group_norm")

    def of(*trailing):
        return plain_case(contract, "float32", "normal", size=dict(N=2, C=6, trailing=trailing))

    deep, flat = ([of(*axes, n) for n in range(2, 9)] for axes in ((2, 3), ()))
    assert "3 axes as trailing" in common.in_common(deep, flat)


def test_one_case_tells_where_a_size_is_far_beyond_the_others():
    small = [case(rows, cols) for rows, cols in SIZES]
    assert common.in_common([case(65600, 3)], small) == (
        "the one case that fails so, and none of 12 that pass: rows from 65600 on (right up to 17)"
    )
    assert common.in_common([case(60, 3)], small) is None
    assert common.in_common([case(65600, 3)], small[:3]) is None


def test_empty_operands_show_nothing():
    cases = [case(*size) for size in SIZES]
    empty = [case(0, 1000), case(0, 64), case(17, 0), case(3, 0)]
    assert "none of 9 that pass: cols from 1000 on" in told(
        lambda c: c.size["cols"] > 64 and c.filled, [*cases, *empty]
    )
    assert "none of 12 that pass: a size of 0" in told(lambda c: not c.filled, [*cases, *empty])


def test_two_sizes_that_are_equal_and_two_that_are_not():
    square, oblong = (
        [(5, 5), (24, 24), (64, 64), (97, 97)],
        [(1, 5), (3, 24), (5, 1), (17, 24), (64, 5), (5, 64), (24, 3)],
    )
    cases = [case(*size) for size in square + oblong]
    assert told(lambda c: c.size["rows"] != c.size["cols"], cases) == (
        "all 7 cases that fail so, and none of 4 that pass: rows other than cols"
    )
    few = [*cases, *(case(rows, 7) for rows in (1, 9))]
    assert told(lambda c: c.size["rows"] == c.size["cols"], few) == (
        "all 4 cases that fail so, and none of 9 that pass: rows equal to cols"
    )
    of_one_size = [*few[3:], case(97, 97, "float16")]
    assert "equal" not in str(told(lambda c: c.size["rows"] == c.size["cols"], of_one_size))
    of_one = [
        case(1, 1),
        case(1, 1, "float16"),
        case(1, 1, "bfloat16"),
        case(1, 1, values="tiny"),
        *(case(*size) for size in oblong),
    ]
    assert "other than" not in str(told(lambda c: c.size["rows"] != c.size["cols"], of_one))
    assert "other than" not in str(told(lambda c: c.size["rows"] != c.size["cols"], cases[:5]))  # of 5 choices one


def test_a_size_that_is_twice_another():
    twice = [(5, 10), (12, 24), (32, 64), (48, 96)]
    cases = [case(*size) for size in [*twice, (1, 5), (3, 24), (5, 1), (17, 24), (64, 5), (5, 64), (24, 3), (10, 5)]]
    assert told(lambda c: c.size["cols"] != 2 * c.size["rows"], cases) == (
        "all 8 cases that fail so, and none of 4 that pass: cols other than 2 rows"
    )
    assert told(lambda c: c.size["cols"] == 2 * c.size["rows"], cases) == (
        "all 4 cases that fail so, and none of 8 that pass: cols equal to 2 rows"
    )


def test_relations_of_sizes_are_left_out_where_the_cause_is_known():
    cases = [case(*size) for size in [(5, 10), (12, 24), (32, 64), (1, 5), (3, 24), (5, 1), (17, 24), (64, 5), (5, 64)]]
    wrong = [c for c in cases if c.size["cols"] != 2 * c.size["rows"]]
    right = [c for c in cases if c not in wrong] + [case(48, 96), case(7, 14)]
    assert "cols other than 2 rows" in common.in_common(wrong, right)
    assert "other than" not in (common.in_common(wrong, right, relations=False) or "")


def test_groups_of_heads():
    contract = registry.contract("attention")
    sizes = [
        dict(B=1, Hq=heads, Hkv=of, Sq=3, Sk=7, D=16) for heads, of in ((2, 2), (4, 4), (6, 3), (8, 4), (9, 3), (8, 2))
    ]
    cases = [plain_case(contract, dtype, "normal", size=size) for size in sizes for dtype in contract.dtypes]
    assert "Hq/Hkv from 3 on (right up to 2)" in told(lambda c: c.size["Hq"] > 2 * c.size["Hkv"], cases)


def test_of_many_things_one_is_shared_by_chance():
    """What 3 cases have, and 2 of 30 that pass, tells nothing where so many things were looked at; nor does a bound of
    sizes that many pass with."""
    rope, softmax = (registry.contract(op) for op in ("rope", "softmax"))

    def many(contract, letter, count, large):
        plain = plain_case(contract, "float32", "normal", size=contract.sizes[0])
        sizes = [{**plain.size, letter: 33 + i if i < large else i} for i in range(count)]
        return [plain_case(contract, "float32", "normal", size=size) for size in sizes]

    assert common.in_common(many(rope, "B", 3, 3), many(rope, "B", 30, 2)) is None
    assert "but only 2 of 30 that pass: rows from" in common.in_common(
        many(softmax, "rows", 3, 3), many(softmax, "rows", 30, 2)
    )
    assert common.in_common(many(softmax, "rows", 11, 11), many(softmax, "rows", 29, 13)) is None


def test_a_bound_of_an_odd_number_that_one_case_passes():
    cases = [case(3, cols) for cols in (5, 7, 17, 24, 33, 40, 64, 97, 100, 131, 200, 257, 643, 700, 900, 1031, 5003)]
    passing = [c for c in cases if c.size["cols"] < 643] + [case(5, 2047)]
    assert common.in_common([c for c in cases if c.size["cols"] >= 643], passing) == (
        "all 5 cases that fail so, but only 1 of 13 that pass: cols from 643 on"
    )


@pytest.mark.parametrize("isolate", ["none", "auto"])
def test_a_report_says_it_once_of_each_root_cause(isolate):
    def fn(x):
        y = x.softmax(-1)
        return y * 1.5 if x.shape[1] < 40 else y

    numbers = ("normal", "large", "row_offsets", "ascending", "steep")
    report = check(
        "softmax", fn, device="cpu", level="quick", isolate=isolate, where=lambda case: case.values in numbers
    )
    said = [line for line in str(report).splitlines() if "cases that fail so" in line]
    assert len(said) == 1
    assert "that pass: cols up to" in said[0]
    assert report.verdict == "failed"


def test_the_size_of_a_group_is_a_size():
    """Groups of 2 and of 4 channels of as many channels."""
    contract = registry.contract("group_norm")
    plain = [plain_case(contract, "float32", "normal", size={"N": n, "C": 24, "trailing": (5,)}) for n in range(1, 9)]
    of_two, of_many = ([replace(c, params=(("groups", g), ("eps", 0.1))) for c in plain] for g in (12, 6))
    told = common.in_common(of_many, [*of_two, *(replace(c, params=(("groups", 24), ("eps", 0.1))) for c in plain)])
    assert "C/groups from 4 on (right up to 2)" in told
    assert traits.numbers_of(of_two[0]) == {"N": 1, "C": 24, "C/groups": 2}


def test_a_mutant_that_another_finding_refutes_is_not_named():
    def finding(about, *names):
        said = "; or ".join(f"{name} is wrong (mutant {name})" for name in names)
        return Finding(
            "0" * 8,
            "failure",
            Check.VALUES,
            "a case",
            "wrong",
            about=about,
            diagnosis=f"equals the reference, but {said}\ny: wrong",
        )

    both, one, other, two = (finding(*given) for given in (("y", "a", "b"), ("y", "b"), ("lse", "a"), ("z", "a", "b")))
    common._drop_refuted([both, one, other, two])
    assert both.diagnosis == "equals the reference, but b is wrong (mutant b)\ny: wrong" == one.diagnosis
    assert "(mutant a)" in other.diagnosis and "; or " in two.diagnosis
    apart = [finding("y", "a", "b"), finding("y", "c")]
    common._drop_refuted(apart)
    assert "; or " in apart[0].diagnosis


def test_by_which_numbers_it_is_wrong_is_left_out_where_these_are_right_elsewhere():
    told = "y: wrong: rows 1 of 3; wrong where the largest x in its rows is {} or more, right up to 0.4; all 0 there"
    for bound, left in ((0.5, "y: wrong: rows 1 of 3; all 0 there"), (50, told.format(50))):
        finding = Finding("0" * 8, "failure", Check.VALUES, "a case", "wrong", about="y", diagnosis=told.format(bound))
        common._drop_statistics(finding, case(3, 24), [case(17, 24)])
        assert finding.diagnosis == left


def test_of_several_mutants_those_are_left_that_spoil_nothing_that_passed():
    contract = registry.contract("softmax")

    def left(*names, rows, cols):
        about = "; or ".join(f"it is so (mutant {name})" for name in names)
        text = f"equals the reference, but {about}\ny: wrong"
        finding = Finding("0" * 8, "failure", Check.VALUES, "a case", "wrong", about="y", diagnosis=text)
        passed = [plain_case(contract, "float32", "normal", size=dict(rows=rows, cols=cols))]
        common._drop_spoiling(finding, passed[0], passed)
        return common.MUTANT.findall(finding.diagnosis)

    tiles = ("partial_tile_dropped", "base_2")  # the one is right where tiles are whole, the other nowhere
    assert left(*tiles, rows=3, cols=64) == [tiles[0]]
    assert left(*tiles, rows=3, cols=65) == list(tiles)  # none would be left
    assert left(tiles[1], rows=3, cols=64) == [tiles[1]]


def test_of_several_mutants_those_are_left_that_are_wrong_in_most_cases():
    contract = registry.contract("reduce")
    names = ("maximum_from_zero", "padding_loads_0")

    def case_of(function, values, n=33):
        made = plain_case(contract, "float32", values, size=dict(n=n))
        return replace(made, params=(("function", function),))

    def left(*cases, names=names):
        about = "; or ".join(f"it is so (mutant {name})" for name in names)
        findings = [
            Finding("0" * 8, "failure", Check.VALUES, "a case", "wrong", about="y", diagnosis=text)
            for text in (f"equals the reference, but {about}\ny: wrong", *[None] * (len(cases) - 1))
        ]
        common._drop_idle(findings, {id(found): one for found, one in zip(findings, cases, strict=True)})
        return common.MUTANT.findall(findings[0].diagnosis)

    maximum, minimum = case_of("max", "below_zero"), case_of("min", "minimum_above_zero")
    assert left(maximum) == list(names)
    assert left(maximum, minimum) == [names[1]]
    assert left(case_of("max", "below_zero", n=64), maximum) == list(names)  # one of each family


def test_what_is_kept_is_held_against_determinism():
    kept, cause = (
        "y: wrong: all; right again: something is kept from one call to the next",
        "y: wrong: all; as if x were 0",
    )

    def booked(*texts, check=Check.VALUES, about="y"):
        made = [Finding("0" * 8, "failure", check, "a case", "wrong", about=about, diagnosis=text) for text in texts]
        for finding in made:
            finding.requirement = Requirement.VALUES
        common._book_kept(made)
        return [finding.requirement for finding in made]

    assert booked(kept, "y: wrong: all", None) == [Requirement.DETERMINISM] * 3
    assert booked(kept, cause) == [Requirement.VALUES] * 2
    assert booked("y: wrong: all") == [Requirement.VALUES]
    assert booked(kept, check=Check.DTYPE) == [Requirement.VALUES]


def masked(**given):
    """Cases of attention, one for each choice of what is given; of a layout None is contiguous."""
    plain = plain_case(registry.contract("masked_attention"), "float32", "normal")
    for chosen in itertools.product(*given.values()):
        now = dict(zip(given, chosen, strict=True))
        layouts = tuple((name, now.get(name) or layout) for name, layout in plain.layouts)
        params = tuple((name, now.get(name, value)) for name, value in plain.params)
        yield replace(plain, layouts=layouts, params=params, seed=now.get("seed", 0))


OPTIONAL = {"bias": ("none", "contiguous"), "slopes": ("none", "contiguous")}


def test_one_or_another_operand_given_among_the_cases_that_share_a_parameter():
    cases = list(masked(softcap=(None, 2.5), seg_q=("none", None), seed=range(3), **OPTIONAL))

    def fails(c):
        return c.param["softcap"] == 2.5 and {c.layout["bias"], c.layout["slopes"]} != {"none"}

    assert told(fails, cases) == (
        "all 18 cases that fail so have softcap=2.5, and none of 6 with it that pass: bias or slopes given"
    )
    both = [c for c in cases if not (fails(c) and "none" in (c.layout["bias"], c.layout["slopes"])) or c.seed == 0]
    assert "given" not in str(told(fails, both))  # each of them alone in two cases
    few = [c for c in cases if c.param["softcap"] == 2.5 or {c.layout["bias"], c.layout["slopes"]} == {"none"}]
    assert "with it" not in str(
        told(fails, few)
    )  # the parameter does nothing that is seen: none has it not, and passes


def test_one_or_another_layout():
    layouts = dict.fromkeys("qkv", (None, "step"))
    cases = list(masked(seed=range(6), **layouts))

    def strided(*names):
        return lambda c: any(c.layout[name] == "step" for name in names)

    assert told(strided("q", "k"), cases) == (
        "all 36 cases that fail so, and none of 12 that pass: q or k not contiguous"
    )
    assert told(strided("q", "k", "v"), cases) == (
        "all 42 cases that fail so, and none of 6 that pass: q, k or v not contiguous"
    )
    alike = [replace(c, layouts=tuple(dict(c.layouts, v=c.layout["k"]).items())) for c in cases]
    assert "not contiguous" not in str(told(strided("q", "k"), alike))  # or q and v
    given = masked(seed=range(6), bias=("none", "contiguous"), slopes=("none", "contiguous"), q=(None, "step"))
    told_of = told(lambda c: strided("q")(c) or c.layout["bias"] == "none", list(given))
    assert " or " not in str(told_of)  # words of two sorts


def test_a_stride_along_the_last_axis_is_told_apart_from_other_layouts():
    names = ("contiguous", "transposed", "sliced", "offset", "step")
    cases = [replace(case(9, 24, x=name), seed=seed) for name in names for seed in range(4)]

    def strided(case):
        return case.layout["x"] in ("transposed", "step")

    assert told(strided, cases) == (
        "all 8 cases that fail so, and none of 12 that pass: x with a last stride other than 1"
    )
    assert told(lambda c: c.layout["x"] not in ("contiguous", "offset"), cases) == (
        "all 12 cases that fail so, and none of 8 that pass: x not contiguous"
    )
    assert told(lambda c: c.layout["x"] == "offset", cases) == (
        "all 4 cases that fail so, and none of 16 that pass: x at an odd offset"
    )
    one_column = [replace(case(9, 1, x=name), seed=seed) for name in names for seed in range(4)]
    assert "stride" not in str(told(strided, one_column))  # no element has a neighbour there


def test_one_or_another_operand_at_an_odd_offset():
    cases = list(masked(seed=range(6), q=("contiguous", "offset"), k=("contiguous", "offset")))
    assert told(lambda c: "offset" in (c.layout["q"], c.layout["k"]), cases) == (
        "all 18 cases that fail so, and none of 6 that pass: q or k at an odd offset"
    )


def test_one_or_another_last_stride():
    names = ("contiguous", "sliced", "step")
    cases = list(masked(seed=range(4), q=names, k=names))

    def strided(case):
        return "step" in (case.layout["q"], case.layout["k"])

    assert told(strided, cases) == (
        "all 20 cases that fail so, and none of 16 that pass: q or k with a last stride other than 1"
    )


def test_rows_beyond_a_grid_are_told_by_the_axes_that_count_them():
    contract = registry.contract("attention")

    def of(**size):
        return plain_case(contract, "float32", "normal", size=dict(contract.sizes[0], **size))

    small = [of(B=batch, Hq=8, Hkv=1, Sq=seq) for batch in (1, 2, 5) for seq in (1, 3)]
    beyond = [plain_case(contract, "float32", "normal", size=size) for size in contract.beyond_grid if size["B"] > 1]
    assert common.in_common(beyond, small) == (
        "the one case that fails so, and none of 6 that pass: B*Hq from 65600 on (right up to 40), more than the 65535 "
        "blocks of a grid along y or z"
    )
    assert "grid" not in str(common.in_common([of(B=8200, Hq=8, Hkv=1)], small))  # not there for its rows


def test_one_or_another_of_few_cases_is_chance():
    given = [("contiguous", "none"), ("none", "contiguous"), ("none", "none")]

    def of(*counts):
        made = [
            next(masked(bias=(bias,), slopes=(slopes,), seed=(seed,)))
            for (bias, slopes), count in zip(given, counts, strict=True)
            for seed in range(count)
        ]
        return str(told(lambda c: (c.layout["bias"], c.layout["slopes"]) != given[2], made))

    assert "that pass: bias or slopes given" in of(6, 6, 12)
    assert "given" not in of(3, 3, 7)  # one of 1716 choices, where many things are looked at


def sized(op, **sizes):
    """Cases of some sizes and parameters, one for each choice of them."""
    contract = registry.contract(op)
    plain = plain_case(contract, "float32", "normal", size=contract.sizes[0])
    for chosen in itertools.product(*sizes.values()):
        now = dict(zip(sizes, chosen, strict=True))
        size = tuple((name, now.get(name, n)) for name, n in plain.sizes)
        params = tuple((name, now.get(name, value)) for name, value in plain.params)
        yield replace(plain, sizes=size, params=params, dtype=now.get("dtype", plain.dtype))


def test_what_is_told_among_the_cases_that_have_more_than_one_of_something():
    def fails(c):
        return c.size["Sq"] > 1 and c.size["H"] > 1

    cases = list(sized("mla_decode", B=(1, 2, 3), H=(1, 2, 4, 5), Sq=(1, 2, 3), Sk=(7, 9)))
    assert told(fails, cases) == (
        "all 36 cases that fail so have H from 2 on, and none of 18 with it that pass: Sq from 2 on (right up to 1)"
    )
    alone = [c for c in cases if fails(c) or c.size["H"] == 1]
    assert told(fails, alone).startswith("all 36 cases that fail so, and none of 18 that pass: H from 2 on")
    few = [c for c in alone if c.size["Sq"] < 3] + [c for c in cases if c.size == {**cases[0].size, "H": 2}] * 9
    of_one = [replace(c, seed=seed) for seed, c in enumerate(few)]
    assert "with it" not in str(told(fails, of_one))  # cases of one size are one


def test_a_thing_that_is_shared_has_to_tell_as_well():
    """A word that one case has without it, and passes: that says nothing of what is shared."""
    large, small = ([case(rows, 5, values=f"values{i}") for i in range(20)] for rows in (2, 1))
    wrong = [replace(c, dtype="float16") for c in large[:8]]
    one, many = ([*large, *(replace(c, dtype="float16") for c in small[:n]), *small[n:]] for n in (1, 9))
    assert common.in_common(wrong, one) == "all 8 cases that fail so, but only 1 of 40 that pass: dtype float16"
    shared = common.in_common([*wrong, *(replace(c, sizes=(("rows", 3), ("cols", 5))) for c in wrong)], many)
    assert shared is None or "rows from 2 on" not in shared  # of one size
    sizes = [(rows, cols) for rows in (2, 3, 4, 5) for cols in (5, 7, 9)]
    wrong = [case(*size, "float16") for size in sizes]
    right = [case(*size) for size in sizes] + [case(1, cols, "float16") for cols in (5, 7, 9, 11, 13)]
    assert common.in_common(wrong, [*right, *(case(1, cols) for cols in (5, 7, 9))]) == (
        "all 12 cases that fail so have dtype float16, and none of 5 with it that pass: rows from 2 on (right up to 1)"
    )


def test_a_parameter_that_is_a_number_and_what_is_left_of_a_size_by_it():
    """Of channels in groups one size of a case is several."""
    cases = list(sized("group_norm", N=(1, 2), C=(24, 48, 144), groups=(1, 2, 3, 4, 6, 8, 12, 24)))

    def fails(c):
        by = c.size["C"] // c.param["groups"]
        return c.param["groups"] > 1 and by & (by - 1) > 0

    assert told(fails, cases).endswith("with it that pass: C/groups no power of two")
    assert "that fail so have groups from 2 on, and none of" in told(fails, cases)


def test_the_greater_of_two_sizes_of_a_like_kind():
    pairs = [(3, 5), (5, 3), (4, 9), (9, 4), (6, 7), (7, 6), (8, 8), (11, 2), (2, 11), (12, 13), (17, 14), (3, 17)]
    cases = [
        c
        for causal in (False, True)
        for q, k in pairs
        for c in sized("attention", Sq=(q,), Sk=(k,), causal=(causal,), dtype=("float32", "float16"))
    ]

    def fails(c, more=0):
        return c.size["Sk"] > c.size["Sq"] + more

    assert told(fails, cases) == "all 24 cases that fail so, and none of 24 that pass: Sk greater than Sq"
    assert told(lambda c: not fails(c), cases).endswith("that pass: Sk not greater than Sq")
    assert told(lambda c: c.size["Sq"] > c.size["Sk"], cases).endswith("that pass: Sq greater than Sk")
    assert told(lambda c: c.param["causal"] and fails(c), cases) == (
        "all 12 cases that fail so have causal=True, and none of 12 with it that pass: Sk greater than Sq"
    )
    assert "greater" not in str(told(lambda c: fails(c, 2), cases))
    wrong, right = ([c for c in cases if fails(c) is kind] for kind in (True, False))
    assert "greater" not in str(common.in_common(wrong, right, relations=False))
    few = [c for c in cases if (c.size["Sq"], c.size["Sk"]) in pairs[:5]]
    assert "greater" not in str(told(fails, few))  # of 10 choices of sizes one


def test_equal_sizes_among_the_cases_that_share_something_are_told_by_several_sizes():
    square, oblong = [(5, 5), (24, 24), (64, 64), (97, 97), (33, 33), (7, 7)], [(5, 24), (24, 5), (97, 33), (7, 64)]
    cases = [
        case(*size, dtype, f"values{i}")
        for size in [*square, *oblong, *((cols, rows + 1) for rows, cols in oblong)]
        for dtype in ("float32", "float16")
        for i in range(4)
    ]

    def fails(c):
        return c.dtype == "float16" and c.size["rows"] == c.size["cols"]

    assert "have dtype float16, and none of 32 with it that pass: rows equal to cols" in told(fails, cases)
    few = [c for c in cases if (c.size["rows"], c.size["cols"]) in [*square[:2], *oblong]]
    assert "equal" not in str(told(fails, few))


def test_how_much_greater_is_told_where_the_greater_tells_nothing():
    pairs = [(q, q + more) for q in (3, 5, 8, 9) for more in (-2, 0, 1, 2, 4, 18, 20, 25)]
    cases = [c for q, k in pairs for c in sized("attention", Sq=(q,), Sk=(k,), dtype=("float32", "float16"))]

    def fails(c):
        return c.size["Sk"] - c.size["Sq"] > 4

    assert "Sk - Sq from 18 on (right up to 4)" in told(fails, cases)
    plainer = told(fails, [c for c in cases if fails(c) or c.size["Sk"] <= c.size["Sq"]])
    assert "Sk greater than Sq" in plainer and "Sk - Sq" not in plainer


def test_a_size_that_is_no_multiple_among_the_cases_that_share_something():
    pages = (1, 3, 8, 16, 20, 24, 32, 48, 64, 80)
    cases = list(sized("attention_paged", P=(9, 10), Hkv=(1, 2), page=pages, dtype=("float32", "float16")))
    assert told(lambda c: c.dtype == "float16" and c.size["page"] % 16 > 0, cases) == (
        "all 20 cases that fail so have dtype float16, and none of 20 with it that pass: page no multiple of 16"
    )
    assert told(lambda c: c.size["Hkv"] > 1 and c.size["page"] % 16 > 0, cases) == (
        "all 20 cases that fail so have Hkv from 2 on, and none of 20 with it that pass: page no multiple of 16"
    )


def noted(found, wrong, right):
    """What the diagnosis says after a run in which one finding is held against each of the cases `wrong`."""
    judged = []
    for c in [*wrong, *right]:
        findings = [replace(found, case=c.id)] if c in wrong else []
        outcome = Outcome(c.id, Kind.CASE, c.dtype, FAILED if findings else PASSED, findings=findings)
        judged.append((SimpleNamespace(case=c, kind=Kind.CASE), outcome))
    common.note(judged)
    return judged[0][1].findings[0].diagnosis or ""


def a_finding(check=Check.VALUES, diagnosis="y: wrong: everything", message="wrong"):
    return Finding("0" * 8, "failure", check, "a case", message, about="y", diagnosis=diagnosis)


def test_what_further_calls_and_what_passed_say_of_a_finding():
    """Nothing of the size that single steps have told; of two mutants the one that spoils nothing that passed."""
    wrong, right = ([case(*size) for size in SIZES if (size[1] > 64) is so] for so in (True, False))
    told = "y: wrong: everything; right with cols 64 and 128, wrong with cols 65, all else being equal"
    assert "cols from 1000 on" in noted(a_finding(), wrong, right)
    assert noted(a_finding(diagnosis=told), wrong, right) == told
    two = "equals the reference, but it is so (mutant partial_tile_dropped); or it is so (mutant base_2)"
    assert "base_2" not in noted(a_finding(diagnosis=two), [case(3, 65)], [case(3, cols) for cols in (32, 64)])


def test_wrong_values_of_one_case_tell_of_a_size_that_the_wrong_place_names():
    small, large = [case(rows, cols) for rows, cols in SIZES], [case(1032, 5000)]
    assert "that pass" not in noted(a_finding(), large, small)
    both = [*large, case(1032, 5000, "float16")]
    assert "(right up to" not in noted(a_finding(), both, small)
    place = a_finding(diagnosis="y: wrong: rows from 1000 on, the last 32 of 1032, all cols; as if x were 0")
    assert noted(place, large, small).endswith("none of 12 that pass: rows from 1032 on (right up to 17)")
    other = a_finding(diagnosis="y: wrong: everything; as if rows from 1000 on were 0")
    assert "that pass" not in noted(other, large, small)
    raised = noted(a_finding(Check.RAISED, None), large, small)
    assert raised.endswith("that pass: rows from 1032 on (right up to 17), cols from 5000 on (right up to 1000)")


def test_wrong_values_of_one_case_beyond_a_grid_tell_of_the_size_that_is_beyond_it():
    contract = registry.contract("attention_varlen")
    sizes = [dict(N=n, Tq=6, Tk=6, Sq=3, Sk=3, Hq=1, Hkv=1, D=4) for n in (2, 3, 4, 5, 6)]
    small = [plain_case(contract, "float32", "normal", size=size) for size in sizes]
    first, heads = (plain_case(contract, "float32", "normal", size=size) for size in contract.beyond_grid[:2])
    assert "Hq from 69001 on" in noted(a_finding(), [heads], small)
    told_of = noted(a_finding(), [first], small)
    assert "Tq from 2100 on" in told_of and "N from" not in told_of


@pytest.mark.parametrize(
    "found",
    [
        a_finding(diagnosis="int32 mul overflows, and wraps on a GPU: the exact 2214592512 becomes -2080374784"),
        a_finding(Check.BOUNDS, None, "offset -2147483648 in an int of 32 bits, which overflows: it has to be 64"),
    ],
)
def test_nothing_is_added_to_a_cause_that_was_seen(found):
    wrong, right = ([case(rows, cols, dtype) for rows, cols in SIZES] for dtype in ("float16", "float32"))
    assert "that pass" not in noted(found, wrong, right)
    assert "dtype float16" in noted(a_finding(), wrong, right)
