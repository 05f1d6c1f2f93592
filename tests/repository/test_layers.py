"""No room of `conformance` imports from above, and no circle exists. `python -m tests.layers` prints the graph."""

from collections import Counter

from tests import layers


def test_every_room_imports_from_below_only():
    assert not layers.problems(layers.arrows())


def test_there_is_no_circle_and_the_house_stays_small():
    found = layers.arrows()
    assert not layers.circles(found)
    assert len({room for arrow in found for room in arrow}) <= 19
    assert layers.floors(found) <= 10


def test_an_import_from_above_is_found(tmp_path):
    for name, text in {
        "conformance/spec/budget.py": "",
        "conformance/judging/judge.py": "from touchstone.conformance.spec import budget\n",
        "conformance/spec/cases.py": "def f():\n    from touchstone.conformance.judging.judge import run\n",
        "reference/softmax.py": "",
        "backends/__init__.py": "import touchstone.reference.softmax\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = layers.arrows(tmp_path)
    assert found == Counter({("judging", "spec"): 1, ("spec", "judging"): 1, ("backends", "reference"): 1})
    assert layers.problems(found) == [
        "backends imports reference, which is not below it",
        "spec imports judging, which is not below it",
    ]
    assert layers.circles(found) == [("judging", "spec")]


def test_a_room_without_a_layer_is_named():
    assert layers.problems(Counter({("attic", "spec"): 1})) == ["attic has no layer in tests/layers.py"]
