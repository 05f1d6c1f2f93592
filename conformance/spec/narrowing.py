"""Which cases of a plan are judged: those of some dtypes, sizes, or of a condition on the case.

`where` is a function of a case, or, as commands have it, an expression over the case's names (`condition`).
"""

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from touchstone.conformance.spec.cases import plain_case, plan
from touchstone.conformance.spec.contract import Case, Contract, From, size_text
from touchstone.conformance.spec.words import did_you_mean, not_one_of

FUNCTIONS = {function.__name__: function for function in (abs, all, any, len, max, min, sum)}
NODES = (
    ast.Expression,
    ast.BoolOp,
    ast.boolop,
    ast.UnaryOp,
    ast.unaryop,
    ast.Compare,
    ast.cmpop,
    ast.IfExp,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Set,
    ast.Subscript,
    ast.Call,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.FloorDiv,
    ast.Mod,
    ast.BitAnd,
    ast.BitOr,
    ast.BitXor,
)
GENERAL = {
    "dtype": lambda case: case.dtype,
    "values": lambda case: case.values,
    "contiguous": lambda case: case.contiguous,
    "size": lambda case: case.size,
    "param": lambda case: case.param,
    "layout": lambda case: case.layout,
}
DEFAULT_DTYPE = "bfloat16"  # of a case that is described in words
Sizes = Mapping[str, Any]  # the name of an axis -> what it may be


@dataclass(frozen=True)
class Narrowing:
    """What of a plan is judged. Each field None: all."""

    dtypes: Sequence[str] | None = None
    where: Callable[[Case], Any] | None = None
    sizes: Mapping[str, Collection[Any]] | None = None
    skip: Mapping[str, Callable[[Case], Any]] | None = None  # by the reason

    def __bool__(self) -> bool:
        return any(part is not None for part in (self.dtypes, self.where, self.sizes, self.skip))

    def leaves_out(self, case: Case) -> str | None:
        """The name of the field that leaves a case out; None where it is judged."""
        if self.dtypes is not None and case.dtype not in self.dtypes:
            return "dtypes"
        if self.sizes is not None and any(case.size[axis] not in some for axis, some in self.sizes.items()):
            return "sizes"
        if self.where is not None and not self.where(case):
            return "where"
        return next((f"known: {reason}" for reason, skips in (self.skip or {}).items() if skips(case)), None)


EVERYTHING = Narrowing()


def names_of(contract: Contract) -> list[str]:
    """The names that a condition on a case of a contract may use."""
    return list(dict.fromkeys([*GENERAL, *contract.sizes[0], *contract.params, *contract.operands]))


def condition(text: str, contract: Contract) -> Callable[[Case], bool]:
    """The function of a case that a Python expression over its names means.

    Names are the sizes, the parameters, the operands (each the name of its layout), `dtype`, `values` (the family),
    `contiguous`, and the dicts `size`, `param` and `layout`; a size comes before a parameter of its name, and that
    before an operand. Operators, comparisons, and the functions in `FUNCTIONS` are all there is: no attribute, no
    power, no other call. Raises ValueError that says what is wrong with the text; the function that is returned raises
    one where the expression has no value for a case.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        example = f"{next(iter(contract.sizes[0]))} in (64, 128) and dtype == 'float16'"
        raise ValueError(f'expected a Python expression such as "{example}", got {text!r} ({error})') from None
    names = names_of(contract)
    for node in ast.walk(tree):
        if not isinstance(node, NODES) or (isinstance(node, ast.Call) and not _allowed(node)):
            what = repr(ast.unparse(node)) if isinstance(node, ast.expr) else f"the operator {type(node).__name__}"
            raise ValueError(
                f"{what} cannot stand in a condition: names of the case, numbers, strings, comparisons, and, or, not, "
                f"+ - * / // % & | ^ and {', '.join(FUNCTIONS)} can"
            )
        if isinstance(node, ast.Name) and node.id not in names and node.id not in FUNCTIONS:
            raise ValueError(
                f"{node.id!r} is no name of a case of {contract.name}; there are {', '.join(names)}"
                f"{did_you_mean(node.id, names)}"
            )
    code = compile(tree, "where", "eval")

    def holds(case: Case) -> bool:
        known = {name: of(case) for name, of in GENERAL.items()}
        try:
            return bool(
                eval(code, {"__builtins__": {}}, {**FUNCTIONS, **case.layout, **case.param, **case.size, **known})
            )
        except Exception as error:
            raise ValueError(f"{text!r} has no value for {case.id}: {type(error).__name__}: {error}") from None

    return holds


def _allowed(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in FUNCTIONS and not call.keywords


def parse_sizes(text: str, contract: Contract) -> dict[str, list[Any]]:
    """What "Sq=64,128 D=64" means, checked against a contract: {"Sq": [64, 128], "D": [64]}.

    Pairs are separated by blanks, commas or semicolons; "8x8" is a size that is a tuple. Raises ValueError.
    """
    found: dict[str, list[Any]] = {}
    axis = None
    for word in text.replace(";", " ").replace(",", " ").replace("= ", "=").replace(" =", "=").split():
        name, equals, value = word.rpartition("=")
        if equals:
            axis = name
            found.setdefault(axis, [])
        if axis is None or not axis or not value:
            raise ValueError(f"expected NAME=N,N and so on, such as {_example_sizes(contract)!r}, got {text!r}")
        found[axis].append(_size(value, text, contract))
    if not found:
        raise ValueError(f"expected NAME=N,N and so on, such as {_example_sizes(contract)!r}, got {text!r}")
    return sizes_of(found, contract)


def _size(value: str, text: str, contract: Contract) -> Any:
    try:
        numbers = tuple(map(int, value.split("x")))
    except ValueError:
        raise ValueError(
            f"expected whole numbers, such as {_example_sizes(contract)!r}, got {value!r} in {text!r}"
        ) from None
    return numbers if len(numbers) > 1 else numbers[0]


def _example_sizes(contract: Contract) -> str:
    axis = list(contract.sizes[0])[-1]
    return f"{axis}={size_text([('', contract.sizes[0][axis])])}"


def sizes_of(given: Sizes, contract: Contract) -> dict[str, list[Any]]:
    """`given`, a number or several for each axis that is named, with every axis spelt out and a list for each.

    A name that only begins those of several axes stands for all of them: "S" for "Sq" and "Sk". Raises TypeError or
    ValueError for what is no size of the contract, and for one that no case has.
    """
    if not isinstance(given, Mapping) or not given:
        raise TypeError(f"expected a dict of names and numbers, such as {{'rows': [64, 128]}}, got {given!r}")
    known = contract.sizes[0]
    found: dict[str, list[Any]] = {}
    for name, wanted in given.items():
        axes = [name] if name in known else [axis for axis in known if name and axis.startswith(str(name))]
        if not axes or (name not in known and len(axes) == 1):
            raise ValueError(not_one_of(name, known))
        for axis in axes:
            found[axis] = [_checked(axis, value, known[axis]) for value in _listed(wanted, known[axis])]
            if not found[axis]:
                raise ValueError(f"{axis}: expected one size or more, got {wanted!r}")
    return found


def _listed(wanted: Any, like: Any) -> list[Any]:
    """One size, or several; of an axis whose sizes are tuples, a tuple is one."""
    if isinstance(like, tuple) and isinstance(wanted, tuple):
        return [wanted]
    return list(wanted) if isinstance(wanted, Collection) and not isinstance(wanted, str) else [wanted]


def _checked(axis: str, value: Any, like: Any) -> Any:
    """A size as those of its axis are: a number, or a tuple of numbers."""
    parts = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(part, int) and not isinstance(part, bool) for part in parts):
        raise TypeError(f"{axis}: expected whole numbers, got {value!r}")
    return parts if isinstance(like, tuple) else value


def case_of(text: str, contract: Contract) -> Case:
    """The case that "rows=4096 cols=8192 dtype=bfloat16 x=transposed" describes: every size, and where wanted the
    dtype (else bfloat16), parameters (else the contract's first) and layouts of operands by their names.

    A name is that of a size before that of a parameter, and of a parameter before that of an operand. Raises
    ValueError.
    """
    given: dict[str, str] = {}
    for word in text.replace(";", " ").replace(",", " ").split():
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            example = f"{_example_sizes(contract)} dtype={DEFAULT_DTYPE}"
            raise ValueError(f"expected NAME=VALUE and so on, such as {example!r}, got {word!r}")
        if name in given:
            raise ValueError(f"{name}: given twice")
        given[name] = value
    dtype = given.pop("dtype", DEFAULT_DTYPE if DEFAULT_DTYPE in contract.dtypes else contract.dtypes[0])
    if dtype not in contract.dtypes:
        raise ValueError(f"dtype: {not_one_of(dtype, contract.dtypes)}")
    known = contract.sizes[0]
    others = [name for name in (*contract.params, *contract.operands) if name not in known]
    params = {name: given.pop(name) for name in contract.params if name in given and name not in known}
    layouts = {name: given.pop(name) for name in contract.operands if name in given and name in others}
    try:
        named = {name: [_size(value, value, contract)] for name, value in given.items()}
        sizes = sizes_of(named, contract) if named else {}
    except ValueError as error:
        raise ValueError(f"{error}; other names are dtype, {', '.join(others)}") from None
    if missing := [name for name in known if name not in sizes]:
        raise ValueError(f"expected every size of {contract.name}, {', '.join(known)}; {', '.join(missing)} lacks")
    size = {name: sizes[name][0] for name in known}
    plain = plain_case(contract, dtype, next(iter(contract.values)), 0, size)
    chosen = tuple((n, _param(n, params[n], contract) if n in params else usual) for n, usual in plain.params)
    placed = tuple((n, _layout(n, layouts[n], contract) if n in layouts else usual) for n, usual in plain.layouts)
    return replace(plain, params=chosen, layouts=placed)


def _param(name: str, text: str, contract: Contract) -> Any:
    """The value of a parameter of the kind that the contract tries."""
    tried = [value for value in contract.params[name] if not isinstance(value, From)]
    for value in tried:
        if text.lower() == str(value).lower():
            return value
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        found = text
    kinds = {type(value) for value in tried} | {int for value in contract.params[name] if isinstance(value, From)}
    if isinstance(found, str) or not (type(found) in kinds or (isinstance(found, int) and float in kinds)):
        raise ValueError(f"{name}: expected one such as {', '.join(map(str, contract.params[name]))}, got {text!r}")
    return found


def _layout(name: str, text: str, contract: Contract) -> str:
    able = contract.operands[name].layouts
    if text not in able:
        raise ValueError(f"{name}: {not_one_of(text, able)}")
    return text


def absent(sizes: Mapping[str, Sequence[Any]], contract: Contract, level: str) -> str | None:
    """A sentence about the first size that no case of a level has; None where each is some case's."""
    cases = plan(contract, level).cases
    for axis, wanted in sizes.items():
        present = sorted({case.size[axis] for case in cases})
        for value in wanted:
            if value not in present:
                some = ", ".join(size_text([(axis, one)]) for one in present)
                return f"no case of {contract.name} at level {level} has {axis}={value}; {axis} is {some}"
    return None
