"""NVVM IR, as numba-cuda writes it, to code for this CPU that asks the engine before every access.

Three steps: what only a GPU knows is renamed to functions of `support.cpp`; LLVM inlines and simplifies; and what then
is left of loads, stores and atomics gets its call, with a number for the line of Python it comes from.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from touchstone.backends.emulator import binary, compiler
from touchstone.backends.emulator.numba import instrument, irtext, libdevice, lines, linking, narrow, prelude, ptx


def _new_machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2, jit=True, codemodel="jitdefault"
    )


@functools.cache
def _machine() -> llvm.TargetMachine:
    return _new_machine()


_DROPPED = re.compile(
    r'^(?:target .*|@"?llvm\.used"? = .*|\s*call void @"?llvm\.dbg\.\w+"?\(.*|declare .*llvm\.dbg\..*)$', re.M
)


def _neutral(text: str) -> str:
    """A module without what ties it to a GPU."""
    text = _DROPPED.sub("", text)
    text = text.replace('"llvm.nvvm.', '"tsn.').replace("addrspacecast", "bitcast")
    return re.sub(r" addrspace\(\d\)", "", text)


def _optimise(module: llvm.ModuleRef, level: int) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = options.slp_vectorization = options.loop_interleaving = False
    builder = llvm.create_pass_builder(_machine(), options)
    builder.getModulePassManager().run(module, builder)


class ObjectCode(NamedTuple):
    """A kernel's object code for this CPU and what it takes to load it; cache.py writes all of it as JSON."""

    code: bytes
    base: str  # the symbol that stands for the number of the first of its places
    places: list[tuple[str, int]]
    cooperative: bool
    constants: list[tuple[str, int]]  # arrays of constants: name, bytes
    functions: list[str]  # that it calls
    sources: list[linking.Source]


class NativeCode(NamedTuple):
    entry: int  # void (*)(void** arguments)
    cooperative: bool
    constants: list[tuple[int, int]]  # where arrays of constants lie: start, bytes
    keep: Any


def _entry(kernel: str, types: list[str]) -> str:
    """The function that the engine calls for every thread: it takes the arguments of `kernel`, of `types`, from
    an array of pointers to them, and raises what the kernel returns as an exception."""
    loads = "".join(
        (
            f"  %p{i} = getelementptr ptr, ptr %a, i64 {i}\n  %q{i} = load ptr, ptr %p{i}\n  %v{i} = load {kind}, "
            f"ptr %q{i}\n"
        )
        for i, kind in enumerate(types)
    )
    values = "".join(f", {kind} %v{i}" for i, kind in enumerate(types))
    return (
        f'declare i32 @"{kernel}"(ptr{"".join(", " + kind for kind in types)})\n'
        f"define void @tsn_entry(ptr %a) {{\n  %r = alloca ptr\n{loads}"
        f'  %s = call i32 @"{kernel}"(ptr %r{values})\n'
        "  %positive = icmp sgt i32 %s, 0\n  %python = icmp eq i32 %s, -1\n  %bad = or i1 %positive, %python\n"
        "  br i1 %bad, label %raised, label %done\nraised:\n  call void @tsn_raise(i32 %s)\n  unreachable\n"
        "done:\n  ret void\n}\n"
    )


def build(modules: list[str], kernel: str, types: list[str], linked_with: Sequence[Any] = ()) -> ObjectCode:
    """Object code of the NVVM `modules`, whose function `kernel` takes a pointer for its result and `types`.

    `linked_with`: CUDA C++ as numba-cuda's LinkableCode or the paths of files.
    """
    linking.support()
    asm = ptx.Asm()
    # a device function that a kernel calls, and another one that it calls too, comes twice
    texts = [asm.replace(_neutral(text)) for text in dict.fromkeys(modules)]
    known = narrow.definitions()
    wanted = {name for text in texts for name in irtext.DECLARED.findall(text)}
    narrow_floats = "".join(known[name] for name in sorted(wanted & set(known)))
    linked = llvm.parse_assembly(
        irtext.declared_once(prelude.prelude() + asm.text() + _entry(kernel, types) + narrow_floats)
    )
    linked.triple = llvm.get_process_triple()
    linked.data_layout = str(_machine().target_data)
    for text in texts:
        module = llvm.parse_assembly(irtext.declared_once(libdevice.replace(text)))
        module.triple, module.data_layout = linked.triple, linked.data_layout
        linked.link_in(module)
    functions = [f.name for f in linked.functions if f.is_declaration and not f.name.startswith("llvm.")]
    sources = [linking.source_of(file) for file in linked_with]
    linking.resolve(functions, sources)
    for function in linked.functions:
        if not function.is_declaration and function.name != "tsn_entry":
            function.linkage = "internal"
    _optimise(linked, 2)
    text = str(linked)
    base = f"tsn_base_{compiler.digest(text)}"
    text, places, cooperative = instrument.instrument(text, base)
    module = llvm.parse_assembly(text)
    module.verify()
    _optimise(module, 1)
    arrays = [variable for variable in module.global_variables if "_cudapy_cmem" in variable.name]
    for variable in arrays:
        variable.linkage = "external"
    constants = [(g.name, _machine().target_data.get_abi_size(g.global_value_type)) for g in arrays]
    code = _machine().emit_object(module)
    if foreign := binary.foreign(code, {*linking.callable_names(), base}):
        raise compiler.CompileError(f"a kernel uses {', '.join(foreign[:4])}, which no GPU has")
    return ObjectCode(code, base, places, cooperative, constants, functions, sources)


def load(built: ObjectCode) -> NativeCode:
    """Native code of this process."""
    linking.support()
    linking.resolve(built.functions, built.sources)
    if not llvm.address_of_symbol(built.base):
        llvm.add_symbol(built.base, lines.sites.add(built.places))
    empty = llvm.parse_assembly("")
    empty.triple = llvm.get_process_triple()
    jit = llvm.create_mcjit_compiler(empty, _new_machine())  # which it owns from now on
    jit.add_object_file(llvm.ObjectFileRef.from_data(built.code))
    jit.finalize_object()
    constants = [(jit.get_global_value_address(name), size) for name, size in built.constants]
    return NativeCode(jit.get_function_address("tsn_entry"), built.cooperative, constants, jit)
