"""The settings of a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..settings import Secret, Settings, setting
from ..settings.kinds import InputFile, Seconds, SecretText, Text, Url
from ..settings.secret import MaskedUrl

__all__ = ["ClientSettings"]


@dataclass(frozen=True, repr=False, kw_only=True)
class ClientSettings(Settings):
    """Where the bundled middleware is and as whom it is called, each setting from a `KIWI_*` variable."""

    credential: ClassVar[tuple[str, str] | None] = ("client_secret", "client_secret_file")

    middleware_url: str = setting(
        Url("http", "https"),
        "the base address of the middleware",
        default=MaskedUrl("http://127.0.0.1:8420"),
    )
    service_id: str | None = setting(Text(), "the service that is called")
    client_secret: Secret | None = setting(SecretText(), "the service's secret for callers")
    client_secret_file: str | None = setting(
        InputFile("-"), "the file that holds the service's secret for callers (-: standard input)"
    )
    client_id: str | None = setting(
        Text(200), "the name this caller goes by", shown_default="the service's name"
    )
    ca_file: str | None = setting(
        InputFile(), "the PEM file of the authorities that may sign the server's certificate"
    )
    client_cert: str | None = setting(
        InputFile(), "the PEM file of the certificate that is shown to the server"
    )
    client_key: str | None = setting(InputFile(), "the PEM file of that certificate's key")
    connect_timeout: float = setting(
        Seconds(0.001), "the time that opening a connection may take, in seconds", default=5
    )
    retry_limit: float = setting(
        Seconds(),
        "the time for which a request that did not get through is tried again, in seconds",
        default=10,
        note="One that may have got through is only repeated when that cannot call twice.",
    )
