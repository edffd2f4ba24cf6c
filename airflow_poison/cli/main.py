"""All commands, and both command lines: ``python -m airflow_poison`` without Airflow, and ``airflow poison``."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, NoReturn

from airflow_poison.cli import changes, decisions, dialogs, plans, receive, send, settings, show
from airflow_poison.cli.command import CANNOT, open_streams, say
from airflow_poison.cli.values import completes

if TYPE_CHECKING:
    from airflow.cli.cli_config import GroupCommand

    from airflow_poison.cli.command import Argument

GROUP: Final = "poison"
HELP: Final = "Poison messages: queues and their messages, and what settings mean and do"
COMMANDS: Final = (
    show.list_queues,
    show.show,
    show.inspect,
    show.history,
    send.send,
    send.reset_position,
    receive.receive,
    changes.return_due,
    show.groups,
    show.find,
    show.query,
    show.plans,
    plans.put_back,
    plans.redrive,
    changes.move,
    changes.waiting_rows,
    plans.send_to,
    changes.send_to_kafka,
    decisions.remove,
    plans.edit,
    plans.pause,
    plans.resume,
    plans.cancel,
    plans.undo,
    dialogs.services,
    dialogs.event_notifications,
    dialogs.conversations,
    dialogs.begin_dialog,
    dialogs.send_on,
    dialogs.set_timer,
    decisions.end_conversation,
    changes.enable,
    changes.disable,
    changes.alter,
    changes.restart,
    decisions.decide,
    decisions.recover,
    settings.rules,
    changes.maintain,
    settings.mask,
    show.check,
    settings.policies,
    settings.simulate,
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say it in one line, and where help is."""
        say("error", f"{message}; see {self.prog} --help")
        self.exit(CANNOT)


@cache
def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands, which is made once."""
    whole = _Parser(prog="python -m airflow_poison", description="Poison messages, without Airflow.")
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        one = commands.add_parser(command.name, help=command.help, description=command.description)
        for argument in command.arguments:
            completes(one.add_argument(*argument.flags, **argument.options), argument)
        one.set_defaults(function=command)
    return whole


def main(given: Sequence[str] | None = None) -> None:
    """Run a command. Raises SystemExit with 1 for a negative answer, and with 2 for an error of the user."""
    open_streams()
    commands = parser()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(commands)
    words = sys.argv[1:] if given is None else given
    if words and words[0].startswith("-") and words[0] not in {"-h", "--help"}:
        commands.error(f"{words[0]} stands before the command: options come after it, for example list --store FOLDER")
    args = commands.parse_args(words)
    logging.basicConfig(format="%(message)s")  # on standard error; a root that has handlers keeps them
    logging.getLogger("airflow_poison").setLevel(logging.INFO)
    args.function(args)


def get_poison_cli_commands() -> list[GroupCommand]:
    """Return the group ``airflow poison``. Named in the provider's description; Airflow's command line calls it."""
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

    class Completed(Arg):
        """An argument of Airflow's that says what the shell completes; Airflow's own does not return the action that it has made."""

        def __init__(self, argument: Argument) -> None:
            super().__init__(argument.flags, **argument.options)  # type: ignore[no-untyped-call]  # Airflow's
            self.argument = argument

        def add_to_parser(self, parser: argparse.ArgumentParser) -> None:
            completes(parser.add_argument(*self.argument.flags, **self.argument.options), self.argument)

    actions = [
        ActionCommand(
            name=each.name, help=each.help, description=each.description, func=each, args=[Completed(argument) for argument in each.arguments]
        )
        for each in COMMANDS
    ]
    return [GroupCommand(name=GROUP, help=HELP, subcommands=actions)]
