"""Mutants and known-good kernels of matmul(a, b): (M, K), (K, N) -> (M, N)."""

import torch

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults import _dots as dots
from touchstone.conformance.spec.onednn import without_onednn


@known_good
def float32_product(a, b, *, dot=dots.plain):
    "one float32 product by torch"
    return dot(a, b).to(a.dtype)


@known_good
@without_onednn()
def library(a, b):
    "torch.matmul in the operands' own dtype"
    return torch.matmul(a, b)


@known_good
def backwards(a, b):
    "k from the last to the first"
    return dots.backwards(a, b).to(a.dtype)


@known_good
def short_tiles(a, b):
    "five k at a time"
    return dots.in_tiles(a, b).to(a.dtype)


@known_good
def split_k(a, b):
    "four strided parts of k, added last"
    return dots.split(a, b).to(a.dtype)


@known_good
def outer_products(a, b):
    "one outer product after another"
    c = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        c.addr_(a[:, k].float(), b[k].float())
    return c.to(a.dtype)


dots.plant_lower(globals(), float32_product)


@mutant("accumulator")
def last_tile_only(a, b):
    "only the last tile of k is kept: `acc =` for `acc +=`"
    return dots.last_tile_only(a, b).to(a.dtype)


@mutant("accumulator")
def first_tile_twice(a, b):
    "the first tile of k counts twice, before the pipelined loop and in it"
    return dots.first_tile_twice(a, b).to(a.dtype)


@mutant("accumulator")
def tail_overlapping(a, b):
    "the last tile of k is moved back to end at K, and what it shares with the one before counts twice"
    return dots.tail_overlapping(a, b).to(a.dtype)


@mutant("accumulator")
def last_part_lost(a, b):
    "the last of four split-K partial sums is not added"
    return dots.last_part_lost(a, b).to(a.dtype)


@mutant("accumulator", stateful=True)
def workspace_never_zeroed():
    "a split-K workspace kept for each shape is not zeroed between calls"
    dot = dots.never_zeroed()
    return lambda a, b: dot(a, b).to(a.dtype)


@mutant("race", stateful=True, deterministic=False)
def lost_updates():
    "split-K partial sums are added without atomics, and one in fifty is lost"
    dot = dots.losing_updates()
    return lambda a, b: dot(a, b).to(a.dtype)


@mutant("mask")
def tail_clamped(a, b):
    "lanes beyond K load the last k again and are not masked"
    return dots.tail_clamped(a, b).to(a.dtype)


@mutant("strides")
def leading_dimension_is_the_length(a, b):
    "the columns of a transposed operand are taken to follow one another without a gap"

    def packed(x):
        gap = x.stride(0) == 1 and x.stride(1) > len(x) > 0
        return x.as_strided(x.shape, (1, len(x)), x.storage_offset()) if gap else x

    return dots.plain(packed(a), packed(b)).to(a.dtype)


@mutant("tail")
def tail_dropped(a, b):
    "the last partial tile of k is left out: `range(K // TILE)`"
    return dots.tail_dropped(a, b).to(a.dtype)


@mutant("tail")
def last_dropped(a, b):
    "the last k is left out: `k < K - 1`"
    return dots.last_dropped(a, b).to(a.dtype)


@mutant("tail")
def first_1024_only(a, b):
    "only the first 1024 k are summed"
    return dots.first_tile_only(a, b, 1024).to(a.dtype)


@mutant("tail")
def first_8192_only(a, b):
    "only the first 8192 k are summed"
    return dots.first_tile_only(a, b, 8192).to(a.dtype)


@mutant("tail")
def remainder_of_split_k(a, b):
    "split-K in four parts of K // 4 each, so that up to three k are left out"
    return dots.remainder_lost(a, b).to(a.dtype)


@mutant("tail")
def partial_column_tile_unwritten(a, b):
    "the grid is N // TILE, so that the last partial tile of columns stays 0"
    c = float32_product(a, b)
    c[:, max(c.shape[1] // dots.TILE, 1) * dots.TILE :] = 0
    return c


@mutant("unwritten")
def last_group_misordered(a, b, group=8):
    "in the grouped order of tiles a last group of fewer rows is walked as a full one, so that some tiles stay 0"
    rows, columns = dots.tiles(a.shape[0]), dots.tiles(b.shape[1])
    c = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for program in range(len(rows) * len(columns)):
        first, place = program // (group * len(columns)) * group, program % (group * len(columns))
        size = group if len(rows) > group else len(rows)
        row, column = first + place % size, place // size
        if row < len(rows):
            c[rows[row], columns[column]] = float32_product(a[rows[row]], b[:, columns[column]])
    return c


@mutant("axis")
def b_column_major(a, b):
    "the elements of b are taken in column-major order"
    return dots.plain(a, b.t().reshape(b.shape)).to(a.dtype)


@mutant("empty")
def no_partial_sums(a, b):
    "an empty K is an error, as there are no partial sums to stack"
    partial_sums = [dots.plain(a[:, cut], b[cut]) for cut in dots.tiles(a.shape[1], 256)]
    return torch.stack(partial_sums).sum(0).to(a.dtype)


@mutant("shapes")
def one_row_path(a, b):
    "the path for a single row (a matrix-vector product) leaves out the last k"
    return (dots.last_dropped if a.shape[0] == 1 else dots.plain)(a, b).to(a.dtype)


@mutant("shapes")
def large_tiles_without_mask(a, b):
    "the configuration for more than 256 rows lacks the mask along k"
    return (dots.tail_clamped if a.shape[0] > 256 else dots.plain)(a, b).to(a.dtype)


@mutant("precision", dtypes=("float32", "bfloat16"))
def result_through_float16(a, b):
    "the result is rounded to float16 on its way to memory"
    return dots.plain(a, b).half().to(a.dtype)


@mutant("precision", dtypes=("float32",))
def result_through_bfloat16(a, b):
    "the result is rounded to bfloat16 on its way to memory"
    return dots.plain(a, b).bfloat16().to(a.dtype)


@mutant("precision", dtypes=("float16", "bfloat16"))
def result_truncated(a, b):
    "the result is cut to the output dtype, not rounded"
    return dots.truncated(dots.plain(a, b), a.dtype)


@mutant("precision", dtypes=("float16", "bfloat16"))
def products_rounded(a, b):
    "each product is rounded to the input dtype before it is added"
    c = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        c += torch.outer(a[:, k], b[k]).float()
    return c.to(a.dtype)


@mutant("precision", dtypes=("float16", "bfloat16"))
def partial_sums_rounded(a, b):
    "the two partial sums of split-K are rounded to the output dtype before they are added"
    half = a.shape[1] // 2
    return float32_product(a[:, :half], b[:half]) + float32_product(a[:, half:], b[half:])


@mutant("special")
def nan_swallowed(a, b):
    "NaN in the operands is taken for 0"
    return dots.plain(torch.nan_to_num(a.float(), posinf=torch.inf, neginf=-torch.inf), b).to(a.dtype)


@mutant("special")
def zeros_skipped(a, b):
    "a k whose column of a is all 0 is skipped, though infinity or NaN in b makes NaN of it"
    some = (a != 0).any(0)
    return dots.plain(a[:, some], b[some]).to(a.dtype)


@mutant("special", dtypes=("float32",))
def parts_of_infinity(a, b):
    "a product in three of tf32: what an infinity leaves beside its first bits is NaN"
    (a, a_rest), (b, b_rest) = (((high := dots.to_tf32(x)).double(), (x - high).double()) for x in (a, b))
    return (a @ b + a @ b_rest + a_rest @ b).float()


@mutant("special", dtypes=("float16",))
def result_saturated(a, b):
    "a result beyond the largest finite float16 is that instead of infinity"
    largest = torch.finfo(a.dtype).max
    return dots.plain(a, b).clamp(-largest, largest).to(a.dtype)


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "k_tail_dropped": Kernel("tail", "the last tile of k is left out where it is not full"),
    "accumulator_float16": Kernel("precision", "the accumulator is float16"),
    "grid_of_whole_tiles": Kernel(
        "tail", "the grid counts whole tiles of rows only: a last, shorter one is not written"
    ),
}
