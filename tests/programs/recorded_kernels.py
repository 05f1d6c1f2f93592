"""Run by test_triton_compiling.py in a process that compiles: records launches, compiles them, prints JSON."""

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.tools.tensor_descriptor import TensorDescriptor

from touchstone.backends.triton.runtime import compiling, tuning
from touchstone.backends.triton.runtime.interpreter.compiled import Metadata
from touchstone.conformance.compiling import server
from touchstone.conformance.discovery import registry


@triton.jit
def _copy_kernel(x_ptr, y_ptr, n, scale, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0) * scale, mask=i < n)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["x_ptr", "stride"])
def _sparing_kernel(x_ptr, stride, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i * stride, 1.0, mask=i < n)


@triton.jit
def _tupled_kernel(pair, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(pair[0] + i * pair[1], 1.0, mask=i < n)


@triton.jit
def _optional_kernel(x_ptr, bias_ptr):
    x = tl.load(x_ptr)
    if bias_ptr is not None:
        x += tl.load(bias_ptr)
    tl.store(x_ptr, x)


def _short(configs, named, **_):
    return [config for config in configs if config.kwargs["BLOCK"] <= 2 * named["n"]]


@triton.autotune(
    [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=8), triton.Config({"BLOCK": 256})],
    key=["n"],
    prune_configs_by={"early_config_prune": _short},
)
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def _tuned_kernel(x_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 1.0, mask=True if EVEN else i < n)


@triton.jit
def _descriptor_kernel(desc, y_ptr):
    i = tl.arange(0, 32)
    tl.store(y_ptr + i[:, None] * 32 + i[None, :], desc.load([0, 0]))


@triton.jit
def _exp_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * n + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=tl.arange(0, BLOCK) < n, other=0.0)
    tl.store(y_ptr + i, tl.exp(x), mask=tl.arange(0, BLOCK) < n)


@triton.jit
def _carried_kernel(x_ptr, n):
    total = 0
    for i in range(n):
        total += tl.load(x_ptr + i)
    tl.store(x_ptr, total)


@triton.jit
def _hoarding_kernel(a_ptr, b_ptr, c_ptr, K, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    i, k = tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, BLOCK_K):
        a = tl.load(a_ptr + i[:, None] * K + start + k[None, :])
        b = tl.load(b_ptr + (start + k[:, None]) * BLOCK + i[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + i[:, None] * BLOCK + i[None, :], acc)


@triton.jit
def _assembler_kernel(x_ptr):
    x = tl.load(x_ptr)
    tl.store(x_ptr, tl.inline_asm_elementwise("no.such.instruction $0, $1;", "=r,r", [x], tl.int32, True, 1))


def softmax_in_float16(x):
    """What the interpreter accepts and the compiler refuses."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel():
        _exp_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


def pinned_copy():
    x = torch.zeros(64)
    config = tuning.pinned("recorded.copy", x.dtype, (64,), {"BLOCK": 64, "num_warps": 4})
    _copy_kernel[(1,)](x, x, 17, 0.5, **config)


def softmax_in_float32_only(x):
    if x.dtype != torch.float32:
        raise NotImplementedError(f"{x.dtype}; this kernel takes float32")
    return softmax_in_float16(x)


def recorded(*calls, arch="sm_90"):
    with compiling.recording(arch) as launches:
        for call in calls:
            call()
    return launches


def one(kernel, *arguments, grid=(1,), **options):
    return lambda: kernel[grid](*arguments, **options)


def metadata(launch):
    """What the compiler says of a kernel, and what the interpreter says in its place."""
    compiled = triton.compile(
        launch.source(launch.function, launch.signature, launch.constexprs, launch.attributes),
        target=GPUTarget("cuda", 90, 32),
    )
    said = vars(Metadata(launch.kernel, {}))
    return [{name: str(getattr(of, name)) for name in said if hasattr(compiled.metadata, name)}
            for of in (compiled.metadata, SimpleNamespace(**said))]  # fmt: skip


def main():
    x, half = torch.zeros(4096), torch.zeros(4096, dtype=torch.float16)
    programs = {
        "copy": recorded(
            one(_copy_kernel, x, x, 17, 0.5, BLOCK=64),
            one(_copy_kernel, x, x, 19, 0.25, BLOCK=64, num_warps=4),  # the same code
            one(_copy_kernel, x, x[1:], 17, 0.5, BLOCK=64),
            one(_copy_kernel, x, x, 32, 0.5, BLOCK=64),
            one(_copy_kernel, x, x, 1, 0.5, BLOCK=64),
            one(_copy_kernel, x, x, 1 << 40, 0.5, BLOCK=64),
            one(_copy_kernel, half, half, 17, 0.5, BLOCK=64, num_warps=8),
        ),
        "sparing": recorded(
            one(_sparing_kernel, x, 16, 1, BLOCK=64),
            one(_sparing_kernel, x[1:], 7, 16, BLOCK=64),
            one(_sparing_kernel, x, 1, 16, BLOCK=64),
        ),
        "tupled": recorded(
            one(_tupled_kernel, (x, 1), 17, BLOCK=64),
            one(_tupled_kernel, (x, None), 17, BLOCK=64),
            one(_tupled_kernel, (x, 2), 17, BLOCK=64),
            one(_tupled_kernel, (x[1:], 16), 17, BLOCK=64),
            one(_tupled_kernel, (x, 16), 17, BLOCK=64),
        ),
        "optional": recorded(one(_optional_kernel, x, None), one(_optional_kernel, x, x)),
        "tuned": recorded(one(_tuned_kernel, x, 64, grid=lambda meta: (meta["BLOCK"],))),
        "descriptor": recorded(one(_descriptor_kernel, TensorDescriptor.from_tensor(torch.zeros(64, 64), [32, 32]), x)),
        "exp": recorded(one(_exp_kernel, half, half, 17, BLOCK=64), one(_exp_kernel, x, x, 17, BLOCK=64)),
        "carried": recorded(one(_carried_kernel, x, 17)),
        "hoarding": recorded(
            one(_hoarding_kernel, half, half, x, 512, BLOCK=128, BLOCK_K=128, num_stages=4, num_warps=8)
        ),
    }
    with tempfile.TemporaryDirectory() as folder:
        tuning.FOLDER = Path(folder)
        tuning.pin("sm_80", "recorded.copy", "float32", (64,), {"BLOCK": 32, "num_warps": 1}, {})
        programs["pinned"] = recorded(pinned_copy, arch="sm_80") + recorded(pinned_copy, arch="sm_90")
    kept = float(x.sum())
    hoarding, exp = programs["hoarding"], programs["exp"]
    mixed = recorded(
        one(_copy_kernel, x, x, 17, 0.5, BLOCK=64),
        one(_copy_kernel, half, half, 32, 0.5, BLOCK=128),
        one(_copy_kernel, x, x[1:], 32, 0.5, BLOCK=128),
        one(_copy_kernel, x, x, 32, 0.5, BLOCK=128),
        one(_copy_kernel, x, x, 33, 0.5, BLOCK=128),
        one(_exp_kernel, x, x, 17, BLOCK=64),
        one(_tuned_kernel, x, 64, grid=lambda meta: (meta["BLOCK"],)),
        one(_exp_kernel, x, x, 33, BLOCK=32),
    )
    later = {
        "shared": [compiling.refused_later(hoarding[0], arch) for arch in ("sm_80", "sm_90")],
        "front end": compiling.refused_later(exp[0], "sm_90"),
        "right": compiling.refused_later(exp[1], "sm_90"),
        "heaviest": [str(launch) for launch in compiling.heaviest(mixed)],
    }
    of_words = recorded(one(_assembler_kernel, torch.zeros(4, dtype=torch.int32)))
    with contextlib.redirect_stdout(sys.stderr):  # Triton prints what the assembler refuses
        later["assembler"] = compiling.refused_later(of_words[0], "sm_90")
        try:
            later["unknown"] = compiling.refused_later(exp[1], "sm_3")
        except Exception as error:
            later["unknown"] = f"{type(error).__name__}: {error}"
    compiling._text = lambda launch: "except OutOf" + "Resources:"
    later["caught"] = compiling.refused_later(hoarding[0], "sm_80")
    result = {"written": kept, "programs": {}, "metadata": metadata(programs["copy"][0])}
    for name, launches in programs.items():
        result["programs"][name] = [
            {
                "launch": str(launch),
                "key": launch.key,
                "features": sorted(map(list, launch.features)),
                "types": launch.types,
                "front end": compiling.compile_one(launch, "sm_90", to_machine_code=False),
                **{
                    arch: compiling.compile_one(launch, arch)
                    for arch in ("sm_80", "sm_90")
                    if name not in ("copy", "sparing", "tupled")
                },
            }
            for launch in launches
        ]
    variants = {"whole": softmax_in_float16, "part": softmax_in_float32_only}
    result["later"] = later
    result["checked"] = server.check(
        compiling, variants, registry.contract("softmax"), every=False, processes=1, known={}
    )
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
