"""Philox4x32-10: the known answers of Random123, where words lie, and what the masks of dropout look like."""

import numpy as np
import pytest

from touchstone.reference import _masks, _philox
from touchstone.reference._philox import kept, philox, words

KNOWN = [  # of Random123's kat_vectors: counter, key, result
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers_of_random123(counter, key, result):
    given = [np.array(int(word, 16)) for word in counter.split()]
    first, second = (int(word, 16) for word in key.split())
    assert " ".join(f"{int(word):08x}" for word in philox(given, (first, second))) == result


def test_a_word_depends_on_its_own_index_alone():
    whole = words(2051, 2**40 + 3, 2**33 + 1)
    for start, count in [(0, 1), (1, 3), (3, 2), (5, 0), (4, 2047), (2050, 1)]:
        np.testing.assert_array_equal(words(count, 2**40 + 3, 2**33 + 1, start), whole[start : start + count])


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**63 - 1])
def test_a_device_computes_the_same_words(seed):
    for count, offset in [(0, 0), (1, 2**33 + 1), (1027, 2**63 - 1)]:
        of_tensors = _philox.torch_words(count, seed, offset, "cpu")
        np.testing.assert_array_equal(of_tensors.numpy(), words(count, seed, offset))


def test_indices_seeds_and_offsets_have_64_bits():
    base = words(64, 7, 5)
    for other in (words(64, 7, 5, 2**34), words(64, 7 + 2**32, 5), words(64, 7, 5 + 2**32), words(64, 5, 7)):
        assert (base != other).all()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_masks_look_random(p):
    """Five standard deviations of the share kept, and of what neighbours, seeds and offsets have in common."""
    count = 1 << 18
    keep = kept((count,), p, 42, 3)
    assert abs(keep.mean() - (1 - p)) < 5 * (p * (1 - p) / count) ** 0.5
    for shift in (1, 4):
        for other in (keep, kept((count,), p, 42, 4), kept((count,), p, 43, 3)):
            common = np.mean((keep[shift:] - (1 - p)) * (other[:-shift] - (1 - p)))
            assert abs(common) < 5 * p * (1 - p) / count**0.5


def test_p_0_keeps_all_and_p_1_none():
    assert kept((999,), 0.0, 1, 2).all()
    assert not kept((999,), 1.0, 1, 2).any()
    assert _philox.scale(1.0) == 0


@pytest.mark.parametrize(
    "wrong", [{"p": -0.1}, {"p": 1.1}, {"p": float("nan")}, {"seed": -1}, {"seed": 2**63}, {"offset": -1}], ids=str
)
def test_what_is_out_of_range_is_an_error(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        kept((3,), **{"p": 0.5, "seed": 0, "offset": 0, **wrong})


def test_no_mask_is_drawn_of_scores_that_are_all_kept():
    """Of a long sequence it would be larger than memory."""
    kept = _masks.weights((64, 64, 1 << 20, 1 << 20), p=0.0, seed=3, offset=5)
    assert kept.tolist() == [[[[1.0]]]]
