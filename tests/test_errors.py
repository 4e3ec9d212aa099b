"""Errors: what they are to a caller, and the two messages that are built."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead import errors
from kernelhead.errors import missing_extra, unknown

NAMES = st.text("abcdefgh", min_size=3, max_size=8)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.ShapeError, ValueError),
        (errors.BadInput, ValueError),
        (errors.UnknownName, ValueError),
        (errors.MissingExtra, ImportError),
        (errors.CheckpointError, Exception),
    ],
)
def test_an_error_is_ours_and_a_builtin(error: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(error, errors.KernelheadError)
    assert issubclass(error, builtin)


def test_an_iteration_that_stops_early_only_warns() -> None:
    assert issubclass(errors.NotConverged, UserWarning)
    assert not issubclass(errors.NotConverged, errors.KernelheadError)


def test_an_unknown_name_suggests_the_nearest() -> None:
    error = unknown("named_kernel", "feature map", "Cosin", ["elu", "cosine"])
    expected = "named_kernel: unknown feature map 'Cosin', did you mean 'cosine'? Known: cosine, elu"
    assert isinstance(error, errors.UnknownName)
    assert str(error) == expected


@pytest.mark.parametrize("name", ["zzz", 3, None], ids=str)
def test_an_unknown_name_far_from_all_suggests_nothing(name: object) -> None:
    message = str(unknown("f", "thing", name, ["relu", "elu"]))
    assert message == f"f: unknown thing {name!r}. Known: elu, relu"


@given(known=st.sets(NAMES, min_size=1, max_size=5), name=NAMES)
def test_the_message_names_all_that_are_known(known: set[str], name: str) -> None:
    message = str(unknown("f", "thing", name, known))
    assert message.startswith(f"f: unknown thing {name!r}")
    assert message.endswith("Known: " + ", ".join(sorted(known)))


@given(name=NAMES, others=st.sets(st.text("stuvwxyz", min_size=3, max_size=8), max_size=5))
def test_a_slip_of_one_letter_is_repaired(name: str, others: set[str]) -> None:
    assert f"did you mean {name!r}?" in str(unknown("f", "thing", name + "z", {name, *others}))


def test_a_missing_extra_has_its_command() -> None:
    error = missing_extra("read_ts", "aeon", "ts")
    expected = 'read_ts: needs aeon, which is not installed; run: pip install "kernelhead[ts]"'
    assert isinstance(error, errors.MissingExtra)
    assert str(error) == expected


def test_a_name_in_other_letters_is_suggested() -> None:
    assert "did you mean 'MNIST'?" in str(unknown("reproduce", "data set", "mnis", ["MNIST", "softmax"]))
