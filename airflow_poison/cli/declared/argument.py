"""What a command and its arguments are, and the arguments that many commands have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument, as ``argparse`` takes it. Values are texts: the command checks them, so that an error is one line.

    :param completes: what the shell completes: words, or the name of a function of ``cli.completion``.
    """

    flags: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    completes: tuple[str, ...] | str = ()


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    :param function: import path of the function that runs it; imported when it runs.
    """

    name: str
    help: str
    description: str
    function: str
    arguments: tuple[Argument, ...]


def option(flag: str, value: str, text: str, *, completes: tuple[str, ...] | str = (), default: str | None = None) -> Argument:
    """Return an option with one value."""
    return Argument((flag,), {"metavar": value, "help": text} | ({} if default is None else {"default": default}), completes)


def several(flag: str, value: str, text: str, completes: tuple[str, ...] | str = ()) -> Argument:
    """Return an option that takes several values and may be repeated."""
    return Argument((flag,), {"metavar": value, "nargs": "+", "action": "extend", "help": text}, completes)


def switch(flag: str, text: str) -> Argument:
    """Return an option without a value."""
    return Argument((flag,), {"action": "store_true", "help": text})


PLACES: Final = ("main", "retry", "poison", "postponed", "transmission")

OUTPUT: Final = Argument(
    ("-o", "--output"),
    {"metavar": "(table, json)", "default": "table", "help": "output format: table or json (default: table)"},
    ("table", "json"),
)
STORE: Final = option("--store", "URI", "root of the store: a folder, or a file:// URI")
CONN_ID: Final = option("--conn-id", "ID", "connection that names the store (default: poison_default)")
QUEUE: Final = Argument(("queue",), {"metavar": "QUEUE", "help": "the queue"}, "queues")
QUEUES: Final = Argument(("queue",), {"metavar": "QUEUE", "nargs": "*", "help": "the queues (default: all of the store)"}, "queues")
WHERE: Final = (STORE, CONN_ID, OUTPUT)
"""What every command on queues takes."""

SET: Final = several("--set", "NAME=VALUE", "settings, in our words or the manual's: ReceiveRetryCount=2 retry_cycle_delay=1h30m", "settings")
POLICY_JSON: Final = option("--policy-json", "FILE", "settings as a JSON object; - reads standard input; --set overrides them")
SYSTEM: Final = option(
    "--system", "SYSTEM", "the messaging system whose rules the queue gets; makes the queue when it is missing", completes="systems"
)
POLICY: Final = (SYSTEM, SET, POLICY_JSON)
"""What gives a queue its policy; without any of it the recorded one rules."""

YES: Final = switch("--yes", "do not ask")
SAVE: Final = option("--save", "FILE", "write the whole messages into this new file first, as JSON lines; 'send --format saved' reads them")
