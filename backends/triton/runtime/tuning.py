"""Launch configurations pinned for a GPU architecture: looked up by launchers, found and written by `touchstone tune`.

A table is tuned/<arch>.json: key -> dtype -> bucket -> the configuration and how it was measured. A bucket is the
call's sizes, each rounded up to a power of two: "4096x4096x1024". A call takes the entry of its own bucket, else of the
nearest: the smallest sum over the sizes of |log2| of their ratio, the bucket of smaller sizes where two are equally
near, and none that is more than FARTHEST doublings away. An entry whose names are not those of the launcher's default
is out of date and not used. Without a GPU, and where Triton interprets, no table is read.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from touchstone.backends import replay
from touchstone.backends.devices import SHARED_LIMIT, shared_per_block
from touchstone.backends.storage import files
from touchstone.backends.variants import attributes

FOLDER = Path(__file__).parent / "tuned"
FARTHEST = 4  # doublings, summed over the sizes
Config = dict[str, Any]


class Question(NamedTuple):
    """A call of `pinned`."""

    key: str
    dtype: str
    sizes: tuple[int, ...]
    default: Config


_trying: ContextVar[tuple[Config | None, str | None] | None] = ContextVar("trying", default=None)
_assumed: ContextVar[str | None] = ContextVar("assumed", default=None)
_asked: ContextVar[list[Question] | None] = ContextVar("asked", default=None)


def pinned(key: str, dtype: torch.dtype, sizes: tuple[int, ...], default: Config) -> Config:
    """The configuration for a call of `key` ("matmul.tuned") with `dtype` and `sizes`; `default` where none is
    pinned."""
    asked = _asked.get()
    if asked is not None:
        asked.append(Question(key, _name(dtype), tuple(sizes), default))
    trial = _trying.get()
    if trial is not None and trial[1] in (None, key):
        return default if trial[0] is None else trial[0]
    arch = _assumed.get() or _arch()
    if arch is None:
        return default
    found = _nearest(arch, key, _name(dtype), tuple(sizes))
    return dict(found) if found is not None and found.keys() == default.keys() else default


def is_asked() -> bool:
    """Whether within this context a configuration is another than that of the table, or somebody asks for which."""
    return any(each.get() is not None for each in (_asked, _trying, _assumed))


@contextmanager
def trying(config: Config | None, key: str | None = None) -> Iterator[None]:
    """Make every `pinned` of this context, or every one of `key`, answer `config`; None is the call's own default."""
    token = _trying.set((config, key))
    try:
        yield
    finally:
        _trying.reset(token)


@contextmanager
def assuming(arch: str) -> Iterator[None]:
    """Look configurations up, and pin them, in the table of `arch` ("sm_90"), whatever GPU there is."""
    token = _assumed.set(arch)
    try:
        yield
    finally:
        _assumed.reset(token)


def shared_limit(device: torch.device) -> int:
    """Bytes of shared memory that one program may have on `device`; on the CPU, of the architecture that is assumed, or
    as many as on sm_90."""
    if device.type == "cuda":
        return shared_per_block(device)
    return SHARED_LIMIT.get(_assumed.get() or "", SHARED_LIMIT["sm_90"])


def bucket(sizes: tuple[int, ...]) -> str:
    """The name of the bucket of `sizes`: each rounded up to a power of two."""
    return "x".join(str(1 << max(size - 1, 0).bit_length()) for size in sizes)


def pin(arch: str, key: str, dtype: str, sizes: tuple[int, ...], config: Config, measured: dict[str, Any]) -> Path:
    """Write one configuration, with how it was measured, into the table of `arch`; the file stays sorted."""
    path = FOLDER / f"{arch}.json"
    FOLDER.mkdir(exist_ok=True)
    with files.alone(path):
        table = _read(path)
        table.setdefault(key, {}).setdefault(dtype, {})[bucket(sizes)] = {"config": config, **measured}
        for dtypes in table.values():
            for name, entries in dtypes.items():
                dtypes[name] = dict(sorted(entries.items(), key=lambda item: _numbers(item[0])))
        whole = {name: dict(sorted(table[name].items())) for name in sorted(table)}
        files.replace(path, json.dumps(whole, indent=1) + "\n")
    _nearest.cache_clear()
    _table.cache_clear()
    replay.forget()
    return path


def tune(
    launcher: Callable[..., Any],
    arguments: dict[str, Any],
    verified: Callable[[], bool],
    write: bool = True,
    timer: Callable[[Callable[[], Any]], float] | None = None,
) -> dict[str, Any] | None:
    """Time the default and every configuration of its `space` on `launcher(**arguments)`; pin the fastest right
    one.

    `verified()` judges the launcher with the configuration being tried: asked from the fastest on, until one is right,
    since each asking compiles as many kernels as it has cases. `timer(call)` gives milliseconds (default: median of
    triton.testing.do_bench, on a GPU). A configuration that raises is skipped.

    Returns `config`, `ms`, `default_ms`, `tried` (how many ran), `skipped` (reasons) and `pinned` (the buckets
    written);
    `config` is None where none was right. None where the launcher looks no configuration up for this call or declines
    it.
    """
    timer = timer or _median_ms
    questions = _questions(launcher, arguments)
    if not questions:
        return None
    key = questions[0].key
    only = questions[0].default if len(questions) == 1 else None
    tries: list[Config | None] = [None]  # first the default
    for config in attributes(launcher).space:
        if config not in tries and config != only:
            tries.append(config)
    times: list[tuple[float, int]] = []
    skipped: list[str] = []
    for index, config in enumerate(tries):
        with trying(config, key):
            try:
                times.append((timer(lambda: launcher(**arguments)), index))
            except Exception as error:
                skipped.append(f"{config or 'default'}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
    result = {"config": None, "ms": math.nan, "tried": len(times), "skipped": skipped, "pinned": []}
    result["default_ms"] = next((ms for ms, index in times if index == 0), math.nan)
    for ms, index in sorted(times):
        with trying(tries[index], key):
            right = verified()
        if not right:
            skipped.append(f"{tries[index] or 'default'}: wrong answer")
            continue
        result.update(config=tries[index] or questions[0].default, ms=ms)
        arch = _assumed.get() or _arch()
        measured = {"ms": round(ms, 5), "default_ms": round(result["default_ms"], 5), **_provenance()}
        for name, question in {(q.dtype, bucket(q.sizes)): q for q in questions}.items() if write and arch else ():
            pin(arch, key, question.dtype, question.sizes, tries[index] or question.default, measured)
            result["pinned"].append(" ".join([arch, key, *name]))
        break
    return result


def _questions(launcher: Callable[..., Any], arguments: dict[str, Any]) -> list[Question]:
    """What one call of the launcher asks of `pinned` under its own key; it may also call other variants that ask."""
    asked: list[Question] = []
    token = _asked.set(asked)
    try:
        launcher(**arguments)
    except NotImplementedError:
        return []
    finally:
        _asked.reset(token)
    own = [question for question in asked if question.key.endswith(f".{launcher.__name__}")]
    return own or [question for question in asked if question.key == asked[0].key]


def _median_ms(call: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return do_bench(call, warmup=25, rep=100, return_mode="median")


def _provenance() -> dict[str, str]:
    import triton

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    versions = {"triton": triton.__version__, "torch": torch.__version__, "cuda": str(torch.version.cuda)}
    return {"gpu": gpu, **versions, "date": date.today().isoformat()}


@cache
def _arch() -> str | None:
    """Of the GPU that kernels run on; None where they run on the CPU."""
    interprets = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")
    if interprets or not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


@lru_cache(maxsize=4096)
def _nearest(arch: str, key: str, dtype: str, sizes: tuple[int, ...]) -> Config | None:
    entries = _table(arch).get(key, {}).get(dtype, {})
    wanted = _numbers(bucket(sizes))
    best, found = FARTHEST + 0.5, None
    for name, entry in entries.items():  # sorted from small sizes to large
        have = _numbers(name)
        if len(have) == len(wanted):
            far = sum(abs(math.log2(a / b)) for a, b in zip(wanted, have, strict=True))
            if far < best:
                best, found = far, entry["config"]
    return found


@cache
def _table(arch: str) -> dict[str, Any]:
    return _read(FOLDER / f"{arch}.json")


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("x"))


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
