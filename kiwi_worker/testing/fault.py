"""What a fault is."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from kiwi_worker.testing.exchange import Exchange

__all__ = [
    "Fault",
    "Moment",
]

Moment = Literal["before", "after"]
"""`before`: the server has done nothing yet. `after`: the work is done, its answer is not out."""


class Fault:
    """One way a call goes wrong. Subclass it, frozen, to make your own.

    Attributes:
        moments: when it can strike: `before` the server acted, `after`, or both; the first is the default.
        calls: the names of the only calls it can strike; empty for any.
    """

    moments: ClassVar[tuple[Moment, ...]] = ("before", "after")
    calls: ClassVar[frozenset[str]] = frozenset()

    def strike(self, exchange: Exchange) -> None:
        """Answer this exchange wrongly. What it does not send is not sent.

        Raises:
            OSError: the client is gone.
        """
        raise NotImplementedError
