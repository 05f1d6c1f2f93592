"""Inline PTX: each line that has a twin becomes the call of a function in LLVM IR that does the same here.

A twin's body has the arguments %0, %1, ... and returns the type of the result. What a twin says it declares is declared
once for all.
"""

import re
from collections.abc import Callable

from touchstone.backends.emulator.numba import irtext
from touchstone.backends.emulator.numba.errors import UnsupportedCode
from touchstone.backends.emulator.numba.lines import SITE

# what a twin is made of: the match of its pattern, the type of the result, the types of the arguments
Twin = Callable[[re.Match[str], str, list[str]], tuple[str, str]]
PTX: list[tuple[re.Pattern[str], Twin]] = []


def twin(pattern: str) -> Callable[[Twin], Twin]:
    """Register what a line of inline PTX that matches `pattern` does here: (declarations, body), in LLVM IR."""

    def register(function: Twin) -> Twin:
        PTX.append((re.compile(pattern), function))
        return function

    return register


@twin(r"activemask\.b32 \$0;")
def _active_mask(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "", f"%r = call i32 @tsn_activemask(i64 {SITE})\n  ret i32 %r"


@twin(r"mov\.u32 \$0, %lanemask_lt;")
def _lanes_below(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "", "%l = call i32 @ts_lane()\n  %b = shl i32 1, %l\n  %r = sub i32 %b, 1\n  ret i32 %r"


@twin(r"mov\.u32 \$0, %dynamic_smem_size;")
def _dynamic_shared_bytes(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return (
        "declare i64 @ts_dynamic_shared_bytes()",
        "%l = call i64 @ts_dynamic_shared_bytes()\n  %r = trunc i64 %l to i32\n  ret i32 %r",
    )


@twin(r"mov\.[bsu]32 \$0, \$1;")
def _move(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "", f"ret {result} %0"


@twin(r"nanosleep\.u32 \$0;")
def _sleep(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "", "call void @tsn_sleep(i32 %0)\n  ret void"


@twin(r"brkpt;")
def _stop_for_a_debugger(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "", "ret void"


@twin(r"cvt\.(?:rni\.)?(\w+)\.f16 \$0, \$1;")
def _from_half(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    name = f"tsn_half_to_{match[1]}"
    return f"declare {result} @{name}(i16 zeroext)", f"%r = call {result} @{name}(i16 zeroext %0)\n  ret {result} %r"


@twin(r"cvt\.rn\.f16\.(\w+) \$0, \$1;")
def _to_half(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    name = f"tsn_{match[1]}_to_half"
    extend = {"s8": " signext", "s16": " signext", "u8": " zeroext", "u16": " zeroext"}.get(match[1], "")
    return (f"declare i16 @{name}({types[0]}{extend})", f"%r = call i16 @{name}({types[0]}{extend} %0)\n  ret i16 %r")


@twin(r"cvt\.rn\.(f16|bf16)x2\.f32 \$0, \$1, \$2;")
def _to_narrow_pair(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    name, kind = ("tsn_f32_to_half", "float") if match[1] == "f16" else ("tsn_f64_to_bfloat", "double")
    body = ""
    for i, part in enumerate(("high", "low")):
        if kind == "double":
            body += f"%w{i} = fpext float %{i} to double\n  "
        value = f"%w{i}" if kind == "double" else f"%{i}"
        body += f"%n{i} = call i16 @{name}({kind} {value})\n  %{part} = zext i16 %n{i} to i32\n  "
    return f"declare i16 @{name}({kind})", f"{body}%s = shl i32 %high, 16\n  %r = or i32 %s, %low\n  ret i32 %r"


@twin(r"ex2\.approx(?:\.ftz)?\.f32 \$0, \$1;")
def _exp2(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "declare float @exp2f(float)", "%r = call float @exp2f(float %0)\n  ret float %r"


@twin(r"tanh\.approx\.f32 \$0, \$1;")
def _tanh(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "declare float @tanhf(float)", "%r = call float @tanhf(float %0)\n  ret float %r"


@twin(r"ld\.global\.(ca|cg|cs|lu|cv|nc)\.b\d+ \$0, \[\$1\];")
def _load_with_hint(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    volatile = "volatile " if match[1] == "cv" else ""
    return "", f"%r = load {volatile}{result}, ptr %0\n  ret {result} %r"


@twin(r"st\.global\.(wb|cg|cs|wt)\.b\d+ \[\$0\], \$1;")
def _store_with_hint(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "", f"store {types[1]} %1, ptr %0\n  ret void"


@twin(r"ld\.(?:global|shared)?\.?(?:nc\.)?v([24])\.f32 \{.*\}, ?\[\$\d\];")
def _load_vector(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    count = int(match[1])
    body = f"%v = load <{count} x float>, ptr %0, align {4 * count}\n"
    last = "undef"
    for i in range(count):
        body += f"  %e{i} = extractelement <{count} x float> %v, i32 {i}\n"
        body += f"  %s{i} = insertvalue {result} {last}, float %e{i}, {i}\n"
        last = f"%s{i}"
    return "", f"{body}  ret {result} {last}"


@twin(r"st\.(?:global|shared)?\.?v([24])\.f32 \[\$0\], ?\{.*\};")
def _store_vector(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    count = int(match[1])
    body, last = "", "undef"
    for i in range(count):
        body += f"%v{i} = insertelement <{count} x float> {last}, float %{i + 1}, i32 {i}\n  "
        last = f"%v{i}"
    return "", f"{body}store <{count} x float> {last}, ptr %0, align {4 * count}\n  ret void"


@twin(r"mma\.sync\.aligned\.(m16n8k16|m16n8k8)\.row\.col\.f32\.(bf16|f16|tf32)\.(?:bf16|f16|tf32)\.f32\s.*")
def _multiply_tiles(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    if (match[1] == "m16n8k8") != (match[2] == "tf32") or len(types) != 10:
        raise UnsupportedCode(f"inline PTX without a twin in the emulator: {match[0]}")
    name = f"tsn_mma_{match[2]}"
    body, last = (
        "%d = alloca [4 x float]\n  %a = alloca [4 x i32]\n  %b = alloca [2 x i32]\n  %c = alloca [4 x float]\n",
        "undef",
    )
    for i, kind in enumerate(types):
        array, at = ("a", i) if i < 4 else ("b", i - 4) if i < 6 else ("c", i - 6)
        body += f"  %p{i} = getelementptr i32, ptr %{array}, i64 {at}\n  store {kind} %{i}, ptr %p{i}\n"
    body += f"  call void @{name}(ptr %d, ptr %a, ptr %b, ptr %c, i64 {SITE})\n"
    for i in range(4):
        body += f"  %q{i} = getelementptr float, ptr %d, i64 {i}\n  %e{i} = load float, ptr %q{i}\n"
        body += f"  %s{i} = insertvalue {result} {last}, float %e{i}, {i}\n"
        last = f"%s{i}"
    declaration = f"declare void @{name}(ptr, ptr, ptr, ptr, i64) convergent nomerge nounwind"
    return declaration, f"{body}  ret {result} {last}"


_LDMATRIX = r"ldmatrix\.sync\.aligned\.m8n8\.x4{}\.shared\.b16 \{{\$0, \$1, \$2, \$3\}}, \[\$4\];"


@twin(
    rf"\{{ \.reg \.pred (\w+); setp\.ne\.s32 \1, \$5, 0; "
    rf"@\1 {_LDMATRIX.format('.trans')} @!\1 {_LDMATRIX.format('')} \}}"
)
def _load_matrix(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    body, last = f"%m = alloca [4 x i32]\n  call void @tsn_ldmatrix_x4(ptr %m, ptr %0, i32 %1, i64 {SITE})\n", "undef"
    for i in range(4):
        body += f"  %q{i} = getelementptr i32, ptr %m, i64 {i}\n  %e{i} = load i32, ptr %q{i}\n"
        body += f"  %s{i} = insertvalue {result} {last}, i32 %e{i}, {i}\n"
        last = f"%s{i}"
    declaration = "declare void @tsn_ldmatrix_x4(ptr, ptr, i32, i64) convergent nomerge nounwind"
    return declaration, f"{body}  ret {result} {last}"


@twin(r"cp\.async\.cg\.shared\.global \[\$0\], \[\$1\], 16, \$2;")
def _copy_later(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    declaration = "declare void @tsn_copy16(ptr, ptr, i32, i64) nounwind"
    return declaration, f"call void @tsn_copy16(ptr %0, ptr %1, i32 %2, i64 {SITE})\n  ret void"


@twin(r"cp\.async\.(?:commit_group|wait_group \d+|wait_all);")
def _copies_done(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "", "ret void"


_ASM = re.compile(
    r'call (?P<result>.+?) asm\s+(?:sideeffect |alignstack |inteldialect )*"(?P<code>(?:[^"\\]|\\.)*)", "[^"]*"\s*\('
)


class Asm:
    """Inline PTX becomes calls of functions made for it."""

    def __init__(self) -> None:
        self.declarations: set[str] = set()
        self.functions: dict[tuple[str, str, tuple[str, ...]], tuple[str, str]] = {}

    def replace(self, text: str) -> str:
        out, at = [], 0
        used = set()
        for found in _ASM.finditer(text):
            code = re.sub(r"\\([0-9A-Fa-f]{2})", lambda m: chr(int(m[1], 16)), found["code"]).strip()
            end = irtext.closing(text, found.end() - 1)
            types = ["ptr" if t.endswith("*") else t for t in irtext.types_of(text[found.end() : end])]
            result = found["result"].strip()
            if result.endswith("*") or re.search(r"\)\*?$", result):
                result = result[: result.index("(")].strip()  # a function type
            name = self._function(code, result, tuple(types))
            used.add(f'\ndeclare {result} @"{name}"({", ".join(types)})')
            out += [text[at : found.start()], f'call {result} @"{name}"(']
            at = found.end()
        return "".join([*out, text[at:], *sorted(used), "\n"])

    def _function(self, code: str, result: str, types: tuple[str, ...]) -> str:
        key = (code, result, types)
        if key not in self.functions:
            for pattern, make in PTX:
                match = pattern.fullmatch(code)
                if match:
                    declaration, body = make(match, result, list(types))
                    break
            else:
                raise UnsupportedCode(f"inline PTX without a twin in the emulator: {code}")
            self.declarations.update(line for line in declaration.splitlines() if line)
            name = f"tsn.asm.{len(self.functions)}"
            parameters = ", ".join(f"{kind} %{i}" for i, kind in enumerate(types))
            body = f"entry:\n  {body}"
            self.functions[key] = (
                name,
                f'define linkonce_odr {result} @"{name}"({parameters}) alwaysinline {{\n{body}\n}}\n',
            )
        return self.functions[key][0]

    def text(self) -> str:
        return "\n".join([*sorted(self.declarations), *(text for _, text in self.functions.values())])
