"""What comes back from a kernel's author: what counts as a tensor, and how long a message is.

A tensor is torch.Tensor itself, dense, with memory that can be read and holds its numbers. Of anything else, a method
that is called, or an attribute that is read, may run the author's code, or raise.
"""

from collections.abc import Callable
from typing import Any

import torch

SAID, SHOWN = 4096, 100  # characters of a message and of a name
COMPILERS = "_dynamo_"  # attributes that torch.compile leaves; others may stand in the place of a method


# what torch's functions of several results return: types that nobody can change or derive from
_RESULTS = tuple(kind for kind in vars(torch.return_types).values() if isinstance(kind, type))


def is_plain_sequence(kind: type) -> bool:
    """Whether a type is that of tuples, of lists, or one of torch.return_types. None of them runs an author's code."""
    return any(kind is known for known in (tuple, list, *_RESULTS))


def kind_of(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def strange(value: Any) -> str | None:
    """What is returned in the place of a plain tensor, for a sentence; None for one, and for what is no tensor."""
    if type(value) is not torch.Tensor:
        return kind_of(value) if _poses(value) else None
    own = [str(name) for name in value.__dict__ if not str(name).startswith(COMPILERS)]
    if own:
        return f"a tensor with attributes of its own: {', '.join(own)[:SHOWN]}"
    if torch._C._functorch.is_functorch_wrapped_tensor(value) or torch._is_functional_tensor(value):
        return "a tensor of a transform of torch.func that has ended"
    if value.is_nested:
        return "a nested tensor"
    if value.layout is not torch.strided:
        return f"a tensor of layout {value.layout}"
    if value.is_quantized:
        return f"a quantised tensor ({value.dtype})"
    if value.is_neg() or value.is_conj():
        return "a view whose numbers torch has yet to negate or conjugate: its memory holds others"
    if value._is_zerotensor():
        return "zeros that torch keeps without memory"
    if value.device.type == "meta":
        return "a tensor without memory, on the device meta"
    last = value.storage_offset() + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    if value.numel() and (last + 1) * value.element_size() > value.untyped_storage().nbytes():
        return f"a tensor whose memory was freed: {value.untyped_storage().nbytes()} bytes are left"
    return None


def visible(text: str) -> str:
    """`text` with each character that shows nothing, or does something to a terminal, as Python writes it in a literal;
    ends of lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def in_line(text: str) -> str:
    """`text` in one line, `visible`: its ends of lines and tabs are written out too."""
    return text if text.isprintable() else visible(text).replace("\n", "\\n").replace("\t", "\\t")


def quoted(text: str) -> str:
    """`text` in which each line but the first begins with a mark: none of them can be taken for a line of ours, or for
    a command to a CI service, which look for theirs behind spaces too."""
    return text.replace("\n", "\n    | ")


def said(value: Any, text: Callable[[Any], str] = str) -> str:
    """`text` of an exception or its like: the first 4096 characters, visible, or that it has none."""
    try:
        return visible(text(value)[:SAID])[:SAID]
    except Exception as error:
        return f"({text.__name__}() of it raises {type(error).__name__})"


def _poses(value: Any) -> bool:
    """Whether an object of another type calls itself a tensor."""
    try:
        return isinstance(value, torch.Tensor)
    except Exception:
        return True
