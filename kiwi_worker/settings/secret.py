"""Values that must not be seen: they mask themselves wherever Python would print them."""

from __future__ import annotations

__all__ = ["MaskedUrl", "Secret"]

MASK = "***"


class Secret:
    """A secret text. `repr`, `str`, `format` and `vars` of what holds it show `***`; `reveal()` gives it.

    It refuses to be pickled, since a pickle is plain text to whoever finds it: hand a secret to another
    process through that process's standard input (`auth_secret_file="-"`) or its environment.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The secret itself, for the one call that needs it."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a secret is not pickled; give the other process the file it can be read from")


class MaskedUrl(str):
    """An address as text; its `repr` hides the user name and password it may carry."""

    __slots__ = ()

    def __repr__(self) -> str:
        scheme, mark, rest = self.partition("://")
        authority, slash, path = rest.partition("/")
        _, at, host = authority.rpartition("@")
        return repr(f"{scheme}{mark}{MASK}@{host}{slash}{path}") if at else super().__repr__()
