"""Which cases are judged: sizes and conditions as they are typed, and what is said of those that mean nothing."""

from dataclasses import replace

import pytest

from tests.fixed import changeable
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec.cases import plan
from touchstone.conformance.spec.contract import From
from touchstone.conformance.spec.narrowing import Narrowing, _param, absent, case_of, condition, parse_sizes, sizes_of
from touchstone.conformance.spec.words import did_you_mean, expected_one_of, not_one_of

ATTENTION = registry.contract("attention")
CASES = plan(ATTENTION, "quick").cases


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("D in (64, 128) and causal", lambda case: case.size["D"] in (64, 128) and case.param["causal"]),
        ("size['Sq'] % 64 == 0 and contiguous", lambda case: case.size["Sq"] % 64 == 0 and case.contiguous),
        ("q == 'step' or layout['k'] == 'offset'", lambda c: c.layout["q"] == "step" or c.layout["k"] == "offset"),
        ("not dtype == 'float32'", lambda case: case.dtype != "float32"),
        ("values == 'large' if causal else False", lambda case: case.values == "large" and case.param["causal"]),
        ("min(Sq, Sk) > 5 < max([Sq, Sk])", lambda case: min(case.size["Sq"], case.size["Sk"]) > 5),
        ("Sk and Sk & (Sk - 1) == 0", lambda c: c.size["Sk"] and c.size["Sk"] & (c.size["Sk"] - 1) == 0),
    ],
)  # fmt: skip
def test_a_condition_is_what_python_says(text, same):
    holds = condition(text, ATTENTION)
    found = [case for case in CASES if holds(case)]
    assert found == [case for case in CASES if same(case)]
    assert 0 < len(found) < len(CASES)


@pytest.mark.parametrize(
    "text",
    [
        *(f"D {operator} 24" for operator in ("+", "-", "*", "/", "//", "%", "&", "|", "^")),
        *(f"D {operator} 64" for operator in ("<", "<=", ">", ">=", "==", "!=")),
        *("-D", "+D", "~D", "D - 64", "not D - 64", "D is not Sk", "1 if causal else 0", "(D, Sk)[0] - 64"),
        *("D in {64, 128}", "D not in [64, 128]", "D in (64, 128)", "causal and D", "causal or Sk"),
        *("abs(D - 64)", "all([Sk, causal])", "any([causal, Sk > 64])", "len([D]) - 1", "sum([D, -64])"),
        *("size['D'] - 64", "param['causal']", "layout['q'] == q == 'step'", "contiguous", "values == 'normal'"),
    ],
)
def test_operators_functions_and_names_of_a_condition(text):
    holds = condition(text, ATTENTION)
    for case in CASES:
        general = dict(size=case.size, param=case.param, layout=case.layout, dtype=case.dtype, values=case.values)
        names = {**case.layout, **case.param, **case.size, **general, "contiguous": case.contiguous}
        assert holds(case) is bool(eval(text, {}, names))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Dd == 64", "'Dd' is no name of a case of attention; there are .*, D, .*; did you mean 'D'"),
        ("D ==", r"expected a Python expression such as \"B in \(64, 128\) and dtype == 'float16'\", got 'D =='"),
        ("", "expected a Python expression"),
        ("__import__('os').system('true')", r"\"__import__\('os'\).system\('true'\)\" cannot stand in a condition"),
        ("dtype.upper() == 'X'", "cannot stand in a condition"),
        ("dtype.__class__", "'dtype.__class__' cannot stand in a condition"),
        ("9**9**9", "the operator Pow cannot stand in a condition"),
        ("[D for D in (1, 2)]", "cannot stand in a condition"),
        ("(lambda: D)()", "cannot stand in a condition"),
        ("max(1, 2, key=abs)", "cannot stand in a condition"),
        ("f'{D}'", "cannot stand in a condition"),
        ("(D := 3)", "cannot stand in a condition"),
    ],
)
def test_a_condition_that_means_nothing_is_refused(text, told):
    with pytest.raises(ValueError, match=told):
        condition(text, ATTENTION)


def test_a_condition_without_a_value_names_the_case():
    with pytest.raises(ValueError, match=r"'D < dtype' has no value for float\d+-.*: TypeError: '<' not supported"):
        condition("D < dtype", ATTENTION)(CASES[0])


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("D=64", {"D": [64]}),
        ("Sq=64,128 D=64", {"Sq": [64, 128], "D": [64]}),
        ("Sq = 64, 128; D = 64", {"Sq": [64, 128], "D": [64]}),
        ("S=64,128,D=128", {"Sq": [64, 128], "Sk": [64, 128], "D": [128]}),
        ("H=2", {"Hq": [2], "Hkv": [2]}),
    ],
)
def test_sizes_as_they_are_typed(text, sizes):
    assert parse_sizes(text, ATTENTION) == sizes
    assert absent(sizes, ATTENTION, "quick") is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected NAME=N,N and so on, such as 'D=40', got ''"),
        ("64", "expected NAME=N,N"),
        ("D", "expected NAME=N,N"),
        ("D=", "expected NAME=N,N"),
        ("D=wide", "expected whole numbers, such as 'D=40', got 'wide'"),
        ("Dq=64", "'Dq' is not one of B, Hq, Hkv, Sq, Sk, D; did you mean 'D'"),
        ("E=64", "'E' is not one of B, Hq, Hkv, Sq, Sk, D$"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(text, told):
    with pytest.raises(ValueError, match=told):
        parse_sizes(text, ATTENTION)


def test_a_size_that_no_case_has_is_named_with_those_that_cases_have():
    told = absent({"D": [64, 104]}, ATTENTION, "quick")
    assert told.startswith("no case of attention at level quick has D=104; D is 8, 16, 17, ")
    told = absent({"trailing": [(9, 9)]}, registry.contract("group_norm"), "quick")
    assert told.startswith("no case of group_norm at level quick has trailing=(9, 9); trailing is scalar, ")
    assert "8x8" in told


def test_sizes_that_are_tuples():
    contract = registry.contract("group_norm")
    assert parse_sizes("trailing=8x8,64 C=64", contract) == {"trailing": [(8, 8), (64,)], "C": [64]}
    assert sizes_of({"trailing": (8, 8)}, contract) == {"trailing": [(8, 8)]}
    assert sizes_of({"trailing": [(8, 8), 64], "C": 64}, contract) == {"trailing": [(8, 8), (64,)], "C": [64]}


@pytest.mark.parametrize("given", [None, {}, 64, ["D"], {"D": "64"}, {"D": [6.4]}, {"D": True}])
def test_sizes_of_another_type_are_refused(given):
    with pytest.raises(TypeError, match="expected (a dict of names|whole numbers)"):
        sizes_of(given, ATTENTION)


def test_a_narrowing_says_what_leaves_a_case_out():
    narrowing = Narrowing(["float16"], lambda case: case.param["causal"], {"D": [64]})
    by = {case: narrowing.leaves_out(case) for case in CASES}
    assert set(by.values()) == {None, "dtypes", "sizes", "where"}
    for case, reason in by.items():
        right = case.dtype == "float16" and case.size["D"] == 64 and case.param["causal"]
        assert (reason is None) == right
    assert not Narrowing() and narrowing


def test_a_word_that_is_meant():
    assert not_one_of("sofmax", ["mlp", "softmax"]) == "'sofmax' is not one of mlp, softmax; did you mean 'softmax'?"
    assert not_one_of("xyz", ["matmul"]) == "'xyz' is not one of matmul"
    assert not_one_of("xyz", []) == "'xyz' is not one of none"
    assert expected_one_of("Quik", ["quick"], repr) == "expected one of 'quick', got 'Quik'; did you mean 'quick'?"
    assert did_you_mean("TRITON", ["Triton"]) == "; did you mean 'Triton'?"
    assert did_you_mean(None, [None, "auto"]) == ""


NORM, NORMS = registry.contract("rms_norm"), "rows=3 cols=33"


def test_a_case_in_words():
    """Every size; the rest where wanted."""
    plain = case_of(NORMS, NORM)
    assert (plain.dtype, plain.size, plain.values, plain.seed) == ("bfloat16", dict(rows=3, cols=33), "normal", 0)
    assert plain.param == {"eps": NORM.params["eps"][0]} and set(plain.layout.values()) == {"contiguous"}
    full = case_of("cols=33; rows=3, dtype=float16 x=transposed eps=0.25", NORM)
    assert (full.dtype, full.size, full.param) == ("float16", plain.size, {"eps": 0.25})
    assert full.layout == {"x": "transposed", "weight": "contiguous"} and full.values == next(iter(NORM.values))
    heads = case_of("B=1 Hq=4 Hkv=2 S=64 D=16 causal=true", ATTENTION)
    assert heads.size == dict(B=1, Hq=4, Hkv=2, Sq=64, Sk=64, D=16) and heads.param["causal"] is True
    tuples = registry.contract("elementwise")
    assert case_of("trailing=4x5 function=MUL", tuples).size == {"trailing": (4, 5)}
    assert case_of("trailing=4", tuples).size == {"trailing": (4,)}
    assert case_of("trailing=4 function=mul", tuples).param["function"] == "mul"


def test_a_name_in_a_case_is_that_of_a_size_first_then_of_a_parameter():
    operands = dict(NORM.operands, cols=NORM.operands["weight"], eps=NORM.operands["weight"])
    contract = replace(NORM, params=dict(NORM.params, rows=[7, 8]), operands=operands)
    found = case_of("rows=8 cols=33 eps=0.25", contract)
    assert (found.size, found.param) == (dict(rows=8, cols=33), {"eps": 0.25, "rows": 7})
    assert found.layout == dict.fromkeys(operands, "contiguous")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rows", "expected NAME=VALUE and so on, such as 'cols=33 dtype=bfloat16', got 'rows'"),
        ("rows=", "expected NAME=VALUE and so on, .* got 'rows='"),
        ("=3", "expected NAME=VALUE and so on, .* got '=3'"),
        ("rows=3 rows=4 cols=1", "rows: given twice"),
        (f"{NORMS} dtype=float64", "dtype: 'float64' is not one of float32, "),
        ("rows=3", "expected every size of rms_norm, rows, cols; cols lacks"),
        ("", "expected every size of rms_norm, rows, cols; rows, cols lacks"),
        (f"{NORMS} row=4", "row.*; other names are dtype, eps, x, weight"),
        ("rows=x cols=3", "expected whole numbers, such as 'cols=33', got 'x' in 'x'; other names are "),
        (f"{NORMS} x=sideways", "x: 'sideways' is not one of contiguous, transposed, "),
        (f"{NORMS} eps=much", "eps: expected one such as .*, got 'much'"),
        (f"{NORMS} eps=(1+2)", "eps: expected one such as .*, got"),
    ],
)
def test_a_case_in_words_that_mean_nothing(text, told):
    with pytest.raises(ValueError, match=told):
        case_of(text, NORM)


@pytest.mark.parametrize(("text", "value"), [("0.5", 0.5), ("1", 1), ("1e-06", 1e-6), ("1E-06", 1e-6)])
def test_a_parameter_of_the_kind_that_is_tried(text, value):
    found = _param("eps", text, NORM)
    assert found == value


def test_parameters_of_other_kinds():
    assert _param("causal", "False", ATTENTION) is False and _param("scale", "none", ATTENTION) is None
    assert _param("scale", "0.125", ATTENTION) == 0.125
    for name, text in (("causal", "1.5"), ("causal", "3"), ("causal", "'yes'"), ("scale", "big"), ("scale", "(1, 2)")):
        with pytest.raises(ValueError, match=f"{name}: expected one such as "):
            _param(name, text, ATTENTION)
    glu = registry.contract("glu")
    assert _param("activation", "SILU", glu) == "silu"
    with pytest.raises(ValueError, match="activation: expected one such as silu, .*, got 'softplus'"):
        _param("activation", "softplus", glu)
    varlen = registry.contract("attention_varlen")
    follows = next(name for name, options in varlen.params.items() if isinstance(options[0], From))
    assert _param(follows, "7", varlen) == 7
    with pytest.raises(ValueError, match=f"{follows}: expected one such as "):  # it is no value by itself
        _param(follows, str(varlen.params[follows][0]), varlen)


def test_what_is_passed_on_cannot_be_changed():
    assert changeable(Narrowing) == []
