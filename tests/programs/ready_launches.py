"""Launches of prepared Triton kernels, on tensors that say they lie on a GPU, by a driver that writes down what it is
given; tests/triton/test_ready.py reads what is printed."""

import ctypes
import json
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from touchstone.backends import prepared, replay, tensormaps
from touchstone.backends.triton.runtime import compiling, first, ready

SIZES = {"b8": 1, "u8": 1, "u16": 2, "u32": 4, "f32": 4, "u64": 8}
compiled_kernels, log, encoded = {}, [], []


class OnGpu(torch.Tensor):
    is_cuda = property(lambda self: True)

    def get_device(self):
        return 0


def on_gpu(*shape, dtype=torch.float16, offset=0):
    room = torch.empty(1 << 16, dtype=dtype)[offset:]
    strides = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return room.as_strided(shape, strides).as_subclass(OnGpu)


def parameters(handle):
    """Sizes of a kernel's parameters, from its PTX."""
    text = compiled_kernels[handle].asm["ptx"]
    signature = re.search(r"\.entry \w+\((.*?)\)", text, re.DOTALL)[1]
    found = re.findall(r"\.param (?:\.align \d+ )?\.(\w+)(?: \.ptr[^\n]*?)? \w+(?:\[(\d+)\])?,?\s*(?:\n|$)", signature)
    return [SIZES[kind] * int(count or 1) for kind, count in found]


def native(self, *args, grid, warmup, **kwargs):
    """Triton's own launch: it compiles, once for what it specialises on, and launches nothing."""
    log.append("native")
    with compiling.recording("sm_90") as launches:
        original(self, *args, grid=grid, warmup=False, **kwargs)
    (launch,) = launches
    for found in compiled_kernels.values():
        if found.launch_key == launch.key:
            return found
    source = launch.source(launch.function, launch.signature, launch.constexprs, launch.attributes)
    made = triton.compile(source, target=compiling._target("sm_90"), options=dict(launch.options))
    made.function, made.launch_key = len(compiled_kernels) + 1, launch.key
    compiled_kernels[made.function] = made
    return made


class Driver:
    def launch(self, handle, x, y, z, bx, by, bz, shared, stream, addresses, extra):
        sizes = parameters(handle)
        values = [ctypes.string_at(address, size).hex() for address, size in zip(addresses, sizes, strict=True)]
        about = compiled_kernels[handle].metadata
        assert (bx, by, bz, shared, stream) == (32 * about.num_warps, 1, 1, about.shared, 3)
        log.append({"kernel": handle, "grid": [x, y, z], "values": values, "dependent": extra == "dependent"})
        return 0

    def extended(self, config, handle, addresses, extra):
        given = config._obj
        assert (given.attributes[0].id, given.attributes[0].value[0], given.count) == (6, 1, 1)
        assert (given.shared, given.stream) == (compiled_kernels[handle].metadata.shared, 3)
        return self.launch(handle, *given.grid, *given.block, given.shared, given.stream, addresses, "dependent")


def encoder(place, dtype, rank, address, sizes, pitches, box, steps, interleave, swizzle, promotion, fill):
    assert place % 64 == 0
    encoded.append([dtype, list(sizes), list(pitches), list(box), swizzle, promotion])
    ctypes.memmove(place, struct.pack("<QQ", address, len(encoded)).ljust(128, b"#"), 128)
    return 0


original = JITFunction.run
JITFunction.run = ready._NATIVE = native
ready._parameters = parameters
prepared._driver = lambda: Driver()
tensormaps._encoder = lambda: encoder
torch._C._cuda_getDevice = lambda: 0
torch._C._cuda_getCurrentRawStream = lambda index: 3


@ready.prepared
@triton.jit(do_not_specialize=["rows"])
def numbers(x_ptr, y_ptr, rows, cols, scale, flag, BLOCK: tl.constexpr, HOW: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * cols + tl.arange(0, BLOCK)
    y = tl.load(x_ptr + at) * scale
    if flag:
        y += 1
    if y_ptr is not None:
        tl.store(y_ptr + at, y, mask=at < rows)


@ready.prepared
@triton.jit
def tiles(x_desc, y_desc, n, BLOCK: tl.constexpr):
    y_desc.store([0, n], x_desc.load([n, 0]).T)


def calls(launch, cases):
    """What each of the calls did, and the values that its kernel would have had from Triton."""
    found = []
    for case in cases:
        log.clear()
        launch(**case)
        found.append(log[:])
    return found


x, y = on_gpu(64, 64), on_gpu(64, 64)
plain = dict(x=x, y=y, rows=5, cols=48, scale=0.5, flag=True, grid=(2, 3), BLOCK=64, HOW="a")


def launch_numbers(x, y, rows, cols, scale, flag, grid, BLOCK, HOW, **options):
    numbers[grid](x, y, rows, cols, scale, flag, BLOCK=BLOCK, HOW=HOW, **options)


changes = {
    "the same": {},
    "other numbers": dict(rows=1, cols=32, scale=2.0),
    "other memory": dict(x=on_gpu(8, 8), y=on_gpu(4, 4)),
    "another grid": dict(grid=(7,)),
    "cols no multiple": dict(cols=33),
    "cols 1": dict(cols=1),
    "not aligned": dict(x=on_gpu(8, 8, offset=1)),
    "another dtype": dict(x=on_gpu(8, 8, dtype=torch.float32)),
    "no y": dict(y=None),
    "another constant": dict(HOW="b"),
    "a number as a constant": dict(HOW=1),
    "a truth as a constant": dict(HOW=True),
    "more warps": dict(num_warps=8),
    "a grid with a zero": dict(grid=(0,)),
    "a grid that is worked out": dict(grid=lambda about: (1,)),
    "dependent": dict(launch_pdl=True),
}
report = {}
for name, change in changes.items():
    case = {**plain, **change}
    report[name] = calls(launch_numbers, [case, case])
wide = {**plain, "cols": 48 << 28, "rows": 1 << 40}
report["wide after narrow"] = calls(launch_numbers, [plain, wide, wide])
reverse = {**plain, "HOW": "wide first"}
wide["HOW"] = "wide first"
report["narrow after wide"] = calls(launch_numbers, [wide, wide, reverse])
addresses = {"x": x.data_ptr(), "y": y.data_ptr()}


@ready.kept
def described(x, rows, cols):
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, cols])


def launch_tiles(x, y, n, block):
    tiles[(4,)](described(x, block, 64), described(y, 64, block), n, BLOCK=block)


def launch_nan_outside(x, y):
    filled = TensorDescriptor(x, list(x.shape), list(x.stride()), [32, 64], padding="nan")
    tiles[(4,)](filled, described(y, 64, 32), 3, BLOCK=32)


a, b = on_gpu(96, 64), on_gpu(64, 128)
case = dict(x=a, y=b, n=3, block=32)
other = dict(x=on_gpu(80, 64), y=on_gpu(64, 256), n=16 * 7, block=32)
report["tiles"] = calls(launch_tiles, [case, case, {**case, "n": 5}, other, other, {**case, "block": 16}])
singles = dict(x=on_gpu(96, 64, dtype=torch.float32), y=on_gpu(64, 128, dtype=torch.float32), n=3, block=32)
report["tiles of float32"] = calls(launch_tiles, [singles, singles])
report["nan outside"] = calls(launch_nan_outside, [dict(x=a, y=b)] * 2)
holds = described(a, 32, 64)
report["kept"] = [holds is described(a, 32, 64), holds is described(b, 32, 64), isinstance(holds.base, torch.Tensor)]
on_cpu = torch.empty(96, 64, dtype=torch.float16)
report["on the CPU"] = [described(on_cpu, 32, 64).base is on_cpu]

own = []


@triton.jit
def unprepared(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at), mask=at < n)


@replay.replayed
def copied(x, y):
    own.append(x.data_ptr())
    unprepared[(2,)](x, y, 5, BLOCK=64)


def launched_by_others(self, *args, **kwargs):
    return native(self, *args, **kwargs)


def aligned():
    room = torch.empty(1 << 10, dtype=torch.float16)
    begin = -room.data_ptr() % replay.ALIGNMENT // 2
    return room[begin : begin + 64].as_subclass(OnGpu)


def replays():
    """Of calls with other memory each: whether the launcher was called, and what the driver was given."""
    for number in range(8):
        own.clear(), log.clear()
        JITFunction.run = launched_by_others if number == 6 else native
        x, y = aligned(), aligned()
        copied(x, y)
        given = [each["values"][:2] if isinstance(each, dict) else each for each in log]
        yield bool(own), given, [x.data_ptr().to_bytes(8, "little").hex(), y.data_ptr().to_bytes(8, "little").hex()]


encoded_before = encoded[:]


class OfTriton:
    """In the place of the launcher that Triton compiles."""

    asked = "of Triton"

    def __init__(self, src, metadata):
        log.append("made")

    def __call__(self, *args):
        log.append("of Triton")


def first_launches(handle, *args, grid=(2, 3, 1), times=1):
    """What the driver is given by a new launcher of a compiled kernel."""
    log.clear()
    made = compiled_kernels[handle]
    launcher = first.First(made.src, made.metadata)
    for _ in range(times):
        launcher(*grid, 3, handle, None, None, None, None, *args)
    return [*log, getattr(launcher, "asked", None)] if times == 1 and grid == (1, 1, 1) else log[:]


first._native = OfTriton
handles = {name: report[name][1][0]["kernel"] for name in ("the same", "cols 1", "no y", "dependent", "tiles")}
given = 5, 48, 0.5, True, 64, "a"
report["first"] = {
    "the same": first_launches(handles["the same"], x, y, *given),
    "cols 1": first_launches(handles["cols 1"], x, y, 5, 1, 0.5, True, 64, "a"),
    "no y": first_launches(handles["no y"], x, None, *given),
    "dependent": first_launches(handles["dependent"], x, y, *given),
    "tiles": first_launches(handles["tiles"], described(a, 32, 64), described(b, 64, 32), 3, 32, grid=(4, 1, 1)),
    "a grid with a zero": first_launches(handles["the same"], x, y, *given, grid=(0, 1, 1)),
    "on the CPU": first_launches(handles["the same"], on_cpu, y, *given),
    "an address": first_launches(handles["the same"], 16, y, *given),
    "an argument less": first_launches(handles["the same"], x, y, *given[1:]),
    "a number of NumPy": first_launches(handles["the same"], x, y, np.int32(5), *given[1:]),
    "too large": first_launches(handles["the same"], x, y, 1 << 40, *given[1:]),
    "an attribute": first_launches(handles["the same"], x, y, *given, grid=(1, 1, 1))[-1:],
    "often": [each == "of Triton" for each in first_launches(handles["the same"], x, y, *given, times=first.FEW + 2)],
}
with ThreadPoolExecutor(1) as pool:
    log.clear()
    made = compiled_kernels[handles["the same"]]
    launcher = first.First(made.src, made.metadata)
    pool.submit(launcher, 2, 3, 1, 3, made.function, None, None, None, None, x, y, *given).result()
    report["first"]["another thread"] = log[:]
report["first"]["encoded"] = encoded[len(encoded_before) :]
made.metadata = made.metadata._replace(num_ctas=2)
report["first"]["a cluster"] = first_launches(made.function, x, y, *given)
torch._C._len_torch_function_stack = lambda: 0
report["replays"] = list(replays())
JITFunction.run = native
hook = SimpleNamespace(calls=[print])
triton.knobs.runtime.launch_enter_hook = hook
report["watched"] = calls(launch_numbers, [plain])
report["first"]["watched"] = first_launches(handles["cols 1"], x, y, 5, 1, 0.5, True, 64, "a")
print(
    json.dumps(
        {"report": report, "addresses": addresses, "encoded": encoded_before, "a": a.data_ptr(), "b": b.data_ptr()}
    )
)
