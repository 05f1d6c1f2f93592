"""Compiled kernels and their launches."""

import ctypes
import functools
import math
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from touchstone import backends
from touchstone.backends.emulator import binary, compiler, declarations, instruments, library, preprocess, source
from touchstone.backends.emulator.arguments import Packing, Texture, arrays, extent
from touchstone.backends.emulator.declarations import Kernel
from touchstone.backends.emulator.findings import error
from touchstone.backends.emulator.library import Loaded, Report, base, engine, fields, opened, parameters
from touchstone.backends.emulator.unit import Unit, unit

MAX_THREADS = 1024
MAX_BLOCKS = (2**31 - 1, 65535, 65535)
MAX_SHARED = 232448  # bytes of a block on sm_90, the most there is
MAX_CLUSTER = 16  # blocks
ARCH = "sm_90"
_HEAP = "".join(
    f'__attribute__((visibility("hidden"))) void* operator new{array}(size_t n) {{ return touchstone::heap_new(n); }}\n'
    f'__attribute__((visibility("hidden"))) void operator delete{array}(void* p) noexcept '
    "{ touchstone::heap_free(p); }\n"
    f'__attribute__((visibility("hidden"))) void operator delete{array}(void* p, size_t) noexcept '
    "{ touchstone::heap_free(p); }\n"
    for array in ("", "[]")
)
_MALLOC = (  # of temporary arrays in Thrust's algorithms
    'extern "C" __attribute__((visibility("hidden"))) void* malloc(size_t n) noexcept '
    "{ return touchstone::heap_new(n); }\n"
    'extern "C" __attribute__((visibility("hidden"))) void free(void* p) noexcept { touchstone::heap_free(p); }\n'
)
# Headers that kernels have no use for.
_LIBRARIES = re.compile(
    r"(cu(blas|dnn|fft|rand|solver|sparse|tensor)|nccl|nv(tx|ml|JitLink)|torch/|ATen/|c10/|GL/|mpi|pybind11/|windows)"
)
Dim = int | Sequence[int]


def compile(
    text: str,
    name: str = "kernel.cu",
    defines: dict[str, Any] | None = None,
    include: Sequence[str] = (),
    arch: str | int = ARCH,
    kernels: Sequence[str] | None = None,
) -> "Program":
    """Compile CUDA C++ for the CPU: the kernels of `text`, or those named in `kernels`, and what they need; host code
    is left out.

    `defines` are -D names; `include` folders are searched for the text's own headers; `arch` is what `__CUDA_ARCH__`
    says. What was compiled before, by any process, is taken from the cache. Raises RuntimeError where there is no
    compiler, CompileError where the source does not compile.
    """
    program = Program(
        text, name, {key: str(value) for key, value in (defines or {}).items()}, tuple(map(str, include)), arch, kernels
    )
    program._load(())
    return program


class Program:
    """The kernels of one source."""

    def __init__(
        self,
        text: str,
        name: str,
        defines: dict[str, str],
        include: tuple[str, ...],
        arch: str | int = ARCH,
        kernels: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self._strict = preprocess.architecture(arch)[0] < 700
        compiler.command()  # says why nothing can be compiled here
        self._whole = functools.partial(unit, text, name, defines, include, arch)
        self._make = functools.partial(self._whole, kernels and [_bare(kernel) for kernel in kernels])
        self._unit = self._make()
        self.kernels = list(self._unit.kernels)
        self.launches = self._unit.launches
        self.nearby = self._unit.nearby
        self._built: dict[tuple[tuple[str, ...], bool, bool], Loaded] = {}
        self._last: Loaded | None = None
        self._values: dict[str, np.ndarray] = {}  # of variables, as they were set

    def _plain(self) -> list[str]:
        """What stands for the address of each kernel that is no template."""
        return [_entry_name(kernel, self.kernels) for kernel in self.kernels if not kernel.template]

    def _load(self, instances: tuple[str, ...]) -> Loaded:
        """The library with every plain kernel, and these `instances` of templates."""
        zeroed = instruments.settings.zeroed
        key = (instances, instruments.settings.portable, zeroed)
        if key not in self._built:
            engine_path = compiler.engine(instruments.settings.portable)
            entries = [(k, name) for k, name in zip(self._untemplated(), self._plain(), strict=True)]
            entries += [(self._found(instance), _instance_name(instance)) for instance in instances]
            made = self._unit
            words = frozenset(re.findall(r"[A-Za-z_]\w*", " ".join(instances)))
            if not words <= made.words:
                made = self._make(also=words)
            runs_on = engine(str(engine_path))  # first: the kernel's library asks for it by its name
            path, library = self._opened(made, self._complete(made, entries), engine_path, zeroed)
            variables, constants = binary.variables(path)
            self._built[key] = Loaded(str(path), library, runs_on, base(str(path)), variables, constants)
            for name, data in self._values.items():
                self._write(self._built[key], name, data)
        return self._built[key]

    def _opened(self, made: Unit, text: str, engine_path: Path, zeroed: bool) -> tuple[Path, ctypes.CDLL]:
        """The library of `text`, and it loaded. A function of the runtime's API, which device code may call on a GPU,
        ends the launch where a thread comes to it."""
        for again in (True, False):
            try:
                path = compiler.kernel(text, self.name, engine_path, zeroed)
            except compiler.CompileError as error:
                raise compiler.CompileError(f"{_without(made)}{error}{_undefined(str(error))}") from None
            # Asked of the file: another library of this process may have them.
            missing = sorted(name for name in binary.undefined(path) if re.match("cuda[A-Z]", name))
            if not (again and missing):
                break
            for name in missing:
                said = f"not covered by the emulator: {name} in device code"
                text += (
                    f'extern "C" TS_PLAIN void ts_stub_{name}() __asm__("{name}");\n'
                    f'void ts_stub_{name}() {{ ts_fault("{said}", TS_PC); }}\n'
                )
        if foreign := binary.foreign(path.read_bytes(), binary.exported(engine_path)):
            raise compiler.CompileError(f"{self.name}: {_foreign(foreign)}")
        try:
            return path, opened(str(path))
        except OSError as error:
            raise compiler.CompileError(f"{self.name}: {error}") from None

    def _untemplated(self) -> list[Kernel]:
        return [kernel for kernel in self.kernels if not kernel.template]

    def _found(self, kernel: str) -> Kernel:
        """The kernel that `kernel` names, an instance of a template, or a plain kernel of that name or signature."""
        bare, instance = _bare(kernel), "<" in kernel
        named = [k for k in self.kernels if bare in (k.name, k.name.split("::")[-1])]
        named.sort(key=lambda k: k.name != bare)
        if "(" in kernel and not instance:
            whole = re.sub(r"\s+", "", kernel)
            named = [k for k in named if not k.template and f"::{_signature(k)}".endswith(f"::{whole}")]
        if not named:
            raise self._unknown(kernel)
        return next((k for k in named if k.template == instance), named[0])

    def _complete(self, made: Unit, entries: Sequence[tuple[Kernel, str]]) -> str:
        """The text that is compiled: for every kernel one function that unpacks its arguments, one that describes
        them."""
        text = "".join(f"#include <{header}>\n" for header in ("touchstone.h", *made.headers))
        thrust = any(header.startswith("thrust/") for header in made.headers)
        heap = f"{_HEAP}{_MALLOC}" if thrust else _HEAP if "new" in made.words else ""
        text += f'{heap}{made.text}\n#line 1 "touchstone"\n'
        for number, (kernel, entry) in enumerate(entries):
            scopes = kernel.scopes
            named = [scope for scope in scopes if scope]
            text += declarations.opened(named) + (
                f'extern "C" TS_PLAIN void ts_entry_{number}(void** ts_a) {{ touchstone::call({entry}, ts_a); }} '
                f'extern "C" TS_PLAIN int ts_parameters_{number}(touchstone::Parameter* ts_p, int ts_n) '
                f"{{ return touchstone::describe({entry}, ts_p, ts_n); }}{_structures(made, kernel, number, entry)}"
                f"{_cluster(kernel, number)}"
                f"{' }' * len(named)}\n"
            )
        return text

    def _entry(self, kernel: str) -> tuple[Loaded, int]:
        found, plain = self._found(kernel), self._untemplated()
        if "<" in kernel:
            return self._load((kernel,)), len(plain)
        if found in plain:
            return self._load(()), plain.index(found)
        of = {la.arguments for la in self.launches if _bare(la.name).split("::")[-1] == found.name.split("::")[-1]}
        instances = " or ".join(f"{kernel}<{given}>" for given in sorted(of - {""})[:4]) or f"{kernel}<...>"
        raise KeyError(f"{self.name}: {kernel} is a template: name an instance, as {instances}")

    def _unknown(self, kernel: str) -> KeyError:
        names = [f"{k.name}<...>" if k.template else k.name for k in self._whole().kernels]
        return KeyError(f"{self.name} has no kernel {kernel!r}; it has {', '.join(names) or 'none'}")

    def variable(self, name: str) -> np.ndarray:
        """The bytes of a `__device__` or `__constant__` variable, in the library of the kernel that was launched last,
        else in that of the kernels that are no templates; KeyError where the file has none of that name that a kernel
        needs."""
        loaded = self._last or self._load(())
        found = next((v for v in loaded.variables if v.name == name), None)
        if found is None:
            known = sorted({v.name for v in loaded.variables if re.fullmatch(r"[A-Za-z_]\w*", v.name)})
            raise KeyError(f"{self.name} has no variable {name!r}; it has {', '.join(known) or 'none'}")
        memory = (ctypes.c_uint8 * found.bytes).from_address(loaded.base + found.start)
        return np.ctypeslib.as_array(memory)

    def get(self, name: str, dtype: Any = np.float32) -> np.ndarray:
        """What a `__device__` or `__constant__` variable holds, as `dtype`: after a launch."""
        return self.variable(name).view(dtype).copy()

    def set(self, name: str, value: Any) -> None:
        """Give a `__device__` or `__constant__` variable its value, as cudaMemcpyToSymbol does: an array or tensor of
        the variable's type, no longer than it is."""
        data = np.ascontiguousarray(value.numpy() if hasattr(value, "data_ptr") else value).view(np.uint8).ravel()
        for loaded in {id(one): one for one in (*self._built.values(), self._load(()))}.values():
            self._write(loaded, name, data)
        self._values[name] = data

    def _write(self, loaded: Loaded, name: str, data: np.ndarray) -> None:
        found = next((v for v in loaded.variables if v.name == name), None)
        if found is None:
            self.variable(name)  # says what there is
            return
        if len(data) > found.bytes:
            raise ValueError(f"{self.name}: {name} has {found.bytes} bytes, got {len(data)}")
        place = loaded.base + found.start
        if not found.writable:
            raise ValueError(f"{self.name}: {name} is a constant")
        ctypes.memmove(place, data.ctypes.data, len(data))

    def _names(self, kernel: str) -> tuple[str, ...]:
        return self._found(kernel).parameters

    def takes(self, kernel: str) -> int:
        """How many arguments a kernel has."""
        return len(parameters(*self._entry(kernel)))

    def launch(
        self,
        kernel: str,
        grid: Dim,
        block: Dim,
        arguments: Sequence[Any],
        shared: int = 0,
        cooperative: bool = False,
        memory: Sequence[Any] = (),
        cluster: Dim | None = None,
    ) -> int:
        """Run `kernel` on this CPU and wait for it; the number of atomics that it did. Raises KernelError for a
        finding, ValueError or TypeError for a bad call.

        `arguments`: tensors and arrays (their addresses, bounded by their extent), None (a null pointer), Python
        numbers, NumPy scalars; for a structure its fields, by name or in order; for a pointer to pointers a list of
        arrays; TensorMaps. `shared`: bytes of dynamic shared memory. `memory`: further arrays that the kernel reaches,
        by addresses that other arrays hold. `cluster`: blocks of a cluster, where the kernel has no __cluster_dims__.
        """
        loaded, number = self._entry(kernel)
        grid3, block3 = geometry(grid, block, shared)
        blocks = _clusters(kernel, self._found(kernel), library.cluster(loaded, number), cluster, grid3)
        known = parameters(loaded, number)
        if len(arguments) != len(known):
            raise TypeError(f"{kernel}: expected {len(known)} arguments, got {len(arguments)}")
        for type_, name, argument in zip(self._found(kernel).types, self._names(kernel), arguments, strict=True):
            if {"cudaTextureObject_t", "cudaSurfaceObject_t"} & set(type_.split()) and not isinstance(
                argument, Texture
            ):
                raise TypeError(f"{kernel}: {name}: expected a Texture, got {type(argument).__name__}")
        structures = {i: fields(loaded, number, i) for i, p in enumerate(known) if p.kind == b"x"}

        def reached() -> Iterator[backends.Reached]:
            for array in arrays((*arguments, *memory)):
                if (found := extent(array, "")) is not None:
                    yield backends.Reached(found.start, found.bytes, array)
            yield from (
                backends.Reached(loaded.base + v.start, v.bytes, loaded) for v in loaded.variables if v.writable
            )

        with backends.running(reached, backends.EMULATOR):  # what is moved is read and written as the kernel's own
            packed = Packing(kernel, arguments, known, self._names(kernel), structures, memory)
            regions = packed.regions
            ranges, count = library.ranges(
                regions, ((loaded.base + v.start, v.bytes, v.writable) for v in loaded.variables)
            )
            low, high = (loaded.base + offset for offset in loaded.constants)
            options = instruments.options(
                cooperative, self._strict, module=loaded.base, readable_low=low, readable_high=high, cluster=blocks
            )
            report = Report()
            entry = ctypes.cast(getattr(loaded.library, f"ts_entry_{number}"), ctypes.c_void_p)
            loaded.engine.ts_launch(
                entry,
                packed.pointers,
                (ctypes.c_uint32 * 3)(*grid3),
                (ctypes.c_uint32 * 3)(*block3),
                shared,
                ranges,
                count,
                ctypes.byref(options),
                instruments.record(loaded, grid3, block3, packed.moves),
                ctypes.byref(report),
            )
            packed.back()
            self._last = loaded
            if report.kind:
                raise error(kernel, loaded, report, regions)
        return int(report.atomics)


def _entry_name(kernel: Kernel, kernels: Sequence[Kernel]) -> str:
    """`&name`, with its type where several kernels have the name."""
    bare = kernel.name.split("::")[-1]
    several = sum(k.name == kernel.name for k in kernels) > 1
    return f"static_cast<void (*)({', '.join(kernel.types)})>(&{bare})" if several else f"&{bare}"


def _cluster(kernel: Kernel, number: int) -> str:
    """A function that tells what a kernel's __cluster_dims__ comes to, where that does not hang on a template."""
    if not kernel.cluster or (kernel.template and re.search(r"[A-Za-z_]", kernel.cluster)):
        return ""
    return (
        f' extern "C" TS_PLAIN void ts_cluster_{number}(uint32_t* ts_out) '
        f"{{ const uint32_t ts_dims[3] = {{{kernel.cluster}}}; "
        "for (int ts_i = 0; ts_i < 3; ++ts_i) ts_out[ts_i] = ts_dims[ts_i] ? ts_dims[ts_i] : 1; }"
    )


def _clusters(
    name: str, kernel: Kernel, own: tuple[int, int, int], asked: Dim | None, grid: tuple[int, int, int]
) -> tuple[int, int, int]:
    """The blocks of a cluster of a launch, zeros where it has none; ValueError for what no GPU launches."""
    if kernel.cluster and not any(own) and asked is None:
        raise ValueError(f"{name}: cluster: say what __cluster_dims__({kernel.cluster}) comes to")
    if asked is None and not any(own):
        return own
    blocks = own if asked is None else _dim("cluster", asked)
    if any(own) and blocks != own:
        raise ValueError(f"{name}: cluster: the kernel has __cluster_dims__{own}, got {blocks}")
    if math.prod(blocks) > MAX_CLUSTER:
        raise ValueError(f"{name}: cluster: at most {MAX_CLUSTER} blocks, got {blocks}")
    if any(n % size for n, size in zip(grid, blocks, strict=True)):
        raise ValueError(f"{name}: grid: expected whole clusters of {blocks} blocks, got {grid}")
    return blocks


def _structures(made: Unit, kernel: Kernel, number: int, entry: str) -> str:
    """A function for every parameter that is a structure, which tells its fields."""
    out = ""
    given = dict(zip(kernel.given, source.split(entry.partition("<")[2]), strict=False))
    for position, kind in enumerate(kernel.types):
        words = [w for word in re.findall(r"\w+", kind) for w in re.findall(r"\w+", given.get(word, word))]
        word = next((w for w in words if w in made.structures), None)
        if word is None or "*" in kind:
            continue
        told = " ".join(
            f'touchstone::field<ts_S>(ts_out, ts_n, "{name}", '
            f"[](auto* ts_s) -> decltype(&ts_s->{name}) {{ return &ts_s->{name}; }});"
            for name in made.structures[word][:64]
        )
        out += (
            f' extern "C" TS_PLAIN int ts_fields_{number}_{position}(touchstone::Field* ts_out) {{ using ts_S = '
            f"std::remove_pointer_t<decltype(touchstone::taken<{position}>({entry}))>; int ts_n = 0; {told} "
            "return ts_n; }"
        )
    return out


def _bare(kernel: str) -> str:
    """The name of a kernel in what is said of an instance or a signature."""
    return re.sub(r"\s+", "", kernel.split("<")[0].split("(")[0])


def _signature(kernel: Kernel) -> str:
    """ "ns::scaled(float*,int)"."""
    return re.sub(r"\s+", "", f"{kernel.name}({','.join(kernel.types)})")


def _instance_name(instance: str) -> str:
    """ "&scaled<3>" of "ns::scaled<3>"."""
    name, _, arguments = instance.partition("<")
    return f"&{name.split('::')[-1].strip()}<{arguments}"


def _without(made: Unit) -> str:
    """What may be missing where a text does not compile: said before what the compiler says."""
    ours = [(header, name, line) for header, name, line in made.missing if not _LIBRARIES.match(header)]
    lines = [f"{name}:{line}: {header} is not found: -I FOLDER names where it is\n" for header, name, line in ours]
    return "".join(lines[:5])


def _undefined(said: str) -> str:
    """How to give a macro that the compiler does not know, after what it says."""
    found = re.search(r"\W([A-Z_][A-Z0-9_]*)\W was not declared|undeclared identifier \W([A-Z_][A-Z0-9_]*)", said)
    return f"\n-D {found[1] or found[2]}=VALUE defines it, where the file's build does" if found else ""


def _foreign(names: list[str]) -> str:
    """Of a kernel that calls what is not there, or what only a processor has."""
    told = ", ".join(names[:4])
    if tool := shutil.which("c++filt"):
        told = subprocess.run([tool, told], capture_output=True, text=True, check=False).stdout.strip() or told
    return f"a kernel uses {told}, of which the file has no device code"


def geometry(grid: Dim, block: Dim, shared: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Grid and block as three numbers each; ValueError for what no GPU launches."""
    blocks, threads = _dim("grid", grid), _dim("block", block)
    if any(n > limit for n, limit in zip(blocks, MAX_BLOCKS, strict=True)):
        raise ValueError(f"grid: at most {MAX_BLOCKS} blocks, got {blocks}")
    if threads[0] * threads[1] * threads[2] > MAX_THREADS or threads[2] > 64:
        raise ValueError(f"block: at most {MAX_THREADS} threads, 64 along z, got {threads}")
    if not 0 <= shared <= MAX_SHARED:
        raise ValueError(f"shared: expected 0 to {MAX_SHARED} bytes, got {shared}")
    return blocks, threads


def _dim(name: str, value: Dim) -> tuple[int, int, int]:
    sizes = (value,) if isinstance(value, (int, np.integer)) else tuple(value)
    if not 1 <= len(sizes) <= 3 or any(not isinstance(n, (int, np.integer)) or n < 1 for n in sizes):
        raise ValueError(f"{name}: expected one to three positive integers, got {value!r}")
    padded = [*map(int, sizes), 1, 1]
    return padded[0], padded[1], padded[2]
