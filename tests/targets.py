"""A small world of made-up backends, in plain torch, for the rules of selection: nothing here needs a kernel library.

paper   runs on the CPU and on a GPU; one variant computes in tf32, one needs hardware that is not there
chalk   runs on the CPU only; `chalksim` and CHALK_SIM=1 mean so
slate   runs on a GPU only
quill   is not installed
blank   has no kernels yet
"""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from touchstone import backends
from touchstone.conformance.discovery import registry, selection

PROTOCOL = """
ALIASES = {aliases}
CPU_VARIABLES = {variables}
PACKAGES = ()
WORK_PER_SECOND = {{"cpu": 1e9, "cuda": 1e12}}
NOTES = ()
PREPARED = []


def why_not(device):
    return {reasons}.get(device)


def prepare(device):
    PREPARED.append(device)


def adopt(fn, device):
    pass


def reimport(fn, device):
    return False


def lacks(needs, device):
    return f"needs {{needs}}; this is plain"


def doctor():
    return [("ink", "blue", "refill on Mondays")]


def resources(kernel):
    return {{}}
"""

RIGHT = """
def {name}(x):
    shapes("rows cols", x=x)
    with running():
        return torch.softmax(x.float(), -1).to(x.dtype).contiguous()
"""
TOP = (
    '"""{doc}\n\n{variants}\n"""\n\nimport torch\n\nfrom touchstone.backends import Unsupported, running, shapes\n'
    "from touchstone.backends.variants import variant\n"
)


def _op_file(source: str, *names: str) -> str:
    return TOP.format(doc="softmax", variants="\n".join(f"{name}: a variant" for name in names)) + source


PLAIN = _op_file(RIGHT.format(name="plain"), "plain")
PAPER = _op_file(
    RIGHT.format(name="plain")
    + '\n\n@variant(compute="tf32")'
    + RIGHT.format(name="folded")
    + '\n\n@variant(needs="sm_999")'
    + RIGHT.format(name="gilded"),
    "plain",
    "folded",
    "gilded",
)
WRONG = _op_file(
    (
        '\n\ndef plain(x):\n    shapes("rows cols", x=x)\n    return torch.zeros_like(x, '
        "memory_format=torch.contiguous_format)\n"
    ),
    "plain",
)
RAISING = _op_file(
    '\n\ndef plain(x):\n    shapes("rows cols", x=x)\n    raise ZeroDivisionError("spilt ink")\n', "plain"
)
SHY = _op_file(
    '\n\ndef plain(x):\n    shapes("rows cols", x=x)\n    raise Unsupported("not in this weather")\n', "plain"
)
NEEDY = _op_file('\n\n@variant(needs="sm_999")' + RIGHT.format(name="plain"), "plain")
BROKEN = _op_file("\n\nimport parchment_and_nothing_else\n", "plain")

GPU_ONLY = {"cpu": "slate wants a GPU"}
NO_GPU = {"cuda": "there is no GPU in this story"}
NOT_INSTALLED = {
    "cpu": "quill is not installed: pip install quill",
    "cuda": "quill is not installed: pip install quill",
}

# name -> (aliases, variables that mean the CPU, device -> why it does not run there, op -> file)
WORLD = {
    "paper": ({}, (), {}, {"softmax": PAPER, "matmul": PLAIN}),
    "chalk": ({"chalksim": "cpu"}, ("CHALK_SIM",), NO_GPU, {"softmax": PLAIN}),
    "slate": ({}, (), GPU_ONLY, {"softmax": PLAIN}),
    "quill": ({}, (), NOT_INSTALLED, {"softmax": PLAIN}),
    "blank": ({}, (), {}, {}),
}
FAULTY = {
    name: ({}, (), {"cuda": "only asked for by name", "cpu": None}, {"softmax": source})
    for name, source in [("wrong", WRONG), ("raising", RAISING), ("shy", SHY), ("needy", NEEDY), ("broken", BROKEN)]
}


def write_backends(folder: Path, world: dict = WORLD) -> None:
    for name, (aliases, variables, reasons, ops) in world.items():
        (folder / name / "runtime").mkdir(parents=True)
        (folder / name / "runtime" / "__init__.py").touch()
        text = PROTOCOL.format(aliases=aliases, variables=variables, reasons=reasons)
        (folder / name / "__init__.py").write_text(text)
        for op, source in ops.items():
            (folder / name / f"{op}.py").write_text(source)


def write_clone(root: Path, world: dict) -> None:
    """A clone with two ops and made-up backends."""
    ours = registry.ROOT
    without = shutil.ignore_patterns("__pycache__", "contracts", "faults")
    shutil.copytree(ours / "touchstone", root / "touchstone", symlinks=True, ignore=without)
    shutil.copytree(ours / "conformance", root / "conformance", ignore=without)
    for package in ("reference", "conformance/contracts", "conformance/faults"):
        (root / package).mkdir()
        for path in (ours / package).glob("*.py"):
            if path.stem in ("softmax", "matmul") or path.stem.startswith("_"):
                shutil.copy(path, root / package)
    (root / "backends").mkdir()
    for path in (ours / "backends").glob("*.py"):
        shutil.copy(path, root / "backends")
    for name in ("cuda_face", "storage"):
        shutil.copytree(ours / "backends" / name, root / "backends" / name, ignore=without)
    for name in ("conftest.py", "tox.ini"):
        shutil.copy(ours / name, root)
    (root / "tests").mkdir()
    write_backends(root / "backends", world)


@contextmanager
def pretend(folder: Path, monkeypatch, world: dict = WORLD) -> Iterator[None]:
    """Make this process believe in a clone at `folder` with the made-up backends, two ops and no GPU."""
    write_backends(folder / "backends", world)
    for package in ("conformance/contracts", "conformance/faults", "reference"):
        (folder / package).mkdir(parents=True)
        for op in ("softmax", "matmul"):
            (folder / package / f"{op}.py").touch()
    with monkeypatch.context() as patch:
        patch.setattr(registry, "ROOT", folder)
        patch.setattr(backends, "__path__", [*backends.__path__, str(folder / "backends")])
        patch.setattr(selection, "cuda_unavailable", lambda: "no GPU in this story")
        _forget(world)
        yield
    _forget(world)


def _forget(world: dict) -> None:
    for cached in (registry.ops, registry.contract, registry.backends):
        cached.cache_clear()
    made_up = tuple(f"touchstone.backends.{name}" for name in world)
    for name in [name for name in sys.modules if name.startswith(made_up)]:
        del sys.modules[name]
        parent, _, child = name.rpartition(".")
        if parent in sys.modules and hasattr(sys.modules[parent], child):
            delattr(sys.modules[parent], child)
