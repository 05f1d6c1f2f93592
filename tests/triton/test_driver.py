"""What Triton's driver tells a launcher where there is no GPU: what the GPU is known for, and nothing beside it."""

import copy
from collections import Counter

import pytest
import torch

if not pytest.importorskip("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

from triton import testing
from triton._C import libtriton
from triton.runtime import driver

from touchstone.backends import NotRun, cuda_face
from touchstone.backends.gpus import GPUS
from touchstone.backends.triton.runtime.driver import answering

H100 = GPUS["sm_90"]


def test_the_driver_answers_as_the_gpu():
    before, clocks, cublas = driver._active, testing.nvsmi, libtriton.nvidia.cublas.CublasLt
    with answering(H100):
        active = driver.active
        target = active.get_current_target()
        assert (target.backend, target.arch, target.warp_size) == ("cuda", 90, 32)
        assert active.get_current_device() == 0 and active.get_current_stream(0) == 0
        assert active.get_device_capability() == (9, 0)
        assert active.get_active_torch_device() == torch.device("cuda", 0)
        assert active.is_active() and active.get_benchmarker() is testing.do_bench
        assert active.get_device_interface() is torch.cuda and active.binary_ext == "cubin"
        assert active.set_current_device(0) is None and active.clear_cache(None) is None
        assert active.utils.get_device_properties(0) == {
            "max_shared_mem": 227 * 1024,
            "max_num_regs": 65536,
            "multiprocessor_count": H100.multiprocessors,
            "warpSize": 32,
            "sm_clock_rate": 1_980_000,
            "mem_clock_rate": 2_619_000,
            "mem_bus_width": 5120,
        }
        assert testing.nvsmi(["clocks.max.sm", "clocks.mem", "clocks.current.graphics"]) == [1980, 2619, 1980]
        assert libtriton.nvidia.cublas.CublasLt(torch.empty(1)) is not None
        with answering(GPUS["sm_80"]):
            assert driver.active.get_device_capability() == (8, 0) and testing.nvsmi(["clocks.sm"]) == [1410]
        assert driver.active is active and testing.nvsmi(["clocks.sm"]) == [1980]
    assert driver._active is before and testing.nvsmi is clocks and libtriton.nvidia.cublas.CublasLt is cublas


def test_what_a_launcher_asks_is_noted():
    asked = Counter()
    with cuda_face.answering(H100, asked), answering(H100):
        driver.active.get_current_target()
        driver.active.utils.get_device_properties(0)
        testing.nvsmi(["clocks.sm"])
        libtriton.nvidia.cublas.CublasLt(torch.empty(1))
    names = ("get_current_target", "utils.get_device_properties")
    noted = {"libtriton.nvidia.cublas.CublasLt", "triton.testing.nvsmi", *(f"driver.active.{name}" for name in names)}
    assert asked == dict.fromkeys(noted, 1)


def test_what_takes_a_gpu_is_not_run():
    with answering(H100):
        for ask, what in (
            (lambda: driver.active.launcher_cls, "driver.active.launcher_cls"),
            (lambda: driver.active.utils.load_binary, "driver.active.utils.load_binary"),
            (lambda: libtriton.nvidia.cublas.CublasLt(torch.empty(1)).matmul, "cublas.CublasLt.matmul"),
        ):
            with pytest.raises(NotRun, match=f"^the launcher needs triton.runtime.{what}, which takes a GPU$"):
                ask()
        for attribute in ("temperature.gpu", "clocks.max.video", "sm"):
            with pytest.raises(NotRun, match=f"asks nvidia-smi for {attribute}, which takes a GPU"):
                testing.nvsmi([attribute])
        assert copy.copy(driver.active.utils).get_device_properties(0)["warpSize"] == 32  # asks for optional methods
