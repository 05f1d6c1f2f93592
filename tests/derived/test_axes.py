"""Which axes are one size is found by running the function."""

import os
import signal
import time

import pytest
import torch
import torch.nn.functional as F

from tests.derived.functions import causal, drawn, group_norm, labels, layer_norm, mlp
from touchstone import Refused, check_against, derive, describe
from touchstone.conformance.derived import axes, families

SIGNATURES = {
    "pointwise": (F.gelu, drawn((12, 40)), ["A B"]),
    "equal": (torch.add, drawn((12, 40), (12, 40)), ["A B", "A B"]),
    "product": (lambda a, b: a @ b, drawn((12, 40), (40, 9)), ["A B", "B C"]),
    "square": (lambda a, b: a @ b, drawn((8, 8), (8, 8)), ["A B", "B C"]),
    "mlp": (mlp, drawn((10, 32), (32, 48), (48,), (48, 16), (16,)), ["A B", "B C", "C", "C D", "D"]),
    "norm": (layer_norm, drawn((12, 40), (40,), (40,)), ["A B", "B", "B"]),
    "groups": (group_norm, drawn((2, 8, 5, 6), (8,), (8,)), ["A B/4 C D", "B/4", "B/4"]),
    "loss": (F.cross_entropy, [*drawn((12, 40)), labels(12, 40)], ["A B", "A"]),
    "outer": (lambda a, b: a[:, None] + b, drawn((8,), (8,)), ["A", "B"]),
    "convolution": (F.conv2d, drawn((2, 8, 10, 10), (4, 8, 3, 3)), ["A B C D", "E B F G"]),
    "pairs": (lambda x: x.view(-1, 4).sum(1), drawn((6, 8)), ["A B/2"]),
    "fixed": (lambda x: x.view(6, 4, 2).sum(1), drawn((6, 8)), ["A! B!"]),
    "attention": (causal, drawn((2, 3, 20, 16), (2, 3, 20, 16), (2, 3, 20, 12)), ["A B C D", "A B E D", "A B E F"]),
}


def spelt(function, values):
    found = axes.find(function, values)
    name = {p: a.letter + {0: "!", 1: ""}.get(a.step, f"/{a.step}") for a in found for p in a.places}
    return [" ".join(name[i, d] for d in range(t.ndim)) for i, t in enumerate(values)]


@pytest.mark.parametrize("name", SIGNATURES)
def test_axes_are_found(name):
    function, values, right = SIGNATURES[name]
    assert spelt(function, values) == right


def test_what_a_kernel_of_the_cpu_takes_by_accident_is_no_size():
    """Keys and values of unequal length: eager takes them without an error."""
    q, k, v = drawn((2, 3, 20, 16), (2, 3, 20, 16), (2, 3, 24, 16))
    assert axes.works(F.scaled_dot_product_attention, [q, k, v]) is None
    assert axes.works(F.scaled_dot_product_attention, [q, k, v[:, :, :20]]) is not None


def test_sizes_are_one_axis_at_a_time_and_work():
    function, values, _ = SIGNATURES["groups"]
    found = axes.find(function, values)
    sizes = axes.sizes_of(function, values, found)
    assert sizes[0] == {"A": 2, "B": 8, "C": 5, "D": 6}
    assert {4, 12, 132} <= {size["B"] for size in sizes}
    assert sizes[1] == {"A": 2, "B": 4, "C": 3, "D": 3}
    shortest = {"A": 2, "B": 4, "C": 2, "D": 2}
    for size in sizes[2:]:  # from the first, or from those of few elements
        assert min(sum(size[letter] != from_[letter] for letter in size) for from_ in (*sizes[:2], shortest)) <= 1
    assert any(size["A"] == 0 for size in sizes) and any(size["D"] == 129 for size in sizes)


def test_an_axis_is_as_long_as_others_where_they_are_few():
    """8 x 1025 x 20 elements would be too many."""
    values = drawn((16, 64, 20))
    sizes = axes.sizes_of(torch.cumsum, [*values, 1], axes.find(torch.cumsum, [*values, 1]))
    assert {"A": 3, "B": 1025, "C": 3} in sizes and {"A": 8, "B": 37, "C": 20} in sizes


def test_as_many_indices_as_rows_stay_as_many():
    """`gather` takes fewer of them."""

    def picked(x, number):
        return x.gather(1, number[:, None])[:, 0]

    (x,) = drawn((12, 40))
    assert axes.works(picked, [x, labels(9, 40)]) is not None
    assert spelt(picked, [x, labels(12, 40)]) == ["A B", "A"]
    assert spelt(picked, [x, labels(9, 40)])[1] == "C"  # another length is another size


def test_a_small_example_is_tried_as_it_was_given():
    """Its integers too, of which the last is missing where rows are left out."""
    number = torch.arange(500) * 7919 % 499 % 37
    number[-1] = 36
    number[:-1].clamp_(max=35)

    def sums(x, number):
        return x.new_zeros(37, x.shape[1]).index_add(0, number, x)

    def without_the_last(x, number):
        found = sums(x, number)
        found[-1] = 0
        return found

    contract = derive(sums, [*drawn((500, 96)), number])
    assert {"A": 500, "B": 96, "y0_0": 37} in contract.sizes
    given = axes.at(contract.examples, contract.found.axes, {"A": 500, "B": 96})
    assert torch.equal(given[1], number)
    assert contract.sizes[0]["A"] == 64
    assert not check_against(sums, without_the_last, [*drawn((500, 96)), number], level="quick").passed


def test_an_example_of_many_steps_is_not_tried_as_it_was_given():
    def steps(x):
        found = [x[0]]
        for row in x[1:]:
            found.append(found[-1] * 0.5 + row)
        return torch.stack(found)

    assert axes.is_small(steps, drawn((300, 4))) and not axes.is_small(steps, drawn((5000, 4)))


def test_sizes_at_which_an_output_has_fewer_axes_are_left_out():
    """A covariance of one row is a number."""
    values = drawn((9, 40))
    sizes = axes.sizes_of(torch.cov, values, axes.find(torch.cov, values))
    assert {37, 129} <= {size["A"] for size in sizes} and 1 not in {size["A"] for size in sizes}
    assert derive(torch.cov, values).found.outputs == (("A", "A"),)


def test_an_example_of_a_real_size_is_made_smaller():
    values = drawn((256, 512), (512, 384))
    small = axes.shrunk(torch.matmul, values)
    assert [tuple(t.shape) for t in small] == [(64, 64), (64, 64)] or max(t.numel() for t in small) <= axes.LARGEST
    assert axes.works(torch.matmul, small) is not None


def test_sizes_that_are_asked_for_have_to_work():
    found = axes.find(*SIGNATURES["pairs"][:2])
    assert [s["B"] for s in axes.sizes_of(*SIGNATURES["pairs"][:2], found, {"B": [2, 10]})] == [8, 2, 10]
    with pytest.raises(ValueError, match="sizes: the reference does not work with B=3"):
        axes.sizes_of(lambda x: x.view(6, -1, 4), drawn((6, 8)), found, {"B": [3]})


def test_the_state_of_a_module_keeps_its_sizes():
    x, w = drawn((5, 8), (3, 8))
    found = {a.letter: a.step for a in axes.find(F.linear, [x, w], frozenset({1}))}
    assert found == {"A": 1, "B": 0, "C": 0, "D": 0}


def deadly(at):
    """A function that ends its process where an axis is so long, as a kernel of the CPU that divides by 0 does."""

    def function(x, w):
        if x.shape[1] in at:
            os.kill(os.getpid(), signal.SIGFPE)
        return x @ w

    return function


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_size_at_which_a_reference_ends_its_process_is_left_out_by_name():
    given = drawn((12, 40), (40, 9))
    found = derive(deadly((0, 129)), given).found
    usual = derive(torch.matmul, given).found
    assert found.axes == usual.axes
    assert found.sizes == tuple(size for size in usual.sizes if size["B"] not in (0, 129))
    assert found.ends == dict.fromkeys(("B=0", "B=129"), "the reference ends its process (SIGFPE)")
    assert "left out: B=0: the reference ends its process (SIGFPE)" in describe(deadly((0,)), given, mutants=0)
    with pytest.raises(ValueError, match=r"sizes: the reference ends its process \(SIGFPE\) with B=0"):
        derive(deadly((0,)), given, sizes={"B": (0,)})
    with pytest.raises(ValueError, match=r"reference: it ends its process \(SIGFPE\) on the inputs"):
        derive(deadly((40,)), given)


def test_what_a_fork_has_run_is_not_run_again(monkeypatch):
    """But where it raises, which it may do in a fork alone."""
    here, ran = os.getpid(), []

    def function(x):
        if os.getpid() == here:
            ran.append(x.shape[-1])
        if x.shape[-1] == 37 and os.getpid() != here:
            raise RuntimeError("in a fork")
        return x * 2

    found = derive(function, drawn((12, 40))).found
    assert 37 in ran and 1025 not in ran
    assert {"A": 12, "B": 37} in found.sizes


def test_a_fork_that_comes_to_nothing_is_given_up(monkeypatch):
    """As one that waits for a thread which it does not have."""
    here = os.getpid()

    def function(x):
        if os.getpid() != here:
            time.sleep(60)
        return x * 2

    monkeypatch.setattr(axes, "STUCK", 0.2)
    assert len(derive(function, drawn((12, 40))).found.sizes) == 14


def test_what_is_refused_in_a_fork_is_refused_here():
    with pytest.raises(Refused, match="draws random numbers"):
        derive(lambda x: x + torch.rand_like(x), drawn((12, 40)))


def test_numbers_stay_below_the_length_of_the_axis_along_which_they_count():
    """The loss reads beyond its classes without an error."""

    def loss(x, targets):
        lengths = torch.full((x.shape[1],), x.shape[0]), torch.full((x.shape[1],), targets.shape[1])
        return F.ctc_loss(x.log_softmax(2), targets, *lengths)

    targets = 3 + labels(24, 9).reshape(4, 6)
    given = [*drawn((30, 4, 12)), targets]
    sizes = derive(loss, given, dtypes=["float32"]).found.sizes
    assert all(size["C"] > 3 for size in sizes) and any(size["C"] == 37 for size in sizes)
    fewer = axes.resized(given, {(0, 2): 7})
    assert fewer[1].min() == 3 and fewer[1].max() == 6 and fewer[1].unique().numel() == 4
    assert axes.have_room(given, {(0, 2): 7}) and not axes.have_room(given, {(0, 2): 3})
    for change in ({(0, 2): 12}, {(0, 2): 129}, {(1, 1): 3}):
        assert axes.have_room(given, change)
        assert torch.equal(axes.resized(given, change)[1], targets[:, : change.get((1, 1), 6)])
    order, mask = torch.randperm(12), torch.arange(12) % 2
    for kept in (order, mask):
        assert torch.equal(axes.resized([given[0], kept], {(0, 2): 1})[1], kept)


def test_places_where_parts_of_a_shorter_axis_begin_and_end_lie_within_it():
    begins = torch.tensor([0, 0, 2, 3, 7])
    for n, places in ((3, [0, 0, 2, 3, 3]), (1, [0, 0, 0, 1, 1]), (0, [0, 0, 0, 0, 0]), (9, begins.tolist())):
        x, shorter = axes.resized([torch.randn(7, 2), begins], {(0, 0): n})
        assert len(x) == n and shorter.tolist() == places
        assert axes.have_room([torch.randn(7, 2), begins], {(0, 0): n})
    beyond = torch.tensor([0, 2, 8])  # of something else
    assert axes.resized([torch.randn(7, 2), beyond], {(0, 0): 3})[1] is beyond


@pytest.mark.parametrize("count", [2, 3, 6])
def test_where_parts_of_an_operand_begin_stays_in_order(count):
    """Bags that begin in another order are not written at all."""
    begins, words = torch.arange(count), labels(9, 12)
    sizes = derive(lambda x, begins: F.embedding_bag(words, x, begins), [*drawn((12, 5)), begins]).found.sizes
    assert {1, 37} <= {size["C"] for size in sizes}
    longer = axes.resized([begins], {(0, 0): 37})[0]
    assert torch.equal(longer, longer.sort().values) and longer[0] == 0 and longer[-1] == count - 1


def test_an_axis_of_which_the_example_has_no_element_grows():
    sizes = derive(torch.put, [*drawn((3, 2)), torch.arange(0), torch.empty(0)]).found.sizes
    assert {0, 37} <= {size["C"] for size in sizes}
    longer, places = axes.resized([torch.empty(4, 0), torch.arange(0)], {(0, 1): 5, (1, 0): 2})
    assert longer.shape == (4, 5) and longer.unique().numel() == 20 and torch.equal(places, torch.zeros(2).long())


def test_what_holds_of_an_example_is_asked_again_once_it_is_written():
    (value, whole), square = drawn((6, 6), (6, 6)), torch.ones(6, 6)
    example = square.tril()
    assert torch.equal(families.structured(value, example), value.tril())
    example.copy_(whole)
    assert families.structured(value, example) is value
    with torch.inference_mode():
        example = square.tril()
        assert torch.equal(families.structured(value, example), value.tril())


def test_sizes_at_which_a_loop_has_too_many_steps_are_not_tried():
    def stepped(x):
        total = x[0]
        for step in x[1:].unbind():
            total = total * 0.5 + step * 2 - step.square()
        return total

    contract = derive(stepped, drawn((6, 4)))
    steps = {size["A"] for size in contract.sizes}
    assert {1, 37, 257} <= steps and 1025 not in steps


def test_fixed_parameters_do_not_count_as_elements_and_outputs_do():
    """A weight of 65536 elements beside 2 x 64 x 10 x 10 of x, whose other sizes are tried all the same."""
    values = drawn((2, 64, 10, 10), (64, 64, 4, 4))
    found = axes.find(F.conv2d, values, frozenset({1}))
    sizes = axes.sizes_of(F.conv2d, values, found, known=axes.Known())
    assert sizes[0]["A"] == 2 and sizes[0]["C"] == 10
    assert {1, 0} <= {size["A"] for size in sizes} and 37 in {size["C"] for size in sizes}

    def spread(x):
        return x.repeat(1, 64)

    wide = axes.sizes_of(spread, drawn((8, 8)), axes.find(spread, drawn((8, 8))))
    assert max(size["A"] * size["B"] for size in wide) * 64 <= axes.OUTPUT * axes.ALONE


def test_one_axis_is_as_long_as_others_where_these_are_as_short_as_can_be():
    """3 x 32 x 1025 elements would be too many beside 32 fixed channels, two rows are not."""
    values = drawn((4, 32, 64), (32, 64, 5))
    sizes = axes.sizes_of(F.conv_transpose1d, values, axes.find(F.conv_transpose1d, values, frozenset({1})))
    assert any(size["A"] == 2 and size["C"] == 1025 for size in sizes)
