"""Compiling for GPUs without one: what launchers launch is found, compiled, and refused where a GPU would refuse it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if not importlib.util.find_spec("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    script = Path(__file__).with_name("compiled_programs.py")
    command = [sys.executable, "-W", "ignore", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_a_launch_is_recorded_with_types_constants_and_options(report):
    assert report["plain"].startswith("_scale(x_ptr: *fp32/16, y_ptr: *fp32/16, x_row: i32, rows: i32, scale: fp32")
    for constant in ("x_col=1", "BLOCK=64", "num_warps=2"):
        assert constant in report["plain"]


def test_launches_differ_in_what_the_code_depends_on_and_in_nothing_else(report):
    assert report["same"] == 1
    assert report["distinct"] == 5  # float32; float16; BLOCK 32; an unaligned pointer; a column stride that is not 1


def test_nothing_runs_while_recording(report):
    assert report["untouched"]


def test_autotuned_kernels_are_recorded_with_every_configuration(report):
    assert [("BLOCK=16" in text, "num_warps=1" in text) for text in report["tuned"]] == [(True, True), (False, False)]
    assert all("EVEN=False" in text for text in report["tuned"])


@pytest.mark.parametrize("name", ["scale", "descriptor"])
def test_cubins_give_registers_spills_and_shared_memory(report, name):
    found = report["compiled"][name]
    assert "error" not in found
    assert 8 <= found["registers"] <= 64
    assert found["spills"] == 0
    assert found["seconds"] > 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exponential", "fp16"),
        ("changes_dtype", "total"),
        ("too_much_shared", "bytes of shared memory; sm_90 has 232448"),
    ],
)
def test_what_the_compiler_or_the_gpu_refuses_is_an_error(report, name, message):
    assert message in report["compiled"][name]["error"]


def test_recording_needs_a_process_that_compiles():
    code = "from backends.triton import compiling\nwith compiling.recording(): pass"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert "RuntimeError: this process interprets Triton kernels" in done.stderr
