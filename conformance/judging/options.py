"""Which options of a case a kernel is wrong for: those without which it is right, all else being equal."""

import time
from collections.abc import Iterator
from dataclasses import replace

from touchstone.conformance.judging import edges, reading
from touchstone.conformance.spec.contract import Case, Contract, From

SECONDS, OF_A_KERNEL = 3.0, 4.0  # for each output that is wrong, and all of those of a kernel
NAMED = 3  # options at most that are named
WORK_LIMIT = 1e7  # work of a case above which nothing is tried


def of_output(contract: Contract, case: Case, output: str, call: reading.Call, seconds: float) -> str | None:
    """The options of a case without which an output is right, in words; None: it is right with plain values and
    layouts, or wrong whatever is left out, or there is one option alone."""
    if call is reading.nothing or contract.work(case) > WORK_LIMIT:
        return None
    end = time.monotonic() + seconds
    plain = reading.of_plain_values(contract, case)
    if not edges.is_wrong(contract, plain, output, call):
        return None
    found, tried = list[str](), 0
    for text, other in _without_one(contract, plain):
        if time.monotonic() > end:
            break
        so = edges.is_wrong(contract, other, output, call)
        tried += so is not None
        found += [text] if so is False and _is_why(contract, plain, other, output, call) else []
    if not found or tried < 2:
        return None
    return f"right {', or '.join(found[:NAMED])}, all else being equal"


def _is_why(contract: Contract, case: Case, other: Case, output: str, call: reading.Call) -> bool:
    """Whether an output is wrong with the other options, too, of the parameter that two cases differ in, and right with
    that of `other` whatever the values: a seed for random numbers is right with some by chance."""
    for name, value in set(case.params) - set(other.params):
        more = [value + 1, value + 7] if type(value) is int else []  # of a seed any number is one
        if (name, None) in other.params:
            continue  # it is left out: which other numbers are right tells nothing of that
        for option in [*contract.params[name][1:], *more]:
            params = tuple((one, option if one == name else old) for one, old in case.params)
            if edges.is_wrong(contract, replace(case, params=params), output, call) is False:
                return False
    again = (replace(other, seed=other.seed + more) for more in edges.SEEDS)
    return all(edges.is_wrong(contract, one, output, call) is not True for one in again)


def _without_one(contract: Contract, case: Case) -> Iterator[tuple[str, Case]]:
    """The case without one of its options, in words: a parameter at another than its first value, an operand that may
    be None; at last without all of these operands."""
    for name, value in case.params:
        first = contract.params[name][0]
        if not isinstance(first, From) and value != first:
            params = tuple((other, first if other == name else given) for other, given in case.params)
            yield f"with {name}={first}", replace(case, params=params)
    given = [name for name, operand in contract.operands.items() if operand.optional and name not in case.absent]
    for names in [*([name] for name in given), *([given] if len(given) > 1 else [])]:
        yield f"without {' and '.join(names)}", case.plainly_laid(case.absent.union(names))
