"""Which call goes wrong next: faults armed on call names and paths, by count or by chance."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from kiwi_worker.testing.calls import Call
from kiwi_worker.testing.faults import Fault, Moment

__all__ = ["ArmedFault", "FaultSchedule", "Times"]

Times = int | Literal["always"] | None


@dataclass(eq=False)
class ArmedFault:
    """A fault waiting for its calls.

    Attributes:
        target: a call name, a path pattern (`/worker/lock_request/*`), or `*` for every call.
        fault: what will happen.
        moment: `before` or `after` the server acted.
        left: how often it will still strike; None for no limit.
        probability: the chance that it strikes a call it fits; None for certainty.
        idle_too: whether it also strikes a drain or poll that hands out nothing.
        struck: how often it has struck.
    """

    target: str
    fault: Fault
    moment: Moment
    left: int | None
    probability: float | None
    idle_too: bool
    struck: int = 0
    _where: Callable[[Call], bool] | None = field(default=None, repr=False)

    def fits(self, call: Call, moment: Moment, idle: bool) -> bool:
        """Whether it could strike this call now."""
        return (
            self.moment == moment
            and self.left != 0
            and (self.idle_too or not idle)
            and (not self.fault.calls or call.name in self.fault.calls)
            and self._is_target(call)
            and (self._where is None or self._where(call))
        )

    def disarm(self) -> None:
        """Let it strike no more."""
        self.left = 0

    def _is_target(self, call: Call) -> bool:
        return self.target in ("*", call.name) or (
            self.target.startswith("/") and fnmatchcase(call.path, self.target)
        )


class FaultSchedule:
    """The armed faults of one server, in the order they were armed; a call meets at most one.

    Args:
        changed: the server's condition, notified when a fault strikes.
        names: the call names that can be targets.
        seed: makes chance repeatable; None for real chance.
    """

    def __init__(self, changed: threading.Condition, names: frozenset[str], seed: int | None) -> None:
        self._changed = changed
        self._names = names
        self._random = random.Random(seed)
        self._armed: list[ArmedFault] = []

    def arm(
        self,
        target: str,
        fault: Fault,
        *,
        times: Times = None,
        probability: float | None = None,
        after: bool | None = None,
        idle_too: bool = False,
        where: Callable[[Call], bool] | None = None,
    ) -> ArmedFault:
        """Arm a fault; see `MisbehavingServer.fault`.

        Raises:
            ValueError: the target, the moment, the count or the probability makes no sense.
        """
        self._check_target(target, fault)
        moment = _moment(fault, after)
        armed = ArmedFault(target, fault, moment, _limit(times, probability), probability, idle_too, 0, where)
        with self._changed:
            self._armed.append(armed)
        return armed

    def take(self, call: Call, moment: Moment, *, idle: bool = False) -> ArmedFault | None:
        """The fault that strikes this call at this moment, counted as struck, or None."""
        with self._changed:
            for armed in self._armed:
                if armed.fits(call, moment, idle) and self._by_chance(armed):
                    return self._strike(armed)
            return None

    def clear(self) -> None:
        """Disarm everything."""
        with self._changed:
            for armed in self._armed:
                armed.disarm()
            self._armed.clear()

    def all(self) -> list[ArmedFault]:
        """What is armed now, in order."""
        with self._changed:
            return [armed for armed in self._armed if armed.left != 0]

    def _by_chance(self, armed: ArmedFault) -> bool:
        return armed.probability is None or self._random.random() < armed.probability

    def _strike(self, armed: ArmedFault) -> ArmedFault:
        armed.struck += 1
        if armed.left is not None:
            armed.left -= 1
        self._changed.notify_all()
        return armed

    def _check_target(self, target: str, fault: Fault) -> None:
        if fault.calls and target in self._names - fault.calls:
            raise ValueError(f"{type(fault).__name__} strikes only {', '.join(sorted(fault.calls))}")
        if target != "*" and not target.startswith("/") and target not in self._names:
            names = ", ".join(sorted(self._names))
            raise ValueError(f"no call is named {target!r}: use one of {names}, a /path/pattern, or *")


def _moment(fault: Fault, after: bool | None) -> Moment:
    if after is None:
        return fault.moments[0]
    moment: Moment = "after" if after else "before"
    if moment not in fault.moments:
        name, known = type(fault).__name__, fault.moments[0]
        raise ValueError(f"{name} cannot strike {moment} the server acted, only {known}")
    return moment


def _limit(times: Times, probability: float | None) -> int | None:
    if probability is not None and not 0 <= probability <= 1:
        raise ValueError(f"the probability {probability} is not between 0 and 1")
    if times is None:
        return 1 if probability is None else None
    if times == "always":
        return None
    if times < 1:
        raise ValueError(f"times is {times}: use 1 or more, or 'always'")
    return times
