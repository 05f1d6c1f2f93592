"""A `.cu` file as the preprocessor of the C++ compiler leaves it: its own text and that of the user's headers, with
macros expanded for the chosen architecture; the headers of CUDA and of the C++ library are named, not copied in.

A header that is neither the user's nor of use to kernels (`iostream`, `cublas_v2.h`, `torch/extension.h`) is taken for
empty, whether or not it is there.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from touchstone.backends.emulator import compiler
from touchstone.backends.storage.artefacts import store

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.M)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.S)
# Whose macros a kernel's text may use.
_NAMES = ("assert", "errno", "float", "inttypes", "limits", "math", "stdbool", "stddef", "stdint", "stdlib", "time")
_MACROS = {"math_constants.h", *(f"{name}.h" for name in _NAMES), *(f"c{name}" for name in _NAMES)}
# What is included again where the kernels are compiled, if what is kept of the text names one of these words.
_USED_FOR = {
    "std": {"algorithm", "array", "bit", "complex", "functional", "initializer_list", "limits", "numeric", "optional",
            "tuple", "type_traits", "utility", "variant"},
    **{word: {header} for word, header in (("shared_ptr", "memory"), ("unique_ptr", "memory"), ("vector", "vector"),
        ("string", "string"), ("map", "map"), ("set", "set"), ("pair", "utility"), ("ostream", "iostream"),
        ("function", "functional"), ("atomic", "atomic"), ("chrono", "chrono"), ("span", "span"))},
    "nvcuda": {"mma.h"},
    "cooperative_groups": {"cooperative_groups.h"},
}  # fmt: skip
_OTHERS = ("cuda_", "cuComplex", "cufft", "curand_kernel", "curand_philox", "vector_")
_HOSTS = ("cuda_gl", "cuda_egl", "cuda_vdpau", "cuda_runtime")
# Of libcu++ and Thrust, what calls the host's API.
_HOST_ONLY = {
    *(f"cuda/{name}" for name in ("algorithm", "buffer", "devices", "hierarchy", "launch", "memory_pool",
        "memory_resource", "stream", "std/chrono", "std/ctime")),
    *(f"thrust/{name}.h" for name in ("device_vector", "host_vector", "universal_vector", "device_ptr", "device_malloc",
        "device_new", "device_allocator", "async/copy", "system/cuda/vector", "execution_policy")),
}  # fmt: skip
_NARROW = re.compile(r"(__)?(nv_)?(half|bfloat16)")
# Of the C library and the system's.
_C_HEADERS = re.compile(
    r"(assert|complex|ctype|errno|fenv|float|inttypes|libgen|limits|locale|malloc|math|memory|omp|pthread|semaphore"
    r"|setjmp|signal|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib|string|strings|time|unistd|wchar|x86intrin"
    r"|[a-z]*mmintrin|immintrin|dirent|dlfcn|fcntl|getopt|(sys|arpa|netinet|linux|asm|bits)/\w+)\.h"
)
_FIELDS = re.compile(r"(?:sm_|compute_)?(\d{2,4})([af]?)")
CUB = "touchstone_cub.h"  # in place of CUB's headers
TORCH = "touchstone_torch.h"  # of what kernels use of torch's headers
CUDA_VERSION = 13000  # the toolkit whose macros are shown to the text


class Preprocessed(NamedTuple):
    text: str  # with line markers
    headers: tuple[str, ...]  # that are included where kernels are compiled, as `cuda_fp16.h`
    missing: tuple[tuple[str, str, int], ...]  # headers that were asked for and not found: name, file, line
    nearby: tuple[tuple[str, str], ...]  # headers that no folder given has, and the file that was taken


def architecture(arch: str | int) -> tuple[int, str]:
    """The number of `__CUDA_ARCH__` and the suffix of "sm_90a", "90", 900; ValueError for what is no architecture."""
    found = _FIELDS.fullmatch(str(arch))
    number = int(found.group(1)) if found else 0
    if found and number < 200:
        number *= 10
    if not found or not 500 <= number <= 1300 or number % 10:
        raise ValueError(f"arch: expected a compute capability as sm_90, sm_90a, 80 or 900, got {arch!r}")
    return number, found.group(2)


def defines(arch: str | int) -> str:
    """What nvcc defines for `arch` while it compiles for the device."""
    number, suffix = architecture(arch)
    words = {
        "__CUDA_ARCH__": number,
        "__CUDA_ARCH_LIST__": number,
        "__CUDACC__": 1,
        "__NVCC__": 1,
        "__CUDACC_VER_MAJOR__": CUDA_VERSION // 1000,
        "__CUDACC_VER_MINOR__": CUDA_VERSION % 1000 // 10,
        "__CUDACC_VER_BUILD__": 0,
        "__CUDACC_EXTENDED_LAMBDA__": 1,
        "__CUDACC_RELAXED_CONSTEXPR__": 1,
        "CUDART_VERSION": CUDA_VERSION,
        "CUDA_VERSION": CUDA_VERSION,
    }
    if suffix:
        words[f"__CUDA_ARCH_FEAT_SM{number // 10}_ALL"] = 1
        words["__CUDA_ARCH_SPECIFIC__"] = number
    # The engine's own meaning of CUDA's words is given to what is kept of the text, later.
    shown = ("global", "device", "host", "constant", "managed", "shared", "grid_constant", "launch_bounds")
    lines = [f"#undef __{word}__" for word in (*shown, "cluster_dims", "maxnreg")]
    return (
        "\n".join(
            [*lines, *(f"#undef {name.partition('(')[0]}\n#define {name} {value}" for name, value in words.items())]
        )
        + "\n"
    )


class Sources(NamedTuple):
    """What may be included from a text."""

    files: list[tuple[str, str]]  # the user's, and their texts
    empty: set[str]  # names that are taken for empty
    kept: list[str]  # of them, what may be included where kernels are compiled
    missing: list[tuple[str, str, int]]
    nearby: list[tuple[str, str]]


def sources(text: str, name: str, folders: Sequence[Path]) -> Sources:
    """All headers that `text` may include, whatever the preprocessor's conditions come to."""
    files: list[tuple[str, str]] = [(name, text)]
    empty: set[str] = set()
    kept: list[str] = []
    missing: list[tuple[str, str, int]] = []
    nearby: dict[str, str] = {}
    waiting: list[tuple[str, str, Path | None]] = [(name, text, Path(name).parent if "/" in name else None)]
    seen: set[Path] = set()
    while waiting:
        here, body, beside = waiting.pop(0)
        bare = _COMMENT.sub(lambda m: m.group() if m.group()[0] == '"' else re.sub(r"[^\n]", " ", m.group()), body)
        for match in _INCLUDE.finditer(bare):
            asked = match.group(1) or match.group(2)
            around = [beside] if beside is not None and match.group(1) else []
            path = next((f / asked for f in (*around, *folders) if (f / asked).is_file()), None)
            if path is None and not known(asked) and asked not in _MACROS and (found := _near(asked, folders)):
                nearby[asked] = str(found)
                path = found
            if path is not None:
                path = Path(os.path.normpath(path))
                if path not in seen:
                    seen.add(path)
                    inside = path.read_text(errors="replace")
                    files.append((str(path), inside))
                    waiting.append((str(path), inside, path.parent))
                continue
            if asked in _MACROS:
                continue
            empty.add(asked)
            if asked not in kept:
                kept.append(asked)
            if not known(asked) and (match.group(1) or "." in asked):
                missing.append((asked, here, body.count("\n", 0, match.start()) + 1))
    return Sources(files, empty, kept, missing, list(nearby.items()))


def _near(header: str, folders: Sequence[Path]) -> Path | None:
    """A header that none of `folders` has, in a folder beside one of them or beside what holds it, up to the
    repository's own: where a build script would find it by an option of the compiler."""
    for folder in folders[:1]:
        for above in [folder, *folder.parents][:8]:
            if above == above.parent or above == Path.home():
                break
            found = [sub / header for sub in (above, *sorted(above.iterdir())) if (sub / header).is_file()]
            if found:
                return found[0]
            if (above / ".git").exists():
                break
    return None


def known(header: str) -> bool:
    """Whether a header is one of the emulator's, of CUDA's or of the C++ library's."""
    cuda = compiler.cuda_headers()
    return bool(
        _C_HEADERS.fullmatch(header)
        or (compiler.INCLUDE / header).is_file()
        or (cuda and ((cuda / header).is_file() or (cuda / "cccl" / header).is_file()))
    )


def preprocess(
    text: str, name: str, definitions: dict[str, str], include: Sequence[str], arch: str | int
) -> Preprocessed:
    """Run the preprocessor over `text`. Raises CompileError for what it rejects, `#error` among it."""
    folders = [*map(Path, include)]
    _, empty, kept, missing, nearby = sources(text, name, folders)
    folders += dict.fromkeys(Path(file.removesuffix(header)) for header, file in nearby)

    def preprocessed(scratch: Path) -> tuple[str, Path]:
        # So deep that "../../inc/name.h" stays within the folder.
        stubs = Path(scratch, "a", "b", "c", "d", "e")
        stubs.mkdir(parents=True)
        for header in empty:
            stub = Path(os.path.normpath(stubs / header))
            if scratch in stub.parents:
                stub.parent.mkdir(parents=True, exist_ok=True)
                stub.touch()
        shown = scratch / "shown.h"
        shown.write_text(defines(arch))
        file = scratch / "text.cu"
        file.write_text(f'#line 1 "{name}"\n{text}')
        first, flags = compiler.first_header(True)
        around = [f"-iquote{Path(name).parent}"] if "/" in name else []
        asked = [
            *compiler.command(),
            *flags,
            *(f"-D{key}={value}" for key, value in definitions.items()),
            *around,
            *(f"-I{folder}" for folder in folders),
            f"-I{stubs}",
            "-E",
            *(["-fpch-preprocess"] if first.with_name(f"{first.name}.gch").exists() else []),
            "-include",
            str(first),
            "-include",
            str(shown),
            "-x",
            "c++",
            str(file),
        ]
        return compiler.run(asked, name, scratch), stubs

    out, stubs = store().scratch(preprocessed)
    # What stands in a branch that is not taken is not missing.
    asked_for = tuple(one for one in missing if f'"{stubs}/{one[0]}"' in out)
    return Preprocessed(out, tuple(kept), asked_for, tuple(nearby))


def headers_for(words: set[str], asked: Sequence[str]) -> list[str]:
    """Which of the headers that were `asked` for the kernels need, by the words that they use."""
    out = ["cuda_fp16.h", "cuda_bf16.h"] if any(_NARROW.match(word) for word in words) else []
    last: list[str] = []
    for header in asked:
        if header in out:
            continue
        folder = header.partition("/")[0]
        if folder in ("torch", "ATen", "c10"):
            if words & {"at", "c10", "torch", "CUDA_KERNEL_LOOP", "C10_WARP_SIZE"} and TORCH not in out:
                out += [h for h in ("cuda_fp16.h", "cuda_bf16.h") if h not in out]
                out.append(TORCH)
        elif folder == "cub" and "/" in header:
            last = [CUB] if folder in words else last
        elif header in _HOST_ONLY:
            pass
        elif header == "cuda/mdspan":  # the rest of it calls the host's API
            out += ["cuda/std/mdspan"] if "mdspan" in words else []
        elif folder in ("cuda", "thrust", "cooperative_groups") and "/" in header:
            if folder in words:
                out.append(header)
        else:
            wanted = any(header in names and word in words for word, names in _USED_FOR.items())
            other = header.startswith(_OTHERS) and not header.startswith(_HOSTS) and known(header)
            if wanted or other:
                out.append(header)
    return [*out, *last]
