"""What `run --check` prints: who would serve what, with which settings, and where those came from."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from kiwi_worker.methods import HandlerDefinition, HandlerOptions
from kiwi_worker.settings import Settings, settings_of
from kiwi_worker.worker import WorkerBase

__all__ = ["report_lines"]


def report_lines(worker: WorkerBase[Any]) -> Iterator[str]:
    """The lines about one worker; secrets are masked."""
    yield f"{type(worker).__name__} {worker.settings.worker_id}"
    definitions = [definition for _, definition in worker._definitions()]
    yield f"  serves {len(definitions)}{':' if definitions else ', so nothing: define a method'}"
    for definition in definitions:
        yield f"    {_signature(definition)}{_notes(definition)}"
    given = list(_given(worker.settings))
    yield f"  settings{':' if given else ': all at their defaults'}"
    yield from given


_MODULES = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])")
"""`typing.` in `typing.Any`: where a type comes from is of no interest here."""


class _AsWritten(str):
    """An annotation that was written as text, shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(definition: HandlerDefinition) -> str:
    signature = inspect.signature(definition.function)
    parameters = [
        parameter.replace(annotation=_as_written(parameter.annotation))
        for parameter in signature.parameters.values()
    ]
    shown = signature.replace(
        parameters=parameters, return_annotation=_as_written(signature.return_annotation)
    )
    name = definition.label.replace("`", "")
    return f"{name}{_MODULES.sub('', str(shown))}"


def _as_written(annotation: Any) -> Any:
    return _AsWritten(annotation) if isinstance(annotation, str) else annotation


def _notes(definition: HandlerDefinition) -> str:
    default = HandlerOptions()
    notes = ["async"] if definition.is_async else []
    for name in definition.options.__struct_fields__:
        value = getattr(definition.options, name)
        if value != getattr(default, name):
            notes.append(f"{name}={value}")
    return f"  [{', '.join(notes)}]" if notes else ""


def _given(settings: Settings) -> Iterator[str]:
    for setting in settings_of(type(settings)):
        source = settings.source_of(setting.key)
        if source != "default":
            value = getattr(settings, setting.key)
            yield f"    {setting.key} = {value!r}  ({source}: {settings.written_as(setting.key)})"
