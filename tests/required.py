"""With `REQUIRE_SERVERS` set, a test that is skipped for want of a program or a library fails instead.

Such a skip says `needs NAME`, or comes from `pytest.importorskip`. What a machine cannot be given (IPv6,
mount namespaces) is skipped all the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator

import pytest

MISSING = re.compile(r"needs [\w.-]+$|could not import")


def refuse_missing(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn the skip of a report into a failure when something is missing that has to be there."""
    if not report.skipped or not os.environ.get("REQUIRE_SERVERS") or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[-1]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if MISSING.search(reason.strip()):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} has to run here: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that is skipped as a whole."""
    report = yield
    refuse_missing(report)
    return report
