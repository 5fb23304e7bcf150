"""What all settings objects share: loading, checking, knowing where a value came from, hiding secrets."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, TypeVar

from ..errors import SettingsError
from .declare import settings_of
from .sources import Layer, Origin, Source, environment_layer, file_layer, keyword_layer, option_layer
from .variables import register, warn_unknown_variables

__all__ = ["Settings"]

S = TypeVar("S", bound="Settings")


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class Settings:
    """The base of every settings object: frozen, checked when it is made, masked when it is shown.

    Values may be given as keyword arguments, which are checked like any other source; `load` takes them from
    everywhere. None means "not given".

    Raises:
        SettingsError: a value is not of its kind or out of bounds, or values contradict each other.
    """

    environment_prefix: ClassVar[str] = "KIWI_"
    """What the variables of the settings declared in this class begin with."""
    warned_prefixes: ClassVar[tuple[str, ...]] = ("KIWI_",)
    """Unknown variables that begin like this are warned about when this class loads."""
    config_variable: ClassVar[str] = "KIWI_CONFIG"
    """The variable that names the settings file."""
    credential: ClassVar[tuple[str, str] | None] = None
    """The keys of the secret this class has, and of the file it may be read from."""

    origins: Mapping[str, Origin] = dataclasses.field(default_factory=dict, compare=False)

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        register(cls)

    def __post_init__(self) -> None:
        origins = dict(self.origins)
        for setting in settings_of(type(self)):
            value = getattr(self, setting.key)
            if value is None and setting.computed is not None:
                origins[setting.key] = Origin("default", setting.key)
                object.__setattr__(self, setting.key, setting.computed())
            elif value is not setting.default:
                origin = origins.setdefault(setting.key, Origin("keyword", setting.key))
                object.__setattr__(self, setting.key, setting.convert(value, origin.written_as))
        object.__setattr__(self, "origins", origins)
        self._check_together()

    @classmethod
    def load(
        cls: type[S],
        keywords: Mapping[str, object] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        config: str | os.PathLike[str] | None = None,
        options: Mapping[str, object] | None = None,
    ) -> S:
        """Settings from all sources: option, then keyword, then environment, then file, then default.

        Args:
            keywords: what was written in code; None values count as not given.
            environ: the variables; those of this process when left out.
            config: the path of a TOML file with settings as top-level keys; else the one that the class's
                `config_variable` names, if any.
            options: what was given on a command line, by key; None values count as not given.

        An empty variable counts as not set, except for a true-or-false setting, where it is an error. A
        variable that no setting has is warned about.

        Raises:
            SettingsError: an unknown keyword, option or file key, a value that does not fit, a file that
                cannot be read, or values that contradict each other.
        """
        environ = os.environ if environ is None else environ
        warn_unknown_variables(cls.warned_prefixes, environ)
        found: Layer = {
            **_file(cls, config, environ),
            **environment_layer(cls, environ),
            **keyword_layer(cls, keywords or {}),
            **option_layer(cls, options or {}),
        }
        values: dict[str, Any] = {key: given.value for key, given in found.items()}
        return cls(**values, origins={key: given.origin for key, given in found.items()})

    def source_of(self, key: str) -> Source:
        """Where the value came from: `option`, `keyword`, `environment`, `file` or `default`.

        Raises:
            SettingsError: there is no such setting.
        """
        return self._origin(key).source

    def written_as(self, key: str) -> str:
        """The name under which the person gave the value (`--wait`, `KIWI_WAIT`, `wait`), for errors."""
        return self._origin(key).written_as

    def _origin(self, key: str) -> Origin:
        if key not in {setting.key for setting in settings_of(type(self))}:
            raise SettingsError(key, f"is no setting of {type(self).__name__}")
        return self.origins.get(key, Origin("default", key))

    def _refuse(self, key: str, problem: str) -> NoReturn:
        raise SettingsError(self.written_as(key), problem)

    def _check_together(self) -> None:
        """Checks values against each other; a class that overrides it calls it first."""
        if self.credential is None:
            return
        secret, file = self.credential
        if getattr(self, secret) is not None and getattr(self, file) is not None:
            self._refuse(secret, f"is given and so is {self.written_as(file)}; keep one of them")

    def __repr__(self) -> str:
        given = (key for key, origin in self.origins.items() if origin.source != "default")
        return f"{type(self).__name__}({', '.join(f'{key}={getattr(self, key)!r}' for key in sorted(given))})"


def _file(cls: type[Settings], config: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Layer:
    if config is not None:
        return file_layer(cls, config, "config")
    named = environ.get(cls.config_variable, "").strip()
    return file_layer(cls, named, cls.config_variable) if named else {}
