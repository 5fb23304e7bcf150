"""Finding the workers that `MODULE:ATTRIBUTE` names."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from importlib import import_module
from types import ModuleType
from typing import Any

from kiwi_worker.errors import DefinitionError, KiwiWorkerError
from kiwi_worker.worker import WorkerBase

from .group import one_line

__all__ = ["DEFAULT_ATTRIBUTE", "load_workers"]

DEFAULT_ATTRIBUTE = "worker"

Workers = tuple[WorkerBase[Any], ...]


def load_workers(target: str) -> Workers:
    """The worker at `MODULE:ATTRIBUTE` (`:worker` when left out), or the workers of a list or tuple there.

    Raises:
        DefinitionError: there is no such module or worker, or the module cannot be imported; the cause is
            what was raised in it.
        KiwiWorkerError: what the module itself raised of ours, such as a SettingsError.
    """
    module_name, _, attribute = target.partition(":")
    _refuse_file_names(module_name)
    _look_here_first()
    module = _imported(module_name)
    return _workers_of(module, attribute or DEFAULT_ATTRIBUTE)


def _refuse_file_names(name: str) -> None:
    if name.endswith(".py") or os.sep in name:
        dotted = name.removesuffix(".py").strip("./").replace(os.sep, ".")
        raise DefinitionError(f"{name} is a file: give the module's name, {dotted}")
    if not all(part.isidentifier() for part in name.split(".")):
        raise DefinitionError(f"{name!r} is no module name: give MODULE:ATTRIBUTE, such as shop.tasks:worker")


def _look_here_first() -> None:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except KiwiWorkerError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _failed(name, error) from error
        raise DefinitionError(
            f"there is no module {error.name}: check the name, and run from the folder that holds it, "
            "or install it"
        ) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> DefinitionError:
    text = one_line(error)
    return DefinitionError(
        f"importing {name} failed{_place_of(error)}: {type(error).__name__}{': ' if text else ''}{text}; "
        "see all of it with --traceback"
    )


def _place_of(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return ""  # its text names the place
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(frame.filename)]
    return f" at {os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""


def _is_own(file: str) -> bool:
    """Whether a file is likely the user's, neither an installed one nor Python's."""
    elsewhere = (sysconfig.get_path("stdlib"), os.path.dirname(__file__), "<")
    return "site-packages" not in file and not file.startswith(elsewhere)


def _workers_of(module: ModuleType, attribute: str) -> Workers:
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise DefinitionError(f"{module.__name__} has no attribute {attribute}; {_others(module)}")
        value = getattr(value, part)
    workers = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    wrong = [type(one).__name__ for one in workers if not isinstance(one, WorkerBase)]
    if wrong or not workers:
        what = wrong[0] if wrong else "empty"
        raise DefinitionError(
            f"{module.__name__}:{attribute} is no worker, nor a list of workers ({what}); {_others(module)}"
        )
    return workers


def _others(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, WorkerBase)]
    if not names:
        return "there is no worker in it: write `worker = Worker()`"
    return f"say {' or '.join(f'{module.__name__}:{name}' for name in names)}"
