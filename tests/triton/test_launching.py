"""Launchers that demand CUDA, and kernels that the judge does not see before they run, on the CPU: those of
demanding_launchers.py."""

import importlib.util
import json

import pytest

from tests import processes
from tests.night import some
from tests.programs import PROGRAMS
from touchstone.conformance.discovery import registry

if not importlib.util.find_spec("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

FILE = PROGRAMS / "demanding_launchers.py"
JUDGE = """
import json, sys
from touchstone import check
from touchstone.conformance.discovery import selection

found = {}
for name in sys.argv[3:]:
    chosen = selection.select(device="cpu", op="softmax", kernel=f"{sys.argv[1]}:{name}", arch=sys.argv[2])
    chosen.prepare()
    ((_, subject),) = chosen.subjects()
    narrowed = dict(dtypes=["float32"], sizes={"rows": [3, 17]})
    report = check("softmax", subject.fn, device="cpu", level="quick", arch=sys.argv[2], **narrowed)
    found[name] = [report.verdict, report.notes, [finding.message for finding in report.findings], str(report)]
json.dump(found, sys.stdout)
"""


def judged(*names, arch="sm_90"):
    """Verdict, notes, messages and report of each launcher, judged as `python -m touchstone check --kernel` does."""
    done = processes.run_touchstone(["-W", "ignore", "-c", JUDGE, str(FILE), arch, *names])
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


LAUNCHERS = [
    "by_operator",
    "by_function",
    "on_a_stream",
    "by_compiled",
    "by_name",
    "by_clock",
    "by_kept_kernels_and_other_constants",
]


@pytest.mark.slow
def test_launchers_that_demand_cuda_are_judged():
    found = judged("by_occupancy", *some(LAUNCHERS, 3), arch="sm_100")
    assert {name: verdict for name, (verdict, *_) in found.items()} == dict.fromkeys(found, "passed"), found
    told = found["by_occupancy"][1][0]
    assert told.startswith("CUDA calls of the launcher were answered as an NVIDIA B200 (sm_100, 16 multiprocessors) ")
    assert "torch.cuda.get_device_capability" in told and told.endswith("tensors are on the CPU")


@pytest.mark.level("default")
@pytest.mark.slow
def test_a_compiled_kernel_is_launched_without_its_compile_time_parameters():
    driver = pytest.importorskip("triton.backends.nvidia.driver")
    if not hasattr(driver, "annotate_arguments"):
        pytest.skip("the launcher of this Triton counts its arguments")
    verdict, _, messages, _ = judged("by_kept_kernels")["by_kept_kernels"]
    assert verdict == "passed", messages


@pytest.mark.slow
def test_what_a_gpu_would_refuse_is_found():
    found = judged("forgets_the_device", "returns_to_the_host", "launches_a_graph")
    verdict, _, messages, _ = found["forgets_the_device"]
    assert verdict == "failed" and "Pointer argument (at 0) cannot be accessed from Triton" in messages[0], messages
    verdict, _, messages, _ = found["returns_to_the_host"]
    assert verdict == "failed" and "y: beside a GPU it would lie on the CPU" in messages[0], messages
    verdict, _, messages, text = found["launches_a_graph"]
    assert verdict == "not run" and "the launcher needs CUDA graphs, which takes a GPU" in text, text


@pytest.mark.slow
def test_nothing_is_answered_where_that_is_asked_for():
    done = processes.run_touchstone(
        [
            *["-m", "touchstone", "check", "softmax", "--device", "cpu", "--quick", "--arch", "none", "--kernel"],
            f"{FILE}:by_function",
        ],
        environment={"CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 2 and "does not import: RuntimeError: 0 active drivers" in done.stderr, done.stderr


HIDDEN = """
import json, sys
import torch, triton, triton.language as tl
from touchstone import check
{imported}

@torch.library.custom_op("touchstone_hidden::softmax", mutates_args=(), device_types="cuda")
def operator(x: torch.Tensor) -> torch.Tensor:
    return function(x)

@torch.library.triton_op("touchstone_hidden::traced", mutates_args=())
def traced(x: torch.Tensor) -> torch.Tensor:
    x, y = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        kernel = torch.library.wrap_triton(kernels.rows)
        kernel[(x.shape[0],)](y, x, *x.shape, triton.next_power_of_2(x.shape[1]))
    return y

def function(x):
    return kernels.softmax(x)

def by_operator(x):
    return operator(x)

def by_packet(x):
    return torch.ops.touchstone_hidden.traced(x)

def inside(x):
    import kernels as found
    return vars(found)["soft" + "max"](x)

def few(case):
    return case.size["cols"] < 64

if __name__ == "__main__":
    for fn in sys.argv[1:]:
        report = check("softmax", globals()[fn], device="cpu", level="quick", dtypes=["float32"], where=few)
        print(json.dumps([fn, report.verdict, report.instruments[-1], str(report)]))
"""
KERNELS = """
import torch, triton, triton.language as tl

@triton.jit
def rows(y_ptr, x_ptr, rows, cols, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + i, mask=i < cols, other=-float("inf"))
    e = tl.exp(x.to(tl.float32) - tl.max(x, 0))
    tl.store(y_ptr + row * cols + i, e / tl.sum(e, 0), mask=i < cols)

def softmax(x):
    assert x.is_cuda
    x, y = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        with torch.cuda.device(x.device.index):
            rows[(x.shape[0],)](y, x, *x.shape, triton.next_power_of_2(x.shape[1]))
    return y
"""


def hidden(folder, imported, *names):
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "hidden.py").write_text(HIDDEN.replace("{imported}", imported))
    done = processes.run_python(
        ["-W", "ignore", "hidden.py", *names], folder, environment={"PYTHONPATH": str(registry.ROOT)}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.level("default")
@pytest.mark.slow
def test_kernels_that_are_seen_when_they_run_are_repeated_in_a_process_that_interprets(tmp_path):
    for name, verdict, isolation, text in hidden(tmp_path, "import kernels", "by_packet", "inside"):
        assert verdict == "passed", text
        assert isolation == "isolation: forked child, then fresh process", name


@pytest.mark.level("default")
@pytest.mark.slow
def test_a_language_that_is_imported_when_the_function_is_called_is_interpreted(tmp_path):
    source = HIDDEN.replace("import torch, triton, triton.language as tl\n", "import torch\n").split("@torch.library")
    (tmp_path / "kernels.py").write_text(KERNELS)
    body = source[0].replace("{imported}", "") + source[2][source[2].index("def function") :]
    (tmp_path / "hidden.py").write_text(body)
    done = processes.run_python(
        ["-W", "ignore", "hidden.py", "inside"], tmp_path, environment={"PYTHONPATH": str(registry.ROOT)}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    _, verdict, isolation, text = json.loads(done.stdout)
    assert verdict == "passed" and isolation == "isolation: forked child", text
