"""What is to be compiled: what the variants launch, and the specialisations that stand for the others."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from touchstone.backends.protocol import Compiling, RecordedLaunch
from touchstone.conformance.spec.cases import plain_case, plan
from touchstone.conformance.spec.contract import Case, Contract


class Launched(NamedTuple):
    """A distinct specialisation for one architecture, and the variants that launch it, each with the first case. One
    that is no `usual` one, of a case of level default alone, as strides that nobody tunes for, may spill."""

    launch: RecordedLaunch
    arch: str
    variants: dict[str, str]
    usual: bool = True


def about(each: Launched) -> str:
    launchers = ", ".join(f"{variant} in {case}" for variant, case in each.variants.items())
    return f"{each.arch}: {each.launch}, launched by {launchers}"


def record(
    compiling: Compiling,
    variants: dict[str, Any],
    claims: dict[str, Sequence[str]],
    contract: Contract,
    findings: list[str],
    dtypes: Mapping[str, Sequence[str]],
    every: bool = False,
) -> list[Launched]:
    """What the variants launch in their `dtypes` in the quick cases and at the large sizes; in one of which a variant
    takes none of these, the first case of level default that it takes. If `every`, what is launched in those of level
    default too, as far as it shows something on which no other of its kernel and dtypes is specialised."""
    launched: dict[tuple[str, str], Launched] = {}
    shown: dict[tuple[str, str, Any], set] = defaultdict(set)  # of a kernel, in an architecture and dtypes
    missing = {(name, dtype) for name in variants for dtype in dtypes[name]}
    raised: set[str] = set()

    def call(name: str, dtype: str, label: str, arguments: dict[str, Any], only_new: bool = False) -> None:
        if dtype not in dtypes[name]:
            return
        for arch in claims[name]:
            with compiling.recording(arch) as launches:
                try:
                    variants[name](**arguments)
                except NotImplementedError:
                    continue
                except Exception as error:
                    what = f"{name} raised {type(error).__name__}"
                    findings.append(f"{what} while its launches were recorded in {label}: {error}")
                    raised.add(name)
                    missing.discard((name, dtype))
                    return
            for launch in launches:
                missing.discard((name, dtype))
                known = shown[launch.kernel, arch, launch.types]
                if only_new and launch.features <= known and (launch.key, arch) not in launched:
                    continue
                known |= launch.features
                first = Launched(launch, arch, {}, usual=not only_new)
                launched.setdefault((launch.key, arch), first).variants.setdefault(name, label)

    for case in plan(contract, "quick").general:
        arguments = contract.build(case).arguments
        for name in variants:
            call(name, case.dtype, case.id, arguments)
    for dtype, label, arguments in _large(contract):
        for name in variants:
            call(name, dtype, label, arguments)
    for case in plan(contract, "default").general if every else ():
        arguments = contract.build(case).arguments
        for name in (each for each in variants if each not in raised):
            call(name, case.dtype, case.id, arguments, only_new=True)
    for case in plan(contract, "default").cases if missing else ():
        for name in variants:
            if (name, case.dtype) in missing:
                call(name, case.dtype, case.id, contract.build(case).arguments)
    findings += [f"{name} launches nothing in {dtype}, in no case of level default" for name, dtype in sorted(missing)]
    return list(launched.values())


def _large(contract: Contract) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(dtype, label, arguments) at the sizes where speed matters, with values that are never read or written."""
    for dtype in contract.dtypes:
        plain = plain_case(contract, dtype, next(iter(contract.values)))
        for size in contract.large:
            case = Case(plain.op, dtype, tuple(size.items()), "any values", plain.layouts, plain.params)
            tensors = {
                name: torch.empty(contract.operand_shape(name, case), dtype=contract.operand_dtype(name, case))
                for name in contract.operands
            }
            yield dtype, case.id, {**tensors, **case.param}


Keys = set[tuple[str, str]]


def chosen(
    launched: Sequence[Launched], claims: dict[str, Sequence[str]], most: int | None = None
) -> tuple[Keys, Keys]:
    """(key, arch) of the specialisations that stand for the others of their variant and kernel: those that become
    machine code, and those that pass the front end besides; with `most`, so many of the former and none of the latter.
    """
    groups: dict[tuple[str, str], dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for launch, arch, variants, _ in launched:
        for variant in variants:
            groups[variant, launch.kernel][arch].append(launch)
    chosen: Keys = set()
    seen: Keys = set()
    for (variant, _), launches in groups.items():
        archs = [arch for arch in claims[variant] if arch in launches]
        types = list(dict.fromkeys(launch.types for arch in archs for launch in launches[arch]))
        known: set = set()
        if most:  # cases come dtype by dtype: spread out, each stays
            types = types[:: -(-len(types) // most)]
        for turn in range(max(len(types), len(archs))):
            arch, of = archs[turn % len(archs)], types[turn % len(types)]
            those = [launch for launch in launches[arch] if launch.types == of] or launches[arch]
            best = max(those, key=lambda launch: (bool(turn) and len(launch.features - known), launch.weight))
            known |= best.features
            chosen.add((best.key, arch))
        left = set().union(*(launch.features for launch in launches[archs[0]])) - known
        while left and not most:
            best = max(launches[archs[0]], key=lambda launch: len(launch.features & left))
            left -= best.features
            seen.add((best.key, archs[0]))
    return chosen, seen
