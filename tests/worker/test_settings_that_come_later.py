"""Settings that are declared and have no effect yet are refused, not ignored."""

from __future__ import annotations

import pytest

from kiwi_worker import Worker
from kiwi_worker.errors import SettingsError


@pytest.mark.parametrize("setting", [{"health_port": 0}, {"health_file": "health"}, {"metrics_port": 0}])
def test_a_setting_without_effect_is_refused(setting: dict[str, object]) -> None:
    worker = Worker(auth_secret="x", service_id="s", **setting)
    with pytest.raises(SettingsError, match="not available in this version yet"):
        worker.check()
