"""The commands and their arguments, once for both command lines. Airflow reads this at every command, so it imports nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP: Final = "poison"
HELP: Final = "Poison messages: what settings mean and do, and whether queues are sound"


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument, as ``argparse`` takes it. Values are texts: the command checks them, so that an error is one line."""

    flags: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


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


_SYSTEM: Final = Argument(("system",), {"metavar": "SYSTEM", "nargs": "?", "help": "the messaging system, for example Msmq4"})
_OUTPUT: Final = Argument(
    ("-o", "--output"), {"metavar": "(table, json)", "default": "table", "help": "output format: table or json (default: table)"}
)


def _several(flag: str, value: str, text: str) -> Argument:
    return Argument((flag,), {"metavar": value, "nargs": "+", "action": "extend", "help": text})


POLICIES: Final = Command(
    name="policies",
    help="List the messaging systems, or the settings of one",
    description="List the messaging systems whose rules a queue can have; with SYSTEM: its settings.",
    function="airflow_poison.cli.policies.policies",
    arguments=(_SYSTEM, _OUTPUT),
)

SIMULATE: Final = Command(
    name="simulate",
    help="Show what settings would do to messages",
    description="Play messages against the settings of a messaging system, on a virtual clock and with the rules that queues use.",
    function="airflow_poison.cli.simulate.simulate",
    arguments=(
        _SYSTEM,
        _several("--set", "NAME=VALUE", "settings, in our words or the manual's: ReceiveRetryCount=2 retry_cycle_delay=1h30m"),
        Argument(("--policy-json",), {"metavar": "FILE", "help": "settings as a JSON object; - reads standard input; --set overrides them"}),
        _several(
            "--message", "NAME=OUTCOMES", "messages, with the outcomes of their deliveries: 'a=rb*5 ok' (default: m=rb*, one that always fails)"
        ),
        _several("--at", "NAME=DURATION", "when messages arrive (default: at the start)"),
        _several("--action", "AT:VERB[:WHAT]", "what people do: 2h:enable, 30m:remove:a, 1h:alter:ReceiveRetryCount=2,MaxRetryCycles=0"),
        Argument(("--until",), {"metavar": "DURATION", "help": "stop the clock then (default: when nothing is left to happen)"}),
        Argument(("--most-receives",), {"metavar": "N", "default": "10000", "help": "stop an endless simulation after N receives (default: 10000)"}),
        _several("--access", "QUEUE=ACCESS", "queues that the endpoint cannot send to: missing or denied"),
        Argument(("--queue",), {"metavar": "NAME", "default": "orders", "help": "the queue's name (default: orders)"}),
        Argument(("--events",), {"action": "store_true", "help": "list every event but deliveries, commits and rollbacks"}),
        Argument(("--routine",), {"action": "store_true", "help": "list those events, too"}),
        _OUTPUT,
    ),
)

CHECK: Final = Command(
    name="check",
    help="Check queue tables, and mend what needs no guess",
    description="Hold queue tables against what a store promises, over their whole history. Exit code 0: nothing is wrong, 1: something is, "
    "2: it could not be checked.",
    function="airflow_poison.cli.check.check",
    arguments=(
        Argument(("queue",), {"metavar": "QUEUE", "nargs": "*", "help": "the queues (default: all of the store)"}),
        Argument(("--store",), {"metavar": "URI", "help": "root of the store: a folder, or a file:// URI"}),
        Argument(("--conn-id",), {"metavar": "ID", "help": "connection that names the store (default: poison_default)"}),
        Argument(("--repair",), {"action": "store_true", "help": "mend first what can be mended without guessing"}),
        Argument(("--accept",), {"action": "store_true", "help": "with --repair: let what somebody else has committed to these queues stand"}),
        _OUTPUT,
    ),
)

COMMANDS: Final = (POLICIES, SIMULATE, CHECK)
