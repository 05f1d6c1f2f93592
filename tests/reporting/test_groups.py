"""Findings of one root cause are shown once, with their number."""

from touchstone.conformance.judging.judgement import Finding
from touchstone.conformance.reporting.groups import grouped
from touchstone.conformance.spec.checks import Check, Requirement

NUMBER = iter(range(10**6))


def finding(check, message, case="float32-3x33-normal", **about) -> Finding:
    return Finding(f"{next(NUMBER):08x}", about.pop("severity", "failure"), check, f"{case} (seed 0)", message, **about)


def out_of_bounds(line, offset, case="float32-3x33-normal"):
    message = f"OutOfBounds: _k (k.py:{line}), program ({offset}, 0, 0): store of lane [{offset}] at element {offset}"
    return finding(Check.RAISED, message, case, raised="OutOfBounds")


def counts(findings):
    return [len(group.findings) for group in grouped(findings)]


def test_one_line_that_raises_is_one_cause_and_the_largest_comes_first():
    found = [out_of_bounds(12, 7), *(out_of_bounds(98, offset) for offset in range(25)), out_of_bounds(12, 8)]
    assert counts(found) == [25, 2]
    text = grouped(found)[0].text("python -m touchstone replay 1")
    assert text.startswith("25 trials: [")
    assert "k.py:98" in text.splitlines()[0]
    assert text.splitlines()[-1] == "    repeat: python -m touchstone replay 1"


def test_one_line_that_ends_the_process_is_one_cause_whatever_was_asked_of_it():
    def crash(line, requirement, check=Check.CRASH):
        return finding(check, f"abort at k.py:{line}, in k", requirement=requirement)

    found = [crash(4, Requirement.VALUES), crash(4, Requirement.LAYOUTS), crash(4, Requirement.EMPTY)]
    assert counts([*found, crash(9, Requirement.VALUES)]) == [3, 1]
    assert counts([found[0], crash(4, Requirement.VALUES, Check.HANG)]) == [1, 1]


def test_a_single_finding_has_no_count():
    assert grouped([out_of_bounds(12, 7)])[0].text().startswith("[")


def test_wrong_values_are_grouped_by_output_requirement_and_what_is_there():
    def wrong(got, output="y", requirement=Requirement.VALUES, **about):
        message = f"{output}: 3 of 99 elements wrong; first at [0, 2]: got {got}, expected 0.5 ± 1e-7"
        return finding(Check.VALUES, message, error=3.0, about=output, requirement=requirement, **about)

    assert counts([wrong("0.25"), wrong("0.75"), wrong("-1e-7")]) == [3]
    assert counts([wrong("nan"), wrong("0.5")]) == [1, 1]
    assert counts([wrong("inf"), wrong("-inf")]) == [2]
    assert counts([wrong("0.25"), wrong("0.25", "lse")]) == [1, 1]
    assert counts([wrong("0.25"), wrong("0.25", requirement=Requirement.LAYOUTS)]) == [1, 1]
    assert counts([wrong("0.25"), wrong("0.25", passes_as="tf32")]) == [1, 1]
    assert counts([wrong("0.25"), wrong("0.25", severity="note")]) == [1, 1]
    leaning = finding(Check.VALUES, "y: errors lean one way: the mean signed error ... -0.3 eps", about="y", error=2.0)
    assert counts([wrong("0.25"), leaning]) == [1, 1]
    assert [group.findings[0].about for group in grouped([leaning, leaning, wrong("0.25", "lse")])] == ["lse", "y"]


def test_the_example_is_the_first_whose_diagnosis_names_a_cause():
    def wrong(case, diagnosis):
        message = "y: 3 of 99 elements wrong; first at [0, 2]: got 0.25, expected 0.5 ± 1e-7"
        return finding(Check.VALUES, message, case, error=3.0, about="y", diagnosis=diagnosis)

    where = wrong("float32-3x33-normal", "y: wrong: everything")
    none = wrong("float32-1x1-tiny", None)
    as_if = wrong("float16-3x33-normal", "y: wrong: everything; as if weight were 0")
    mutant = wrong("bfloat16-3x33-normal", "equals the reference, but the sign is wrong (mutant negated)")
    for causes in ([as_if, mutant], [mutant, as_if]):
        (group,) = grouped([none, where, *causes])
        assert group.example is causes[0]
        assert f"in {causes[0].case}, and 3 more findings: 2 float32" in group.text()
    (group,) = grouped([where, none])
    assert group.example is where
    told = [  # the more telling first
        as_if,
        wrong(
            "float32-5x3-normal", "y: wrong: everything; right as the first call of the file, and wrong after others"
        ),
        wrong(
            "float32-7x3-normal", "y: wrong: everything; y[0] changes with rows 1 of x, on which its answer does not"
        ),
        where,
    ]
    for count in range(1, len(told)):
        (group,) = grouped(reversed(told[-count - 1 :]))
        assert group.example is told[-count - 1]
    both = wrong(
        "float32-3x33-normal", "equals the reference, but it is (mutant negated); or it is not (mutant shifted)"
    )
    other = wrong("float32-7x33-normal", "equals the reference, but it is (mutant third)")
    for found, example in ([both, as_if], both), ([both, other, mutant], mutant), ([as_if, both, mutant], as_if):
        (group,) = grouped(found)
        assert group.example is example


def test_messages_without_their_numbers_dtypes_and_calls():
    dtype = "y: expected torch.{}, got torch.float32"
    found = [finding(Check.DTYPE, dtype.format(name), about="y") for name in ("float16", "bfloat16")]
    assert counts(found) == [2]
    strides = "expected a contiguous tensor, got strides"
    found = [
        finding(Check.STRIDES, f"y: {strides} (1, 3)"),
        finding(Check.STRIDES, f"call 5 of 50 (x far): y: {strides} (1, 7)"),
    ]
    assert counts(found) == [2]
    assert counts([finding(Check.RETURNS, "returned 2 values"), finding(Check.SHAPE, "returned 2 values")]) == [1, 1]


def test_the_others_are_counted_by_dtype_and_family():
    cases = ["float32-3x33-normal", "float16-3x33-normal-x:step", "float16-1x1-tiny", "calls-bfloat16"]
    (group,) = grouped(out_of_bounds(98, i, case) for i, case in enumerate(cases))
    assert "in float32-3x33-normal (seed 0), and 3 more findings: 2 float16, 1 bfloat16 (normal, tiny)" in group.text()
