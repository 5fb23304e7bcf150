"""What parent and child say to each other: JSON frames over a pipe, never pickled objects."""

from __future__ import annotations

from typing import Any

import msgspec

from kiwi_worker.engine.outcomes import Ending, Outcome

__all__ = ["Call", "Done", "Told", "decode_call", "decode_reply", "encode", "outcome_in"]


class Call(msgspec.Struct):
    """One call for the child."""

    key: str
    name: str
    params: msgspec.Raw
    run: int
    seconds_left: float | None


class Told(msgspec.Struct, tag="feedback"):
    """Feedback that the handler gave."""

    content: Any
    kind: int | None
    persist: bool


class Done(msgspec.Struct, tag="done"):
    """The outcome of the call."""

    ending: str
    result: msgspec.Raw
    text: str
    error_type: str
    answer: dict[str, Any] | None
    traceback: str

    @classmethod
    def of(cls, outcome: Outcome, traceback: str) -> Done:
        """The frame of an outcome."""
        answer = None if outcome.answer is None else dict(outcome.answer)
        result = msgspec.Raw(outcome.result if outcome.result is not None else b"null")
        return cls(outcome.ending.value, result, outcome.text, outcome.error_type, answer, traceback)


encode = msgspec.json.Encoder().encode
decode_call = msgspec.json.Decoder(Call).decode
decode_reply = msgspec.json.Decoder(Told | Done).decode


def outcome_in(done: Done) -> Outcome:
    """The outcome of a frame."""
    ending = Ending(done.ending)
    result = bytes(done.result) if ending is Ending.RETURNED else None
    return Outcome(ending, result, done.text, done.error_type, done.answer)
