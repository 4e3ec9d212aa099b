"""Units of time: a table from a name to its seconds."""

from kernelhead.errors import unknown

UNITS = {
    "seconds": 1.0,
    "minutes": 60.0,
    "hours": 3600.0,
    "days": 86_400.0,
    "weeks": 604_800.0,
    "years": 31_557_600.0,
}


def seconds_in(who: str, unit: str) -> float:
    """The seconds of a unit.

    Raises:
        UnknownName: there is no such unit.

    Example:
        >>> seconds_in("f", "hours")
        3600.0
    """
    if unit not in UNITS:
        raise unknown(who, "unit", unit, UNITS)
    return UNITS[unit]
