"""Arithmetic of float16 and bfloat16 as numba-cuda calls it: functions of CUDA's headers by their mangled names.

What is common is written here in LLVM IR; the rest is compiled from NVIDIA's headers when a kernel needs it.
"""

_OPERATORS = {"ml": "fmul", "pl": "fadd", "mi": "fsub", "dv": "fdiv"}
_COMPARISONS = {"eq": "oeq", "ne": "une", "gt": "ogt", "lt": "olt", "ge": "oge", "le": "ole"}
_HEAD = "define linkonce_odr i32"


def _half(name: str, arguments: str, body: str) -> tuple[str, str]:
    return name, f'{_HEAD} @"{name}"({arguments}) alwaysinline {{\n{body}  ret i32 0\n}}\n'


def _load(kind: str, register: str, source: str) -> str:
    """A narrow float behind a pointer, as a float."""
    if kind == "half":
        return f"  %{register}h = load half, ptr %{source}\n  %{register} = fpext half %{register}h to float\n"
    return (
        f"  %{register}i = load i16, ptr %{source}\n  %{register}w = zext i16 %{register}i to i32\n"
        f"  %{register}s = shl i32 %{register}w, 16\n  %{register} = bitcast i32 %{register}s to float\n"
    )


def _store(kind: str, register: str, target: str) -> str:
    """Round a float to nearest, ties to even; bfloat16's NaN is NVIDIA's 0x7fff."""
    if kind == "half":
        return f"  %{register}n = fptrunc float %{register} to half\n  store half %{register}n, ptr %{target}\n"
    r = register
    return (
        f"  %{r}1 = bitcast float %{r} to i32\n  %{r}2 = lshr i32 %{r}1, 16\n  %{r}3 = and i32 %{r}2, 1\n"
        f"  %{r}4 = add i32 %{r}3, 32767\n  %{r}5 = add i32 %{r}1, %{r}4\n  %{r}6 = lshr i32 %{r}5, 16\n"
        f"  %{r}7 = trunc i32 %{r}6 to i16\n  %{r}8 = fcmp uno float %{r}, %{r}\n"
        f"  %{r}9 = select i1 %{r}8, i16 32767, i16 %{r}7\n  store i16 %{r}9, ptr %{target}\n"
    )


def definitions() -> dict[str, str]:
    """Name to definition."""
    out: dict[str, str] = {}
    for kind, name in (("half", "6__half"), ("bfloat", "13__nv_bfloat16")):
        pair = _load(kind, "x", "a") + _load(kind, "y", "b")
        for mangled, operator in _OPERATORS.items():
            body = pair + f"  %z = {operator} float %x, %y\n" + _store(kind, "z", "r")
            key, text = _half(f"_Z{mangled}RK{name}S1__nbst", "ptr %r, ptr %a, ptr %b", body)
            out[key] = text
        for mangled, comparison in _COMPARISONS.items():
            body = pair + f"  %c = fcmp {comparison} float %x, %y\n  %d = zext i1 %c to i8\n  store i8 %d, ptr %r\n"
            key, text = _half(f"_Z{mangled}RK{name}S1__nbst", "ptr %r, ptr %a, ptr %b", body)
            out[key] = text
        flip = "  %i = load i16, ptr %a\n  %n = xor i16 %i, -32768\n  store i16 %n, ptr %r\n"
        key, text = _half(f"_ZngRK{name}_nbst", "ptr %r, ptr %a", flip)
        out[key] = text
        body = "  %x = load float, ptr %a\n" + _store(kind, "x", "r")
        to_narrow = {
            "half": ("_ZL12__float2halff_nbst", "_ZL15__float2half_rnf_nbst"),
            "bfloat": ("_ZL16__float2bfloat16f_nbst", "_ZL19__float2bfloat16_rnf_nbst"),
        }[kind]
        for function in to_narrow:
            key, text = _half(function, "ptr %r, ptr %a", body)
            out[key] = text
        key, text = _half(f"_ZN{name}C1Ef_nbst", "ptr %ignored, ptr %r, ptr %a", body)
        out[key] = text
        from_double = f"tsn_f64_to_{'half' if kind == 'half' else 'bfloat'}"
        body = f"  %x = load double, ptr %a\n  %y = call i16 @{from_double}(double %x)\n  store i16 %y, ptr %r\n"
        key, text = _half(f"_ZN{name}C1Ed_nbst", "ptr %ignored, ptr %r, ptr %a", body)
        out[key] = f"declare i16 @{from_double}(double)\n{text}"
        body = _load(kind, "x", "a") + "  store float %x, ptr %r\n"
        from_narrow = {
            "half": ("_ZL12__half2float6__half_nbst",),
            "bfloat": ("_ZL16__bfloat162float13__nv_bfloat16_nbst", "____nv_bfloat16__ZNK13__nv_bfloat16cvfEv_1"),
        }[kind]
        for function in from_narrow:
            key, text = _half(function, "ptr %r, ptr %a", body)
            out[key] = text
    return out
