"""Where a fresh process finds a worker and its handlers again.

Nothing is pickled: the process imports what defined them, as `multiprocessing` does with its start method
`spawn`, and looks them up by name. So decorated functions, bound methods and closures of a module work, and
locks or connections of the parent never come along.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from kiwi_worker.callables import globals_of
from kiwi_worker.context import Context
from kiwi_worker.errors import DefinitionError
from kiwi_worker.hooks import Hooks
from kiwi_worker.loading import loading
from kiwi_worker.methods import HandlerDefinition, HandlerRegistry
from kiwi_worker.settings import settings_of
from kiwi_worker.settings.command_line import command_line
from kiwi_worker.settings.secret import Secret

if TYPE_CHECKING:
    from kiwi_worker.worker import WorkerBase

__all__ = ["Loaded", "Origin", "Place", "load", "origin_of"]

MAIN = "__main__"
LOADED_MAIN = "__mp_main__"
"""The name of the main program in a fresh process, so that its `__main__` guard holds; multiprocessing's."""


class Place(NamedTuple):
    """A name in a module, and the index when it names a list or tuple."""

    module: str
    name: str
    at: int | None


class Origin(msgspec.Struct, array_like=True):
    """Where a worker is found, or at least its handlers.

    Attributes:
        places: where the worker is; when it has no name, where registries with its handlers are.
        context: module and name of the type of its contexts.
        modules: what has to be imported for all handlers and hooks to be there.
        main_module: the main program, when it is needed and was run as a module, else "".
        main_path: the same, when it was run as a file.
        options: settings that came from a command line or a file; no secrets.
    """

    places: list[Place]
    context: tuple[str, str]
    modules: list[str]
    main_module: str
    main_path: str
    options: dict[str, Any]


class Loaded(NamedTuple):
    """What a fresh process found."""

    definitions: dict[Any, HandlerDefinition]
    hooks: Hooks
    around: Sequence[Callable[[Any], Any]]
    context_type: type[Context]


def origin_of(worker: WorkerBase[Any]) -> Origin:
    """Where this worker is found.

    Raises:
        DefinitionError: it has no name in a module, or its program cannot be loaded once more.
    """
    places = list(itertools.islice(_places(lambda value: value is worker), 1)) or _registries(worker)
    homes = [place.module for place in places]
    modules = list(dict.fromkeys([*homes, *_homes(_functions(worker))]))
    main_module, main_path = _main_program() if MAIN in modules else ("", "")
    if MAIN in modules:
        modules.remove(MAIN)
    context = worker._context_type
    named = (context.__module__, context.__name__)
    return Origin(places, named, modules, main_module, main_path, _options(worker))


def _registries(worker: WorkerBase[Any]) -> list[Place]:
    wanted = [one for _, one in worker._definitions() if one.options.executor == "process"]
    places = [next(_places(partial(_holds, definition)), None) for definition in wanted]
    found = [place for place in places if place is not None]
    if len(found) < len(wanted) or worker._hooks.functions() or worker._around:
        raise DefinitionError(
            f'{worker!r} has handlers with executor="process", and fresh processes have to find it: bind it '
            "to a name at the top level of its module"
        )
    return list(dict.fromkeys(found))


def _holds(definition: HandlerDefinition, value: object) -> bool:
    return isinstance(value, HandlerRegistry) and value.get(definition.key) is definition


def _places(wanted: Callable[[Any], bool]) -> Iterator[Place]:
    # The main program comes last: what can be imported elsewhere is found without running it once more.
    modules = sorted(list(sys.modules.items()), key=lambda item: item[0] == MAIN)
    for name, module in modules:
        if name != LOADED_MAIN and (name == MAIN or getattr(module, "__spec__", None) is not None):
            for attribute, value in list(getattr(module, "__dict__", {}).items()):
                if wanted(value):
                    yield Place(name, attribute, None)
                elif type(value) in (list, tuple):
                    yield from (Place(name, attribute, at) for at, one in enumerate(value) if wanted(one))


def _functions(worker: WorkerBase[Any]) -> Iterator[Callable[..., Any]]:
    for _, definition in worker._definitions():
        if definition.options.executor == "process":
            yield definition.function
    yield from worker._hooks.functions()
    yield from worker._around


def _homes(functions: Iterable[Callable[..., Any]]) -> list[str]:
    names = [globals_of(function).get("__name__") for function in functions]
    return [name for name in names if isinstance(name, str) and name in sys.modules]


def _main_program() -> tuple[str, str]:
    main = sys.modules[MAIN]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != MAIN:
        return spec.name, ""
    path = getattr(main, "__file__", None)
    if path is None:
        raise DefinitionError(
            'methods with executor="process" cannot be defined in a notebook, at a prompt, or in a program '
            "that is no file: put them in a module"
        )
    return "", path


def _options(worker: WorkerBase[Any]) -> dict[str, Any]:
    settings = worker.settings
    return {
        setting.key: getattr(settings, setting.key)
        for setting in settings_of(type(settings))
        if settings.source_of(setting.key) in ("option", "file")
        and not isinstance(getattr(settings, setting.key), Secret)
    }


def load(origin: Origin) -> Loaded:
    """Import what defines the worker, and find it.

    Raises:
        DefinitionError: it is not there.
        BaseException: whatever its modules raise.
    """
    with command_line(origin.options, None):
        if origin.main_module or origin.main_path:
            _load_main(origin)
        for name in origin.modules:
            with loading():
                import_module(name)
    module, name = origin.context
    context_type: type[Context] = getattr(import_module(module), name)
    found = [_found(place) for place in origin.places]
    if isinstance(found[0], HandlerRegistry):
        definitions = {key: registry[key] for registry in found for key in registry}
        return Loaded(definitions, Hooks(), (), context_type)
    worker: WorkerBase[Any] = found[0]
    return Loaded(dict(worker._definitions()), worker._hooks, worker._around, context_type)


def _found(place: Place) -> Any:
    found: Any = getattr(sys.modules[place.module], place.name, None)
    if found is None:
        raise DefinitionError(
            f"{place.module} has no `{place.name}` in a fresh process: define it at the top level"
        )
    return found if place.at is None else found[place.at]


def _load_main(origin: Origin) -> None:
    if origin.main_module:
        module, run = _main_from_module(origin.main_module)
    else:
        module, run = _main_from_file(origin.main_path)
    sys.modules[MAIN] = sys.modules[LOADED_MAIN] = module
    with loading():
        run()


def _main_from_file(path: str) -> tuple[ModuleType, Callable[[], None]]:
    loader = SourceFileLoader(LOADED_MAIN, path)
    spec = spec_from_loader(LOADED_MAIN, loader, origin=path)
    assert spec is not None
    module = module_from_spec(spec)
    module.__file__ = path
    return module, lambda: loader.exec_module(module)


def _main_from_module(name: str) -> tuple[ModuleType, Callable[[], None]]:
    spec = find_spec(name)
    loader: Any = None if spec is None else spec.loader
    if spec is None or loader is None:
        raise DefinitionError(f"the main program {name} cannot be found in a fresh process")
    module = ModuleType(LOADED_MAIN)
    module.__file__, module.__package__, module.__spec__ = spec.origin, spec.parent, spec
    code = loader.get_code(name)
    return module, lambda: exec(code, module.__dict__)
