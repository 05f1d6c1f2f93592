"""Derived contracts tried on many functions: which right runs they accuse, and which mutants they let through.

    python -m tests.derived.trial FOLDER --json results.jsonl [--jobs 2] [--device cuda] [--inductor]
    python -m tests.derived.trial opinfo --held 30 --salt another --json results.jsonl

A FOLDER holds problem files of KernelBench's form, "opinfo" stands for the entries of torch's database of operators.
`--held N` takes the N items whose names, after `--salt`, have the smallest SHA-256, `--rest N` all others: what rules
are written with, and what they are tried on once. Each item runs in a process of its own. The results are one JSON
object a line; items that are in the file already are not run again, so that a run may be broken off.

Right runs of an item, on the plain cases of every family of values and dtype: six forms in float32 arithmetic, eager
and, with `--inductor`, compiled code in the case's own dtype on the device. With `--device cuda` TF32 and reduced
precision in sums are off. `--quick` times `check_against` at level quick, with the reference in float32 as the kernel.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import time
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from touchstone import Refused, check_against, derive
from touchstone.conformance.derived import selftest
from touchstone.conformance.derived.contract import DerivedContract
from touchstone.conformance.derived.forms import KINDS
from touchstone.conformance.derived.mutants import mutants_of, spread
from touchstone.conformance.derived.ops import is_float, tensors_of
from touchstone.conformance.derived.samples import cast
from touchstone.conformance.discovery import problems

NARROW_FAMILIES = 4  # in each 16-bit dtype
SAMPLES = 3  # of an entry of the database
COMPILED = 3  # cases of a dtype that compiled code runs on
ELEMENTS = 20000  # of a sample's tensors


def items_of(place: str) -> list[str]:
    """The names of what a place holds."""
    if place == "opinfo":
        return [f"opinfo:{name}" for name in sorted(_database())]
    if place.startswith("opinfo:"):
        return [place]
    path = Path(place)
    found = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    if not found or not all(each.is_file() for each in found):
        raise SystemExit(f"{place}: expected a folder of problem files, a problem file, opinfo, or opinfo:NAME")
    return [str(each) for each in found]


def by_hash(names: Sequence[str], salt: str = "") -> list[str]:
    """Names in the order of their digests, `salt` before each: of a file, those of its folder and its own."""

    def key(name: str) -> str:
        plain = name.removeprefix("opinfo:") if name.startswith("opinfo:") else "/".join(Path(name).parts[-2:])
        return hashlib.sha256((salt + plain).encode()).hexdigest()

    return sorted(names, key=key)


def _database() -> dict[str, Any]:
    """The entries by name, with that of their variant where they have one."""
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, Any] = {}
    for entry in op_db:
        found.setdefault(f"{entry.name} {entry.variant_test_name}".strip(), entry)
    return found


def functions_of(item: str) -> Iterator[tuple[str, Callable[..., Any], Any]]:
    """(name, reference, inputs) of an item: one of a problem, some samples of an entry of the database."""
    if not item.startswith("opinfo:"):
        model, inputs = problems.small(Path(item).resolve())
        made = types.ModuleType(Path(item).stem)  # which torch.compile imports by the name that the model's file has
        sys.modules[made.__name__] = made
        vars(made).update(type(model).forward.__globals__)
        yield Path(item).stem, model, inputs
        return
    entry = _database()[item.removeprefix("opinfo:")]
    torch.manual_seed(0)
    samples = []
    for sample in entry.sample_inputs("cpu", torch.float32, requires_grad=False):
        leaves, tree = tree_flatten((sample.input, sample.args, sample.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if any(is_float(t) and t.numel() > 1 for t in tensors) and max(t.numel() for t in tensors) <= ELEMENTS:
            samples.append((leaves, tree))
    random.Random(0).shuffle(samples)
    for number, (leaves, tree) in enumerate(samples[:SAMPLES]):
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def function(*tensors, leaves=tuple(leaves), tree=tree, places=tuple(places)):
            given = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor
            x, args, kwargs = tree_unflatten(given, tree)
            return entry.op(x, *args, **kwargs)

        yield f"{entry.name} {number}", function, [leaves[place].detach() for place in places]


def tried(item: str, options: argparse.Namespace) -> dict[str, Any]:
    """The result of one item."""
    found: dict[str, Any] = {"item": item, "runs": Counter(), "accused": [], "native": []}
    found |= {"refused": [], "withdrawn": [], "unknown": []}
    found |= dict.fromkeys(("real", "killed", "narrow_real", "narrow_killed"), 0) | {"survivors": [], "errors": []}
    for name, reference, inputs in functions_of(item):
        began = time.monotonic()
        try:
            contract = derive(reference, inputs)
        except Refused as refused:
            found["refused"].append(f"{name}: {refused}")
            continue
        except ValueError as error:
            found["errors"].append(f"{name}: {error}")
            continue
        contract.name = "function"
        found["derive_seconds"] = round(time.monotonic() - began, 1)
        if accused := selftest.examine(contract, 0).accused:  # as check_against does
            found["withdrawn"].append(f"{name}: {accused[0]}")
            continue
        cases = list(selftest.tried_cases(contract, NARROW_FAMILIES))
        _right_runs(contract, cases, found, options)
        _mutants(contract, [one.plain() for one in cases if one.case.dtype == "float32"], found, options.mutants)
        found["unknown"] = sorted({*found["unknown"], *contract.unknown})
        if options.quick:
            before = found.get("quick", "passed")
            found |= _timed(reference, inputs)
            found["quick"] = found["quick"] if before == "passed" else before
    return found


def _right_runs(contract: DerivedContract, cases: list[selftest.Tried], found: dict[str, Any], options) -> None:
    for one in cases:
        for kind in KINDS:
            try:
                given = selftest.as_form(contract, one, kind)
            except torch.linalg.LinAlgError as error:  # no answer, as the reference has none
                found["runs"][f"form does not run: {type(error).__name__}"] += 1
                continue
            found["runs"][f"form {kind} {one.case.dtype}"] += 1
            if wrong := one.wrong(given):
                found["accused"].append(f"{kind}: {wrong} in {one.case.id}")
        _native(contract.function, "eager", one, found, options.device)
    if options.inductor:
        counts: Counter[str] = Counter()
        torch._dynamo.reset()
        compiled = torch.compile(contract.function, dynamic=False)
        for one in cases:
            counts[one.case.dtype] += 1
            if counts[one.case.dtype] <= COMPILED:
                _native(compiled, "inductor", one, found, options.device)


def _native(function, what: str, one: selftest.Tried, found: dict[str, Any], device: str) -> None:
    """A run in the case's own dtype. In 16 bits torch's kernels have faults of their own, so these are kept apart."""
    given = [t.to(device) if isinstance(t, torch.Tensor) else t for t in cast(one.values, one.case.torch_dtype)]
    try:
        with torch.no_grad():
            got = [t.cpu() for t in tensors_of(function(*given))]
    except Exception as error:
        found["runs"][f"{what} does not run: {type(error).__name__}"] += 1
        return
    found["runs"][f"{what} {one.case.dtype}"] += 1
    if wrong := one.wrong(got):
        where = "accused" if one.case.dtype == "float32" else "native"
        found[where].append(f"{what} on {device}: {wrong} in {one.case.id}")


def _mutants(contract: DerivedContract, wide: list[selftest.Tried], found: dict[str, Any], number: int) -> None:
    for mutant in spread(mutants_of(contract.function, wide[0].values), number) if wide else ():
        rejected = selftest.is_rejected(contract, mutant, wide)
        if rejected is None:
            continue
        found["real"] += 1
        found["killed"] += rejected
        found["narrow_real"] += mutant.narrow
        found["narrow_killed"] += mutant.narrow and rejected
        if not rejected:
            found["survivors"].append(str(mutant))


def _timed(reference: Callable[..., Any], inputs: Any) -> dict[str, Any]:
    """How long level quick takes, and what it says of the reference computed in float32."""
    contract = derive(reference, inputs)
    name = contract.names

    def kernel(*given, **state):
        values = [state[n] if n in state else given[name.index(n)] for n in name]
        dtype = next((t.dtype for t in values if is_float(t)), torch.float32)
        case = type("case", (), {"dtype": str(dtype).removeprefix("torch.")})
        out = tensors_of(contract.function(*cast(values, torch.float32)))
        own = [contract.outputs[n].dtype(case) for n in contract.outputs]
        made = [t.to(d or t.dtype).contiguous() for t, d in zip(out, own, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)

    began, before = time.monotonic(), sum(os.times()[:4])
    report = check_against(reference, kernel, inputs, level="quick", device="cpu")
    seconds, busy = time.monotonic() - began, sum(os.times()[:4]) - before
    return {"quick_seconds": round(seconds, 1), "quick_cpu": round(busy, 1), "quick": report.verdict}


def _one(item: str, options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    began = time.monotonic()
    try:
        result = tried(item, options)
    except Exception as error:
        result = {"item": item, "errors": [f"{type(error).__name__}: {error}: {traceback.format_exc()[-600:]}"]}
    result["seconds"] = round(time.monotonic() - began, 1)
    print("\n" + json.dumps(result))
    return 0


def _apart(item: str, options: argparse.Namespace) -> dict[str, Any]:
    """One item in a process of its own."""
    command = [sys.executable, "-m", "tests.derived.trial", "--one", item, "--mutants", str(options.mutants)]
    command += ["--device", options.device, *["--inductor"] * options.inductor, *["--quick"] * options.quick]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.seconds, env=environment)
    except subprocess.TimeoutExpired:
        return {"item": item, "errors": [f"not done after {options.seconds} s"]}
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"item": item, "errors": [f"ended with status {done.returncode}: {done.stderr[-600:]}"]}


def summary(results: Sequence[dict[str, Any]]) -> str:
    """The figures of a run, in words."""
    runs: Counter[str] = Counter()
    for each in results:
        runs.update(each.get("runs", {}))
    judged = {name: count for name, count in runs.items() if "does not run" not in name}
    total = Counter[str]()
    for each in results:
        total.update({n: each.get(n, 0) for n in ("real", "killed", "narrow_real", "narrow_killed")})
        total.update({n: len(each.get(n, ())) for n in ("accused", "native", "refused", "withdrawn", "errors")})
    quick = sorted(each["quick_seconds"] for each in results if "quick_seconds" in each)
    lines = [
        f"{len(results)} items, {total['refused']} refused, {total['withdrawn']} withdrawn, {total['errors']} errors",
        f"right runs accused: {total['accused']} of {sum(judged.values())}; native ones of 16 bits: {total['native']}",
        f"mutants killed: {total['killed']} of {total['real']}; in float32, those of a lower precision: "
        f"{total['narrow_killed']} of {total['narrow_real']}",
        f"runs: {dict(sorted(runs.items()))}",
    ]
    if quick:
        lines.append(f"level quick: {sum(s <= 30 for s in quick)} of {len(quick)} within 30 s, the longest {quick[-1]}")
    for each in results:
        for what in ("accused", "native", "refused", "withdrawn", "errors", "survivors"):
            told = each.get(what, [])
            lines += [f"  {each['item']}: {what}: {text}" for text in told[:2]]
            lines += [f"  {each['item']}: {what}: and {len(told) - 2} more"] if len(told) > 2 else []
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the items that have no result yet, print each as it ends, and the figures of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", metavar="FOLDER|FILE|opinfo")
    parser.add_argument("--json", type=Path, help="file of results, one a line; its items are not run again")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300.0, help="limit of one item (default: 300)")
    parser.add_argument("--total", type=float, default=1e9, help="seconds after which no item is begun")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--mutants", type=int, default=24)
    parser.add_argument("--held", type=int, help="only so many items, by the digests of their names")
    parser.add_argument("--salt", default="", help="another text draws other items")
    parser.add_argument("--rest", type=int, help="all but so many items")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        return _one(options.one, options)
    items = [item for place in options.places for item in items_of(place)]
    items = by_hash(items, options.salt)[: options.held][options.rest or 0 :]
    results = []
    if options.json and options.json.exists():
        results = [json.loads(line) for line in options.json.read_text().splitlines()]
    done = {each["item"] for each in results}
    began = time.monotonic()

    def run(item: str) -> dict[str, Any] | None:
        return _apart(item, options) if time.monotonic() - began < options.total else None

    with ThreadPoolExecutor(options.jobs) as pool:
        for future in as_completed([pool.submit(run, item) for item in items if item not in done]):
            result = future.result()
            if result is None:
                continue
            results.append(result)
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps(result) + "\n")
            keys = ("seconds", "real", "killed", "quick_seconds", "quick_cpu", "quick")
            told = [f"{key} {result[key]}" for key in keys if key in result]
            told += [
                f"{key}: {result[key][0][:200]}"
                for key in ("accused", "refused", "withdrawn", "errors")
                if result.get(key)
            ]
            print(f"{len(results)}: {result['item']}: {', '.join(told)}", flush=True)
    print(summary(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
