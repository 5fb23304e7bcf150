"""The command `kiwi-worker`: a group whose commands are loaded when they are used."""

from __future__ import annotations

import click

from kiwi_worker._version import __version__

from .group import LazyGroup

__all__ = ["main"]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kiwi-worker")
def main() -> None:
    """Put ordinary Python functions behind a middleware.

    \b
    Write a module with a worker and its methods, then: kiwi-worker run MODULE
    See everything at work on this machine:             kiwi-worker demo
    """
