"""What the PTX of a kernel should not hold, by its own text.

float64 arithmetic: a literal without np.float32(...), a division of integers, or a Python float among the arguments.
Negative indices: Numba counts them from the end, so for an index of signed type that it cannot prove to be none, each
access costs three instructions more; where a loop repeats them, an unsigned index or a sum that is hoisted does
without.
"""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple


class Instruction(NamedTuple):
    operation: str  # "add.s64"
    operands: tuple[str, ...]  # the result first
    place: str  # "softmax.py:31", or empty where the PTX has no lines
    repeated: bool  # whether it lies in a loop


class _Block(NamedTuple):
    instructions: list[tuple[str, tuple[str, ...], str]]
    next: list[int]


_LABEL = re.compile(r"^(\$\w+):")
_INSTRUCTION = re.compile(r"^(?:(@!?%p\d+)\s+)?([a-z][\w.:]*)\s*([^;]*);?$")
_FILE = re.compile(r'^\.file\s+(\d+)\s+"([^"]*)"')
_PLACE = re.compile(r"^\.loc\s+(\d+)\s+(\d+)\s+\d+(?:,.*inlined_at\s+(\d+)\s+(\d+))?")
_NOT_ARITHMETIC = ("ld.", "st.", "mov.", "selp.", "shfl.")


def unwanted(ptx: str) -> list[str]:
    """One sentence for each line of Python that brings float64 arithmetic or, within a loop, the code of negative
    indices.

    Of PTX without lines, one sentence for each kind.
    """
    found: dict[tuple[str, str], list[Instruction]] = {}
    every = instructions(ptx)
    for instruction in every:
        if ".f64" in instruction.operation and not instruction.operation.startswith(_NOT_ARITHMETIC):
            found.setdefault(("float64", instruction.place), []).append(instruction)
    for instruction in wraparounds(every):
        if instruction.repeated:
            found.setdefault(("index", instruction.place), []).append(instruction)
    sentences = []
    for (kind, place), those in found.items():
        where, count = f"{place}: " if place else "", len(those)
        if kind == "float64":
            names = ", ".join(sorted({each.operation for each in those}))
            sentences.append(
                f"{where}computes in float64 ({names}): write np.float32(...) around literals, divide float32 by "
                f"float32"
            )
        else:
            sentences.append(
                f"{where}an index that may be negative, as far as the compiler sees, in a loop ({count} in the PTX): "
                "count in unsigned integers, or index with x[uint64(i)]"
            )
    return sentences


def instructions(ptx: str) -> list[Instruction]:
    """The instructions of every function in `ptx`, in order."""
    out: list[Instruction] = []
    for body in _bodies(ptx):
        blocks = _blocks(body, _files(ptx))
        repeated = _repeated(blocks)
        for number, block in enumerate(blocks):
            out += [Instruction(*parts, number in repeated) for parts in block.instructions]
    return out


def wraparounds(every: list[Instruction]) -> Iterator[Instruction]:
    """Where an extent is added to an index if that is negative.

    That is `index + (extent & index >> 63)`, or an addition of a select between the extent and 0, or, where the extent
    is a power of two, of the sign shifted to its place. The same brings a signed remainder to the sign of its divisor,
    which is left out, as is the rounding of a division by a power of two.
    """
    registers = _Registers(every)
    for each in every:
        if re.fullmatch(r"add\.s(?:32|64)", each.operation):
            left, right = (registers.addends(operand) for operand in each.operands[1:])
            if any(_wraps(registers, *two) for two in ((left, right), (right, left))):
                yield each


def _wraps(registers: "_Registers", extents: list[str], indices: list[str]) -> bool:
    bases = {registers.base(index) for index in indices}
    signs = filter(None, map(registers.extent_if_negative, extents))
    return any(registers.base(sign) in bases and not registers.remainder(sign) for sign in signs)


class _Registers:
    """What registers hold, as far as one instruction alone makes them."""

    def __init__(self, every: list[Instruction]):
        made: dict[str, list[Instruction]] = {}
        for each in every:
            for result in each.operands[0].split("|") if each.operands else ():
                made.setdefault(result, []).append(each)
        self._made = {register: those[0] for register, those in made.items() if len(those) == 1}

    def _source(self, register: str, *operations: str) -> Instruction | None:
        made = self._made.get(register)
        return made if made is not None and made.operation.startswith(operations) else None

    def base(self, register: str) -> str:
        """The register that this one is a copy of, in another width or with a constant added."""
        while True:
            copy = self._source(register, "mov.", "cvt.", "add.s")
            if copy is None or not copy.operands[1].startswith("%"):
                return register
            if copy.operation.startswith("add.s") and copy.operands[2].startswith("%"):
                return register
            register = copy.operands[1]

    def addends(self, register: str, depth: int = 4) -> list[str]:
        """What this register is the sum of; itself where it is none."""
        total = self._source(register, "add.s") if depth else None
        if total is None:
            return [register]
        return [register, *(part for operand in total.operands[1:] for part in self.addends(operand, depth - 1))]

    def extent_if_negative(self, register: str) -> str | None:
        """The register whose sign decides whether this one holds an extent or 0."""
        while (copy := self._source(register, "cvt.", "shl.")) is not None:
            register = copy.operands[1]
        if (both := self._source(register, "and.b")) is not None:
            for operand in both.operands[1:]:
                sign = self._source(operand, "shr.s")
                if sign is not None and sign.operands[2] in ("31", "63"):
                    return sign.operands[1]
        elif (shifted := self._source(register, "shr.u")) is not None:
            bit = self._source(shifted.operands[1], "and.b")
            if bit is not None and bit.operands[2] in ("-2147483648", "-9223372036854775808"):
                return bit.operands[1]
        elif (choice := self._source(register, "selp.")) is not None:
            test = self._source(choice.operands[3], "setp.lt.s", "setp.gt.s")
            if test is not None and not test.operands[2].startswith("%"):
                extent, zero = choice.operands[1:3] if ".lt." in test.operation else choice.operands[2:0:-1]
                if zero == "0" and extent not in ("1", "-1"):
                    return test.operands[1]
        return None

    def remainder(self, register: str) -> bool:
        """Whether it is what a signed division leaves."""
        register = self.base(register)
        if (difference := self._source(register, "sub.s")) is not None:
            return self._source(difference.operands[2], "mul.") is not None
        return self._source(register, "rem.") is not None


def _bodies(ptx: str) -> Iterator[list[str]]:
    """The lines of each function, without braces of its own."""
    lines: list[str] | None = None
    header = depth = 0
    for line in ptx.splitlines():
        text = line.split("//")[0].strip()
        if lines is None:
            if re.match(r"^(?:\.visible |\.weak |\.extern )*\.(?:entry|func)\b", text):
                header = 1
            if header and text.endswith(";"):  # a declaration
                header = 0
            if header and text == "{":
                lines, header, depth = [], 0, 1
            continue
        depth += text.count("{") - text.count("}") if not text.endswith(";") else 0
        if depth == 0:
            yield lines
            lines = None
        elif text:
            lines.append(text)


def _files(ptx: str) -> dict[str, str]:
    return {match[1]: match[2] for line in ptx.splitlines() if (match := _FILE.match(line.strip()))}


def _blocks(lines: list[str], files: dict[str, str]) -> list[_Block]:
    """The basic blocks of a function, with the numbers of those that may follow."""
    labels: dict[str, int] = {}
    blocks = [_Block([], [])]
    jumps: list[tuple[int, str]] = []
    falls = True  # into the next block
    place = ""

    def begin() -> None:
        if falls:
            blocks[-1].next.append(len(blocks))
        blocks.append(_Block([], []))

    for line in lines:
        if match := _LABEL.match(line):
            begin()
            falls = True
            labels[match[1]] = len(blocks) - 1
        elif match := _PLACE.match(line):
            place = _place(match, files)
        elif not line.startswith((".", "{", "}")) and (match := _INSTRUCTION.match(line)):
            guard, operation, rest = match.groups()
            operands = tuple(word.strip(" {}") for word in rest.split(",")) if rest else ()
            operation = operation.rstrip(".")
            blocks[-1].instructions.append((operation, operands, place))
            if operation.startswith(("bra", "ret", "exit", "trap")):
                if operation.startswith("bra"):
                    jumps.append((len(blocks) - 1, operands[0]))
                falls = guard is not None
                begin()
                falls = True
    for start, label in jumps:
        blocks[start].next.append(labels[label])
    return [block._replace(next=[n for n in block.next if n < len(blocks)]) for block in blocks]


def _place(match: re.Match[str], files: dict[str, str]) -> str:
    """A line of the kernel's, and not of Numba's own functions that are inlined there."""
    file, line, outer_file, outer_line = match.groups()
    if "numba_cuda" in files.get(file, "") and outer_file:
        file, line = outer_file, outer_line
    return f"{os.path.basename(files.get(file, 'unknown'))}:{line}"


def _repeated(blocks: list[_Block]) -> set[int]:
    """The blocks from which a path leads back to themselves."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    held: list[int] = []
    found: set[int] = set()
    for root in range(len(blocks)):
        if root in index:
            continue
        work = [(root, iter(blocks[root].next))]
        index[root] = low[root] = len(index)
        held.append(root)
        while work:
            node, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    held.append(other)
                    work.append((other, iter(blocks[other].next)))
                    break
                if other in held:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while not component or component[-1] != node:
                        component.append(held.pop())
                    if len(component) > 1 or node in blocks[node].next:
                        found.update(component)
    return found
