"""Launchers that demand CUDA get answers on the CPU, within a context and from other code alone."""

import threading
from collections import Counter

import pytest
import torch

from touchstone.backends import NotRun, cuda_face
from touchstone.backends.gpus import DEFAULT, GPUS

GPU = GPUS[DEFAULT]


@pytest.fixture
def gpu():
    with cuda_face.answering(GPU):
        yield GPU


def test_properties_of_the_chosen_architecture():
    for arch, capability in (("sm_80", (8, 0)), ("sm_90", (9, 0)), ("sm_100", (10, 0))):
        with cuda_face.answering(GPUS[arch]):
            assert torch.cuda.get_device_capability() == torch.cuda.get_device_capability("cuda:0") == capability
            properties = torch.cuda.get_device_properties(torch.device("cuda"))
            assert (properties.major, properties.minor) == capability
            assert properties.multi_processor_count == GPUS[arch].multiprocessors == 16
            assert properties.name == torch.cuda.get_device_name() == GPUS[arch].name
            assert properties.shared_memory_per_block_optin == GPUS[arch].shared_per_block
            assert torch.cuda.get_arch_list() == [arch]


def test_everything_is_as_before_afterwards():
    owners = (torch, torch.Tensor, torch.cuda, torch.cuda.nvtx, torch._C, torch.version, torch.accelerator)
    before = [dict(vars(owner)) for owner in owners]
    x = torch.ones(2)
    with pytest.raises(AssertionError, match="on the GPU"), cuda_face.answering(GPU):
        assert not x.is_cuda, "on the GPU"
    assert [dict(vars(owner)) for owner in owners] == before
    assert not x.is_cuda and x.device.type == "cpu" and cuda_face.answers() is None


def test_tensors_are_told_to_be_on_the_gpu(gpu):
    x = torch.empty(3, device="cuda")
    assert x.is_cuda and not x.is_cpu and x.device.type == "cuda" and x.device == torch.device("cuda", 0)
    assert x.device.index == x.get_device() == 0 and str(x.device) == "cuda:0"
    assert cuda_face.TENSOR_DEVICE.__get__(x).type == "cpu"
    assert torch.nn.Linear(2, 3, device="cuda").weight.is_cuda
    assert torch.empty(2, device="meta").device.type == "meta"


def test_tensors_are_described_to_other_libraries_as_on_the_gpu(gpu):
    """As torch describes those that are there, or refuses to."""
    x = torch.zeros(3, 4, device="cuda")
    described = {"typestr": "<f4", "shape": (3, 4), "strides": None, "data": (x.data_ptr(), False), "version": 2}
    assert x.__cuda_array_interface__ == described
    assert x.mT.expand(2, 4, 3).__cuda_array_interface__["strides"] == (0, 4, 16)
    assert x.bfloat16().__cuda_array_interface__["typestr"] == "<V2" and x[:0].__cuda_array_interface__["data"][0] == 0
    with pytest.raises(RuntimeError, match="requires grad"):
        x.requires_grad_().__cuda_array_interface__  # noqa: B018
    assert not hasattr(x.detach().cpu(), "__cuda_array_interface__")


def test_an_address_that_was_asked_for_is_known_while_its_tensor_is_there(gpu):
    x = torch.zeros(2, 3, device="cuda")
    start = x.data_ptr()
    assert cuda_face.tensor_at(start) is x
    rest = cuda_face.tensor_at(start + 8)
    assert rest.data_ptr() == start + 8 and rest.shape == (4,)
    assert cuda_face.tensor_at(start + 24) is cuda_face.tensor_at(start + 3) is cuda_face.tensor_at(start - 4) is None
    first = x[:1]
    assert first.data_ptr() == start and cuda_face.tensor_at(start) is x  # of which `first` is the beginning
    del x, rest, first
    assert cuda_face.tensor_at(start) is None


def test_an_address_is_known_while_its_memory_is_there(gpu):
    """As that of a view which was made to ask for it, the tensor being none of those whose address is known."""
    x = torch.arange(12, device="cuda")
    start = x.view(3, 4)[1:, :3].data_ptr()
    found, inside = cuda_face.tensor_at(start), cuda_face.tensor_at(start + 16)
    assert found.tolist() == [[4, 5, 6], [8, 9, 10]] and inside.tolist() == [6, 7, 8, 9, 10]
    assert found.storage_offset() == 4 and cuda_face.tensor_at(start + 56) is None
    whole = x.data_ptr()
    assert cuda_face.tensor_at(start).tolist() == [4, 5, 6, 7, 8, 9, 10, 11]  # rather of what is there
    del x, found, inside
    assert cuda_face.tensor_at(start) is cuda_face.tensor_at(whole) is None
    y = torch.zeros(3, device="cuda")
    first = y[:1]
    assert cuda_face.tell_address(first) == cuda_face.tell_address(y) and cuda_face.tensor_at(y.data_ptr()) is y


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.zeros(2, 3, device=device),
        lambda device: torch.full((2, 3), 1.0, device=device),
        lambda device: torch.arange(6, device=device),
        lambda device: torch.tensor([1.0, 2.0], device=device),
        lambda device: torch.as_tensor([1.0, 2.0], device=device),
        lambda device: torch.randn(3, device=device, generator=torch.Generator(device=device).manual_seed(1)),
        lambda device: torch.empty_like(torch.ones(2), device=device),
        lambda device: torch.ones(2).new_zeros((3,), device=device),
        lambda device: torch.ones(2).to(device),
        lambda device: torch.ones(2).to(device, torch.float16, non_blocking=True),
        lambda device: torch.ones(2).to(device=device, dtype=torch.bfloat16),
        lambda device: torch.ones(2).cuda(),
        lambda device: torch.empty(2, pin_memory=True).cuda(non_blocking=True),
    ],
)
def test_every_way_to_allocate_on_the_gpu(gpu, make):
    for device in ("cuda", "cuda:0", torch.device("cuda"), torch.empty(1, device="cuda").device, 0):
        made = make(device)
        assert made.is_cuda and not cuda_face.on_host(made)
        assert cuda_face.TENSOR_DEVICE.__get__(made).type == "cpu"


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.empty(3),
        lambda x: torch.tensor([1.0]),
        lambda x: torch.zeros(3, device="cpu"),
        lambda x: torch.empty_like(x, device="cpu"),
        lambda x: x.new_empty(3, device=torch.device("cpu")),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: x.cpu().to(torch.float16),
        lambda x: torch.empty_like(x.cpu()),
        lambda x: torch.empty(3).view(1, 3),
    ],
)
def test_what_would_lie_on_the_host_is_known(gpu, make):
    x = torch.ones(3, device="cuda")
    made = make(x)
    assert cuda_face.on_host(made) and made.device.type == "cpu" and not made.is_cuda and made.get_device() == -1
    moved = made.to(x.device)
    assert moved.is_cuda and not cuda_face.on_host(moved) and moved.data_ptr() != made.data_ptr()
    assert not cuda_face.on_host(made.cuda()) and x.is_cuda


def test_moving_to_where_a_tensor_is_copies_nothing(gpu):
    x = torch.ones(3, device="cuda")
    assert x.cuda() is x and x.to("cuda") is x and x.to(x.device) is x and x.to(torch.ones(1, device="cuda")) is x
    assert x.cpu().data_ptr() != x.data_ptr()


def test_a_default_device(gpu):
    with torch.device("cuda"):
        x = torch.empty(3)
    assert x.is_cuda and not cuda_face.on_host(x)
    with torch.device("cpu"):
        assert cuda_face.on_host(torch.empty(3))
    torch.set_default_device("cuda")
    try:
        assert not cuda_face.on_host(torch.zeros(2))
    finally:
        torch.set_default_device(None)


def test_torch_itself_is_told_the_truth(gpu):
    seen = {}
    code = "def look(x):\n    return x.is_cuda, x.device.type, x.get_device()"
    exec(code, inside := {"__name__": "torch.nn.functional"})
    exec(code, outside := {"__name__": "liger_kernel.ops"})
    x = torch.ones(2, device="cuda")
    assert inside["look"](x) == (False, "cpu", -1)
    assert outside["look"](x) == (True, "cuda", 0)
    thread = threading.Thread(target=lambda: seen.update(cuda=x.is_cuda))
    thread.start()
    thread.join()
    assert seen == {"cuda": True}


def test_autograd_functions_see_the_gpu_in_both_directions(gpu):
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda")
        def forward(ctx, x):
            seen.append(x.is_cuda)
            return 2 * x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, dy):
            seen.append(dy.is_cuda)
            return torch.full(dy.shape, 2.0, device="cuda") * dy

    x = torch.ones(3, device="cuda", requires_grad=True)
    Double.apply(x).sum().backward()
    assert seen == [True, True] and x.grad.tolist() == [2.0, 2.0, 2.0]


def test_contexts_streams_and_events(gpu):
    x = torch.ones(2, device="cuda")
    with torch.cuda.device(x.device), torch.cuda.device(x.device.index), torch.cuda.device_of(x):
        assert torch.cuda.current_device() == 0 and torch.cuda.device_count() == 1 and torch.cuda.is_available()
    with torch.cuda.device(torch.cuda.device_of(x)):
        assert torch.cuda.get_device_capability((1, 2)) == torch.cuda.get_device_capability()  # so in torch
    torch.cuda.set_device(0)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.current_stream())
        x.record_stream(stream)
    assert torch.cuda.current_stream().cuda_stream == 0 == torch._C._cuda_getCurrentRawStream(0)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    end.record()
    torch.cuda.current_stream().synchronize()
    assert start.elapsed_time(end) > 0
    torch.cuda.nvtx.range_push("part")
    torch.cuda.nvtx.range_pop()
    with torch.cuda.nvtx.range("part"):
        pass
    assert torch.get_device_module() is torch.get_device_module("cuda") is torch.cuda
    assert torch.accelerator.current_accelerator().type == "cuda" and torch.accelerator.is_available()
    assert torch.version.cuda and torch.version.hip is None
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.set_device(1)


def test_autocast_is_that_of_cuda(gpu):
    a = torch.ones(2, 2, device="cuda")
    assert not torch.is_autocast_enabled()
    with torch.autocast("cuda"):
        assert torch.is_autocast_enabled() and torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_dtype("cuda") is torch.get_autocast_gpu_dtype() is torch.float16
        assert (a @ a).dtype is torch.float16
        with torch.autocast(device_type=a.device.type, enabled=False):
            assert (a @ a).dtype is torch.float32
    with torch.amp.autocast("cuda", dtype=torch.bfloat16):
        assert (a @ a).dtype is torch.bfloat16


def test_operators_registered_for_cuda_run(gpu):
    @torch.library.custom_op("touchstone_face::one", mutates_args=(), device_types="cuda")
    def one(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        return x + 1

    library = torch.library.Library("touchstone_face", "FRAGMENT")
    library.define("two(Tensor x) -> Tensor")
    library.impl("two", lambda x: x + 2, "CUDA")
    x = torch.ones(2, device="cuda")
    assert one(x).tolist() == [2.0, 2.0]
    assert torch.ops.touchstone_face.two(x).tolist() == [3.0, 3.0]


def test_cuda_graphs_are_not_run(gpu):
    for needs in (torch.cuda.CUDAGraph, lambda: torch.cuda.graph(None), torch.cuda.cudart):
        with pytest.raises(NotRun, match="takes a GPU"):
            needs()


def test_what_was_asked_is_counted_by_name():
    asked = Counter()
    with cuda_face.answering(GPU, asked):
        torch.cuda.current_device()
        x = torch.ones(2, device="cuda")
        assert x.is_cuda
        torch.zeros(2, device=x.device)
    with cuda_face.answering(GPU):
        torch.cuda.current_device()
    assert asked == {"torch.cuda.current_device": 1, 'device="cuda"': 1, "Tensor.is_cuda": 1}


def test_within_another_context_the_first_answers(gpu):
    with cuda_face.answering(GPUS["sm_80"]):
        assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.ones(1).device.type == "cpu" and torch.cuda.is_available()


def test_a_function_bound_within_works_as_before_outside():
    with cuda_face.answering(GPU):
        zeros, is_available = torch.zeros, torch.cuda.is_available
        assert is_available()
    made = zeros(3)
    assert made.device.type == "cpu" and not cuda_face.on_host(made)
