"""The kinds of value a setting can have: how each is read from text, checked, and written as text.

A `str` is read the same way wherever it comes from (environment, option, keyword, file), so
`Worker(concurrency=os.environ["SLOTS"])` and `KIWI_CONCURRENCY` mean the same. Any other value must have
the right type already.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from .secret import MaskedUrl, Secret

__all__ = [
    "Choice",
    "Flag",
    "HostName",
    "InputFile",
    "IpAddress",
    "IpNetwork",
    "Kind",
    "ListOf",
    "Misfit",
    "OutputFile",
    "Path",
    "Port",
    "Seconds",
    "SecretText",
    "Text",
    "TextMap",
    "Url",
    "Whole",
]

T = TypeVar("T")

LONGEST_SECONDS = 2_000_000
"""The longest time any setting may name: sockets and `select` count milliseconds in 31 bits."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_TOKEN = re.compile(r"[!-~]+")


class Misfit(ValueError):
    """A value is not of its kind; the text says why. Whoever knows the key turns it into a SettingsError."""


def quoted(value: object) -> str:
    """The value as an error may show it: short, on one line."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


class Kind(Generic[T]):
    """What values a setting takes.

    Attributes:
        noun: what the reference calls such a value.
        metavar: how the command line's help shows it.
        empty_is_unset: an empty environment variable counts as one that is not there.
    """

    noun = "text"
    metavar = "TEXT"
    empty_is_unset = True

    def convert(self, value: object) -> T:
        """The value as this kind holds it, or Misfit."""
        return self.read(value) if isinstance(value, str) else self.check(value)

    def read(self, text: str) -> T:
        """Reads the value from text."""
        raise NotImplementedError

    def check(self, value: object) -> T:
        """Checks a value that is no text."""
        raise Misfit(f"{quoted(value)} is no {self.noun}")

    def write(self, value: Any) -> str:
        """The text from which `read` makes this value again."""
        return str(value)


def encodable(text: str) -> bool:
    """Whether the text can be sent as UTF-8; undecodable bytes of the environment cannot."""
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


class Text(Kind[str]):
    """Text on one line, without surrounding white space, never empty."""

    utf8_only = True

    def __init__(self, longest: int = 4096) -> None:
        self.longest = longest

    def read(self, text: str) -> str:
        text = text.strip()
        if not text:
            raise Misfit("is empty")
        if _CONTROL.search(text):
            raise Misfit("holds a line break or another control character")
        if len(text) > self.longest:
            raise Misfit(f"is longer than {self.longest} characters")
        if self.utf8_only and not encodable(text):
            raise Misfit("is not UTF-8 text")
        return text


class HostName(Text):
    """A host name or an IP address to bind."""

    noun = "host"
    metavar = "HOST"

    def read(self, text: str) -> str:
        host = super().read(text).removeprefix("[").removesuffix("]")
        if re.search(r"[\s/]", host):
            raise Misfit(f"{quoted(host)} is no host name and no IP address")
        return host


class IpAddress(Text):
    """An IPv4 or IPv6 address."""

    noun = "IP address"
    metavar = "IP"

    def read(self, text: str) -> str:
        from ipaddress import ip_address

        host = super().read(text).removeprefix("[").removesuffix("]")
        try:
            return str(ip_address(host))
        except ValueError:
            raise Misfit(f"{quoted(host)} is no IP address") from None


class IpNetwork(Text):
    """An IP address, or a network like `10.0.0.0/8`."""

    noun = "IP address or network"
    metavar = "IP[/BITS]"

    def read(self, text: str) -> str:
        from ipaddress import ip_network

        text = super().read(text)
        try:
            ip_network(text, strict=False)
        except ValueError:
            raise Misfit(f"{quoted(text)} is no IP address and no network like 10.0.0.0/8") from None
        return text


class Path(Text):
    """A path of the file system; `~` stands for the home folder."""

    noun = "path"
    metavar = "PATH"
    utf8_only = False  # A file system may hold names that are no UTF-8; Python hands them through.

    def read(self, text: str) -> str:
        return os.path.expanduser(super().read(text))

    def check(self, value: object) -> str:
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        return self.read(path) if isinstance(path, str) else super().check(value)

    def problem(self, path: str) -> str | None:
        """Why the path cannot be used as it stands in the file system now, or None."""
        return None


class InputFile(Path):
    """The path of a file that is read; `words` are said in place of a path."""

    metavar = "FILE"

    def __init__(self, *words: str) -> None:
        super().__init__()
        self.words = words

    def problem(self, path: str) -> str | None:
        if path in self.words:
            return None
        try:
            with open(path, "rb") as file:
                file.read(1)
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        return None


class OutputFile(Path):
    """The path of a file that is written."""

    metavar = "FILE"

    def problem(self, path: str) -> str | None:
        folder = os.path.dirname(path) or os.curdir
        return None if os.access(folder, os.W_OK) else f"{folder} is no folder that can be written to"


class Url(Text):
    """An address with a scheme and a host. Errors never show it, since it may carry a password.

    Args:
        schemes: those it may begin with.
        query: whether it may hold a query and a fragment.
        user: whether it may hold a user name and password.
    """

    noun = "address"
    metavar = "URL"

    def __init__(self, *schemes: str, query: bool = False, user: bool = False) -> None:
        super().__init__()
        self.schemes = schemes
        self.query = query
        self.user = user

    def read(self, text: str) -> str:
        text = super().read(text)
        scheme, mark, rest = text.partition("://")
        text = scheme.lower() + mark + rest
        if not mark or scheme.lower() not in self.schemes:
            raise Misfit(f"is no address that begins with {' or '.join(s + '://' for s in self.schemes)}")
        if not self._well_formed(text):
            raise Misfit(f"is no address like {self.schemes[0]}://host:port")
        if not self.user and "@" in text.partition("://")[2].partition("/")[0]:
            raise Misfit("must not hold a user name or password")
        return MaskedUrl(text)

    def _well_formed(self, text: str) -> bool:
        from urllib.parse import urlsplit

        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            return False
        clean = not re.search(r"[\s\\]", text) and (self.query or not re.search(r"[?#]", text))
        return clean and bool(parts.hostname) and port != 0


class Choice(Text):
    """One of a few words, in any case."""

    noun = "word"

    def __init__(self, *choices: str) -> None:
        super().__init__()
        self.choices = choices
        self.metavar = "|".join(choices)

    def read(self, text: str) -> str:
        word = super().read(text).lower()
        if word not in self.choices:
            raise Misfit(f"{quoted(text)} is none of {', '.join(self.choices)}")
        return word


class Flag(Kind[bool]):
    """True or false. An empty variable is an error: nobody can tell which one was meant."""

    noun = "true or false"
    metavar = "true|false"
    empty_is_unset = False
    words = {
        **dict.fromkeys(("true", "1", "yes", "on"), True),
        **dict.fromkeys(("false", "0", "no", "off"), False),
    }

    def read(self, text: str) -> bool:
        try:
            return self.words[text.strip().lower()]
        except KeyError:
            raise Misfit(f"{quoted(text)} is neither true (1, yes, on) nor false (0, no, off)") from None

    def check(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise Misfit(f"{quoted(value)} is neither true nor false")
        return value

    def write(self, value: bool) -> str:
        return "true" if value else "false"


class Whole(Kind[int]):
    """A whole number within bounds."""

    noun = "whole number"
    metavar = "N"

    def __init__(self, minimum: int = 0, maximum: int = 2**53) -> None:
        self.minimum = minimum
        self.maximum = maximum

    def read(self, text: str) -> int:
        if not _WHOLE.fullmatch(text.strip()):
            raise Misfit(f"{quoted(text)} is no {self.noun}")
        return self.check(int(text))

    def check(self, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Misfit(f"{quoted(value)} is no {self.noun}")
        return within(value, self.minimum, self.maximum)


class Port(Whole):
    """A port number; 0, where it is allowed, means any free one."""

    noun = "port"
    metavar = "PORT"

    def __init__(self, minimum: int = 0) -> None:
        super().__init__(minimum, 65535)


class Seconds(Kind[float]):
    """A time in seconds, as a plain number; whole numbers stay whole."""

    noun = "number of seconds"
    metavar = "SECONDS"

    def __init__(self, minimum: float = 0, maximum: float = LONGEST_SECONDS) -> None:
        self.minimum = minimum
        self.maximum = maximum

    def read(self, text: str) -> float:
        stripped = text.strip()
        if not _DECIMAL.fullmatch(stripped):
            raise Misfit(f"{quoted(text)} is no {self.noun}; seconds are plain numbers, like 10 or 0.5")
        return self.check(int(stripped) if _WHOLE.fullmatch(stripped) else float(stripped))

    def check(self, value: object) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value != value:
            raise Misfit(f"{quoted(value)} is no {self.noun}; seconds are plain numbers, like 10 or 0.5")
        return within(value, self.minimum, self.maximum)


N = TypeVar("N", int, float)


def within(value: N, minimum: N, maximum: N) -> N:
    """The value when it is within its bounds, else Misfit."""
    if value < minimum:
        raise Misfit(f"{value} is below {minimum}")
    if value > maximum:
        raise Misfit(f"{value} is above {maximum}")
    return value


class ListOf(Kind[tuple[T, ...]]):
    """Several values: a list, or text that is a JSON array or comma-separated."""

    def __init__(self, item: Kind[T], *, fewest: int = 0) -> None:
        self.item = item
        self.fewest = fewest
        self.noun = f"list of {item.noun}s"
        self.metavar = item.metavar + ",..."

    def read(self, text: str) -> tuple[T, ...]:
        if text.lstrip().startswith("["):
            return self.check(parsed_json(text, "[...]"))
        return self.check([part for part in text.split(",") if part.strip()])

    def check(self, value: object) -> tuple[T, ...]:
        if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
            raise Misfit(f"is no {self.noun}")
        items = tuple(self.item.convert(item) for item in value)
        if len(items) < self.fewest:
            raise Misfit("is empty")
        return items

    def write(self, value: tuple[T, ...]) -> str:
        texts = [self.item.write(item) for item in value]
        plain = texts and not any("," in text or text.startswith("[") for text in texts)
        return ",".join(texts) if plain else as_json(texts)


class TextMap(Kind[Mapping[str, str]]):
    """Names and texts: a mapping, or a JSON object as text."""

    noun = "JSON object of texts"
    metavar = "JSON"

    def read(self, text: str) -> Mapping[str, str]:
        return self.check(parsed_json(text, '{"name": "text"}'))

    def check(self, value: object) -> Mapping[str, str]:
        if not isinstance(value, Mapping):
            raise Misfit(f'is no {self.noun}, like {{"name": "text"}}')
        for name, text in value.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise Misfit(f"the value of {quoted(name)} is no text")
        return dict(value)

    def write(self, value: Mapping[str, str]) -> str:
        return as_json(dict(value))


def parsed_json(text: str, example: str) -> object:
    """The JSON value in the text, or Misfit."""
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Misfit(f"is no JSON like {example}") from None


def as_json(value: object) -> str:
    """The value as JSON text."""
    import json

    return json.dumps(value)


class SecretText(Kind[Secret]):
    """A secret. White space in it is kept, and nothing ever shows it.

    Args:
        header: it is sent in a header, so only visible ASCII characters can be in it.
    """

    noun = "secret"
    metavar = "SECRET"

    def __init__(self, *, header: bool = False) -> None:
        self.header = header

    def read(self, text: str) -> Secret:
        return self._accept(Secret(text))

    def check(self, value: object) -> Secret:
        if not isinstance(value, Secret):
            raise Misfit(f"is no text but {type(value).__name__}")
        return self._accept(value)

    def _accept(self, secret: Secret) -> Secret:
        if not secret.reveal():
            raise Misfit("is empty")
        if self.header and not _TOKEN.fullmatch(secret.reveal()):
            raise Misfit("holds white space or a character that no header may carry")
        if not encodable(secret.reveal()):
            raise Misfit("is not UTF-8 text")
        return secret

    def write(self, value: Secret) -> str:
        return value.reveal()
