"""Counts faults: `python -m pytest tests/faults` reports at its end how many were injected and survived."""

import collections
from pathlib import Path

import pytest


@pytest.fixture
def no_fault(record_property):
    """Marks a test that injects no fault."""
    record_property("faults", 0)


def pytest_terminal_summary(terminalreporter):
    """Counts a test as one fault, unless it records its own number of `faults`."""
    tried, survived = collections.Counter(), collections.Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            if report.when != "call" or "faults" not in Path(report.fspath).parts:
                continue
            name, number = Path(report.fspath).stem, dict(report.user_properties).get("faults", 1)
            tried[name] += number
            survived[name] += number if outcome == "passed" else 0
    terminalreporter.section("faults")
    for name, number in sorted(tried.items()):
        terminalreporter.line(f"{name:<28} tried {number:>4}  survived {survived[name]:>4}")
    terminalreporter.line(f"{'all':<28} tried {tried.total():>4}  survived {survived.total():>4}")
