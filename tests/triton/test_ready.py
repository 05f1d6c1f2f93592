"""Prepared launches of Triton kernels: which are Triton's own, and what the driver is given in the others."""

import importlib.util
import json
import struct

import pytest

from tests.processes import output_of, run_touchstone
from tests.programs import PROGRAMS

if not importlib.util.find_spec("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

NONE = "0" * 16


@pytest.fixture(scope="module")
def result():
    done = run_touchstone([str(PROGRAMS / "ready_launches.py")])
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def packed(kinds, *values):
    return [struct.pack(f"<{kind}", value).hex() for kind, value in zip(kinds, values, strict=True)]


def test_the_first_launch_is_tritons_and_the_driver_is_given_the_same_in_the_second(result):
    first, second = result["report"]["the same"]
    x, y = result["addresses"]["x"], result["addresses"]["y"]
    assert first == ["native"]
    assert second[0]["grid"] == [2, 3, 1]
    assert second[0]["values"] == [*packed("QQiif?", x, y, 5, 48, 0.5, True), NONE, NONE]


@pytest.mark.parametrize("what", ["other numbers", "other memory", "another grid"])
def test_what_needs_no_other_kernel_goes_to_the_driver_at_once(result, what):
    (first,), (second,) = result["report"][what]
    assert first == second != "native"
    assert first["kernel"] == result["report"]["the same"][1][0]["kernel"]


def test_other_numbers_arrive(result):
    ((given,), _) = result["report"]["other numbers"]
    assert given["values"][2:6] == packed("iif?", 1, 32, 2.0, True)
    assert result["report"]["another grid"][0][0]["grid"] == [7, 1, 1]


def test_a_launch_is_recorded_whether_or_not_its_kernel_is_prepared_and_replayed_unless_others_take_it(result):
    called, given, addresses = zip(*result["report"]["replays"], strict=True)
    first = called.index(False)
    assert 2 <= first <= 4 and called[first:] == (False,) * (6 - first) + (True, False)
    for values, expected in zip(given[first:6] + given[7:], addresses[first:6] + addresses[7:], strict=True):
        assert values == [expected]
    assert given[6] == ["native"]


OTHERS = [
    "cols no multiple",
    "cols 1",
    "not aligned",
    "another dtype",
    "no y",
    "another constant",
    "a number as a constant",
    "a truth as a constant",
    "more warps",
    "dependent",
]


@pytest.mark.parametrize("what", OTHERS)
def test_what_triton_compiles_another_kernel_for_is_launched_by_it_first(result, what):
    assert result["report"][what][0] == ["native"]
    kernels = [result["report"][name][1][0]["kernel"] for name in ("the same", *OTHERS)]
    assert len(set(kernels)) == len(kernels)
    assert result["report"][what][1][0]["dependent"] == (what == "dependent")


def test_a_number_that_was_compiled_in_is_not_passed(result):
    given = result["report"]["cols 1"][1][0]["values"]
    assert given[2:] == [*packed("if?", 5, 0.5, True), NONE, NONE]
    assert len(result["report"]["no y"][1][0]["values"]) == 7


@pytest.mark.parametrize("what", ["a grid with a zero", "a grid that is worked out", "nan outside", "watched"])
def test_what_only_triton_can_do_is_left_to_it(result, what):
    assert all(call == ["native"] for call in result["report"][what])


def test_a_number_of_64_bits_is_not_put_where_there_is_room_for_32(result):
    narrow, *wide = result["report"]["wide after narrow"]
    assert narrow != ["native"] and wide == [["native"], ["native"]]
    _, (wide,), (narrow,) = result["report"]["narrow after wide"]
    assert wide["values"][2:4] == packed("qq", 1 << 40, 48 << 28)
    assert narrow["values"][2:4] == packed("qq", 5, 48)


def test_descriptors_are_encoded_once_and_given_with_their_sizes_and_strides(result):
    calls = result["report"]["tiles"]
    assert [call == ["native"] for call in calls] == [True, False, False, True, False, True]
    assert result["encoded"][
        :2
    ] == [  # float16, columns and rows, bytes between rows, the box, the swizzle of 128 or 64 bytes
        [6, [64, 96], [128], [64, 32], 3, 2],
        [6, [128, 64], [256], [32, 64], 2, 2],
    ]
    assert len(result["encoded"]) == 6 and result["encoded"][4][0] == 7
    second, third = calls[1][0]["values"], calls[2][0]["values"]
    for place, address, rest in ((0, "a", (96, 64, 64, 1)), (5, "b", (64, 128, 128, 1))):
        assert second[place][:16] == struct.pack("<Q", result[address]).hex()
        assert second[place + 1 : place + 5] == packed("iiqq", *rest)
    assert (second[10], third[10]) == (*packed("i", 3), *packed("i", 5))
    assert second[:10] == third[:10]


def test_descriptors_of_another_dtype_are_for_another_kernel(result):
    first, (second,) = result["report"]["tiles of float32"]
    assert first == ["native"] and second["kernel"] != result["report"]["tiles"][1][0]["kernel"]


def test_a_description_is_kept_for_memory_of_a_gpu_and_holds_no_tensor(result):
    again, other, tensor = result["report"]["kept"]
    assert again and not other and not tensor
    assert result["report"]["on the CPU"] == [True]


@pytest.mark.parametrize("what", ["the same", "cols 1", "no y", "dependent"])
def test_a_first_launch_gives_the_driver_what_a_later_one_does(result, what):
    assert result["report"]["first"][what] == result["report"][what][1]


def test_a_first_launch_gives_the_driver_descriptors_too(result):
    (given,), (later,) = result["report"]["first"]["tiles"], result["report"]["tiles"][1]
    assert [len(value) for value in given["values"]] == [len(value) for value in later["values"]]
    for place, (value, expected) in enumerate(zip(given["values"], later["values"], strict=True)):
        assert value[:16] == expected[:16], place  # then comes how many were encoded before
    assert result["report"]["first"]["encoded"] == result["encoded"][:2]


def test_a_first_launch_of_no_programs_is_none(result):
    assert result["report"]["first"]["a grid with a zero"] == []


ALONE = "a number of NumPy", "too large", "an argument less", "another thread", "a cluster", "watched"


@pytest.mark.parametrize("what", ["on the CPU", "an address", *ALONE])
def test_a_first_launch_of_another_kind_is_tritons(result, what):
    assert result["report"]["first"][what] == ["made", "of Triton"]


def test_a_kernel_that_is_launched_often_gets_a_launcher_of_tritons(result):
    told = result["report"]["first"]["often"]
    assert told == [False] * 32 + [False, True, True]  # the 33rd is made
    assert result["report"]["first"]["an attribute"] == ["of Triton"]


def test_first_launches_are_put_in_the_place_of_a_launcher_that_is_compiled_alone():
    code = """if True:
        from triton.backends.nvidia import driver
        from touchstone.backends.triton.runtime import first
        stock = driver.CudaLauncher
        driver.make_launcher = None
        first.install(), first.install()
        print(driver.CudaLauncher is first.First, first._native is stock)
        del driver.make_launcher
        first._native, driver.CudaLauncher = None, stock
        first.install()
        print(driver.CudaLauncher is stock)
    """
    assert output_of(code).split() == ["True"] * 3
