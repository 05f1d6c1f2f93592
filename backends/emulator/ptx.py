"""Inline PTX as C++: each `asm` statement becomes a lambda that does what its instructions say.

What an instruction does stands in `include/touchstone_ptx.h`; here it is found, and its operands are read. One that is
not known becomes a call which ends the launch and names it, with its line.
"""

import ast
import re
from collections.abc import Callable, Iterator

_TYPES = {
    **{f"{letter}{bits}": f"uint{bits}_t" for letter in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    "f32": "float",
    "f64": "double",
    "pred": "bool",
    "f16": "touchstone::ptx::Half",
    "bf16": "touchstone::ptx::Brain",
    "f16x2": "touchstone::ptx::Half2",
    "bf16x2": "touchstone::ptx::Brain2",
}  # fmt: skip
_CONSTRAINTS = {
    "r": "uint32_t",
    "l": "uint64_t",
    "f": "float",
    "d": "double",
    "h": "uint16_t",
    "b": "bool",
    "c": "uint8_t",
}
_SPECIAL = {
    "laneid": "ts_lane()", "warpid": "(touchstone::ptx::thread() / 32)",
    "nwarpid": "((touchstone::ptx::threads() + 31) / 32)",
    "smid": "0u", "nsmid": "132u", "gridid": "0u", "clock": "static_cast<uint32_t>(ts_clock())",
    "clock64": "ts_clock()", "clock_hi": "static_cast<uint32_t>(ts_clock() >> 32)", "globaltimer": "ts_clock()",
    "globaltimer_lo": "static_cast<uint32_t>(ts_clock())", "lanemask_eq": "(1u << ts_lane())",
    "lanemask_lt": "((1u << ts_lane()) - 1)", "lanemask_le": "((2u << ts_lane()) - 1)",
    "lanemask_gt": "(~((2u << ts_lane()) - 1))", "lanemask_ge": "(~((1u << ts_lane()) - 1))",
    "dynamic_smem_size": "static_cast<uint32_t>(ts_dynamic_shared_bytes())",
    "cluster_ctarank": "ts_cluster_rank()", "cluster_nctarank": "touchstone::ptx::cluster_blocks()",
    "is_explicit_cluster": "(touchstone::ptx::cluster_blocks() > 1)",
    **{f"{name}.{axis}": f"{word}.{axis}" for name, word in
       (("tid", "threadIdx"), ("ctaid", "blockIdx"), ("ntid", "blockDim"), ("nctaid", "gridDim"),
        ("clusterid", "touchstone::ptx::cluster_index()"), ("cluster_nctaid", "touchstone::ptx::cluster_dim()"),
        ("cluster_ctaid", "touchstone::ptx::block_in_cluster()")) for axis in "xyz"},
    **{f"nclusterid.{axis}": f"touchstone::ptx::blocks_in('{axis}')" for axis in "xyz"},
}  # fmt: skip
_NOTHING = re.compile(
    r"(?:prefetch\w*|discard|applypriority|griddepcontrol|setmaxnreg|\.pragma|cp\.async\.bulk\.prefetch)\b"
)
_BINARY = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
            "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}  # fmt: skip
_UNARY = {
    "abs",
    "neg",
    "not",
    "popc",
    "clz",
    "brev",
    "rcp",
    "sqrt",
    "rsqrt",
    "ex2",
    "lg2",
    "sin",
    "cos",
    "tanh",
    "bfind",
}
_STATEMENT = re.compile(r"\s*(?:([A-Za-z_$%][\w$%]*)\s*:(?!:)|([{}])|([^;{}]*(?:\{[^{}]*\}[^;{}]*)*);)", re.S)


class NotKnown(Exception):
    """An instruction without a translation."""


def translate(template: str, outputs: list[tuple[str, str]], inputs: list[tuple[str, str]], where: int) -> str:
    """The expression that stands for `asm("template" : outputs : inputs)`; operands are (constraint, expression).
    `where` makes its labels its own."""
    try:
        return _Statement(template, outputs, inputs, where).text()
    except NotKnown as error:
        said = str(error).replace("\\", "\\\\").replace('"', '\\"')
        return f'touchstone::not_covered("inline PTX: {said}")'


class _Statement:
    def __init__(
        self, template: str, outputs: list[tuple[str, str]], inputs: list[tuple[str, str]], where: int
    ) -> None:
        self.lines: list[str] = []
        self.copied: dict[str, tuple[str, str]] = {}  # operands: how a copy is made of each, and how it is given back
        self.expressions: dict[str, str] = {}
        self.types: dict[str, str] = {}
        for number, (constraint, expression) in enumerate([*outputs, *inputs]):
            name, letter = f"ts_{number}", constraint.strip("=+&%")
            if letter in ("n", "i"):
                self.types[name] = "int64_t"
                self.lines.append(f"const auto {name} = {expression}; (void){name};")
                continue
            if letter not in _CONSTRAINTS:
                raise NotKnown(f"the constraint {constraint!r}")
            kind = _CONSTRAINTS[letter]
            self.types[name] = kind
            out = number < len(outputs)
            first = f"touchstone::ptx::given<{kind}>({expression})" if not out or "+" in constraint else f"{kind}()"
            self.copied[name] = (
                f"{kind} {name} = {first}; (void){name};",
                f"touchstone::ptx::put({expression}, {name});" if out else "",
            )
            self.expressions[name] = expression
        self.placed: set[str] = set()  # operands that an instruction writes to later, in their own places
        self.where = where
        text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", template, flags=re.S)
        text = text.replace("%%", "\x01").replace("%=", str(where))
        self.body = re.sub(r"%(\d+)", r"ts_\1", text).replace("\x01", "%")

    def text(self) -> str:
        position, statements = 0, []
        body = f"{self.body.strip()};"
        labels = set(re.findall(r"(?:^|[;{}\s])([A-Za-z_$][\w$]*)\s*:(?!:)", body))
        while body[position:].strip():
            found = _STATEMENT.match(body, position)
            if not found:
                raise NotKnown(" ".join(body[position:].split())[:80])
            position = found.end()
            if found.group(1):
                statements.append(f"{self._label(found.group(1))}: (void)0;")
            elif found.group(3):
                statements += self._instruction(" ".join(found.group(3).split()), labels)
        declared = [s for s in statements if s.startswith("\x02")]  # before any label
        rest = [s for s in statements if not s.startswith("\x02")]
        if not statements:
            return "((void)0)"
        used = set(re.findall(r"\bts_\d+\b", " ".join(rest)))
        copied = [self.copied[n] for n in self.copied if n not in self.placed or n in used]
        after = [back for n, (_, back) in self.copied.items() if back and n not in self.placed]
        whole = [*self.lines, *(made for made, _ in copied), *(s[1:] for s in declared), *rest, *after]
        return "({ " + " ".join(whole) + " })"  # no lambda: it cannot capture a member of an anonymous union

    def _label(self, name: str) -> str:
        return f"ts_{re.sub(r'[^0-9A-Za-z_]', '_', name)}_{self.where}"

    def _instruction(self, line: str, labels: set[str]) -> Iterator[str] | list[str]:
        if line.startswith(".reg"):
            return self._registers(line)
        condition = ""
        if found := re.match(r"@(!?)([\w$%]+)\s+(.*)", line):
            condition = f"if ({self.value(found.group(1) + found.group(2), 'bool')}) "
            line = found.group(3)
        head, _, rest = line.partition(" ")
        operands = _split(rest)
        if head.split(".")[0] == "bra":
            if operands[0] not in labels:
                raise NotKnown(line)
            return [f"{condition}goto {self._label(operands[0])};"]
        made = self._one(head, operands)
        return [f"{condition}{{ {made} }}"]

    def _registers(self, line: str) -> list[str]:
        kind, _, names = line.removeprefix(".reg").strip().partition(" ")
        kind = kind.lstrip(".")
        if kind not in _TYPES and kind != "b128":
            raise NotKnown(line)
        plain = {"f16": "uint16_t", "bf16": "uint16_t", "f16x2": "uint32_t", "bf16x2": "uint32_t"}.get(
            kind, _TYPES.get(kind, "")
        )
        out = []
        for name in names.split(","):
            name = name.strip()
            several = re.fullmatch(r"([\w$%]+)<(\d+)>", name)
            each = [f"{several.group(1)}{i}" for i in range(int(several.group(2)))] if several else [name]
            for one in each:
                self.types[self.name(one)] = plain
                out.append(f"\x02{plain} {self.name(one)} = {plain}(); (void){self.name(one)};")
        return out

    def name(self, register: str) -> str:
        """A register's C++ variable."""
        register = register.strip()
        if register.startswith("ts_"):
            return register
        return f"ts_r_{re.sub(r'[^0-9A-Za-z_]', '_', register)}"

    def value(self, text: str, kind: str) -> str:
        """An operand read as `kind`."""
        text = text.strip()
        negated = text.startswith("!")
        text = text.lstrip("!").strip()
        if text.startswith("%"):
            if text[1:] in _SPECIAL:
                text = _SPECIAL[text[1:]]
                return f"touchstone::ptx::as<{kind}>({text})"
        elif found := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
            return f"touchstone::ptx::as<{kind}>(touchstone::bit_cast<float>(0x{found.group(1)}u))"
        elif found := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", text):
            return f"touchstone::ptx::as<{kind}>(touchstone::bit_cast<double>(0x{found.group(1)}ull))"
        elif re.fullmatch(r"[-+]?(0[xX][0-9a-fA-F]+|\d+)[uU]?", text):
            return f"static_cast<{kind}>({text}{'' if text[-1] in 'uU' else 'll'})"
        elif re.fullmatch(r"[-+]?\d*\.\d*([eE][-+]?\d+)?", text):
            return f"static_cast<{kind}>({text})"
        name = self.name(text)
        if name not in self.types:
            raise NotKnown(f"the register {text}")
        return f"{'!' if negated else ''}touchstone::ptx::as<{kind}>({name})"

    def put(self, text: str, value: str) -> str:
        """A statement that sets a register."""
        if text.strip() == "_":
            return f"(void)({value});"
        name = self.name(text)
        if name not in self.types:
            raise NotKnown(f"the register {text}")
        return f"touchstone::ptx::set({name}, {value});"

    def place(self, text: str) -> str:
        """The variable itself that a register stands for: its address may be kept."""
        name = self.name(text)
        if name not in self.types:
            raise NotKnown(f"the register {text}")
        if name not in self.expressions:
            return name
        self.placed.add(name)
        return self.expressions[name]

    def address(self, text: str, space: str) -> str:
        """A pointer to what `[register + offset]` names."""
        inner = text.strip().removeprefix("[").removesuffix("]").strip()
        register, sign, offset = (part.strip() for part in re.match(r"([\w$%]+)\s*([+-]?)\s*(.*)", inner).groups())  # type: ignore[union-attr]
        base = self.value(register, "uint64_t")
        if offset:
            kind = "uint64_t" if offset.startswith("ts_") else "int64_t"
            base = f"({base} {sign} {self.value(offset, kind)})"
        return f"touchstone::ptx::shared({base})" if space == "shared" else f"reinterpret_cast<char*>({base})"

    def each(self, text: str) -> list[str]:
        text = text.strip()
        return _split(text[1:-1]) if text.startswith("{") else [text]

    def _one(self, head: str, ops: list[str]) -> str:
        words = head.split(".")
        op = words[0]
        if _NOTHING.match(head):
            return ""
        maker = _MAKERS.get(op)
        if maker is None:
            raise NotKnown(head)
        try:
            return maker(self, words, ops)
        except (IndexError, KeyError, StopIteration, ValueError, AttributeError):
            raise NotKnown(f"{head} {', '.join(ops)}") from None


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "{[(") - (char in "}])")
        if char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()] if text[start:].strip() else parts


def literal(text: str) -> str:
    """The characters of adjacent C++ string literals."""
    out = []
    for raw, plain in re.findall(r'R"[^()\s\\]*\((.*?)\)[^()\s\\"]*"|("(?:\\.|[^"\\])*")', text, flags=re.S):
        out.append(raw if not plain else ast.literal_eval(plain.replace("\n", "\\n")))
    return "".join(out)


def _kind(words: list[str]) -> str:
    return _TYPES[words[-1]]


def _space(words: list[str]) -> str:
    return "shared" if any(word.startswith("shared") for word in words) else "generic"


def _vector(words: list[str]) -> int:
    return next((int(word[1:]) for word in words if word in ("v2", "v4", "v8")), 1)


def _saturated(words: list[str], kind: str, value: str) -> str:
    """`value`, to [0, 1] where the instruction says so; NotKnown where that is no float32."""
    if "sat" not in words:
        return value
    if kind != "float":
        raise NotKnown(".".join(words))
    return f"__saturatef({value})"


def _arithmetic(s: _Statement, words: list[str], ops: list[str]) -> str:
    kind = _kind(words)
    a, b = s.value(ops[1], kind), s.value(ops[2], kind)
    if words[0] in _BINARY:
        value = f"({a} {_BINARY[words[0]]} {b})"
        if "cc" in words:
            raise NotKnown(".".join(words))
        value = f"static_cast<{kind}>{value}"
    else:
        value = f"touchstone::ptx::{words[0]}_({a}, {b})"
    return s.put(ops[0], _saturated(words, kind, value))


def _wide(s: _Statement, words: list[str], ops: list[str]) -> str:
    """mul, mad, fma."""
    kind = _kind(words)
    mode = next((w for w in words if w in ("hi", "wide")), "lo")
    a, b = s.value(ops[1], kind), s.value(ops[2], kind)
    if mode == "lo":
        value = f"touchstone::ptx::fma_({a}, {b}, {s.value(ops[3], kind)})" if words[0] == "fma" else f"({a} * {b})"
    else:
        value = f"touchstone::ptx::{mode}({a}, {b})"
    if words[0] == "mad":
        third = f"decltype({value})" if mode == "wide" else kind
        value = f"({value} + {s.value(ops[3], third)})"
    if "relu" in words or "cc" in words:
        raise NotKnown(".".join(words))
    if mode != "wide":
        value = f"static_cast<{kind}>({value})"
    return s.put(ops[0], _saturated(words, kind, value))


def _unary(s: _Statement, words: list[str], ops: list[str]) -> str:
    return s.put(ops[0], f"touchstone::ptx::{words[0]}_({s.value(ops[1], _kind(words))})")


def _shift(s: _Statement, words: list[str], ops: list[str]) -> str:
    kind = _kind(words)
    return s.put(ops[0], f"touchstone::ptx::{words[0]}_({s.value(ops[1], kind)}, {s.value(ops[2], 'uint32_t')})")


def _mov(s: _Statement, words: list[str], ops: list[str]) -> str:
    kind = _kind(words)
    to, source = s.each(ops[0]), s.each(ops[1])
    if len(to) > 1 or len(source) > 1:
        total = int(re.sub(r"\D", "", kind))
        bits = total // (len(to) * len(source))  # of a part: one of the two is whole
        whole, part, places = f"uint{total}_t", f"uint{bits}_t", range(0, total, bits)
        if len(to) > 1:
            parts = (
                s.put(one, f"static_cast<{part}>(ts_w >> {at})")
                for one, at in zip(to, places, strict=True)
                if one != "_"
            )
            return f"const auto ts_w = {s.value(ops[1], whole)}; {' '.join(parts)}"
        shifted = (
            f"static_cast<{whole}>({s.value(one, part)}) << {at}" for one, at in zip(source, places, strict=True)
        )
        return s.put(ops[0], f"({' | '.join(shifted)})")
    return s.put(ops[0], s.value(ops[1], kind))


def _cvt(s: _Statement, words: list[str], ops: list[str]) -> str:
    to, source = words[-2:]
    if {"rz", "rm", "rp"} & set(words):  # to numbers in between it rounds to nearest only
        raise NotKnown(".".join(words))
    if to == "tf32":
        return s.put(ops[0], f"touchstone::ptx::to_tf32({s.value(ops[1], 'float')}, {str('rna' in words).lower()})")
    if to.endswith("x2"):
        relu = str("relu" in words).lower()
        return s.put(
            ops[0],
            f"touchstone::ptx::pack<{_TYPES[to]}>({s.value(ops[1], 'float')}, {s.value(ops[2], 'float')}, {relu})",
        )
    rounding = next((w for w in words if w in ("rni", "rzi", "rmi", "rpi")), "rn")
    value = f"touchstone::ptx::convert<{_TYPES[to]}>({s.value(ops[1], _TYPES[source])}, touchstone::ptx::{rounding})"
    clamps = "int" in _TYPES[to] and "int" not in _TYPES[source]  # as floats that become integers always do
    return s.put(ops[0], value if clamps else _saturated(words, _TYPES[to], value))


def _setp(s: _Statement, words: list[str], ops: list[str]) -> str:
    kind = _kind(words)
    name = words[1]
    joined = {"and": "&&", "or": "||", "xor": "!="}.get(words[2])
    a, b = s.value(ops[1], kind), s.value(ops[2], kind)
    if name in _COMPARE:
        value = f"({a} {_COMPARE[name]} {b})"
    elif name.removesuffix("u") in _COMPARE:
        value = f"(!({a} == {a}) || !({b} == {b}) || {a} {_COMPARE[name.removesuffix('u')]} {b})"
    elif name in ("num", "nan"):
        value = f"({'' if name == 'num' else '!'}({a} == {a} && {b} == {b}))"
    else:
        raise NotKnown(".".join(words))
    if kind.endswith("2"):  # of two numbers, p|q are of one each
        raise NotKnown(".".join(words))
    opposite = f"!{value}"
    if joined:
        value, opposite = (f"({each} {joined} {s.value(ops[3], 'bool')})" for each in (value, opposite))
    first, _, second = ops[0].partition("|")
    return s.put(first, value) + (s.put(second, opposite) if second else "")


def _selp(s: _Statement, words: list[str], ops: list[str]) -> str:
    kind = _kind(words)
    return s.put(ops[0], f"({s.value(ops[3], 'bool')} ? {s.value(ops[1], kind)} : {s.value(ops[2], kind)})")


def _three(s: _Statement, words: list[str], ops: list[str]) -> str:
    """lop3, prmt, bfe, bfi, sad, shf, dp4a: functions of 32-bit words."""
    kind = _kind(words)
    name = words[0] + ("_" + words[1] if words[0] == "shf" else "")
    kinds = [kind] * (len(ops) - 1)
    if words[0] in ("bfe", "bfi"):
        kinds[-2:] = ["uint32_t", "uint32_t"]
    if words[0] == "dp4a":
        kinds = [
            "int32_t" if words[1] == "s32" else "uint32_t",
            "int32_t" if words[2] == "s32" else "uint32_t",
            "int32_t",
        ]
    values = ", ".join(s.value(op, k) for op, k in zip(ops[1:], kinds, strict=True))
    extra = f", {str('wrap' in words).lower()}" if words[0] == "shf" else ""
    return s.put(ops[0], f"touchstone::ptx::{name}({values}{extra})")


def _in_memory(words: list[str]) -> str:
    kind = _TYPES.get(words[-1], "")
    if not kind or kind == "bool" or "ptx::" in kind:
        raise NotKnown(".".join(words))
    return kind


def _ld(s: _Statement, words: list[str], ops: list[str]) -> str:
    kind = _in_memory(words)
    if "param" in words:
        raise NotKnown(".".join(words))
    count, to = _vector(words), s.each(ops[0])
    volatile = any(w in words for w in ("volatile", "relaxed", "acquire"))
    fence = "ts_fence();" if "acquire" in words else ""
    pointer = s.address(ops[1], _space(words))
    out = f"const auto ts_v = touchstone::ptx::load<{kind}, {count}, {str(volatile).lower()}>({pointer}); {fence}"
    return out + " ".join(s.put(one, f"ts_v.x[{i}]") for i, one in enumerate(to) if one != "_")


def _st(s: _Statement, words: list[str], ops: list[str]) -> str:
    kind = _in_memory(words)
    count, source = _vector(words), s.each(ops[1])
    volatile = any(w in words for w in ("volatile", "relaxed", "release"))
    fence = "ts_fence();" if "release" in words else ""
    values = ", ".join(s.value(one, kind) for one in source)
    pointer = s.address(ops[0], _space(words))
    store = f"touchstone::ptx::store<{kind}, {count}, {str(volatile).lower()}>({pointer}, {{{{{values}}}}});"
    if "async" in words:  # the barrier that counts what has come
        return f"{store} touchstone::ptx::mbarrier_landed({s.address(ops[2], 'shared')}, sizeof({kind}) * {count});"
    return f"{fence} {store}"


_ATOMICS = {
    **{name: f"atomic{name.capitalize()}" for name in ("add", "min", "max", "and", "or", "xor", "exch", "inc", "dec")},
    "cas": "atomicCAS",
}
_ATOMIC_KINDS = {
    **dict.fromkeys(("b32", "u32"), "unsigned"),
    **dict.fromkeys(("b64", "u64", "s64"), "unsigned long long"),
    "s32": "int",
    "f32": "float",
    "f64": "double",
}


def _atom(s: _Statement, words: list[str], ops: list[str]) -> str:
    returns = words[0] == "atom"
    operation = next(w for w in words if w in _ATOMICS)
    kind = _ATOMIC_KINDS[words[-1]]
    if "async" in words:  # the barrier that counts what has come
        landed = f"touchstone::ptx::mbarrier_landed({s.address(ops[2], 'shared')}, sizeof({kind}));"
        return f"{_atom(s, [w for w in words if w != 'async'], ops[:2])} {landed}"
    if _vector(words) > 1 and (operation, kind) == ("add", "float"):
        values = ", ".join(s.value(one, kind) for one in s.each(ops[1]))
        return f"touchstone::ptx::add_several<{_vector(words)}>({s.address(ops[0], _space(words))}, {{{{{values}}}}});"
    if words[-1] == "s64" and operation in ("min", "max"):
        raise NotKnown(".".join(words))
    at = 1 if returns else 0
    pointer = f"reinterpret_cast<{kind}*>({s.address(ops[at], _space(words))})"
    values = ", ".join(s.value(op, kind) for op in ops[at + 1 :])
    before = "ts_fence();" if {"release", "acq_rel"} & set(words) else ""
    call = f"{_ATOMICS[operation]}({pointer}, {values})"
    return f"{before} " + (s.put(ops[0], call) if returns else f"{call};")


def _bar(s: _Statement, words: list[str], ops: list[str]) -> str:
    if words[1] == "warp":
        return f"__syncwarp({s.value(ops[0], 'uint32_t')});"
    if "cluster" in words:
        return "touchstone::ptx::cluster_arrive();" if "arrive" in words else "touchstone::ptx::cluster_wait();"
    number = s.value(ops[0], "uint32_t")
    threads = s.value(ops[1], "uint32_t") if len(ops) > 1 else "0u"
    if "sync" in words:
        return f"touchstone::ptx::barrier({number}, {threads}, true);"
    if "arrive" in words:
        return f"touchstone::ptx::barrier({number}, {threads}, false);"
    raise NotKnown(".".join(words))


def _fence(s: _Statement, words: list[str], ops: list[str]) -> str:
    if "proxy" in words:
        return "ts_proxy_fence();" if "async" in words else ""
    return "ts_fence();"


def _shfl(s: _Statement, words: list[str], ops: list[str]) -> str:
    first, _, second = ops[0].partition("|")
    call = (
        f"touchstone::ptx::shfl(touchstone::{ {'idx': 'FROM', 'up': 'UP', 'down': 'DOWN', 'bfly': 'XOR'}[words[2]] }, "
        f"{s.value(ops[1], 'uint32_t')}, {s.value(ops[2], 'uint32_t')}, {s.value(ops[3], 'uint32_t')}, "
        f"{s.value(ops[4], 'uint32_t')}, &ts_valid)"
    )
    return f"bool ts_valid = false; {s.put(first, call)} " + (s.put(second, "ts_valid") if second else "")


def _vote(s: _Statement, words: list[str], ops: list[str]) -> str:
    name = {"all": "__all_sync", "any": "__any_sync", "uni": "__uni_sync", "ballot": "__ballot_sync"}[words[2]]
    return s.put(ops[0], f"{name}({s.value(ops[2], 'uint32_t')}, {s.value(ops[1], 'bool')})")


def _match(s: _Statement, words: list[str], ops: list[str]) -> str:
    kind = _kind(words)
    first, _, second = ops[0].partition("|")
    if words[1] == "any":
        return s.put(ops[0], f"__match_any_sync({s.value(ops[2], 'uint32_t')}, {s.value(ops[1], kind)})")
    call = f"__match_all_sync({s.value(ops[2], 'uint32_t')}, {s.value(ops[1], kind)}, &ts_same)"
    return f"int ts_same = 0; {s.put(first, call)} " + (s.put(second, "ts_same != 0") if second else "")


def _redux(s: _Statement, words: list[str], ops: list[str]) -> str:
    kind = {"s32": "int", "u32": "unsigned", "b32": "unsigned"}[words[-1]]
    return s.put(ops[0], f"__reduce_{words[2]}_sync({s.value(ops[2], 'uint32_t')}, {s.value(ops[1], kind)})")


def _activemask(s: _Statement, words: list[str], ops: list[str]) -> str:
    return s.put(ops[0], "__activemask()")


def _cvta(s: _Statement, words: list[str], ops: list[str]) -> str:
    if "shared" not in "".join(words):
        return s.put(ops[0], s.value(ops[1], "uint64_t"))
    if "to" in words:
        return s.put(ops[0], f"__cvta_generic_to_shared(reinterpret_cast<void*>({s.value(ops[1], 'uint64_t')}))")
    return s.put(ops[0], f"reinterpret_cast<uint64_t>(touchstone::ptx::shared({s.value(ops[1], 'uint64_t')}))")


def _nanosleep(s: _Statement, words: list[str], ops: list[str]) -> str:
    return "ts_pause();"


def _createpolicy(s: _Statement, words: list[str], ops: list[str]) -> str:
    return s.put(ops[0], "0ull")  # of the L2 cache, which there is none of


def _trap(s: _Statement, words: list[str], ops: list[str]) -> str:
    return "__trap();"


def _cp(s: _Statement, words: list[str], ops: list[str]) -> str:
    if "bulk" in words:
        return _bulk(s, words, ops)
    if words[:2] != ["cp", "async"]:
        raise NotKnown(".".join(words))
    if "commit_group" in words:
        return "ts_copy_commit();"
    if "wait_group" in words:
        return f"ts_copy_wait({s.value(ops[0], 'int')});"
    if "wait_all" in words:
        return "ts_copy_commit(); ts_copy_wait(0);"
    if "mbarrier" in words:
        return f"touchstone::ptx::copies_arrive({s.address(ops[0], 'shared')}, {str('noinc' in words).lower()});"
    rest = ops[2:]
    if any("cache_hint" in w for w in words):
        rest = rest[:-1]
    size = s.value(rest[0], "int")
    read = s.value(rest[1], "int") if len(rest) > 1 else size
    return (
        f"ts_copy_async({s.address(ops[0], 'shared')}, {s.address(ops[1], 'generic')}, {size}, {read}, "
        "touchstone::here());"
    )


_NUMBERS = {"f16": "TS_F16", "bf16": "TS_BF16", "f32": "TS_F32", "f64": "TS_F64", "s32": "TS_S32", "u32": "TS_U32",
            "s64": "TS_S64", "u64": "TS_U64", "b32": "TS_U32", "b64": "TS_U64", "tf32": "TS_TF32", "e4m3": "TS_E4M3",
            "e5m2": "TS_E5M2", "s8": "TS_S8", "u8": "TS_U8"}  # fmt: skip


def _bulk(s: _Statement, words: list[str], ops: list[str]) -> str:
    """Copies by the copy engine, of bytes in a row and of boxes of an array."""
    if "commit_group" in words:
        return "ts_bulk_commit();"
    if "wait_group" in words:
        return f"ts_bulk_wait({s.value(ops[0], 'int')}, {int('read' in words)});"
    tensor, inward = "tensor" in words, any(w.startswith("mbarrier::complete_tx") for w in words)
    if any("im2col" in w or "gather" in w or "scatter" in w for w in words) or (words[1] == "reduce" and inward):
        raise NotKnown(".".join(words))
    if any("cache_hint" in w for w in words):
        ops = ops[:-1]
    blocks = "0u"
    if any(w.startswith("multicast") for w in words):
        blocks, ops = s.value(ops[-1], "uint16_t"), ops[:-1]
    reduction, kind = "TS_REPLACE", "TS_U32"
    if "reduce" in words:
        reduction = f"TS_{next(w for w in words if w in ('add', 'min', 'max', 'and', 'or', 'xor')).upper()}"
        kind = "TS_U32" if tensor else _NUMBERS[words[-1]]
    if not tensor:
        if inward:
            to, source, count, barrier = ops
            return (
                f"touchstone::ptx::bulk_load({s.address(to, 'shared')}, "
                f"{s.address(source, 'shared' if 'shared::cta' in words[4:] else 'generic')}, "
                f"{s.value(count, 'uint32_t')}, {s.address(barrier, 'shared')}, {blocks});"
            )
        to, source, count = ops
        return (
            f"touchstone::ptx::bulk_store({s.address(to, 'generic')}, {s.address(source, 'shared')}, "
            f"{s.value(count, 'uint32_t')}, {reduction}, {kind});"
        )
    described = ops[1] if inward else ops[0]
    pointer, coordinates = _split(described.strip()[1:-1])
    at = s.each(coordinates)
    if f"{len(at)}d" not in words:
        raise NotKnown(f"{'.'.join(words)} with {len(at)} coordinates")
    box = f"touchstone::ptx::Box<{len(at)}>{{{{{', '.join(s.value(one, 'int32_t') for one in at)}}}}}"
    maps = s.address(f"[{pointer}]", "generic")
    if inward:
        return (
            f"touchstone::ptx::tensor_load({s.address(ops[0], 'shared')}, {maps}, {box}, "
            f"{s.address(ops[2], 'shared')}, {blocks});"
        )
    return f"touchstone::ptx::tensor_store({maps}, {box}, {s.address(ops[1], 'shared')}, {reduction});"


def _wgmma(s: _Statement, words: list[str], ops: list[str]) -> str:
    """wgmma: a product of 64 rows, which is formed when its group is waited for."""
    if words[1] == "fence":
        return "ts_wgmma_fence();"
    if words[1] == "commit_group":
        return "ts_wgmma_commit();"
    if words[1] == "wait_group":
        return f"touchstone::ptx::wgmma_wait({s.value(ops[0], 'int')});"
    shape = next(w for w in words if re.fullmatch(r"m64n\d+k\d+", w))
    n, k = map(int, re.findall(r"\d+", shape)[1:])
    d, a, b = (_NUMBERS[w] for w in words if w in _NUMBERS)
    depth = {"TS_F16": 16, "TS_BF16": 16, "TS_TF32": 8}.get(a, 32)
    sums = s.each(ops[0])
    if "sp" in words or k != depth or n not in range(8, 257, 8):
        raise NotKnown(".".join(words))
    if len(sums) != (n // 4 if d == "TS_F16" else n // 2):
        raise NotKnown(f"{'.'.join(words)} with {len(sums)} accumulators")
    left = s.each(ops[1])
    if ops[1].strip().startswith("{"):
        registers = ", ".join(s.value(one, "uint32_t") for one in left)
        operand = f"touchstone::ptx::Left{{0, {{{registers}}}, true}}"
    else:
        operand = f"touchstone::ptx::Left{{{s.value(ops[1], 'uint64_t')}, {{}}, false}}"
    rest = [s.value(one, "int") for one in ops[4:]]
    if ops[1].strip().startswith("{"):
        rest.insert(2, "0")  # a in registers lies one way only
    scale_a, scale_b, along_m, along_n = [*rest, *["1", "1", "0", "0"][len(rest) :]]
    places = ", ".join(s.place(one) for one in sums)
    return (
        f"touchstone::ptx::wgmma<{n}, {k}, {a}, {b}, {d}, {str('satfinite' in words).lower()}>({operand}, "
        f"{s.value(ops[2], 'uint64_t')}, {s.value(ops[3], 'bool')}, {scale_a}, {scale_b}, {along_m}, {along_n}, "
        f"{places});"
    )


def _mapa(s: _Statement, words: list[str], ops: list[str]) -> str:
    rank = s.value(ops[2], "uint32_t")
    if any(w.startswith("shared") for w in words):
        return s.put(ops[0], f"touchstone::ptx::mapa({s.value(ops[1], 'uint32_t')}, {rank})")
    return s.put(ops[0], f"touchstone::ptx::mapa_generic({s.value(ops[1], 'uint64_t')}, {rank})")


def _getctarank(s: _Statement, words: list[str], ops: list[str]) -> str:
    if any(w.startswith("shared") for w in words):
        return s.put(ops[0], f"({s.value(ops[1], 'uint32_t')} >> 24)")
    return s.put(ops[0], f"(ts_shared_address({s.address(f'[{ops[1]}]', 'generic')}) >> 24)")


def _elect(s: _Statement, words: list[str], ops: list[str]) -> str:
    first, _, second = ops[0].partition("|")
    call = f"touchstone::ptx::elect({s.value(ops[1], 'uint32_t')}, &ts_chosen)"
    return f"bool ts_chosen = false; {s.put(first, call)} " + (s.put(second, "ts_chosen") if second else "")


def _ldmatrix(s: _Statement, words: list[str], ops: list[str]) -> str:
    count = next(int(w[1]) for w in words if w in ("x1", "x2", "x4"))
    if "b16" not in words:
        raise NotKnown(".".join(words))
    transposed = str("trans" in words).lower()
    if words[0] == "ldmatrix":
        to, pointer = s.each(ops[0]), s.address(ops[1], "shared")
        out = f"unsigned ts_m[4]; touchstone::ldmatrix_x{count}(ts_m, {pointer}, {transposed}); "
        return out + " ".join(s.put(one, f"ts_m[{i}]") for i, one in enumerate(to))
    values = ", ".join(s.value(one, "uint32_t") for one in s.each(ops[1]))
    pointer = s.address(ops[0], "shared")
    return f"const unsigned ts_m[4] = {{{values}}}; touchstone::stmatrix<{count}, {transposed}>({pointer}, ts_m);"


def _movmatrix(s: _Statement, words: list[str], ops: list[str]) -> str:
    return s.put(ops[0], f"touchstone::movmatrix({s.value(ops[1], 'uint32_t')})")


_ELEMENTS = {"f16": "Half", "bf16": "Brain", "tf32": "Tf32", "s8": "int8_t", "u8": "uint8_t", "f64": "double",
             "e4m3": "E4m3", "e5m2": "E5m2", "f32": "float", "s32": "int32_t"}  # fmt: skip


def _mma(s: _Statement, words: list[str], ops: list[str]) -> str:
    shape = next(w for w in words if re.fullmatch(r"m\d+n\d+k\d+", w))
    m, n, k = map(int, re.findall(r"\d+", shape))
    if "sp" in words or ((m, n, k) == (8, 8, 4) and "f64" not in words):
        raise NotKnown(".".join(words))
    kinds = [w for w in words if w in _ELEMENTS]
    d, a, b, c = (_ELEMENTS[w] for w in kinds)
    if a not in ("int8_t", "uint8_t", "Half", "Brain", "Tf32", "double", "E4m3", "E5m2"):
        raise NotKnown(".".join(words))

    def registers(op: str, element: str) -> tuple[str, int]:
        each = s.each(op)
        kind = {"double": "double"}.get(element, "uint32_t")
        return ", ".join(s.value(one, kind) for one in each), len(each)

    def typed(element: str) -> str:
        return (
            element if element in ("double", "int8_t", "uint8_t", "int32_t", "float") else f"touchstone::ptx::{element}"
        )

    word = "double" if a == "double" else "uint32_t"
    (va, na), (vb, nb), (vc, nc) = registers(ops[1], a), registers(ops[2], b), registers(ops[3], c)
    to = s.each(ops[0])
    return (
        f"const {word} ts_a[{na}] = {{{va}}}, ts_b[{nb}] = {{{vb}}}, ts_c[{nc}] = {{{vc}}}; {word} ts_d[{len(to)}]; "
        f"touchstone::ptx::mma<{m}, {n}, {k}, {typed(a)}, {typed(b)}, {typed(c)}, {typed(d)}, "
        f"{str('satfinite' in words).lower()}>(ts_d, ts_a, ts_b, ts_c); "
    ) + " ".join(s.put(one, f"ts_d[{i}]") for i, one in enumerate(to))


def _mbarrier(s: _Statement, words: list[str], ops: list[str]) -> str:
    what = words[1]
    space = _space(words)
    if what in ("init", "inval"):
        count = s.value(ops[1], "uint32_t") if what == "init" else "0u"
        return f"touchstone::ptx::mbarrier_init({s.address(ops[0], space)}, {count});"
    if what in ("arrive", "arrive_drop", "expect_tx", "complete_tx"):
        at = 1 if what.startswith("arrive") else 0
        pointer = s.address(ops[at], space)
        more = ops[at + 1] if len(ops) > at + 1 else None
        if not at:
            sign = "-" if what == "complete_tx" else ""
            return f"touchstone::ptx::mbarrier_expect({pointer}, {sign}{s.value(str(more), 'int64_t')});"
        verb = "drop" if what == "arrive_drop" else "arrive"
        if "expect_tx" in words:
            call = f"touchstone::ptx::mbarrier_{verb}({pointer}, 1u, {s.value(str(more), 'uint32_t')})"
        else:
            call = f"touchstone::ptx::mbarrier_{verb}({pointer}, {s.value(more, 'uint32_t') if more else '1u'}, 0u)"
        return s.put(ops[0], call)
    if what in ("test_wait", "try_wait"):
        parity = "parity" in words
        kind = "uint32_t" if parity else "uint64_t"
        call = (
            f"touchstone::ptx::mbarrier_passed({s.address(ops[1], space)}, {s.value(ops[2], kind)}, "
            f"{str(parity).lower()}, {str(what == 'try_wait').lower()})"
        )
        return s.put(ops[0], call)
    raise NotKnown(".".join(words))


_MAKERS: dict[str, Callable[[_Statement, list[str], list[str]], str]] = {
    **dict.fromkeys((*_BINARY, "min", "max", "div", "rem"), _arithmetic),
    **dict.fromkeys(("mul", "mad", "fma"), _wide),
    **dict.fromkeys(_UNARY, _unary),
    "shl": _shift,
    "shr": _shift,
    "mov": _mov,
    "cvt": _cvt,
    "setp": _setp,
    "selp": _selp,
    **dict.fromkeys(("lop3", "prmt", "bfe", "bfi", "sad", "shf", "dp4a"), _three),
    "ld": _ld,
    "ldu": _ld,
    "st": _st,
    "atom": _atom,
    "red": _atom,
    "bar": _bar,
    "barrier": _bar,
    "membar": _fence,
    "fence": _fence,
    "shfl": _shfl,
    "vote": _vote,
    "match": _match,
    "redux": _redux,
    "activemask": _activemask,
    "cvta": _cvta,
    "nanosleep": _nanosleep,
    "createpolicy": _createpolicy,
    "trap": _trap,
    "cp": _cp,
    "ldmatrix": _ldmatrix,
    "stmatrix": _ldmatrix,
    "movmatrix": _movmatrix,
    "mma": _mma,
    "mbarrier": _mbarrier,
    "wgmma": _wgmma,
    "mapa": _mapa,
    "getctarank": _getctarank,
    "elect": _elect,
}
