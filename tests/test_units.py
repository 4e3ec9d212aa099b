"""Units of time: their seconds, and words for others."""

import pytest

from kernelhead.errors import UnknownName
from kernelhead.units import UNITS, seconds_in


def test_seconds() -> None:
    assert seconds_in("f", "weeks") == 7 * 24 * UNITS["hours"]


def test_words() -> None:
    with pytest.raises(
        UnknownName, match=r"f: unknown unit 'hour', did you mean 'hours'\? Known: days, hours"
    ):
        seconds_in("f", "hour")
