"""The same commands without Airflow: ``python -m airflow_poison``."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from airflow_poison.cli.commands import COMMANDS
from airflow_poison.cli.completion import completes

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say it in one line, and where help is."""
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    whole = _Parser(prog="python -m airflow_poison", description="Poison messages, without Airflow.")
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        one = commands.add_parser(command.name, help=command.help, description=command.description)
        for argument in command.arguments:
            completes(one.add_argument(*argument.flags, **argument.options), argument)
        one.set_defaults(function=command.function)
    return whole


def main(given: Sequence[str] | None = None) -> None:
    """Run a command. Raises SystemExit with 1 for a negative answer, and with 2 for an error of the user."""
    commands = parser()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(commands)
    args = commands.parse_args(sys.argv[1:] if given is None else given)
    logging.basicConfig(format="%(message)s")  # on standard error; a root that has handlers keeps them
    logging.getLogger("airflow_poison").setLevel(logging.INFO)
    module, _, function = args.function.rpartition(".")
    getattr(import_module(module), function)(args)
