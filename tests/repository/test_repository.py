"""The layout rules of docs/design.md, read off the files."""

import argparse
import ast
import configparser
import inspect
import json
import re
import shutil
import sys
from inspect import get_annotations
from pathlib import Path

import pytest

from tests import processes, targets
from tests.repository import pages
from touchstone.backends.protocol import Arrays, Backend, Compiling, OptionalParts, Porting
from touchstone.conformance import cli
from touchstone.conformance.discovery import registry
from touchstone.conformance.suite import plugin

ROOT = registry.ROOT
PACKAGES = ("reference", "backends", "conformance", "tests")
LIBRARIES = {"triton": {"triton"}, "cupy": {"cupy", "cupyx"}, "numba": {"numba", "numba_cuda"}}
TEXT = (".py", ".md", ".ini", ".toml", ".cu", ".cuh", ".h", ".cpp", ".json", ".txt", "")


FILES = pages.files()
SOURCES = [path for path in FILES if path.suffix == ".py"]


def sources(*parts: str) -> list[Path]:
    folder = ROOT.joinpath(*parts)
    return [path for path in SOURCES if folder in path.parents]


def stems(folder: Path) -> set[str]:
    """Public modules and packages of a folder."""
    inside = [p for p in SOURCES if p.parent == folder] + [
        p.parent for p in SOURCES if p.parent.parent == folder and p.name == "__init__.py"
    ]
    return {p.stem for p in inside if not p.stem.startswith("_")}


def imports(path: Path) -> set[str]:
    """Modules a file imports, anywhere in it, as dotted names; Touchstone's own without the package's name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    bare = {name for name in found if name.split(".")[0] in ("reference", "backends", "conformance")}
    assert not bare, f"{path}: {sorted(bare)} have to be imported as touchstone.…"
    return {name.removeprefix("touchstone.") for name in found} - {"touchstone"}


def tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def test_an_op_is_a_reference_and_a_contract():
    assert stems(ROOT / "reference") == stems(ROOT / "conformance" / "contracts") == set(registry.ops())
    assert [registry.contract(op).name for op in registry.ops()] == list(registry.ops())


@pytest.mark.slow
def test_contracts_and_faults_load_no_kernel_library_and_no_tool():
    """Which mode Triton and Numba import in is decided later; describing an op needs nothing that stands above it."""
    code = (
        "import sys\nfrom touchstone.conformance.discovery import registry\n"
        "for op in registry.ops(): registry.contract(op), registry.planted(op)\n"
        "print([name for name in ('triton', 'numba', 'cupy') if name in sys.modules])\n"
        "print(*{n.split('.')[2] for n in sys.modules if n.startswith('touchstone.conformance.')})"
    )
    done = processes.run_touchstone(["-c", code])
    libraries, rooms = done.stdout.splitlines()
    assert libraries == "[]"
    assert set(rooms.split()) == {"spec", "contracts", "faults", "discovery"}


def test_faults_belong_to_ops():
    assert stems(ROOT / "conformance" / "faults") - set(registry.backends()) == set(registry.ops())


def test_every_op_has_kernels_in_some_backend():
    assert {op for name in registry.backends() for op in registry.kernel_ops(name)} == set(registry.ops())


@pytest.mark.parametrize("backend", registry.backends())
def test_an_op_file_is_a_module_or_a_package(backend):
    folder = ROOT / "backends" / backend
    both = [op for op in registry.ops() if (folder / f"{op}.py").is_file() and (folder / op / "__init__.py").is_file()]
    assert not both


def signatures_of(protocol: type) -> dict[str, list[str]]:
    """The functions of a Protocol with the names of their arguments."""
    return {
        name: list(inspect.signature(value).parameters)[1:]
        for name, value in vars(protocol).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }


@pytest.mark.parametrize("part", [Compiling, Porting, Arrays], ids=lambda part: part.__name__.lower())
def test_the_optional_modules_of_a_backend_are_whole(part):
    """Without importing them: arrays may come from an object of that form inside the module."""
    for name in registry.backends():
        path = ROOT / "backends" / name / f"{part.__name__.lower()}.py"
        if not path.is_file():
            continue
        tree = ast.parse(path.read_text())
        functions = {
            node.name: [a.arg for a in node.args.args] for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }
        for function, arguments in signatures_of(part).items():
            assert [a for a in functions.get(function, ["missing"]) if a != "self"] == arguments, (path, function)


@pytest.mark.parametrize("backend", registry.backends())
def test_the_backend_protocol_is_whole(backend):
    """Without importing any kernel library."""
    tree = ast.parse((ROOT / "backends" / backend / "__init__.py").read_text())
    functions = {node.name: [a.arg for a in node.args.args] for node in tree.body if isinstance(node, ast.FunctionDef)}
    names = {
        t.id for node in tree.body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)
    }
    names |= {
        node.target.id for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert set(get_annotations(Backend)) <= names
    wanted = signatures_of(Backend)
    assert {name: functions.get(name) for name in wanted} == wanted
    optional = signatures_of(OptionalParts)
    offered = {name: functions[name] for name in optional if name in functions}
    assert all(found[: len(optional[name])] == optional[name] for name, found in offered.items() if name != "tune")
    top = {alias.name.split(".")[0] for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    top |= {(node.module or "").split(".")[0] for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert not top & LIBRARIES.get(backend, {backend})
    assert "torch" not in top
    first = tree.body[1] if ast.get_docstring(tree) else tree.body[0]
    assert isinstance(first, (ast.Assert, ast.If))
    assert "__name__" in ast.unparse(first)
    assert f"touchstone.backends.{backend}" in ast.unparse(first)


@pytest.mark.parametrize("backend", registry.backends())
def test_the_backend_protocol_answers(backend):
    module = registry.backend(backend)
    for device in ("cpu", "cuda"):
        reason = module.why_not(device)
        assert reason is None or (isinstance(reason, str) and len(reason) > 10)
        assert module.WORK_PER_SECOND[device] > 0 or reason
    assert set(module.ALIASES.values()) <= {"cpu", "cuda"}
    assert not set(module.ALIASES) & set(registry.backends())
    assert module.reimport(lambda x: x, "cpu") is False


VARIANTS = """
import json, sys
for name in {absent}:
    sys.modules[name] = None
from touchstone.conformance.discovery import registry
backend = registry.backend({backend!r})
if reason := backend.why_not("cpu"):
    print(json.dumps({{"skip": reason}}))
else:
    backend.prepare("cpu")
    found = {{op: registry.variants({backend!r}, op) for op in registry.kernel_ops({backend!r})}}
    print(json.dumps({{op: {{name: fn.__doc__ for name, fn in variants.items()}} for op, variants in found.items()}}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", [name for name in registry.backends() if registry.kernel_ops(name)])
def test_ladders_are_what_the_docstrings_list(backend, tmp_path):
    """In a process that has none of the other backends' libraries."""
    absent = sorted(library for other, libraries in LIBRARIES.items() if other != backend for library in libraries)
    script = VARIANTS.format(absent=absent, backend=backend)
    done = processes.run_python(["-c", script], tmp_path, environment={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    if "skip" in found:
        pytest.skip(found["skip"])
    assert {op: list(variants) for op, variants in found.items()} == {op: registry.ladder(backend, op) for op in found}
    assert all(found.values())
    undocumented = [f"{op}.{name}" for op, variants in found.items() for name, doc in variants.items() if not doc]
    assert not undocumented


@pytest.mark.parametrize("backend", registry.backends())
def test_a_backend_uses_its_own_library_and_no_other_folder(backend):
    others = {f"touchstone.backends.{name}" for name in registry.backends() if name != backend}
    libraries = set().union(*(LIBRARIES.get(name, {name}) for name in registry.backends() if name != backend))
    for path in sources("backends", backend):
        found = imports(path)
        assert not {"reference", "conformance", "tests"} & tops(path), path
        assert not libraries & tops(path), path
        assert not [name for name in found if name.startswith(tuple(others))], path


def test_what_backends_share_knows_none_of_them():
    for path in sources("backends"):
        if path.parent == ROOT / "backends":
            assert not tops(path) & {"reference", "conformance", "tests", *set().union(*LIBRARIES.values())}, path


def test_the_reference_needs_no_kernel_library():
    for path in sources("reference"):
        assert tops(path) <= {"math", "numpy", "torch", "reference"} | set(sys.stdlib_module_names), path
        assert not tops(path) & {"backends", "conformance", "tests"}


def strings(tree: ast.AST) -> list[str]:
    """String literals that are no docstrings."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in docs
    ]


def identifiers(tree: ast.AST) -> list[str]:
    """Names of variables, attributes, functions, classes, arguments and modules."""
    fields = ("id", "attr", "name", "asname", "arg", "module")
    found = [getattr(node, field, None) for node in ast.walk(tree) for field in fields]
    return [name for name in found if isinstance(name, str)]


WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
ORDINARY = {
    "add",
    "group",
    "layer",
    "online",
    "gated",
    "backward",
    "transpose",
    "decode",
    "masked",
    "dot",
    "reduce",
    "rows",
    "merge",
    "states",
}  # of ops' names: they have other meanings too
TORCH_SETTING = re.compile(r"float32[_ ]matmul[_ ]precision")  # what torch calls a setting that is watched and restored


def named_ops(text: str) -> set[str]:
    """The backends that an identifier or a string names, and what in it belongs to an op's name."""
    parts = {part for op in registry.ops() for part in op.split("_")} - ORDINARY
    words = {word.lower() for word in WORDS.findall(TORCH_SETTING.sub("", text))}
    suffix = {"_backward"} if re.search(r"_backward\b", text) else set()
    return words & (parts | set(registry.backends())) | suffix


def test_names_of_ops_are_seen_in_identifiers_and_strings():
    told = ("AttentionMask", "online_softmax", "a matmul", "set_float32_matmul_precision", "op + _backward", "cupy13")
    seen = [{"attention"}, {"softmax"}, {"matmul"}, set(), {"_backward"}, {"cupy"}]
    assert list(map(named_ops, told)) == seen
    assert not any(map(named_ops, ("add_argument", "Group", "backward", "normal", "standalone")))


def test_the_judge_names_no_op_and_no_backend():
    """Only contracts and faults do; what is derived from functions of torch, or changes them where a reference calls
    them, knows the names of torch's."""
    for path in sources("conformance"):
        if path.relative_to(ROOT).parts[1] in ("contracts", "faults", "derived") or path.name == "alterations.py":
            continue
        tree = ast.parse(path.read_text())
        found = {text: named for text in {*strings(tree), *identifiers(tree)} if (named := named_ops(text))}
        assert not found, path


def test_a_contract_belongs_to_its_own_op():
    """A contract may build on another's; a backend is none of its business."""
    for path in sources("conformance", "contracts"):
        assert "backends" not in tops(path), path
        assert not set().union(*LIBRARIES.values()) & tops(path), path


def test_every_folder_with_code_is_a_package():
    for folder in {path.parent for name in PACKAGES for path in sources(name)}:
        assert (folder / "__init__.py").is_file(), folder


def tox() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini")
    return parser


def environments() -> list[str]:
    return [name.strip() for name in tox()["tox"]["env_list"].replace("\n", ",").split(",") if name.strip()]


def test_tox_has_an_environment_for_each_backend_and_alias():
    names = environments()
    assert len(set(names)) == len(names)
    sections = {name.removeprefix("testenv:") for name in tox().sections() if name.startswith("testenv:")}
    assert sections == set(names)
    aliases = {alias for name in registry.backends() for alias in registry.backend(name).ALIASES}
    targets_of = {name for name in names if "--backend=" in tox()[f"testenv:{name}"]["commands"]}
    assert targets_of == {*registry.backends(), *aliases}
    for name in targets_of:
        commands = tox()[f"testenv:{name}"]["commands"]
        assert f"--backend={name} " in commands
        assert "{posargs:--level quick}" in commands


def test_tox_passes_what_chooses_a_device():
    passed = tox()["testenv"]["pass_env"].split()
    variables = {v for name in registry.backends() for v in registry.backend(name).CPU_VARIABLES} | {
        "CUDA_VISIBLE_DEVICES"
    }
    for variable in variables:
        assert any(variable == p or (p.endswith("*") and variable.startswith(p[:-1])) for p in passed), variable


def fast_rooms() -> list[str]:
    return re.findall(r"\btests/(\w+)", tox()["testenv:fast"]["commands"])


def test_the_fast_environment_runs_every_room_that_needs_torch_alone():
    rooms = [path for path in sources("tests") if path.name == "__init__.py" and path.parent != ROOT / "tests"]
    needs = {path.parent.name: str(ast.get_docstring(ast.parse(path.read_text()))) for path in rooms}
    assert fast_rooms() == sorted(set(fast_rooms()), key=fast_rooms().index)
    assert set(fast_rooms()) == {room for room, text in needs.items() if text.endswith("Needs torch alone.")}
    assert not re.search(r"triton|cuda|cupy|numba", tox()["testenv:fast"]["deps"])


@pytest.mark.level("default")
@pytest.mark.slow
def test_the_fast_environment_imports_no_kernel_library():
    libraries = sorted(set().union(*LIBRARIES.values()))
    folders = [f"tests/{room}" for room in fast_rooms()]
    options = ["-m", "not slow and not needs", "--collect-only", "-q", "--device=cpu", "-p", "no:cacheprovider"]
    code = (
        f"import sys\nfor name in {libraries}: sys.modules[name] = None\n"
        f"import pytest\nstatus = pytest.main({[*folders, *options]})\n"
        f"sys.exit(status or any(sys.modules[name] for name in {libraries}))"
    )
    done = processes.run_touchstone(["-c", code])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def commands() -> dict[str, set[str]]:
    """The commands of `python -m touchstone` and their options."""
    (choices,) = (a.choices for a in cli.parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {name: options(sub) for name, sub in choices.items()}


class Collector:
    """Takes pytest options instead of pytest."""

    def __init__(self):
        self.names = set()

    def getgroup(self, *args):
        return self

    def addoption(self, *names, **rest):
        self.names |= set(names)


def pytest_options() -> set[str]:
    collector = Collector()
    plugin.pytest_addoption(collector)
    return collector.names | {"--pdb", "--collect-only", "--durations", "--benchmark-only", "--pyargs"}


DOCUMENTS = [path for path in FILES if path.suffix == ".md"] + [path for path in FILES if path.parent.name == ".ci"]


def lines(path: Path) -> list[str]:
    return [line.split("  #")[0] for line in path.read_text().splitlines()]


def flags(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_commands_that_exist(path):
    known = commands()
    for line in lines(path):
        for rest in re.findall(r"python -m touchstone ([^`]*)", line):
            name = rest.split()[0].rstrip(":") if rest.split() else ""  # an error begins "python -m touchstone check: "
            if name in ("COMMAND", "…", "..."):
                continue
            assert name in known, line
            assert flags(rest.split(" && ")[0]) <= known[name], line
        for name in re.findall(r"\btox -e ([\w,]+)", line):
            assert set(name.split(",")) <= set(environments()), line
        for rest in re.findall(r"\bpytest ((?:-[^`]*)?)", line):
            assert flags(rest) <= pytest_options(), line


@pytest.mark.parametrize(
    "path", [p for p in DOCUMENTS if p.suffix == ".md"], ids=lambda path: str(path.relative_to(ROOT))
)
def test_links_of_documents_lead_somewhere(path):
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
        if not target.startswith(("http://", "https://")):
            assert (path.parent / target).exists(), target


# in two pieces, so that this file does not hold what it looks for
MACHINE = re.compile("|".join("/" + rest for rest in ("work/", "root/", "opt/", "home/", "tmp/bash", "Users/")))
HOSTS = re.compile("|".join(("index" + "-url", "trusted" + "-host", r"pypi\.(?!org)" + "[a-z]+")))


def test_no_file_names_a_machine():
    for path in FILES:
        if path.suffix not in TEXT or path.name == "LICENSE":
            continue
        text = path.read_text(errors="replace")
        for pattern in (MACHINE, HOSTS):
            found = pattern.search(text)
            assert not found, f"{path.relative_to(ROOT)}: {found.group()}"


def test_no_leftovers():
    """Nothing that only its writer needs."""
    words = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")))
    for path in SOURCES:
        assert not words.search(path.read_text()), path


def test_every_module_says_what_it_is():
    silent = [
        path.relative_to(ROOT)
        for path in SOURCES
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


@pytest.mark.slow
def test_the_clone_works_from_another_folder(tmp_path):
    code = "from touchstone import conformance; print(conformance.__file__)"
    done = processes.run_python(["-c", code], tmp_path, environment={"PYTHONPATH": str(ROOT)})
    assert done.stdout.strip() == str(ROOT / "touchstone" / "conformance" / "__init__.py"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["backends", "conformance", "reference"])
def test_no_module_exists_under_two_names(tmp_path, name):
    """In the clone's own folder, where Python finds `reference` beside `touchstone`."""
    environment = {"PYTHONPATH": str(ROOT)}
    done = processes.run_python(["-c", f"import {name}"], tmp_path, environment=environment)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: touchstone.{name} was imported as {name!r}"), done.stderr
    inner = {"backends": "devices", "conformance": "check", "reference": "softmax"}[name]
    assert processes.run_python(["-c", f"import {name}.{inner}"], tmp_path, environment=environment).returncode == 1


def test_the_package_is_links_to_the_folders_beside_it():
    for name in ("backends", "conformance", "reference"):
        link = ROOT / "touchstone" / name
        assert link.is_symlink() and link.resolve() == ROOT / name


def test_a_new_op_needs_no_list(tmp_path, monkeypatch):
    """The path is the registration: three files make an op, one a kernel."""
    for folder in ("conformance/contracts", "conformance/faults", "reference", "backends/paper"):
        (tmp_path / folder).mkdir(parents=True)
    targets.write_backends(tmp_path / "made")
    shutil.copy(tmp_path / "made" / "paper" / "__init__.py", tmp_path / "backends" / "paper")
    for name in (
        "conformance/contracts/fft.py",
        "conformance/faults/fft.py",
        "reference/fft.py",
        "reference/_helper.py",
        "conformance/contracts/lonely.py",
    ):
        (tmp_path / name).touch()
    (tmp_path / "backends" / "paper" / "fft.py").write_text(
        '"""fft: of x.\n\nslow: by definition\n`fast`: by halves\n"""\n'
    )
    (tmp_path / "backends" / "paper" / "plumbing.py").touch()
    (tmp_path / "backends" / "shelf").mkdir()
    (tmp_path / "backends" / "shelf" / "__init__.py").write_text('"""No backend: it has no protocol."""\n')
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    cached = (registry.ops, registry.backends, registry.contract)
    for function in cached:
        function.cache_clear()
    try:
        assert registry.ops() == ("fft",)
        assert registry.backends() == ("paper",)
        assert registry.kernel_ops("paper") == ("fft",)
        assert registry.ladder("paper", "fft") == ["slow", "fast"]
        assert registry.ladder("paper", "dct") == []
        with pytest.raises(ValueError, match="op: 'softmax' is not one of fft"):
            registry.contract("softmax")
        with pytest.raises(ValueError, match="backend: 'shelf' is not one of paper"):
            registry.backend("shelf")
    finally:
        monkeypatch.undo()
        for function in cached:
            function.cache_clear()


def test_every_signature_belongs_to_an_op():
    assert stems(ROOT / "backends" / "signatures") <= set(registry.ops())


def test_attributes_of_variants_are_declared_by_the_decorator():
    """An attribute set by hand, or misspelt, would be read by nobody."""
    for path in sources("backends"):
        tree = ast.parse(path.read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            by_hand = [t for t in targets if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name)]
            assert not [t for t in by_hand if t.value.id in functions], f"{path}:{node.lineno}: use @variant(...)"
