"""What the whole suite shares."""

from __future__ import annotations

import signal

from required import pytest_make_collect_report
from secret_watch import pytest_configure, pytest_runtest_makereport

__all__ = ["pytest_configure", "pytest_make_collect_report", "pytest_runtest_makereport"]

# A shell that starts the suite in the background lets it inherit that SIGINT is ignored, and every process
# that a test starts would inherit it, too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup does the same with this one
