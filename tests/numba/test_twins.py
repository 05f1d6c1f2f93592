"""Inline PTX in LLVM IR: the function that each line becomes, and the text around it; types and brackets in IR."""

import pytest

if not pytest.importorskip("numba.cuda"):
    pytest.skip("numba-cuda is not installed", allow_module_level=True)

from touchstone.backends.emulator.numba import irtext
from touchstone.backends.emulator.numba.errors import UnsupportedCode
from touchstone.backends.emulator.numba.lines import SITE
from touchstone.backends.emulator.numba.ptx import Asm

TWINS = {  # by the line of PTX, the type of its result and those of its arguments: what is declared, and what it does
    ("activemask.b32 $0;", "i32", ""): (
        "",
        "%r = call i32 @tsn_activemask(i64 SITE) | ret i32 %r",
    ),
    ("mov.u32 $0, %lanemask_lt;", "i32", ""): (
        "",
        "%l = call i32 @ts_lane() | %b = shl i32 1, %l | %r = sub i32 %b, 1 | ret i32 %r",
    ),
    ("mov.u32 $0, %dynamic_smem_size;", "i32", ""): (
        "declare i64 @ts_dynamic_shared_bytes()",
        "%l = call i64 @ts_dynamic_shared_bytes() | %r = trunc i64 %l to i32 | ret i32 %r",
    ),
    ("mov.b32 $0, $1;", "float", "float"): (
        "",
        "ret float %0",
    ),
    ("mov.u32 $0, $1;", "i32", "i32"): (
        "",
        "ret i32 %0",
    ),
    ("mov.s32 $0, $1;", "i32", "i32"): (
        "",
        "ret i32 %0",
    ),
    ("nanosleep.u32 $0;", "void", "i32"): (
        "",
        "call void @tsn_sleep(i32 %0) | ret void",
    ),
    ("brkpt;", "void", ""): (
        "",
        "ret void",
    ),
    ("cvt.rni.s16.f16 $0, $1;", "i16", "i16"): (
        "declare i16 @tsn_half_to_s16(i16 zeroext)",
        "%r = call i16 @tsn_half_to_s16(i16 zeroext %0) | ret i16 %r",
    ),
    ("cvt.f32.f16 $0, $1;", "float", "i16"): (
        "declare float @tsn_half_to_f32(i16 zeroext)",
        "%r = call float @tsn_half_to_f32(i16 zeroext %0) | ret float %r",
    ),
    ("cvt.rn.f16.s8 $0, $1;", "i16", "i8"): (
        "declare i16 @tsn_s8_to_half(i8 signext)",
        "%r = call i16 @tsn_s8_to_half(i8 signext %0) | ret i16 %r",
    ),
    ("cvt.rn.f16.s16 $0, $1;", "i16", "i16"): (
        "declare i16 @tsn_s16_to_half(i16 signext)",
        "%r = call i16 @tsn_s16_to_half(i16 signext %0) | ret i16 %r",
    ),
    ("cvt.rn.f16.u8 $0, $1;", "i16", "i8"): (
        "declare i16 @tsn_u8_to_half(i8 zeroext)",
        "%r = call i16 @tsn_u8_to_half(i8 zeroext %0) | ret i16 %r",
    ),
    ("cvt.rn.f16.u16 $0, $1;", "i16", "i16"): (
        "declare i16 @tsn_u16_to_half(i16 zeroext)",
        "%r = call i16 @tsn_u16_to_half(i16 zeroext %0) | ret i16 %r",
    ),
    ("cvt.rn.f16.f32 $0, $1;", "i16", "float"): (
        "declare i16 @tsn_f32_to_half(float)",
        "%r = call i16 @tsn_f32_to_half(float %0) | ret i16 %r",
    ),
    ("cvt.rn.f16.u32 $0, $1;", "i16", "i32"): (
        "declare i16 @tsn_u32_to_half(i32)",
        "%r = call i16 @tsn_u32_to_half(i32 %0) | ret i16 %r",
    ),
    ("cvt.rn.f16.s64 $0, $1;", "i16", "i64"): (
        "declare i16 @tsn_s64_to_half(i64)",
        "%r = call i16 @tsn_s64_to_half(i64 %0) | ret i16 %r",
    ),
    ("cvt.rn.f16x2.f32 $0, $1, $2;", "i32", "float, float"): (
        "declare i16 @tsn_f32_to_half(float)",
        "%n0 = call i16 @tsn_f32_to_half(float %0) | %high = zext i16 %n0 to i32 | %n1 = call i16 "
        "@tsn_f32_to_half(float %1) | %low = zext i16 %n1 to i32 | %s = shl i32 %high, 16 | %r = or i32 %s, %low | "
        "ret i32 %r",
    ),
    ("cvt.rn.bf16x2.f32 $0, $1, $2;", "i32", "float, float"): (
        "declare i16 @tsn_f64_to_bfloat(double)",
        "%w0 = fpext float %0 to double | %n0 = call i16 @tsn_f64_to_bfloat(double %w0) | %high = zext i16 %n0 to "
        "i32 | %w1 = fpext float %1 to double | %n1 = call i16 @tsn_f64_to_bfloat(double %w1) | %low = zext i16 "
        "%n1 to i32 | %s = shl i32 %high, 16 | %r = or i32 %s, %low | ret i32 %r",
    ),
    ("ex2.approx.ftz.f32 $0, $1;", "float", "float"): (
        "declare float @exp2f(float)",
        "%r = call float @exp2f(float %0) | ret float %r",
    ),
    ("ex2.approx.f32 $0, $1;", "float", "float"): (
        "declare float @exp2f(float)",
        "%r = call float @exp2f(float %0) | ret float %r",
    ),
    ("tanh.approx.f32 $0, $1;", "float", "float"): (
        "declare float @tanhf(float)",
        "%r = call float @tanhf(float %0) | ret float %r",
    ),
    ("ld.global.nc.b32 $0, [$1];", "float", "float*"): (
        "",
        "%r = load float, ptr %0 | ret float %r",
    ),
    ("ld.global.cv.b64 $0, [$1];", "i64", "i64*"): (
        "",
        "%r = load volatile i64, ptr %0 | ret i64 %r",
    ),
    ("ld.global.ca.b32 $0, [$1];", "i32", "ptr"): (
        "",
        "%r = load i32, ptr %0 | ret i32 %r",
    ),
    ("st.global.wt.b32 [$0], $1;", "void", "float*, float"): (
        "",
        "store float %1, ptr %0 | ret void",
    ),
    ("ld.global.v2.f32 {$0,$1}, [$2];", "{float, float}", "float*"): (
        "",
        "%v = load <2 x float>, ptr %0, align 8 | %e0 = extractelement <2 x float> %v, i32 0 | %s0 = insertvalue "
        "{float, float} undef, float %e0, 0 | %e1 = extractelement <2 x float> %v, i32 1 | %s1 = insertvalue "
        "{float, float} %s0, float %e1, 1 | ret {float, float} %s1",
    ),
    ("ld.global.nc.v4.f32 {$0,$1,$2,$3}, [$4];", "{float, float, float, float}", "ptr"): (
        "",
        "%v = load <4 x float>, ptr %0, align 16 | %e0 = extractelement <4 x float> %v, i32 0 | %s0 = insertvalue "
        "{float, float, float, float} undef, float %e0, 0 | %e1 = extractelement <4 x float> %v, i32 1 | %s1 = "
        "insertvalue {float, float, float, float} %s0, float %e1, 1 | %e2 = extractelement <4 x float> %v, i32 2 | "
        "%s2 = insertvalue {float, float, float, float} %s1, float %e2, 2 | %e3 = extractelement <4 x float> %v, "
        "i32 3 | %s3 = insertvalue {float, float, float, float} %s2, float %e3, 3 | ret {float, float, float, "
        "float} %s3",
    ),
    ("ld.shared.v2.f32 {$0, $1}, [$2];", "{float, float}", "ptr"): (
        "",
        "%v = load <2 x float>, ptr %0, align 8 | %e0 = extractelement <2 x float> %v, i32 0 | %s0 = insertvalue "
        "{float, float} undef, float %e0, 0 | %e1 = extractelement <2 x float> %v, i32 1 | %s1 = insertvalue "
        "{float, float} %s0, float %e1, 1 | ret {float, float} %s1",
    ),
    ("st.global.v2.f32 [$0], {$1,$2};", "void", "ptr, float, float"): (
        "",
        "%v0 = insertelement <2 x float> undef, float %1, i32 0 | %v1 = insertelement <2 x float> %v0, float %2, "
        "i32 1 | store <2 x float> %v1, ptr %0, align 8 | ret void",
    ),
    ("st.shared.v4.f32 [$0], {$1, $2, $3, $4};", "void", "ptr, float, float, float, float"): (
        "",
        "%v0 = insertelement <4 x float> undef, float %1, i32 0 | %v1 = insertelement <4 x float> %v0, float %2, "
        "i32 1 | %v2 = insertelement <4 x float> %v1, float %3, i32 2 | %v3 = insertelement <4 x float> %v2, float "
        "%4, i32 3 | store <4 x float> %v3, ptr %0, align 16 | ret void",
    ),
    ("cp.async.cg.shared.global [$0], [$1], 16, $2;", "void", "ptr, ptr, i32"): (
        "declare void @tsn_copy16(ptr, ptr, i32, i64) nounwind",
        "call void @tsn_copy16(ptr %0, ptr %1, i32 %2, i64 SITE) | ret void",
    ),
    ("cp.async.wait_group 1;", "void", ""): (
        "",
        "ret void",
    ),
    ("cp.async.commit_group;", "void", ""): (
        "",
        "ret void",
    ),
    ("cp.async.wait_all;", "void", ""): (
        "",
        "ret void",
    ),
    ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, "
     "{$10,$11,$12,$13};", "{float, float, float, float}",
     "i32, i32, i32, i32, i32, i32, float, float, float, float"): (
        "declare void @tsn_mma_f16(ptr, ptr, ptr, ptr, i64) convergent nomerge nounwind",
        "%d = alloca [4 x float] | %a = alloca [4 x i32] | %b = alloca [2 x i32] | %c = alloca [4 x float] | %p0 = "
        "getelementptr i32, ptr %a, i64 0 | store i32 %0, ptr %p0 | %p1 = getelementptr i32, ptr %a, i64 1 | store "
        "i32 %1, ptr %p1 | %p2 = getelementptr i32, ptr %a, i64 2 | store i32 %2, ptr %p2 | %p3 = getelementptr "
        "i32, ptr %a, i64 3 | store i32 %3, ptr %p3 | %p4 = getelementptr i32, ptr %b, i64 0 | store i32 %4, ptr "
        "%p4 | %p5 = getelementptr i32, ptr %b, i64 1 | store i32 %5, ptr %p5 | %p6 = getelementptr i32, ptr %c, "
        "i64 0 | store float %6, ptr %p6 | %p7 = getelementptr i32, ptr %c, i64 1 | store float %7, ptr %p7 | %p8 "
        "= getelementptr i32, ptr %c, i64 2 | store float %8, ptr %p8 | %p9 = getelementptr i32, ptr %c, i64 3 | "
        "store float %9, ptr %p9 | call void @tsn_mma_f16(ptr %d, ptr %a, ptr %b, ptr %c, i64 SITE) | %q0 = "
        "getelementptr float, ptr %d, i64 0 | %e0 = load float, ptr %q0 | %s0 = insertvalue {float, float, float, "
        "float} undef, float %e0, 0 | %q1 = getelementptr float, ptr %d, i64 1 | %e1 = load float, ptr %q1 | %s1 = "
        "insertvalue {float, float, float, float} %s0, float %e1, 1 | %q2 = getelementptr float, ptr %d, i64 2 | "
        "%e2 = load float, ptr %q2 | %s2 = insertvalue {float, float, float, float} %s1, float %e2, 2 | %q3 = "
        "getelementptr float, ptr %d, i64 3 | %e3 = load float, ptr %q3 | %s3 = insertvalue {float, float, float, "
        "float} %s2, float %e3, 3 | ret {float, float, float, float} %s3",
    ),
    ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, "
     "{$10,$11,$12,$13};", "{float, float, float, float}",
     "i32, i32, i32, i32, i32, i32, float, float, float, float"): (
        "declare void @tsn_mma_tf32(ptr, ptr, ptr, ptr, i64) convergent nomerge nounwind",
        "%d = alloca [4 x float] | %a = alloca [4 x i32] | %b = alloca [2 x i32] | %c = alloca [4 x float] | %p0 = "
        "getelementptr i32, ptr %a, i64 0 | store i32 %0, ptr %p0 | %p1 = getelementptr i32, ptr %a, i64 1 | store "
        "i32 %1, ptr %p1 | %p2 = getelementptr i32, ptr %a, i64 2 | store i32 %2, ptr %p2 | %p3 = getelementptr "
        "i32, ptr %a, i64 3 | store i32 %3, ptr %p3 | %p4 = getelementptr i32, ptr %b, i64 0 | store i32 %4, ptr "
        "%p4 | %p5 = getelementptr i32, ptr %b, i64 1 | store i32 %5, ptr %p5 | %p6 = getelementptr i32, ptr %c, "
        "i64 0 | store float %6, ptr %p6 | %p7 = getelementptr i32, ptr %c, i64 1 | store float %7, ptr %p7 | %p8 "
        "= getelementptr i32, ptr %c, i64 2 | store float %8, ptr %p8 | %p9 = getelementptr i32, ptr %c, i64 3 | "
        "store float %9, ptr %p9 | call void @tsn_mma_tf32(ptr %d, ptr %a, ptr %b, ptr %c, i64 SITE) | %q0 = "
        "getelementptr float, ptr %d, i64 0 | %e0 = load float, ptr %q0 | %s0 = insertvalue {float, float, float, "
        "float} undef, float %e0, 0 | %q1 = getelementptr float, ptr %d, i64 1 | %e1 = load float, ptr %q1 | %s1 = "
        "insertvalue {float, float, float, float} %s0, float %e1, 1 | %q2 = getelementptr float, ptr %d, i64 2 | "
        "%e2 = load float, ptr %q2 | %s2 = insertvalue {float, float, float, float} %s1, float %e2, 2 | %q3 = "
        "getelementptr float, ptr %d, i64 3 | %e3 = load float, ptr %q3 | %s3 = insertvalue {float, float, float, "
        "float} %s2, float %e3, 3 | ret {float, float, float, float} %s3",
    ),
    ("{ .reg .pred p; setp.ne.s32 p, $5, 0; @p ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, "
     "$2, $3}, [$4]; @!p ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4]; }",
     "{i32, i32, i32, i32}", "ptr, i32"): (
        "declare void @tsn_ldmatrix_x4(ptr, ptr, i32, i64) convergent nomerge nounwind",
        "%m = alloca [4 x i32] | call void @tsn_ldmatrix_x4(ptr %m, ptr %0, i32 %1, i64 SITE) | %q0 = "
        "getelementptr i32, ptr %m, i64 0 | %e0 = load i32, ptr %q0 | %s0 = insertvalue {i32, i32, i32, i32} "
        "undef, i32 %e0, 0 | %q1 = getelementptr i32, ptr %m, i64 1 | %e1 = load i32, ptr %q1 | %s1 = insertvalue "
        "{i32, i32, i32, i32} %s0, i32 %e1, 1 | %q2 = getelementptr i32, ptr %m, i64 2 | %e2 = load i32, ptr %q2 | "
        "%s2 = insertvalue {i32, i32, i32, i32} %s1, i32 %e2, 2 | %q3 = getelementptr i32, ptr %m, i64 3 | %e3 = "
        "load i32, ptr %q3 | %s3 = insertvalue {i32, i32, i32, i32} %s2, i32 %e3, 3 | ret {i32, i32, i32, i32} %s3",
    ),
}  # fmt: skip


def call(code, result="void", types="", head="  "):
    arguments = ", ".join(f"{kind} %a{i}" for i, kind in enumerate(irtext.split(types)))
    return f'{head}call {result} asm sideeffect "{code}", "=r,r" ({arguments})'


@pytest.mark.parametrize(("code", "result", "types"), TWINS)
def test_the_function_that_a_line_becomes(code, result, types):
    asm = Asm()
    kinds = ["ptr" if kind.endswith("*") else kind for kind in irtext.split(types)]
    given = ", ".join(f"{kind} %a{i}" for i, kind in enumerate(irtext.split(types)))
    said = asm.replace(f"{call(code, result, types)}\n")
    assert said == f'  call {result} @"tsn.asm.0"({given})\n\ndeclare {result} @"tsn.asm.0"({", ".join(kinds)})\n'
    declared, body = TWINS[code, result, types]
    lines = [f"  {line}" for line in body.replace("SITE", str(SITE)).split(" | ")]
    parameters = ", ".join(f"{kind} %{i}" for i, kind in enumerate(kinds))
    whole = [f'define linkonce_odr {result} @"tsn.asm.0"({parameters}) alwaysinline {{', "entry:", *lines, "}", ""]
    assert asm.text() == "\n".join([*filter(None, declared.split(" | ")), *whole])


def test_text_around_a_line_stays_and_equal_lines_are_one_function():
    asm = Asm()
    before, between, after = "define void @f() {\n", "\n  %x = add i32 1, 2\n", "\n  ret void\n}\n"
    one, other = call("brkpt;"), call("mov.u32 $0, $1;", "i32", "i32", "  %y = ")
    said = asm.replace(before + one + between + other + between + one + after)
    called = '  call void @"tsn.asm.0"()'
    moved = '  %y = call i32 @"tsn.asm.1"(i32 %a0)'
    declared = '\ndeclare i32 @"tsn.asm.1"(i32)\ndeclare void @"tsn.asm.0"()\n'
    assert said == before + called + between + moved + between + called + after + declared
    again = asm.replace(call("mov.u32 $0, $1;", "float", "float"))
    assert '@"tsn.asm.2"(float %a0)' in again and again.endswith('\ndeclare float @"tsn.asm.2"(float)\n')
    others = Asm()
    for line in (
        *(call("activemask.b32 $0;", "i32"), call("mov.u32 $0, %lanemask_lt;", "i32")),
        *(call("ld.global.nc.b32 $0, [$1];", kind, "ptr") for kind in ("float", "i32")),
        *(call("st.global.wt.b32 [$0], $1;", "void", f"ptr, {kind}") for kind in ("float", "i32")),
    ):
        others.replace(line)
        others.replace(line)
    assert len(others.functions) == 6
    assert [name for name, _ in asm.functions.values()] == ["tsn.asm.0", "tsn.asm.1", "tsn.asm.2"]
    assert asm.text().count("define linkonce_odr") == 3 and Asm().replace("ret void") == "ret void\n"


def test_how_a_line_may_be_written():
    asm = Asm()
    for written in (
        'call void asm sideeffect "brkpt;", "" ()',
        'call void asm "brkpt;", "~{memory}"()',
        'call void () asm sideeffect alignstack "\\62rkpt;", "" ()',
        'call void ()* asm sideeffect inteldialect "brkpt;\\0A", ""()',
    ):
        assert asm.replace(written).startswith('call void @"tsn.asm.0"()'), written
    assert len(asm.functions) == 1


@pytest.mark.parametrize(
    "code",
    [
        "mov.u32 $0, %smid;",
        "brkpt; brkpt;",
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {$0}, {$1};",
        "mma.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32 {$0}, {$1};",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0}, {$1};",
    ],
)
def test_a_line_without_a_twin_is_named(code):
    with pytest.raises(UnsupportedCode) as raised:
        Asm().replace(call(code, "float", "i32, i32"))
    assert str(raised.value) == f"inline PTX without a twin in the emulator: {code}"
    if code.startswith("mma") and ("k8" in code or "tf32" in code):  # of the right number of operands, too
        with pytest.raises(UnsupportedCode):
            Asm().replace(call(code, "float", ", ".join(["i32"] * 10)))


def test_lists_types_and_brackets():
    assert irtext.split("i32 %a, {float, i32} %b, <2 x i8> %c, [2 x {i8, i8}] %d, f(1, 2),  ") == [
        *("i32 %a", "{float, i32} %b", "<2 x i8> %c", "[2 x {i8, i8}] %d", "f(1, 2)")
    ]
    assert irtext.split("a,b,{c,d}") == ["a", "b", "{c,d}"]
    assert irtext.split("") == irtext.split(" , ") == []
    assert irtext.closing("a(b[c]{d}<e>)f", 1) == 12 and irtext.closing("{[()]}", 1) == 4
    with pytest.raises(ValueError, match="^unbalanced$"):
        irtext.closing("(a", 0)
    assert irtext.type_at_start("<4 x float> %x") == "<4 x float>" and irtext.type_at_start("i32 7") == "i32"
    assert irtext.type_at_start("{ i32, [2 x i8] } zeroinitializer") == "{ i32, [2 x i8] }"
    assert irtext.type_at_start("[2 x i8] undef") == "[2 x i8]"
    arguments = 'i8* %".1", {i32, float} %x, float 1.0, i32 -7, ptr null, double undef, i64 @"g", void ()* @f, i1 true'
    assert irtext.types_of(arguments) == [
        *("i8*", "{i32, float}", "float", "i32", "ptr", "double", "i64", "void ()*", "i1")
    ]
    assert irtext.types_of("i32") == ["i32"] and irtext.types_of("") == []


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *(("i1", 1), ("i8", 1), ("i16", 2), ("half", 2), ("bfloat", 2), ("i32", 4), ("float", 4), ("i64", 8)),
        *(("double", 8), ("ptr", 8), ("i128", 16), (" i32 ", 4), ("<4 x float>", 16), ("[3 x [2 x i16]]", 12)),
        *(("{i8, i32}", 8), ("{i8, i16, i8}", 5), ("{i32, i8, double}", 16), ("{i8, [3 x i16]}", 8), ("{}", 0)),
        *(("{i8, {}, i8}", 2), ("{i8, i128}", 24), ("i24", 3), ("i33", 5), ("i7", 1)),
    ],
)
def test_how_many_bytes_a_type_has(kind, size):
    assert irtext.size_of(kind) == size


def test_a_type_whose_size_is_not_known():
    with pytest.raises(UnsupportedCode, match="^a type of LLVM's whose size is not known: %T$"):
        irtext.size_of("{i32, %T}")


def test_what_is_declared_twice_is_declared_once():
    text = 'declare i32 @"f"(i32)\ndeclare float @g(float) #1\ndeclare i32 @f(i32)\ndefine void @h() {\n'
    assert irtext.declared_once(text) == 'declare i32 @"f"(i32)\ndeclare float @g(float) #1\n\ndefine void @h() {\n'
