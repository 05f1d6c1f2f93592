"""What the translated code of every kernel calls, as LLVM IR: prelude.ll, the registers, and Numba's atomics."""

from pathlib import Path

from touchstone.backends.emulator.numba.lines import SITE

_TEXT = (Path(__file__).parent / "prelude.ll").read_text()
assert str(SITE) in _TEXT


def _register(name: str, call: str, shift: int) -> str:
    keep = (
        "%t = trunc i64 %r to i32\n  ret i32 %t"
        if shift == 0
        else f"%s = lshr i64 %r, {shift}\n  %t = trunc i64 %s to i32\n  %m = and i32 %t, 65535\n  ret i32 %m"
    )
    return (
        f'define linkonce_odr i32 @"tsn.read.ptx.sreg.{name}"() alwaysinline {{\n  %r = call i64 @{call}()\n  '
        f"{keep}\n}}\n"
    )


# of a thread and its block: packed by the engine as 32 bits for x, 16 each for y and z
_REGISTERS = "".join(
    _register(f"{name}.{axis}", call, shift)
    for name, call in (
        ("tid", "ts_thread_index"),
        ("ctaid", "ts_block_index"),
        ("ntid", "ts_block_dim"),
        ("nctaid", "ts_grid_dim"),
    )
    for axis, shift in (("x", 0), ("y", 32), ("z", 48))
)

# Numba's atomics that are calls: name, value type, function of support.cpp
_ATOMIC_CALLS = {
    "tsn.atomic.load.add.f32.p0f32": ("float", "add_float"),
    "tsn.atomic.load.add.f64.p0f64": ("double", "add_double"),
    "tsn.atomic.load.inc.32.p0i32": ("i32", "inc_i32"),
    "tsn.atomic.load.dec.32.p0i32": ("i32", "dec_i32"),
    "___numba_atomic_u64_inc": ("i64", "inc_i64"),
    "___numba_atomic_u64_dec": ("i64", "dec_i64"),
    **{
        f"___numba_atomic_{real}_{what}": (real, f"{what}_{real}")
        for real in ("float", "double")
        for what in ("add", "sub", "max", "min", "nanmax", "nanmin")
    },
}


def prelude() -> str:
    """The definitions, as the text of a module's beginning."""
    text = _TEXT + _REGISTERS
    for name, (kind, function) in _ATOMIC_CALLS.items():
        declare = f"declare {kind} @tsn_{function}(ptr, {kind}, i64) nounwind\n"
        text += "" if declare in text else declare
        text += (
            f'define linkonce_odr {kind} @"{name}"(ptr %p, {kind} %v) alwaysinline {{\n'
            f"  %r = call {kind} @tsn_{function}(ptr %p, {kind} %v, i64 {SITE})\n  ret {kind} %r\n}}\n"
        )
    return text
