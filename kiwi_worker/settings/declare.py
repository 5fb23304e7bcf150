"""Declaring a setting: once, in the class body, with everything that keyword arguments, environment, file,
command line and reference need to know of it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

from ..errors import SettingsError
from .kinds import Kind, ListOf, Misfit, SecretText

__all__ = ["Setting", "setting", "settings_of"]

T = TypeVar("T")
_METADATA = "kiwi_worker.setting"


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting, as it was declared.

    Attributes:
        key: its name as keyword, attribute and file key.
        kind: what values it takes.
        default: its value when nobody gives one; None means none, or that `computed` makes it.
        help: what it is, as one noun phrase with its unit; ends the sentence "it is ...".
        note: more of it, in whole sentences.
        environment: the variables it is read from; the first one that is set counts.
        shown_default: the default in words, where the value itself does not say it.
        computed: makes the default when the settings are made.
    """

    key: str
    kind: Kind[Any]
    default: Any
    help: str
    note: str = ""
    environment: tuple[str, ...] = ()
    shown_default: str = ""
    computed: Callable[[], Any] | None = None

    @property
    def is_secret(self) -> bool:
        """Whether its value is never shown and is no command line option."""
        return isinstance(self.kind, SecretText)

    @property
    def is_list(self) -> bool:
        """Whether it holds several values, so that its option may be repeated."""
        return isinstance(self.kind, ListOf)

    @property
    def option(self) -> str:
        """Its command line option."""
        return "--" + self.key.replace("_", "-")

    @property
    def default_in_words(self) -> str:
        """The default as help and reference show it."""
        if self.shown_default:
            return self.shown_default
        return "none" if self.default is None else self.kind.write(self.default)

    def convert(self, value: object, written_as: str) -> Any:
        """The value as its kind holds it.

        Args:
            written_as: what the person wrote (keyword, variable, option), for the error.

        Raises:
            SettingsError: the value is not of the kind or out of bounds.
        """
        try:
            return self.kind.convert(value)
        except Misfit as misfit:
            problem = f"{misfit}; it is {self.help}"
        raise SettingsError(written_as, problem)


@overload
def setting(
    kind: Kind[T],
    help: str,
    *,
    default: T,
    note: str = ...,
    environment: tuple[str, ...] = ...,
    shown_default: str = ...,
) -> T: ...
@overload
def setting(
    kind: Kind[T],
    help: str,
    *,
    computed: Callable[[], T],
    shown_default: str,
    note: str = ...,
    environment: tuple[str, ...] = ...,
) -> T: ...
@overload
def setting(
    kind: Kind[T],
    help: str,
    *,
    note: str = ...,
    environment: tuple[str, ...] = ...,
    shown_default: str = ...,
) -> T | None: ...
def setting(kind: Kind[Any], help: str, *, default: Any = None, **more: Any) -> Any:  # noqa: A002
    """Declares a setting as a field of a settings class; see Setting for what the arguments mean.

    `environment` is needed only where it is not the class's prefix and the key in capitals.
    """
    declared = Setting("", kind, default, help, **more)
    return dataclasses.field(default=default, metadata={_METADATA: declared})


def settings_of(cls: type[Any]) -> tuple[Setting, ...]:
    """Every setting of a settings class, those of its base classes first."""
    hashable: Any = cls
    return _settings_of(hashable)


@functools.cache
def _settings_of(cls: Any) -> tuple[Setting, ...]:
    fields = [field for field in dataclasses.fields(cls) if _METADATA in field.metadata]
    return tuple(_named(field.metadata[_METADATA], field.name, cls) for field in fields)


def _named(declared: Setting, key: str, cls: type[Any]) -> Setting:
    environment = declared.environment or (_prefix_where_declared(cls, key) + key.upper(),)
    return dataclasses.replace(declared, key=key, environment=environment)


def _prefix_where_declared(cls: type[Any], key: str) -> str:
    bases = [base for base in reversed(cls.__mro__) if key in getattr(base, "__dataclass_fields__", ())]
    first: Any = bases[0]
    prefix: str = first.environment_prefix
    return prefix
