"""Compile conformance with a made-up compiler: what is compiled for which architecture, and what fails."""

import os
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace

import psutil
import pytest
import torch

from tests import processes, targets
from touchstone.backends.variants import HALF
from touchstone.backends.variants import variant as declared
from touchstone.conformance.compiling import client, server
from touchstone.conformance.compiling import plan as planning
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec.cases import plan

PAPER_COMPILER = """
from contextlib import contextmanager
@contextmanager
def recording(arch):
    yield []
def architectures(needs):
    return ("sm_80",)
print("printed by the way")
"""
CRASHING_COMPILER = """
import os
from contextlib import contextmanager
class Launch:
    types, features, weight = (), frozenset(), 1
    def __init__(self, kernel):
        self.kernel = self.key = kernel
    def __str__(self):
        return self.kernel
@contextmanager
def recording(arch):
    yield [Launch("_first"), Launch("_second")]
def architectures(needs):
    return ("sm_80",)
def compile_one(launch, arch, to_machine_code):
    if launch.kernel == "_second":
        os._exit(11)
    return {"registers": 1, "spills": 0, "shared": 0, "seconds": 0.0}
"""
SOFTMAX = replace(registry.contract("softmax"), large=())


@dataclass
class Launch:
    kernel: str
    types: tuple
    weight: int

    @property
    def key(self):
        return str(self)

    @property
    def features(self):
        return {*self.types, self.weight}

    def __str__(self):
        return f"{self.kernel}({', '.join(self.types)}, BLOCK={self.weight})"


class Compiler:
    """`launch(kernel, x)` records one launch for a tensor; `results` gives what compiling a launch for an arch
    gives."""

    def __init__(self, results=lambda launch, arch: {}):
        self.results, self.launches = results, None

    def architectures(self, needs):
        return ("sm_80", "sm_90") if needs is None else (needs,)

    @contextmanager
    def recording(self, arch):
        self.launches, self.arch = [], arch
        yield self.launches

    def launch(self, kernel, x):
        self.launches.append(
            Launch(kernel, (str(x.dtype).removeprefix("torch."),), 1 << max(x.shape[-1] - 1, 0).bit_length())
        )

    def compile_one(self, launch, arch, to_machine_code):
        found = {"registers": launch.weight % 255, "spills": 0, "shared": 16} if to_machine_code else {}
        return {**found, **self.results(launch, arch), "seconds": 0.0}


def check(compiler, every=True, known=None, divide=False, **variants):
    known = {} if known is None else known
    ladder = variants if divide is True else divide or None
    return server.check(compiler, variants, SOFTMAX, every, processes=2, known=known, divide=ladder)


def variant(compiler, *kernels, needs=None, spills=None, dtypes=None, declines=lambda x: False):
    def launcher(x):
        if declines(x):
            raise NotImplementedError("not this one")
        for kernel in kernels:
            compiler.launch(kernel, x)

    return declared(needs=needs, spills=spills, dtypes=dtypes)(launcher)


def specialisations(level="quick"):
    """What the cases of a level tell apart."""
    return {(case.dtype, 1 << max(case.size["cols"] - 1, 0).bit_length()) for case in plan(SOFTMAX, level).general}


def test_every_distinct_specialisation_is_compiled_for_every_architecture():
    compiler = Compiler()
    answer = check(compiler, first=variant(compiler, "_one", "_two"), second=variant(compiler, "_two"))
    assert answer["findings"] == []
    seen = Counter((record["kernel"], record["launch"], record["arch"]) for record in answer["records"])
    assert set(seen.values()) == {1}
    for kernel in ("_one", "_two"):
        for arch in ("sm_80", "sm_90"):
            assert sum(key[0] == kernel and key[2] == arch for key in seen) == len(specialisations("default"))
    assert {tuple(r["variants"]) for r in answer["records"] if r["kernel"] == "_two"} == {("first", "second")}
    assert all("registers" in record for record in answer["records"])
    cases = {case.id for level in ("quick", "default") for case in plan(SOFTMAX, level).general}
    assert all(record["case"] in cases for record in answer["records"])


def test_what_only_cases_of_level_default_show_is_compiled_once():
    """As rows of a length that no quick case has in a dtype, for which the compiler has to find another way."""
    cases = [plan(SOFTMAX, level).general for level in ("quick", "default")]
    quick, default = ({(case.dtype, case.size["cols"]) for case in each} for each in cases)
    dtype, cols = min(default - quick)
    compiler = Compiler(lambda launch, arch: {"error": "odd"} if "new" in launch.types else {})

    def launcher(x):
        compiler.launch("_kernel", x)
        if (f"torch.{dtype}", x.shape[-1]) == (str(x.dtype), cols):
            compiler.launches[-1].types += ("new",)

    (finding,) = check(compiler, plain=launcher)["findings"]
    assert finding.startswith("sm_80: _kernel(") and "launched by plain in" in finding and "odd" in finding
    assert check(compiler, every=False, plain=launcher)["findings"] == []
    compiler.results = lambda launch, arch: {"spills": 9999 if "new" in launch.types else 0}
    assert check(compiler, plain=launcher)["findings"] == []  # nobody tunes for it


def test_in_short_each_kernel_becomes_machine_code_for_every_dtype_and_every_architecture():
    compiler = Compiler()
    answer = check(compiler, every=False, plain=variant(compiler, "_kernel", "_other"))
    assert len(answer["records"]) == 2 * 2 * len(specialisations())
    for kernel in ("_kernel", "_other"):
        machine = [r for r in answer["records"] if "registers" in r and r["kernel"] == kernel]
        assert sorted(r["launch"].partition("(")[2].partition(",")[0] for r in machine) == sorted(SOFTMAX.dtypes)
        assert {r["arch"] for r in machine} == {"sm_80", "sm_90"}
        assert len({r["launch"].rpartition("=")[2] for r in machine}) == len(machine)  # and of different sizes
    one = check(compiler, every=False, plain=variant(compiler, "_kernel", declines=lambda x: x.dtype != torch.float32))
    assert Counter(r["arch"] for r in one["records"] if "registers" in r) == {"sm_80": 1, "sm_90": 1}


def test_of_many_combinations_of_dtypes_some_of_each_dtype_become_machine_code():
    """As where half of the operands may be None; what is left passes the front end where no number is given."""
    launched = [
        planning.Launched(Launch("_kernel", (dtype, f"None{absent}"), 1 << absent), "sm_80", {"plain": ""})
        for dtype in SOFTMAX.dtypes
        for absent in range(8)
    ]
    for most in (3, 6):
        machine, seen = planning.chosen(launched, {"plain": ("sm_80",)}, most)
        assert len(machine) == most and not seen
        for dtype in SOFTMAX.dtypes:
            assert sum(f"({dtype}," in key for key, _ in machine) == most // 3
    assert len(planning.chosen(launched, {"plain": ("sm_80",)})[0]) == len(launched)


def test_divided_each_variant_is_compiled_in_its_dtype_for_one_architecture():
    compiler = Compiler()
    variants = {name: variant(compiler, f"_{name}") for name in ("one", "two", "three")}
    answer = check(compiler, every=False, divide=True, **variants)
    machine = {r["kernel"]: (r["launch"].partition("(")[2].partition(",")[0], r["arch"]) for r in answer["records"]}
    assert machine == {"_one": ("float32", "sm_80"), "_two": ("float16", "sm_90"), "_three": ("bfloat16", "sm_80")}
    assert all(any(r["kernel"] == kernel and "registers" in r for r in answer["records"]) for kernel in machine)
    some = check(compiler, every=False, divide=variants, two=variants["two"])["records"]  # of the same ladder
    assert {r["kernel"]: (r["launch"].partition("(")[2].partition(",")[0], r["arch"]) for r in some} == {
        "_two": machine["_two"]
    }
    alone = check(compiler, every=False, divide=True, plain=variants["one"])["records"]
    assert {r["arch"] for r in alone if "registers" in r} == {"sm_80", "sm_90"}
    missing = variant(compiler, "_never", declines=lambda x: x.dtype == torch.float16)
    (finding,) = check(compiler, every=False, divide=True, one=variants["one"], missing=missing)["findings"]
    assert finding == "missing launches nothing in float16, in no case of level default"


def test_in_short_every_feature_has_been_seen_once():
    compiler = Compiler(lambda launch, arch: {"seen": True})
    found = check(
        compiler, every=False, plain=variant(compiler, "_kernel"), late=variant(compiler, "_late", needs="sm_90")
    )
    for kernel in ("_kernel", "_late"):
        seen = [record["launch"] for record in found["records"] if record["kernel"] == kernel and record.get("seen")]
        for weight in {w for _, w in specialisations()}:
            assert any(f"BLOCK={weight})" in launch for launch in seen)
        for dtype in SOFTMAX.dtypes:
            assert any(f"({dtype}," in launch for launch in seen)
        assert len(seen) == len(set(seen)) < len(specialisations())


def test_in_short_a_refusal_by_the_front_end_is_a_finding_too():
    small = min(w for _, w in specialisations())
    compiler = Compiler(lambda launch, arch: {"error": f"no block of {small}"} if launch.weight == small else {})
    (finding,) = check(compiler, every=False, plain=variant(compiler, "_kernel"))["findings"]
    assert f"BLOCK={small})" in finding


def test_a_variant_is_compiled_for_what_it_claims():
    compiler = Compiler()
    answer = check(compiler, plain=variant(compiler, "_both"), late=variant(compiler, "_both", "_late", needs="sm_90"))
    archs = {(record["kernel"], record["arch"]): record["variants"] for record in answer["records"]}
    assert archs == {("_both", "sm_80"): ["plain"], ("_both", "sm_90"): ["plain", "late"], ("_late", "sm_90"): ["late"]}


def test_what_is_launched_may_depend_on_the_architecture():
    compiler = Compiler()

    def launcher(x):
        compiler.launch(f"_kernel_{compiler.arch}", x)

    records = check(compiler, plain=launcher)["records"]
    assert {(r["kernel"], r["arch"]) for r in records} == {("_kernel_sm_80", "sm_80"), ("_kernel_sm_90", "sm_90")}
    short = check(compiler, every=False, plain=launcher)["records"]
    assert sum("registers" in r for r in short) == 2 * len(SOFTMAX.dtypes)


def test_a_refusal_is_a_finding():
    refused = Launch("_kernel", ("float16",), 64)
    compiler = Compiler(
        lambda launch, arch: {"error": "no such instruction"} if (launch, arch) == (refused, "sm_80") else {}
    )
    answer = check(compiler, plain=variant(compiler, "_kernel"), other=variant(compiler, "_other"))
    (finding,) = answer["findings"]
    assert finding.startswith("sm_80: _kernel(float16, BLOCK=64), launched by plain in float16-")
    assert finding.endswith("\nno such instruction")


def test_refusals_with_the_same_words_are_one_finding():
    compiler = Compiler(lambda launch, arch: {"error": f"no {arch} today"})
    answer = check(compiler, plain=variant(compiler, "_kernel"))
    assert [finding.partition(":")[0] for finding in answer["findings"]] == ["sm_80", "sm_90"]
    count = len(specialisations("default")) - 1
    assert all(f"\n(the same for {count} more of its specialisations)" in finding for finding in answer["findings"])


@pytest.mark.parametrize(
    ("spilt", "declared", "right"), [(1024, None, True), (1025, None, False), (3000, 3000, True), (3001, 3000, False)]
)
def test_spills_beyond_the_limit_are_a_finding_unless_declared(spilt, declared, right):
    compiler = Compiler(lambda launch, arch: {"spills": spilt} if (launch.weight, arch) == (64, "sm_90") else {})
    answer = check(compiler, plain=variant(compiler, "_kernel", spills=declared))
    assert (answer["findings"] == []) == right
    assert all(
        f"spills {spilt} bytes per thread; {declared or 1024} are allowed" in finding for finding in answer["findings"]
    )


def test_a_variant_that_declines_the_quick_cases_of_a_dtype_is_recorded_on_another_that_it_takes():
    quick = {(case.dtype, case.size["rows"], case.size["cols"]) for case in plan(SOFTMAX, "quick").general}

    def declines(x):
        return x.dtype == torch.float16 and ("float16", *x.shape) in quick

    compiler = Compiler()
    answer = check(compiler, every=False, shy=variant(compiler, "_kernel", declines=declines))
    assert answer["findings"] == []
    cases = {record["case"] for record in answer["records"] if "(float16" in record["launch"]}
    assert cases and cases <= {case.id for case in plan(SOFTMAX, "default").cases}


def test_a_variant_that_never_launches_in_a_dtype_is_a_finding():
    compiler = Compiler()
    answer = check(compiler, shy=variant(compiler, "_kernel", declines=lambda x: x.dtype == torch.float16))
    assert answer["findings"] == ["shy launches nothing in float16, in no case of level default"]


def test_a_variant_launches_in_the_dtypes_that_it_declares():
    compiler = Compiler()
    only = dict(declines=lambda x: x.dtype != torch.bfloat16)
    assert check(compiler, shy=variant(compiler, "_kernel", dtypes=["bfloat16"], **only))["findings"] == []
    shy = variant(compiler, "_kernel", dtypes=HALF, **only)
    assert check(compiler, shy=shy)["findings"] == ["shy launches nothing in float16, in no case of level default"]


def test_a_launcher_that_raises_is_a_finding():
    def broken(x):
        raise ZeroDivisionError("spilt ink")

    answer = check(Compiler(), broken=broken)
    assert len(answer["findings"]) == len(plan(SOFTMAX, "quick").general)
    assert all(
        "broken raised ZeroDivisionError while its launches were recorded in " in text for text in answer["findings"]
    )


def test_large_sizes_are_recorded_too(monkeypatch):
    monkeypatch.setattr(SOFTMAX, "large", [{"rows": 1 << 18, "cols": 1 << 14}])  # 16 GiB of float32, untouched
    compiler = Compiler()
    sizes = []
    answer = check(compiler, plain=variant(compiler, "_kernel", declines=lambda x: sizes.append(tuple(x.shape))))
    assert sizes.count((1 << 18, 1 << 14)) == 2 * len(SOFTMAX.dtypes)
    assert str(Launch("_kernel", ("bfloat16",), 1 << 14)) in {record["launch"] for record in answer["records"]}


@pytest.mark.slow
def test_a_crash_or_a_hang_of_the_compiler_is_an_error_of_that_launch_alone():
    def work(index):
        if index == 3:
            os._exit(11)
        if index == 5:
            time.sleep(60)
        if index == 6:
            raise LookupError("no such register")
        return {"index": index}

    found = server.in_children(work, 8, processes=2, seconds=1.5)
    assert [record.get("index") for record in found] == [0, 1, 2, None, 4, None, None, 7]
    assert found[3]["error"] == "the compiler crashed (exit status 11)"
    assert found[5]["error"] == "no answer in 1.5 s"
    assert found[6]["error"] == "LookupError: no such register"
    assert psutil.Process().children() == []


@pytest.mark.slow
def test_a_worker_remembers_and_is_given_up_when_it_crashes_or_is_silent(monkeypatch):
    def answer(module, request, known, beat=None):
        if beat is None:  # in this process
            return {"again": request["op"]}
        beat()
        if request["op"] == "crash":
            os._exit(11)
        if request["op"] == "hang":
            time.sleep(60)
        known[request["op"]] = module
        return {"known": sorted(known)}

    monkeypatch.setattr(server, "answer", answer)
    monkeypatch.setattr(server, "compiling_module", lambda backend: ("a module", ""))
    asked = server.Server(seconds=2.0)

    def ask(op):
        return asked.answer({"backend": "paper", "op": op, "processes": 1})

    assert ask("a") == {"known": ["a"]}
    assert ask("b") == {"known": ["a", "b"]}
    assert ask("crash") == {"again": "crash"}
    assert ask("a") == {"known": ["a"]}  # of a new one
    assert ask("hang") == {"again": "hang"}
    assert asked.answer({"backend": "paper", "op": "a", "processes": 2}) == {"again": "a"}
    ask("a")
    asked.close()
    assert psutil.Process().children() == []


@pytest.mark.slow
def test_a_launch_that_crashes_the_compiler_is_named(tmp_path, monkeypatch):
    targets.write_clone(
        tmp_path, {"paper": ({}, (), {}, {"softmax": targets._op_file("\n\ndef plain(x):\n    return x\n", "plain")})}
    )
    (tmp_path / "backends/paper/runtime/compiling.py").write_text(CRASHING_COMPILER)
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    monkeypatch.setattr(registry, "IMPORT_PATH", tmp_path)
    monkeypatch.setattr(registry, "backend", lambda name: SimpleNamespace(CPU_VARIABLES=()))
    with client.Compiler("paper") as compiler:
        for _ in range(2):
            answer = compiler.check("softmax")
            assert {record["kernel"] for record in answer["records"]} == {"_first", "_second"}
            (finding,) = answer["findings"]
            assert finding.startswith("sm_80: _second, launched by plain in ")
            assert "the compiler crashed (exit status 11)" in finding


def test_nothing_to_do_and_fewer_tasks_than_processes():
    assert server.in_children(lambda index: {}, 0, processes=2) == []
    assert server.in_children(lambda index: {"index": index}, 1, processes=4) == [{"index": 0}]


def test_rows_hold_the_most_of_each_resource():
    records = [
        {"variants": ["a", "b"], "kernel": "_k", "arch": "sm_80", "registers": 40, "spills": 8, "shared": 0},
        {"variants": ["a"], "kernel": "_k", "arch": "sm_80", "registers": 30, "spills": 16, "shared": 64},
        {"variants": ["a"], "kernel": "_k", "arch": "sm_80"},
        {"variants": ["a"], "kernel": "_k", "arch": "sm_90"},
    ]
    first, second, third = client.rows(records)
    assert first == dict(
        variant="a", kernel="_k", arch="sm_80", specialisations=3, compiled=2, registers=40, spills=16, shared=64
    )
    assert second == dict(
        variant="b", kernel="_k", arch="sm_80", specialisations=1, compiled=1, registers=40, spills=8, shared=0
    )
    assert third == dict(variant="a", kernel="_k", arch="sm_90", specialisations=1, compiled=0)


def test_backends_are_those_with_a_compiler(tmp_path, monkeypatch):
    for name, files in {"able": ["compiling.py"], "other": []}.items():
        (tmp_path / "backends" / name / "runtime").mkdir(parents=True)
        for file in files:
            (tmp_path / "backends" / name / "runtime" / file).touch()
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    monkeypatch.setattr(registry, "backends", lambda: ("able", "other"))
    assert client.backends() == ("able",)


@pytest.mark.slow
def test_a_backend_that_cannot_compile_says_why(tmp_path, monkeypatch):
    targets.write_clone(tmp_path, {"paper": ({}, (), {}, {"softmax": targets.PLAIN})})
    (tmp_path / "backends/paper/runtime/compiling.py").write_text("import parchment_and_nothing_else\n")
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    monkeypatch.setattr(registry, "IMPORT_PATH", tmp_path)
    monkeypatch.setattr(registry, "backend", lambda name: SimpleNamespace(CPU_VARIABLES=()))
    with client.Compiler("paper") as compiler:
        missing = compiler.check("softmax")["missing"]
    assert missing == "ModuleNotFoundError: No module named 'parchment_and_nothing_else'"


@pytest.mark.slow
def test_an_op_that_does_not_import_is_a_finding_and_the_next_op_is_answered(tmp_path, monkeypatch):
    targets.write_clone(tmp_path, {"paper": ({}, (), {}, {"softmax": targets.BROKEN, "matmul": targets.PLAIN})})
    (tmp_path / "backends/paper/runtime/compiling.py").write_text(PAPER_COMPILER)
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    monkeypatch.setattr(registry, "IMPORT_PATH", tmp_path)
    monkeypatch.setattr(registry, "backend", lambda name: SimpleNamespace(CPU_VARIABLES=()))
    with client.Compiler("paper") as compiler:
        (finding,) = compiler.check("softmax")["findings"]
        assert "No module named 'parchment_and_nothing_else'" in finding
        assert compiler.check("matmul")["findings"][0].startswith(
            "plain raised TypeError while its launches were recorded"
        )


@pytest.mark.slow
def test_where_nothing_can_be_compiled_there_is_no_item(tmp_path):
    targets.write_clone(tmp_path, {"paper": ({}, (), {}, {"softmax": targets.PLAIN})})
    options = ["--op=softmax", "--level=quick", "-q", "-p", "no:cacheprovider"]
    done = processes.run_python(["-m", "pytest", "touchstone/conformance/suite", *options], tmp_path)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "1 deselected" in done.stdout
    assert "skipped" not in done.stdout


def test_a_kernel_is_compiled_once_for_all_ops():
    compiler, known = Compiler(), {}
    check(compiler, known=known, a=variant(compiler, "_shared"))
    compiler.results = lambda launch, arch: {"error": "compiled again"} if launch.kernel == "_shared" else {}
    answer = check(compiler, known=known, b=variant(compiler, "_shared", "_own"))
    assert answer["findings"] == []
    assert {record["kernel"] for record in answer["records"]} == {"_shared", "_own"}
    assert all("registers" in record for record in answer["records"])
    assert "compiled again" in check(compiler, b=variant(compiler, "_shared"))["findings"][0]
