"""The commands as Airflow takes them. Named in the provider's description, and imported by Airflow's command line only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command

from airflow_poison.cli.commands import COMMANDS, GROUP, HELP, Argument, Command
from airflow_poison.cli.completion import completes

if TYPE_CHECKING:
    from argparse import ArgumentParser


def get_poison_cli_commands() -> list[GroupCommand]:
    """Return the group ``airflow poison``."""
    return [GroupCommand(name=GROUP, help=HELP, subcommands=[_action(command) for command in COMMANDS])]


def _action(command: Command) -> ActionCommand:
    return ActionCommand(
        name=command.name,
        help=command.help,
        description=command.description,
        func=lazy_load_command(command.function),
        args=[_Completed(argument) for argument in command.arguments],
    )


class _Completed(Arg):
    """An argument of Airflow's that says what the shell completes."""

    def __init__(self, argument: Argument) -> None:
        super().__init__(argument.flags, **argument.options)  # type: ignore[no-untyped-call]  # Airflow's
        self._argument = argument

    def add_to_parser(self, parser: ArgumentParser) -> None:
        """Add it; Airflow's own would not return the action that it has made."""
        completes(parser.add_argument(*self._argument.flags, **self._argument.options), self._argument)
