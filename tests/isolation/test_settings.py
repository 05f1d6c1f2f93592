"""What a child may take, and what it is told, there and back."""

import pytest

from tests.fixed import changeable
from touchstone.conformance.isolation.sandbox.settings import ALL, DEFAULT, Limits, Measure, Settings


@pytest.mark.parametrize("name", ["memory", "processes", "open_files", "file", "files", "output", "seconds"])
def test_a_limit_is_a_number_above_0(name):
    for value in (0, -1, True, False, "3", float("nan")):
        with pytest.raises(ValueError, match=f"^{name}: expected a positive number, got "):
            Limits(**{name: value})
    assert getattr(Limits(**{name: 1}), name) == 1
    if name == "seconds":
        assert Limits(seconds=0.5).seconds == 0.5 and Limits(seconds=None).seconds is None
    else:
        for value in (1.5, None):
            with pytest.raises(ValueError, match=f"^{name}: expected a positive number, got "):
                Limits(**{name: value})


def test_settings_travel_as_text():
    settings = Settings(
        folder="/tmp/x",
        measures=ALL - {Measure.MEMORY},
        limits=Limits(seconds=2.5, files=7),
        device="cuda",
        readable=("/a", "/b"),
        covered=("/c",),
        user=61184,
        group="/sys/fs/cgroup/x",
        environment={"HOME": "/tmp/x/home"},
        keep=(3, 9),
        status=5,
        output=6,
    )
    assert Settings.from_json(settings.to_json()) == settings and settings.home == "/tmp/x/home"
    assert Limits() == DEFAULT and DEFAULT.seconds is None


def test_what_is_passed_on_cannot_be_changed():
    assert changeable(Limits, Settings) == []
