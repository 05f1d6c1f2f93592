"""What the contracts of attention over a cache share: which lengths are tried, the bound of every sequence over its own
keys, and laws that hold for every such op."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from touchstone.conformance.contracts import attention
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.compare import compare
from touchstone.conformance.spec.contract import Case, Property

NAMES = ("o", "lse")
BEYOND_16_BITS = 98404  # rows of a cache, of which its one sequence has 65603
TIMES = 32  # the keys of the smallest size where several tiles are wanted
Bound = Callable[[int, int], dict[str, Expected]]


def lengths_of(batch: int, seq: int) -> list[int]:
    """Two thirds of the cache, nothing, all of it, one row: in turn. Two thirds of the sizes here are powers of two, so
    that no probability is rounded where the scale is 0."""
    pattern = [seq - seq // 3, 0, seq, min(1, seq)]
    return [pattern[b % len(pattern)] for b in range(batch)]


def keys_of(size) -> int:
    """The keys of all sequences."""
    return sum(lengths_of(size["B"], size["Sk"]))


def beyond(name: str) -> Callable[..., torch.Tensor]:
    """Which rows of the cache `name`, (B, Sk, ...) or, of rank 4 and more, (B, heads, Sk, ...), are nobody's."""

    def unused(inputs, params) -> torch.Tensor:
        shape = inputs[name].shape
        axis = 1 if len(shape) == 3 else 2
        rows = torch.arange(shape[axis]) >= inputs["lengths"][:, None]
        return rows.reshape(rows.shape[0], *[1] * (axis - 1), shape[axis], *[1] * (len(shape) - axis - 1))

    return unused


def over_own_keys(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: int, length: int, scale: float | None, **options
) -> dict[str, Expected]:
    """attention's causal answer and bound for sequence b over its first `length` keys."""
    own = {"q": q[b : b + 1], "k": k[b : b + 1, :, :length], "v": v[b : b + 1, :, :length]}
    return attention.expect(own, {"causal": True, "scale": scale}, **options)


def by_sequence(o: torch.Tensor, lse: torch.Tensor, lengths: torch.Tensor, bound: Bound) -> dict[str, Expected]:
    """o (B, Hq, Sq, D) and lse (B, Hq, Sq) with the bounds `bound(b, length)` of one sequence each, of no more than one
    (terms, condition) part an output."""
    whole = {
        name: {kind: torch.zeros_like(x) for kind in ("terms", "condition", "rounding", "extra")}
        for name, x in zip(NAMES, (o, lse), strict=True)
    }
    for b, length in enumerate(lengths.long().tolist()):
        found = bound(b, length)
        for name in NAMES:
            for terms, condition in found[name].parts:
                whole[name]["terms"][b], whole[name]["condition"][b] = terms, torch.as_tensor(condition)[0]
            for kind in ("rounding", "extra"):
                value = getattr(found[name], kind)
                whole[name][kind][b] = value[0] if isinstance(value, torch.Tensor) and value.ndim else value
    answers = {"o": (o, None), "lse": (lse, torch.float32)}
    return {
        name: Expected(
            answer,
            parts=[(whole[name]["terms"], whole[name]["condition"])],
            rounding=whole[name]["rounding"],
            extra=whole[name]["extra"],
            dtype=out,
            drift=0.2,
        )
        for name, (answer, out) in answers.items()
    }


def sequences_are_independent(call, arguments, outputs, case) -> str | None:
    """The last sequence keeps its bits when all others are of no length."""
    lengths = arguments["lengths"].clone()
    lengths[:-1] = 0
    again = call(**{**arguments, "lengths": lengths})
    same = all(torch.equal(before[-1], after[-1]) for before, after in zip(outputs, again, strict=True))
    return None if same else "the last sequence changed when only the lengths of others did"


def nothing_is_left(longer: Callable[[dict[str, Any], int], dict[str, Any]], keys: Callable[[Case], Case]) -> Property:
    """Law: over a cache of several tiles, which `longer` makes of the arguments and `keys` of the case, an answer is
    the same after a call in which all sequences are longer: no buffer keeps a part that only that call had. And theirs
    is the same as in a wider cache, of which they are the first: no plan of a shorter call is kept, if two wider ones
    give the same."""

    def check(call, arguments, outputs, case) -> str | None:
        given, lengths = longer(arguments, TIMES), arguments["lengths"]
        some = {**given, "lengths": lengths * (TIMES // 2)}
        most = {"lengths": torch.full_like(lengths, int(lengths.max()) * (TIMES - 1))}  # no cache is full
        before = call(**some)
        behind = call(**{**given, **most})
        after = call(**some)
        first = call(**{**longer(arguments, TIMES + 1), **most})
        if broken := apart(before, after, "a call with more keys in between"):
            return broken
        if broken := apart(first, behind, "a call with fewer keys before"):
            wider = call(**{**longer(arguments, TIMES + 2), **most})
            what = "not by what was called before: a wider cache, of which no more is used,"
            return apart(first, wider, what) or broken
        return None

    return Property("an earlier call leaves nothing behind", check, elsewhere=keys, anywhere=True)


def nothing_is_left_of_caches(*caches: str) -> Property:
    """The same of `caches` (B, Sk, ...) or, of rank 4 and more, (B, heads, Sk, ...)."""

    def longer(arguments, times):
        made = {}
        for name in caches:
            x = arguments[name]
            axis = 1 if x.ndim == 3 else 2
            made[name] = torch.cat([x.nan_to_num(0.0, 0.0, 0.0) if x.is_floating_point() else x] * times, axis)
        return {**arguments, **made}

    return nothing_is_left(longer, lambda case: sized(case, Sk=TIMES * case.size["Sk"]))


def sized(case: Case, **sizes: int) -> Case:
    """The case of other sizes."""
    return replace(case, sizes=tuple({**case.size, **sizes}.items()))


def order_of_keys(*caches: str) -> Callable[..., str | None]:
    """Keys that every query sees can change places, so that they fall into other splits. `caches` are (B, Sk, ...) or,
    of rank 4 and more, (B, heads, Sk, ...)."""

    def check(call, arguments, outputs, case) -> str | None:
        moved = {name: arguments[name].clone() for name in caches}
        for b, length in enumerate(arguments["lengths"].tolist()):
            seen = max(0, length - case.size["Sq"] + 1)
            order = torch.randperm(seen, generator=case.rng("order"))
            for cache in moved.values():
                keys = cache[b] if cache.ndim == 3 else cache[b].transpose(0, 1)
                keys[:seen] = keys[order.to(keys.device)]
        return apart(outputs, call(**{**arguments, **moved}), "another order of keys and values")

    return check


def apart(outputs, again, what: str) -> str | None:
    """What `what` changed of o and lse beyond rounding, if it did."""
    o, lse = again
    empty = outputs[1].isneginf()
    if not torch.equal(empty, lse.isneginf()):
        return f"{what} changes which queries see something"
    eps = torch.finfo(o.dtype).eps
    moved = torch.where(empty, 0.0, lse - outputs[1]).abs().max().item()
    off = max((o - outputs[0]).abs().max().item() / eps, moved / 2**-18)
    limit = 8 * max(1.0, outputs[0].abs().max().item() + 6)
    return None if off <= limit else f"{what} moves the answer by {off:.3g} eps"


def differs(got, expected: dict[str, Expected], case: Case, what: str) -> str | None:
    """How o and lse differ from `what`, which is what another op answers; None within its budget."""
    for name, value in zip(NAMES, got, strict=True):
        verdict = compare(value, expected[name], case.torch_dtype)
        if not verdict.ok:
            return f"{name} is not {what}: {verdict.message}"
    return None


def spoil(name: str, change: Callable[[torch.Tensor], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The call with one argument changed."""
    return lambda arguments: {**arguments, name: change(arguments[name])}
