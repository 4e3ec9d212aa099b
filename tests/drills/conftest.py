"""What the drills count is said at the end: kills, cases, steps."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line a drill, of what it was told with `record_property`."""
    passed = terminalreporter.stats.get("passed", [])
    for report in passed:
        counts = ", ".join(f"{name} {value}" for name, value in report.user_properties)
        if report.when == "call" and counts:
            terminalreporter.write_line(f"{report.nodeid.split('::')[-1]}: {counts}")
