"""Finds a C++ compiler and NVIDIA's headers, compiles, and keeps what was compiled.

Everything is kept under a name that hashes what it was made of (backends/storage).
"""

import errno
import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from touchstone.backends import NotRun
from touchstone.backends.storage.artefacts import store

_HERE = Path(__file__).parent
ENGINE = _HERE / "engine"
INCLUDE = _HERE / "include"
# The folders of headers in debug information: names that no file of a user has.
OWN_HEADERS, CUDA_HEADERS = "/.touchstone/emulator", "/.touchstone/cuda"


class CompileError(RuntimeError):
    """A kernel's source does not compile; the message is the compiler's."""


def compiler() -> list[str] | None:
    """The command of a C++ compiler: that of `CXX`, or the first found of g++, clang++ and c++."""
    chosen = os.environ.get("CXX")
    if chosen:
        command = shlex.split(chosen)
        return command if command and shutil.which(command[0]) else None
    for name in ("g++", "clang++", "c++"):
        if shutil.which(name):
            return [name]
    return None


def cuda_headers() -> Path | None:
    """The folder of `cuda_fp16.h`: of NVIDIA's wheels, else of a CUDA toolkit."""
    folders: list[Path] = []
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        spec = None
    for root in (spec.submodule_search_locations or []) if spec else []:
        for found in sorted(Path(root).glob("*/include"), reverse=True):
            folders.append(found)
    if os.environ.get("CUDA_HOME"):
        folders.append(Path(os.environ["CUDA_HOME"]) / "include")
    if os.environ.get("CUDA_PATH"):
        folders.append(Path(os.environ["CUDA_PATH"]) / "include")
    folders.append(Path("/usr/local/cuda/include"))
    needed = ("cuda_fp16.h", "cuda_bf16.h", "vector_types.h", "crt/host_defines.h")
    return next((folder for folder in folders if all((folder / name).is_file() for name in needed)), None)


def why_not() -> str | None:
    """None if kernels can be compiled for the CPU here, else what to install."""
    if compiler() is None:
        if os.environ.get("CXX"):
            return f"the compiler that CXX names, {os.environ['CXX']!r}, is not found"
        return "no C++ compiler is found: install g++ or clang++ (Debian, Ubuntu: apt install g++), or set CXX"
    if cuda_headers() is None:
        return (
            "NVIDIA's headers (cuda_fp16.h, vector_types.h) are not found: pip install nvidia-cuda-runtime "
            "nvidia-cuda-crt, or set CUDA_HOME"
        )
    return None


@functools.cache
def _version(command: tuple[str, ...], path: str | None) -> str:
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return done.stdout


@functools.cache
def processor_flags() -> tuple[str, ...]:
    """-mfma where the processor has it, so that fmaf is one exact instruction; half conversions likewise."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    have = set(line.split())
    return tuple(f"-m{name}" for name in ("fma", "f16c", "avx2") if name in have)


def digest(*parts: str) -> str:
    """A name for what is made of `parts`."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _takes(command: tuple[str, ...], flag: str, path: str | None) -> bool:
    """Whether the compiler knows an option."""
    asked = [*command, "-Werror", flag, "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


@functools.cache
def own_text() -> str:
    """Of the engine and of the headers that kernels include: all that lies in their folders."""
    files = sorted([*ENGINE.glob("*"), *INCLUDE.rglob("*")])
    return "\0".join(f"{file.name}\0{file.read_text()}" for file in files if file.is_file())


_LATER = re.compile(
    r"\b(?:concept|requires|consteval|constinit)\b|\bstd::bit_cast\b"
    r"|#include <(?:bit|compare|concepts|numbers|ranges|span)>"
)
# What the compiler and its parts say where the machine fails them, in the C locale.
_NO_ROOM = {os.strerror(code): code for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)} | {
    "File size limit exceeded": errno.EFBIG
}
_STOPPED = re.compile(
    r"virtual memory exhausted|out of memory|Cannot allocate memory|memory exhausted|Resource temporarily unavailable"
    r"|Too many open files|error: (?:unable|cannot) to execute|(?:Killed|[Tt]erminated|[Ss]ignal) .*program"
)
_IN_SOURCE = re.compile(r"^\s|^[^\s:]+:\d+:(?:\d+:)? (?:error|warning|note): ")


def build(command: list[str], output: Path, what: str) -> None:
    """Run `command -o output`, with temporary files beside it; raises what `run` does."""
    run([*command, "-o", str(output)], what, output.parent)


def run(command: list[str], what: str, folder: Path) -> str:
    """What a compiler prints, with temporary files in `folder`. Raises CompileError for what does not compile, OSError
    where there is no room, NotRun where the compiler does not get to an answer."""
    plain = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}  # messages in ASCII: some of them are read
    try:
        done = subprocess.run(command, capture_output=True, check=False, env=plain)
    except OSError as error:
        raise NotRun(f"the compiler {command[0]} cannot be started: {error.strerror}") from None
    printed = done.stdout.decode(errors="replace")
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip() or printed.strip()
        _machine_failed(command[0], done.returncode, said)
        raise CompileError(f"{what} does not compile:\n{said}")
    return printed


def _machine_failed(compiler: str, status: int, said: str) -> None:
    """Raise OSError or NotRun if a compiler failed for reasons that are not in its source."""
    lines = [line for line in said.splitlines() if not _IN_SOURCE.search(line)]  # without what the source may say
    for line in lines:
        for text, code in _NO_ROOM.items():
            if line.endswith(text) or (code == errno.EFBIG and text in line):
                raise OSError(code, os.strerror(code))
        if _STOPPED.search(line):
            raise NotRun(f"the compiler {compiler} was stopped: {line.strip()}")
    if status < 0:
        raise NotRun(f"the compiler {compiler} was ended by signal {-status}")


def engine(portable: bool = False) -> Path:
    """The engine's library; compiled if it is not yet. `portable`: switches stacks by ucontext."""
    cxx = command()
    flags = ["-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-fno-sanitize=all", "-fvisibility=hidden", "-pthread"]
    if portable:
        flags.append("-DTOUCHSTONE_UCONTEXT=1")
    name = f"libtouchstone_{digest(own_text(), _version(tuple(cxx), os.environ.get('PATH')), *flags)}.so"
    asked = [*cxx, *flags, f"-Wl,-soname,{name}", str(ENGINE / "engine.cpp")]
    return store().file(name, lambda output: build(asked, output, "the emulator's engine"))


def beginnings() -> list[Path]:
    """What every kernel needs and what holds nothing of it, compiled if it is not yet: the engine, and the headers that
    a source begins with. Raises RuntimeError where nothing can be compiled or kept."""
    found = [engine()]
    for narrow in (False, True):
        header = _precompiled(command(), _flags(), narrow)
        found += [header, *(path for path in [header.with_name(f"{header.name}.gch")] if path.exists())]
    return found


def made_by() -> tuple[str, ...]:
    """The compiler and what it says of itself."""
    cxx = command()
    return (*cxx, _version(tuple(cxx), os.environ.get("PATH")))


def first_header(narrow: bool) -> tuple[Path, list[str]]:
    """What every kernel is compiled after, with `narrow` the 16-bit types too, and by which flags."""
    flags = _flags()
    return _precompiled(command(), flags, narrow), flags


def kernel(text: str, name: str, library: Path, zeroed: bool = False) -> Path:
    """The library of a kernel's source `text`, which is complete C++ by now; `name` is for messages. Whoever loads it
    has loaded the engine `library` before. `zeroed`: local variables without a value begin as zeros."""
    cxx = command()
    flags = [
        *_flags(_standard(text), zeroed),
        *(["-isystem", _torch_headers()] if "touchstone_torch.h" in text else []),
    ]
    key = digest(text, name, library.name, *made_by(), *_anywhere(flags))

    def make(output: Path) -> None:
        first = _precompiled(cxx, flags, "cuda_fp16.h" in text or "cuda_bf16.h" in text)
        source = output.with_name("source") / Path(name).name  # debug information names this file
        source.parent.mkdir()
        source.write_text(text)
        # In two steps: a link that knew of the sanitizers would bring their libraries.
        code = source.with_name("kernel.o")
        build([*cxx, *flags, "-include", str(first), "-x", "c++", "-c", str(source)], code, name)
        link = ["-shared", "-O2", "-fno-sanitize=all", "-pthread", str(code), str(library), "-lm", "-Wl,-z,now"]
        build([*cxx, *link], output, name)

    return store().file(f"{plain_name(Path(name).stem)}_{key}.so", make)


def _torch_headers() -> str:
    """The folder of torch's headers; it need not be there."""
    spec = importlib.util.find_spec("torch")
    return f"{Path(spec.origin).parent}/include" if spec and spec.origin else "/"


def _standard(text: str) -> str:
    """nvcc's default, or the later one that a text uses."""
    return "c++20" if _LATER.search(text) else "c++17"


def _flags(standard: str = "c++17", zeroed: bool = False) -> list[str]:
    """Those by which kernels are compiled. g++ has the one for local variables from version 12 on, clang from 8."""
    cxx = command()
    begin = f"-ftrivial-auto-var-init={'zero' if zeroed else 'pattern'}"
    return [
        *([begin] if _takes(tuple(cxx), begin, os.environ.get("PATH")) else []),
        f"-std={standard}",
        "-O2",
        "-g1",
        "-gdwarf-4",
        "-fPIC",
        "-pthread",
        "-ffp-contract=off",
        "-fno-strict-aliasing",
        "-fwrapv",
        "-fno-plt",
        "-fno-optimize-sibling-calls",
        "-fno-access-control",  # the fields of a class are told to Python
        "-w",
        *processor_flags(),
        *sanitizers(cxx),
        *(f"-ffile-prefix-map={folder}={stands}" for folder, stands in _folders()),
        f"-I{INCLUDE}",
        f"-I{ENGINE}",
        "-isystem",
        str(cuda_headers()),
        "-isystem",
        f"{cuda_headers()}/cccl",
    ]


def _folders() -> list[tuple[str, str]]:
    """Where headers lie that are no user's, and what stands for that in what is compiled."""
    return [(str(_HERE), OWN_HEADERS), (str(cuda_headers()), CUDA_HEADERS)]


def _anywhere(flags: list[str]) -> list[str]:
    """Flags as a key has them: with what CUDA's headers are in place of where they lie. The emulator's own are in the
    engine's name."""
    for folder, stands in _folders():
        flags = [flag.replace(folder, stands) for flag in flags]
    return [*flags, headers_state()]


def headers_state() -> str:
    """A hash of CUDA's headers: of the names and sizes of its files, and of the release of CCCL."""
    return _state_of(cuda_headers())


@functools.cache
def _state_of(folder: Path | None) -> str:
    files = sorted([*folder.glob("*.h*"), *folder.glob("crt/*")]) if folder else []
    release = folder / "cccl/cuda/std/__cccl/version.h" if folder else Path()
    text = release.read_text() if release.is_file() else ""
    return digest(*(f"{file.name} {file.stat().st_size}" for file in files), text)


def plain_name(text: str) -> str:
    """A name with nothing in it but what a file's name may have anywhere."""
    return re.sub(r"[^\w+]", "_", text, flags=re.ASCII)[:80] or "_"


def _precompiled(command: list[str], flags: list[str], narrow: bool) -> Path:
    """A header that brings touchstone.h, with `narrow` the 16-bit types too; g++ finds it precompiled beside itself,
    which saves two thirds of the time that a small kernel takes (0.4 of 0.6 s)."""
    version = _version(tuple(command), os.environ.get("PATH"))
    names = ["touchstone.h", *(["cuda_fp16.h", "cuda_bf16.h"] if narrow else [])]
    text = "".join(f"#include <{name}>\n" for name in names)
    name = f"touchstone_{digest(own_text(), *command, version, *flags, *names)}.h"
    header = store().file(name, lambda output: output.write_text(text))
    if "clang" not in version:
        asked = [*command, *flags, "-x", "c++-header", str(header)]
        store().file(f"{name}.gch", lambda output: build(asked, output, "the emulator's header"))
    return header


def sanitizers(command: list[str]) -> list[str]:
    """Flags that make the compiler call the engine before every access. No sanitizer's own library is linked."""
    flags = ["-fsanitize=thread", "-fsanitize=alignment", "-fsanitize-recover=alignment"]
    if "clang" in _version(tuple(command), os.environ.get("PATH")):
        clang = ["-tsan-instrument-func-entry-exit=0", "-tsan-distinguish-volatile=1"]
        return [
            *flags,
            "-fsanitize=array-bounds",
            "-fsanitize-recover=array-bounds",
            *(w for f in clang for w in ("-mllvm", f)),
        ]
    # Without -fno-gnu-unique a static variable of an inline function is one for all programs that were ever loaded.
    gcc = ["--param=tsan-instrument-func-entry-exit=0", "--param=tsan-distinguish-volatile=1", "-fno-gnu-unique"]
    return [*flags, "-fsanitize=bounds", "-fsanitize-recover=bounds", *gcc]


def command() -> list[str]:
    """As `compiler`, and RuntimeError where kernels cannot be compiled."""
    reason = why_not()
    if reason:
        raise RuntimeError(reason)
    found = compiler()
    assert found
    return found
