"""Leaves the lean pass of the Python at hand out of the default run: `py` runs the whole suite on it."""

from __future__ import annotations

import sys

from tox.config.sets import ConfigSet
from tox.plugin import impl
from tox.session.state import State


@impl
def tox_add_core_config(core_conf: ConfigSet, state: State) -> None:
    """Take one name out of `env_list`; `tox -e` finds it as before."""
    own = f"lean-py{sys.version_info.major}{sys.version_info.minor}"
    names = core_conf["env_list"].envs
    if own in names:
        names.remove(own)
