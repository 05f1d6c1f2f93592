"""`@variant(...)`: what a launcher declares about itself."""

import pytest

from touchstone.backends.variants import HALF, Attributes, attributes, variant


def launcher(x):
    return x


def test_a_launcher_that_declares_nothing_has_the_defaults():
    assert attributes(launcher) == Attributes()
    assert attributes(lambda x: x).deterministic and attributes(print).needs is None
    assert attributes(print).captures and not attributes(variant(captures=False)(lambda x: x)).captures


def test_what_is_declared_is_read():
    space = [dict(BLOCK=64), dict(BLOCK=128)]

    @variant(needs="sm_90a", dtypes=HALF, compute="tf32", deterministic=False, spills=2048, space=space)
    def wgmma(x):
        """A kernel."""
        return 2 * x

    assert attributes(wgmma) == Attributes("sm_90a", HALF, "tf32", False, 2048, tuple(space))
    assert wgmma(2) == 4 and wgmma.__module__ == __name__ and wgmma.__doc__ == "A kernel."


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (dict(need="sm_90a"), TypeError, "unexpected keyword argument 'need'"),
        (dict(needs="sm90"), ValueError, "needs: expected an architecture such as 'sm_90a', or a word .* got 'sm90'"),
        (dict(dtypes=("fp16",)), ValueError, "dtypes: expected some of float32, float16, bfloat16, got"),
        (dict(dtypes="float16"), ValueError, "dtypes: expected some of"),
        (dict(dtypes=()), ValueError, "dtypes: expected some of"),
        (
            dict(compute="fp8"),
            ValueError,
            "compute: expected one of tf32, tf32x3, bf16, half_sum, fp22, fp22_promoted, approximate, got 'fp8'",
        ),
        (dict(spills=0), ValueError, "spills: expected a positive number of bytes per thread, got 0"),
    ],
)
def test_what_is_wrong_is_refused_where_it_stands(wrong, error, message):
    with pytest.raises(error, match=message):
        variant(**wrong)


def test_a_declaration_needs_the_word_for_each_value():
    with pytest.raises(TypeError):
        variant("sm_90a")
