"""The texts of checks: records and the ids of findings have them, so none may change."""

from touchstone.conformance.spec.checks import Check, Requirement


def test_the_texts_of_checks_stay():
    assert " ".join(Check) == (
        "returns shape dtype device strides alias values raised compiles inputs state bounds library honest work "
        "invalid graph repeat held property: under portability crash hang memory context canary"
    )


def test_the_texts_of_requirements_stay():
    assert " ".join(Requirement) == "values layouts special empty offsets determinism contract"
    assert all(requirement.about for requirement in Requirement)


def test_a_check_that_carries_a_name():
    assert Check.PROPERTY.of("shift invariance") == "property: shift invariance"
    assert Check.UNDER.of("races") == "under races"
