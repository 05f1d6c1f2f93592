"""Launch configurations pinned for a GPU architecture: looked up by launchers, found and written by `conformance tune`.

A table is tuned/<arch>.json: key -> dtype -> bucket -> {"config": ..., "provenance": ...}. A bucket is the call's sizes,
each rounded up to a power of two ("4096x4096x1024"). A call takes the entry of its own bucket, else of the nearest one:
the smallest sum over the sizes of |log2| of the ratio, and nothing that is further than FARTHEST doublings away.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent / "tuned"
FARTHEST = 4  # doublings, summed over the sizes
_trying: ContextVar[tuple[dict[str, Any], str | None] | None] = ContextVar("trying", default=None)
_assumed: ContextVar[str | None] = ContextVar("assumed", default=None)
_asked: ContextVar[list[tuple[str, str, tuple[int, ...]]] | None] = ContextVar("asked", default=None)


def pinned(key: str, dtype: torch.dtype, sizes: tuple[int, ...], default: dict[str, Any]) -> dict[str, Any]:
    """The configuration for a call of `key` ("matmul.tuned") with `dtype` and `sizes`; `default` where none is pinned.

    Inside `trying(config)` it is `config`. Without a GPU, and where Triton interprets, it is always `default`.
    """
    name = str(dtype).removeprefix("torch.")
    asked = _asked.get()
    if asked is not None:
        asked.append((key, name, tuple(sizes)))
    trial = _trying.get()
    if trial is not None and trial[1] in (None, key):
        return trial[0]
    arch = _assumed.get() or _arch()
    return default if arch is None else _nearest(arch, key, name, tuple(sizes)) or default


@contextmanager
def trying(config: dict[str, Any], key: str | None = None) -> Iterator[None]:
    """Make every `pinned` of this context answer `config`, or every one of `key`."""
    token = _trying.set((config, key))
    try:
        yield
    finally:
        _trying.reset(token)


@contextmanager
def assuming(arch: str) -> Iterator[None]:
    """Look configurations up in the table of `arch` ("sm_90"), whatever GPU there is."""
    token = _assumed.set(arch)
    try:
        yield
    finally:
        _assumed.reset(token)


def bucket(sizes: tuple[int, ...]) -> str:
    """The name of the bucket of `sizes`: each rounded up to a power of two."""
    return "x".join(str(1 << max(size - 1, 0).bit_length()) for size in sizes)


def pin(arch: str, key: str, dtype: str, sizes: tuple[int, ...], config: dict[str, Any], provenance: str) -> Path:
    """Write one configuration into the table of `arch`; the file stays sorted. Returns its path."""
    path = FOLDER / f"{arch}.json"
    table = _read(path)
    entry = {"config": config, "provenance": provenance}
    table.setdefault(key, {}).setdefault(dtype, {})[bucket(sizes)] = entry
    for dtypes in table.values():
        for name, entries in dtypes.items():
            dtypes[name] = dict(sorted(entries.items(), key=lambda item: _numbers(item[0])))
    FOLDER.mkdir(exist_ok=True)
    path.write_text(json.dumps({k: dict(sorted(table[k].items())) for k in sorted(table)}, indent=1) + "\n")
    _nearest.cache_clear()
    _table.cache_clear()
    return path


def tune(
    launcher: Callable[..., Any], arguments: dict[str, Any], verify: Callable[[], bool], write: bool = True
) -> dict[str, Any] | None:
    """Time every configuration of `launcher.space` on the call `launcher(**arguments)`, on a GPU; pin the fastest.

    A configuration that raises, or under which `verify()` is false, is skipped. Returns `config`, `ms` (median), `tried`
    (how many ran), `default_ms` and `skipped` (reasons); None where the launcher looks no configuration up for this
    call, or declines it.
    """
    import triton
    from triton.testing import do_bench

    asked: list[tuple[str, str, tuple[int, ...]]] = []
    token = _asked.set(asked)
    try:
        launcher(**arguments)
    except NotImplementedError:
        return None
    finally:
        _asked.reset(token)
    if not asked:
        return None
    own = [question for question in asked if question[0].endswith(f".{launcher.__name__}")] or asked[:1]
    key = own[0][0]

    def median() -> float:
        return do_bench(lambda: launcher(**arguments), warmup=25, rep=100, return_mode="median")

    default_ms = median()
    times: list[tuple[float, dict[str, Any]]] = []
    skipped: list[str] = []
    for config in launcher.space:
        with trying(config, key):
            try:
                launcher(**arguments)
                torch.cuda.synchronize()
                if verify():
                    times.append((median(), config))
                else:
                    skipped.append(f"{config}: wrong answer")
            except Exception as error:
                skipped.append(f"{config}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    if not times:
        return {"config": None, "ms": math.nan, "tried": 0, "default_ms": default_ms, "skipped": skipped}
    ms, config = min(times, key=lambda item: item[0])
    arch = _arch()
    if write and arch is not None:
        provenance = f"{torch.cuda.get_device_name()}, Triton {triton.__version__}, {ms:.4f} ms"
        for _, dtype, sizes in dict.fromkeys(own):
            pin(arch, key, dtype, sizes, config, provenance)
    return {"config": config, "ms": ms, "tried": len(times), "default_ms": default_ms, "skipped": skipped}


@lru_cache(maxsize=1)
def _arch() -> str | None:
    if os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on") or not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


@lru_cache(maxsize=4096)
def _nearest(arch: str, key: str, dtype: str, sizes: tuple[int, ...]) -> dict[str, Any] | None:
    entries = _table(arch).get(key, {}).get(dtype, {})
    wanted = _numbers(bucket(sizes))
    best, found = FARTHEST + 0.5, None
    for name, entry in entries.items():
        have = _numbers(name)
        if len(have) == len(wanted):
            far = sum(abs(math.log2(a / b)) for a, b in zip(wanted, have, strict=True))
            if far < best:
                best, found = far, entry["config"]
    return found


@lru_cache(maxsize=8)
def _table(arch: str) -> dict[str, Any]:
    return _read(FOLDER / f"{arch}.json")


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("x"))
