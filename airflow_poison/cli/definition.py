"""The commands as Airflow takes them. Named in the provider's description, and imported by Airflow's command line only."""

from __future__ import annotations

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command

from airflow_poison.cli.commands import COMMANDS, GROUP, HELP, Command


def get_poison_cli_commands() -> list[GroupCommand]:
    """Return the group ``airflow poison``."""
    return [GroupCommand(name=GROUP, help=HELP, subcommands=[_action(command) for command in COMMANDS])]


def _action(command: Command) -> ActionCommand:
    return ActionCommand(
        name=command.name,
        help=command.help,
        description=command.description,
        func=lazy_load_command(command.function),
        args=[Arg(argument.flags, **argument.options) for argument in command.arguments],  # type: ignore[no-untyped-call]  # Airflow's
    )
