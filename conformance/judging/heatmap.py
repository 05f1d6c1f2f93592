"""Where the errors of an output sit: a map in plain characters for a terminal, and a picture."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

LEGEND = ". within the budget   1 up to 10 times it   2 up to 100   ...   # not finite"
PICTURE_SIDE = 1024  # cells of a picture either way; beyond, each cell is the worst of several elements
PICTURE_ENDINGS = (".png", ".svg")


def text(fractions: torch.Tensor, width: int = 64, height: int = 20, axes: Sequence[str] | None = None) -> str:
    """A map of `fractions`: error over budget of each element, or booleans that say which are wrong.

    The last axis runs to the right, all others are folded into rows; a character stands for the worst of its elements.
    `axes` are the names of the axes. At most `width` characters and `height` rows.
    """
    shape = tuple(fractions.shape)
    names = list(axes) if axes is not None else [f"axis {axis}" for axis in range(len(shape))]
    if len(names) != len(shape):
        raise ValueError(f"axes: expected {len(shape)} names for shape {shape}, got {names}")
    if width < 1 or height < 1:
        raise ValueError(f"width, height: expected at least 1, got {width}, {height}")
    if fractions.numel() == 0:
        return f"no elements: shape {shape}"
    cells, tall, wide = _cells(fractions, height, width)
    labels = [_label(row * tall, shape[:-1]) for row in range(cells.shape[0])]
    margin = max(map(len, labels))
    across = f"{names[-1]} 0..{shape[-1] - 1} to the right" if shape else "one element"
    down = f", {','.join(names[:-1])} down" if shape[:-1] else ""
    each = f"; {tall} x {wide} elements per character" if tall * wide > 1 else ""
    rows = ["".join(map(_symbol, row)) for row in cells.tolist()]
    lines = [f"{across}{down}{each}", *(f"{label:>{margin}} |{row}|" for label, row in zip(labels, rows, strict=True))]
    return "\n".join([*lines, LEGEND])


def picture(fractions: torch.Tensor, path: str | Path, title: str = "") -> None:
    """Write a heat map of log10(error / budget) to `path`, as PNG or SVG by its ending.

    Raises ValueError for another ending, and where matplotlib is not installed or does not import.
    """
    path = Path(path)
    if path.suffix.lower() not in PICTURE_ENDINGS:
        raise ValueError(f"picture: expected a file ending in {' or '.join(PICTURE_ENDINGS)}, got {path.name!r}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("picture: needs matplotlib, which is not installed: pip install matplotlib") from None
    except SystemError as error:  # pybind11 modules of several versions in a process
        raise ValueError(f"picture: matplotlib does not import in this process, a fresh one may do: {error}") from None
    if fractions.numel() == 0:
        raise ValueError(f"picture: an output of shape {tuple(fractions.shape)} has no elements to show")
    cells, tall, wide = _cells(fractions, PICTURE_SIDE, PICTURE_SIDE)
    decades = cells.clamp_min(1e-3).log10()
    finite = decades[torch.isfinite(decades)]
    limit = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    figure = Figure(figsize=(8, 5), layout="constrained")
    plot = figure.add_subplot()
    image = plot.imshow(
        decades.clamp_max(limit).numpy(),
        cmap="coolwarm",
        vmin=-limit,
        vmax=limit,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, cells.shape[1] * wide - 0.5, cells.shape[0] * tall - 0.5, -0.5),
    )
    figure.colorbar(image, label="log10(error / budget); above 0 is wrong, the top is also not finite")
    plot.set_title(title)
    plot.set_xlabel("last axis")
    plot.set_ylabel("other axes, folded" if fractions.ndim > 2 else "first axis" if fractions.ndim == 2 else "")
    figure.savefig(path)


def _cells(fractions: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, int, int]:
    """The worst of each tile of a two-dimensional view, NaN as infinity; and how many rows and columns a tile has."""
    values = fractions.detach().cpu()
    if values.dtype is torch.bool:
        values = torch.where(values, math.inf, 0.0)
    values = values.to(torch.float64).nan_to_num(nan=math.inf, posinf=math.inf)
    grid = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
    tall, wide = (-(-n // most) for n, most in zip(grid.shape, (height, width), strict=True))
    rows, cols = -(-grid.shape[0] // tall), -(-grid.shape[1] // wide)
    padded = torch.zeros((rows * tall, cols * wide), dtype=torch.float64)
    padded[: grid.shape[0], : grid.shape[1]] = grid
    return padded.reshape(rows, tall, cols, wide).amax((1, 3)), tall, wide


def _label(row: int, leading: tuple[int, ...]) -> str:
    """The index that a folded row begins at."""
    index = []
    for size in reversed(leading):
        index.append(str(row % size))
        row //= size
    return ",".join(reversed(index))


def _symbol(fraction: float) -> str:
    if math.isinf(fraction):
        return "#"
    if fraction <= 1:
        return "."
    return str(min(9, max(1, math.ceil(math.log10(fraction)))))
