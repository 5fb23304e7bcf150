"""What to tell a caller whose values do not fit, in one form:

    `amount` expected `int`, got `str` - at `$.items[0].amount`

The last name of the path comes first, then what is wrong with it, then the whole path from the params (`$`)
as the caller wrote them; `$.prices[...]` stands for some value of an object with free keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kiwi_worker.choices import allowed_values

__all__ = ["describe", "missing_text", "unknown_text"]

_PLACE = re.compile(r" - at (`key` in )?`(\$[^`]*)`$")
_SENTENCES = {
    "Expected ": "`{label}` expected {rest}",
    "Object missing required field ": "`{label}` is missing the required field {rest}",
    "Object contains unknown field ": "`{label}` has the unknown field {rest}",
}
_ANY_KEY = "[...]"
_NO_CHOICE = "Invalid enum value "
_TEXT_LIMIT = 500
_KEY_LIMIT = 60
_KEYS_NAMED = 5
_KNOWN_NAMED = 20


def describe(error: Exception, whole: str, positions: Sequence[str] = (), hint: Any = Any) -> str:
    """One sentence about values that could not be read.

    Args:
        error: what reading them raised.
        whole: what to call the value as a whole.
        positions: the names of the elements, when the value is an array of parameters.
        hint: the type of the whole value, to name the values an Enum or a Literal allows.
    """
    if isinstance(error, RecursionError):
        return f"{whole}: nested too deep"
    if isinstance(error, msgspec.ValidationError):
        return _describe_mismatch(str(error), whole, positions, hint)
    if isinstance(error, (msgspec.DecodeError, UnicodeDecodeError)):
        return f"{whole}: not valid JSON ({error})"
    return f"{whole}: {_readable_text(error)}"


def missing_text(names: Sequence[str]) -> str:
    """What to say about required parameters that were not given."""
    return f"missing required parameter{'s' if len(names) > 1 else ''} {_listed(names)}"


def unknown_text(names: Sequence[str], known: Sequence[str], noun: str = "parameter") -> str:
    """What to say about keys that nothing takes: names them and what is known, the nearest first."""
    shown = [_shown(name) for name in names[:_KEYS_NAMED]]
    more = f" and {len(names) - _KEYS_NAMED} more" if len(names) > _KEYS_NAMED else ""
    text = f"unknown {noun}{'s' if len(names) > 1 else ''} {_listed(shown)}{more}"
    if not known:
        return f"{text}, none can be given by name"
    return f"{text}, known: {_listed(_nearest_first(shown[0], known)[:_KNOWN_NAMED])}"


def _describe_mismatch(text: str, whole: str, positions: Sequence[str], hint: Any) -> str:
    text = "".join(sign if sign.isprintable() else " " for sign in text)
    path, in_key = "$", False
    # a hook's own error carries its own place, before the one of the value it was given
    while found := _PLACE.search(text):
        path = f"{path}{found[2][1:]}"
        in_key = in_key or found[1] is not None
        text = text[: found.start()]
    label = f"{_label(path, whole, positions)}{' (key)' if in_key else ''}"
    text = _with_choices(text[:_TEXT_LIMIT], hint, path)
    return f"{_sentence(text, label)} - at `{path}`"


def _with_choices(text: str, hint: Any, path: str) -> str:
    if not text.startswith(_NO_CHOICE):
        return text
    choices = allowed_values(hint, path)[:_KNOWN_NAMED]
    given = text[len(_NO_CHOICE) :]
    return f"Expected one of {', '.join(map(repr, choices))}, got {given}" if choices else text


def _sentence(text: str, label: str) -> str:
    for start, sentence in _SENTENCES.items():
        if text.startswith(start):
            return sentence.format(label=label, rest=text[len(start) :])
    return f"`{label}`: {text[:1].lower()}{text[1:]}"


def _label(path: str, whole: str, positions: Sequence[str]) -> str:
    name = path.replace(_ANY_KEY, "[*]").rpartition(".")[2].replace("[*]", _ANY_KEY)
    if not name.startswith("$"):
        return name
    index, _, rest = name[2:].partition("]")
    if index.isdigit() and int(index) < len(positions):
        return f"{positions[int(index)]}{rest}"
    return f"{whole}{name[1:]}"


def _nearest_first(name: str, known: Iterable[str]) -> list[str]:
    import difflib

    def unlikeness(candidate: str) -> float:
        return -difflib.SequenceMatcher(None, name.lower(), candidate.lower()).ratio()

    return sorted(known, key=unlikeness)


def _shown(name: str) -> str:
    """A key as a caller sent it, made safe for one line of a log."""
    name = name if name.isprintable() else repr(name)[1:-1]
    return f"{name[:_KEY_LIMIT]}…" if len(name) > _KEY_LIMIT else name


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _readable_text(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_TEXT_LIMIT]
    except Exception:  # noqa: BLE001 - the text of a user's exception may raise; the answer must not be lost for it
        return type(error).__name__
