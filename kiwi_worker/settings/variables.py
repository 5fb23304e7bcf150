"""Environment variables that look like ours and that no setting has: typing mistakes, mostly.

They are warned about, not refused, since the environment is shared with others. Two kinds are no mistakes:
what Kubernetes makes for every service of a namespace (a service named `kiwi` gives each pod
`KIWI_PORT=tcp://10.0.0.1:8420` and `KIWI_SERVICE_HOST`), and variables that other programs of ours read.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .declare import settings_of

__all__ = [
    "is_service_address",
    "is_service_link",
    "nearest_name",
    "register",
    "registered_classes",
    "warn_unknown_variables",
]

log = logging.getLogger("kiwi_worker.settings")

READ_ELSEWHERE = frozenset({"ORBIT_GRPC_ADDR"})
"""Variables that no settings class reads: the ORBIT runtime's own."""

DECLARED_ELSEWHERE = {"KIWI_MIDDLEWARE_": "kiwi_worker.middleware.settings"}
"""Modules that declare the settings under a prefix, loaded only when such a variable is there and unknown."""

_classes: list[type[Any]] = []

_ADDRESS = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[?[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*\]?"
_LINK = rf"(?:tcp|udp|sctp)://(?:{_ADDRESS}):[0-9]+"
_SERVICE_LINKS = [
    (re.compile(r".*_PORT"), re.compile(_LINK)),
    (re.compile(r".*_PORT_[0-9]+_(?:TCP|UDP|SCTP)"), re.compile(_LINK)),
    (re.compile(r".*_PORT_[0-9]+_(?:TCP|UDP|SCTP)_PROTO"), re.compile(r"tcp|udp|sctp")),
    (re.compile(r".*_PORT_[0-9]+_(?:TCP|UDP|SCTP)_PORT"), re.compile(r"[0-9]+")),
    (re.compile(r".*_PORT_[0-9]+_(?:TCP|UDP|SCTP)_ADDR"), re.compile(_ADDRESS)),
    (re.compile(r".*_SERVICE_HOST"), re.compile(_ADDRESS)),
    (re.compile(r".*_SERVICE_PORT(?:_[A-Z0-9_]+)?"), re.compile(r"[0-9]+")),
]


def register(cls: type[Any]) -> None:
    """Makes the variables of a settings class known to all the others."""
    _classes.append(cls)


def registered_classes() -> tuple[type[Any], ...]:
    """Every settings class that was defined so far."""
    return tuple(_classes)


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes made this variable, by the form of its name and of its value."""
    return any(names.fullmatch(name) and values.fullmatch(value) for names, values in _SERVICE_LINKS)


def is_service_address(name: str, value: str) -> bool:
    """Whether this is the address of a service, whose variable has the form of a port setting's.

    A service named `kiwi-health` makes Kubernetes set `KIWI_HEALTH_PORT=tcp://10.0.0.1:80`.
    """
    return name.endswith("_PORT") and re.fullmatch(_LINK, value) is not None


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that was most likely meant, or None when nothing is near."""
    import difflib

    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.7)
    return near[0] if near else None


def warn_unknown_variables(prefixes: tuple[str, ...], environ: Mapping[str, str]) -> None:
    """Logs one warning for each variable under these prefixes that no settings class knows."""
    known = _known_variables()
    unknown = [name for name in environ if name.startswith(prefixes) and name not in known]
    unknown = [name for name in unknown if not is_service_link(name, environ[name])]
    if unknown:
        known = known | _declared_elsewhere(unknown)
    for name in sorted(unknown):
        if name not in known:
            _warn(name, nearest_name(name, known))


def _known_variables() -> frozenset[str]:
    settings = (name for cls in _classes for setting in settings_of(cls) for name in setting.environment)
    return frozenset(settings) | {cls.config_variable for cls in _classes} | READ_ELSEWHERE


def _declared_elsewhere(unknown: list[str]) -> frozenset[str]:
    found = frozenset[str]()
    for prefix, module in DECLARED_ELSEWHERE.items():
        names = [name for name in unknown if name.startswith(prefix)]
        if names:
            # Where the extra is not installed nobody here can tell a mistake from the name of a setting.
            found |= _known_variables() if _has_registered(prefix, module) else frozenset(names)
    return found


def _has_registered(prefix: str, module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return any(cls.environment_prefix == prefix for cls in _classes)


def _warn(name: str, nearest: str | None) -> None:
    hint = f"; did you mean {nearest}?" if nearest else ""
    log.warning(
        "environment variable %s is no setting%s",
        name,
        hint,
        extra={"action": "unknown_variable", "variable": name, "nearest": nearest},
    )
