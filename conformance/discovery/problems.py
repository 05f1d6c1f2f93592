"""Problem files of KernelBench's form: `Model`, `get_inputs` and `get_init_inputs`, at sizes that a CPU runs soon.

Their sizes are numbers in the code outside of the class. They are made smaller there, as far as the model still builds
and runs, before anything else is done with it. A model with parameters is built anew with single ones of them changed,
for sizes that its code holds.
"""

import ast
import itertools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from touchstone.conformance.derived import modules
from touchstone.conformance.derived.noise import Parts
from touchstone.conformance.derived.samples import sample
from touchstone.conformance.discovery import importing

Change = Mapping[int | str, int]  # what to put for a size, wherever it stands, or for that of a name

LEAST = 9  # a smaller number is no size worth making smaller
LEAST_OF_INPUTS = 5  # of a size that is of inputs alone
OF_INPUTS = (33, 24, 16, 12, 8, 6, 4)  # the largest of such sizes, but that larger ones stay larger, by 2
LARGEST = 60000  # elements of an input, a parameter or an output
SKETCHED = 10 * LARGEST  # what has more is not run to look whether it does
# what sizes are changed to in turn, powers of two and others: as large as LARGEST allows, so that they tell axes apart
SMALLER = (((16, 32, 64), (24, 36, 48)), ((8, 16, 24), (12, 20, 28)), ((4, 8, 12), (6, 10, 14)), ((2, 4, 8), (3, 5, 7)))
ODD = (37, None, 1)  # what a single size is changed to; None: it is larger by 1
OP = 100  # elements that an op costs as much time as, or fewer
SIBLINGS = 4  # models built anew
MANY = 500_000  # parameters beyond which a model is not built anew
NEEDED = ("Model", "get_inputs", "get_init_inputs")


@lru_cache(maxsize=16)
def small(path: Path) -> tuple[torch.nn.Module, list[Any]]:
    """The model of a problem file and its inputs, at small sizes, or its own where they are; `siblings` of the model
    are the same at others (conformance/derived/modules.py). ValueError says what is wrong with the file."""
    tree = ast.parse(path.read_text(), str(path))
    sizes = sorted(set(_numbers(tree)))
    larger: list[tuple[tuple[float, int], Change]] = []
    own: list[Change] = [{n: n for n in sizes}] if _is_small(tree, path) else []
    for change in itertools.chain(own, _changes_of_inputs(tree, sizes), _changes(sizes)):
        if len(change) < len(sizes) and any(most <= SKETCHED for (most, _), _ in larger):
            continue  # it runs with all sizes smaller, and one that stays makes nothing smaller
        try:
            model, inputs, most = _built(tree, path, change)
        except Exception:
            continue
        if most <= LARGEST:
            break
        larger.append(((most, sum(t.numel() for t in inputs if isinstance(t, torch.Tensor))), change))
    else:
        larger.sort(key=lambda each: each[0])
        did = (change for (most, _), change in larger if most <= SKETCHED or _goes_together(tree, path, change))
        change = next(did, {})
        try:
            model, inputs, _ = _built(tree, path, change, run=True)
        except Exception as error:
            raise ValueError(
                f"--kernelbench: {path}: it does not run as it is: {type(error).__name__}: {error}"
            ) from error
    model.siblings = list(_siblings(tree, path, change, model))  # type: ignore[assignment]
    return model, inputs


def _siblings(
    tree: ast.Module, path: Path, change: Change, model: torch.nn.Module
) -> Iterator[tuple[torch.nn.Module, list[Any]]]:
    """The model built with one size changed, as often as its parameters have other shapes then."""

    def shapes(of: torch.nn.Module) -> tuple[torch.Size, ...]:
        return tuple(t.shape for t in modules.state_of(of).values())

    seen = {shapes(model)}
    if sum(t.numel() for t in modules.state_of(model).values()) > MANY:
        return
    for to, n in itertools.product(ODD, change):
        if len(seen) > SIBLINGS:
            return
        try:
            other, inputs, most = _built(tree, path, {**change, n: change[n] + 1 if to is None else to})
        except Exception:
            continue
        if most <= 2 * LARGEST and len(shapes(other)) == len(shapes(model)) and shapes(other) not in seen:
            seen.add(shapes(other))
            yield other, inputs


def _changes_of_inputs(tree: ast.Module, sizes: list[int]) -> Iterator[Change]:
    """What to put for sizes of inputs alone, by name, where others make the model: fewer channels may be as many as
    there are groups, or one block of a kernel, and no other size of an input shows what more of them would. Then beside
    smaller ones of the others."""
    named, built = _named(tree), _building(tree)
    inputs = {name: n for name, n in named.items() if name not in built and n >= LEAST_OF_INPUTS}
    if not inputs or not any(n in sizes for name, n in named.items() if name in built):
        return
    order = sorted(set(inputs.values()))
    smaller = [{name: min(n, most + 2 * order.index(n)) for name, n in inputs.items()} for most in OF_INPUTS]
    yield from ({**{n: n for n in sizes}, **few} for few in smaller)
    for powers, others in SMALLER:
        scheme = _smaller(sizes, _growing(powers), _growing(others))
        yield from ({**scheme, **few} for few in smaller if len(set(scheme.values())) == len(sizes))


def _building(tree: ast.Module) -> set[str]:
    """The names that building the model asks for, those in the values of such names too."""
    found: set[str] = set()
    asked: list[ast.AST] = [n for n in tree.body if isinstance(n, ast.ClassDef) or _is_function(n, "get_init_inputs")]
    while asked:
        loaded = set().union(*map(_free, asked)) - found
        found |= loaded
        asked = [n.value for n in tree.body if isinstance(n, ast.Assign) and loaded & _targets(n)]
    return found


def _free(node: ast.AST) -> set[str]:
    """The names that a piece of code takes from around it."""
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    own = {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return {n.id for n in names} - own - {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}


def _is_function(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _targets(node: ast.Assign) -> set[str]:
    return {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}


def _changes(sizes: list[int]) -> Iterator[Change]:
    """What to put for each size: all of them smaller, and smaller still; then all but one or two. First of all so that
    sizes which differ still do: groups of one channel each would be another problem."""
    schemes = [_smaller(sizes, _growing(powers), _growing(others)) for powers, others in SMALLER]
    schemes = [smaller for smaller in schemes if len(set(smaller.values())) == len(sizes)]
    yield from schemes
    for left in range(min(3, len(sizes) + 1)):
        for powers, others in SMALLER:
            smaller = _smaller(sizes, itertools.cycle(powers), itertools.cycle(others))
            if left or smaller not in schemes:
                for kept in itertools.combinations(sizes, left):
                    yield {n: m for n, m in smaller.items() if n not in kept}


def _smaller(sizes: list[int], powers: Iterator[int], others: Iterator[int]) -> dict[int | str, int]:
    return {n: min(n, next(powers) if n & (n - 1) == 0 else next(others)) for n in sizes}


def _growing(values: tuple[int, ...]) -> Iterator[int]:
    """The values, and further ones, each twice the one before."""
    return itertools.chain(values, (values[-1] << turn for turn in itertools.count(1)))


def _numbers(tree: ast.AST) -> Iterator[int]:
    """The sizes in a file: whole numbers outside of classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            continue
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= LEAST:
            yield node.value
        yield from _numbers(node)


def _named(tree: ast.Module) -> dict[str, int]:
    """The sizes that have names, outside of classes and functions."""
    return {name: value.value for node in tree.body for name, value in _assigned(node)}  # type: ignore[misc]


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.Constant]]:
    """The names of whole numbers, and these, in `a = b = 8` or `a, b = 8, 16`."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        pairs = [(target, node.value)]  # type: ignore[attr-defined]
        if isinstance(target, ast.Tuple) and isinstance(value := pairs[0][1], ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        for one, value in pairs:
            if isinstance(one, ast.Name) and isinstance(value, ast.Constant) and type(value.value) is int:
                yield one.id, value


class _Replaced(ast.NodeTransformer):
    def __init__(self, change: Change):
        self.change = change

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        by_name = [(value, self.change[name]) for name, value in _assigned(node) if name in self.change]
        self.generic_visit(node)
        for value, n in by_name:
            value.value = n
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if type(node.value) is int and node.value in self.change:
            node.value = self.change[node.value]
        return node


def _executed(tree: ast.Module, path: Path, change: Change) -> Mapping[str, Any]:
    found = types.ModuleType(path.stem)
    found.__file__ = str(path)
    changed = ast.fix_missing_locations(_Replaced(change).visit(ast.parse(ast.unparse(tree))))
    exec(compile(changed, str(path), "exec"), found.__dict__)
    names = vars(found)
    for name in NEEDED:
        if name not in names:
            raise ValueError(f"it defines no {name}")
    return names


def _built(tree: ast.Module, path: Path, change: Change, run: bool = False) -> tuple[torch.nn.Module, list[Any], int]:
    """The model, its inputs, and the elements of the largest tensor. What is far too large is run, and has values, only
    if `run`."""
    names = _executed(tree, path, change)
    if not run and (sketch := _sketched(names)) is not None and sketch[2] > SKETCHED:
        return sketch
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = names["Model"](*names["get_init_inputs"]())
        inputs = modules.example_of(names["get_inputs"])
        found = model(*(t.clone() if isinstance(t, torch.Tensor) else t for t in inputs))
    model.init_inputs = names["get_init_inputs"]
    model.changed = {name: (value, names[name]) for name, value in _named(tree).items() if names[name] != value}
    every = [*inputs, *model.parameters(), *tree_leaves(found)]
    most = max(t.numel() for t in every if isinstance(t, torch.Tensor))
    return model, inputs, max(most, OP * _ops(model, inputs))


def _sketched(names: Mapping[str, Any]) -> tuple[torch.nn.Module, list[Any], int] | None:
    """The same without memory for values, not run; None where the code looks at values."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), torch.no_grad():
            model = names["Model"](*names["get_init_inputs"]())
            inputs = list(names["get_inputs"]())
    except Exception:
        return None
    most = max(t.numel() for t in (*inputs, *model.parameters()) if isinstance(t, torch.Tensor))
    return model, inputs, most


def _is_small(tree: ast.Module, path: Path) -> bool:
    """Whether the file's own sizes are, as far as that shows without values."""
    try:
        sketch = _sketched(_executed(tree, path, {}))
    except Exception:
        return False
    return sketch is not None and sketch[2] <= LARGEST


def _goes_together(tree: ast.Module, path: Path, change: Change) -> bool:
    """Whether the shapes of a model and of its inputs do, as far as that shows without values."""
    if (sketch := _sketched(_executed(tree, path, change))) is None:
        return True
    model, inputs, _ = sketch
    try:
        with torch.device("meta"), torch.no_grad():
            model(*inputs)
    except Exception as error:
        return "meta" in str(error)
    return True


def _ops(model: torch.nn.Module, inputs: Sequence[Any]) -> int:
    """The ops of one run, of which a recurrent network has some for each step; 0 where they cannot be counted. Far too
    many are counted no further."""
    state = modules.state_of(model)
    mode = Parts(SKETCHED // OP)
    try:
        sample(modules.as_function(model, len(inputs), list(state)), [*inputs, *state.values()], mode)
    except OverflowError:
        pass
    except Exception:
        return 0
    return mode.count


def kernel_of(kernel: str, name: str, problem: str) -> Callable[..., Any]:
    """The module `name` of a file as a function of the problem's inputs and parameters; ValueError where it does not
    build, or does not have the parameters of the problem's model."""
    made = importing.load(kernel, name)
    model, _ = small(Path(problem))
    if not (isinstance(made, type) and issubclass(made, torch.nn.Module)):
        raise ValueError(f"{name} of {kernel} is no class of modules")
    pairs: list[tuple[Callable[..., Any], torch.nn.Module]] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for reference in (model, *(other for other, _ in modules.siblings(model))):
            try:
                with _sizes_of(reference, made):
                    pairs.append((made(*reference.init_inputs()), reference))  # type: ignore[operator]
            except Exception as error:
                if reference is model:
                    raise ValueError(f"{name} does not build: {type(error).__name__}: {error}") from error
                pairs.append((_declining(error), reference))
    run = modules.as_kernels(pairs)
    run.__name__ = run.__qualname__ = name
    return run


@contextmanager
def _sizes_of(reference: torch.nn.Module, made: type) -> Iterator[None]:
    """The kernel's file has the sizes that `reference` is built with, where it repeats the problem's by name."""
    changed: Mapping[str, tuple[int, int]] = reference.changed  # type: ignore[assignment]
    its = getattr(vars(made).get("__init__"), "__globals__", {})
    own = {name: was for name, (was, _) in changed.items() if its.get(name) == was}
    its.update({name: changed[name][1] for name in own})
    try:
        yield
    finally:
        its.update(own)


def _declining(error: Exception) -> Callable[..., Any]:
    """In place of a module that does not build with some sizes."""

    def run(*_: Any) -> None:
        raise NotImplementedError(f"it does not build with these sizes: {error}")

    return run
