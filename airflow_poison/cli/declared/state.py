"""Commands that change what a queue does."""

from __future__ import annotations

from typing import Final

from airflow_poison.cli.declared.argument import QUEUE, SAVE, SET, WHERE, YES, Argument, Command, option

DECISIONS: Final = ("end", "remove", "return", "enable", "leave")
READERS: Final = ("main", "poison", "any")

ENABLE: Final = Command(
    name="enable",
    help="Let a halted queue receive again",
    description="Enable a disabled, stopped or faulted queue; what was sent to it while it was disabled arrives. Exit code 0: it is enabled, 2: not.",
    function="airflow_poison.cli.changes.enable",
    arguments=(QUEUE, *WHERE),
)

DISABLE: Final = Command(
    name="disable",
    help="Set a queue to OFF",
    description="Disable a queue: no pass begins, and what is sent to it waits. A pass that runs finishes. Exit code 0: it is disabled, 2: not.",
    function="airflow_poison.cli.changes.disable",
    arguments=(QUEUE, option("--reason", "TEXT", "why; whoever meets the disabled queue is told"), *WHERE),
)

ALTER: Final = Command(
    name="alter",
    help="Change settings that are recorded in a queue",
    description="Change settings; they hold when an endpoint opens next. A DAG that declares a policy records its own again at its next run. "
    "Exit code 0: they hold, 2: nothing was changed.",
    function="airflow_poison.cli.changes.alter",
    arguments=(
        QUEUE,
        SET,
        option(
            "--system",
            "SYSTEM",
            "another messaging system; settings that are not given have its defaults (default: the queue's)",
            completes="systems",
        ),
        *WHERE,
    ),
)

RESTART: Final = Command(
    name="restart",
    help="Restart a queue's endpoint, its application server or its broker",
    description="Take from a queue what its system loses in a restart. Exit code 0: done, 2: it could not be done.",
    function="airflow_poison.cli.changes.restart",
    arguments=(
        QUEUE,
        Argument(("what",), {"metavar": "WHAT", "help": "endpoint, server or broker"}, ("endpoint", "server", "broker")),
        *WHERE,
    ),
)

DECIDE: Final = Command(
    name="decide",
    help="Say what becomes of a halted queue",
    description="Without QUEUE, list the halted queues of a store; without DECISION, show what halted one and what can be decided; else do it: "
    "what concerns the message and the queue, in the safe order. What is removed is kept. "
    "Exit code 0: shown or done, 1: nothing is halted, or not so any more, 2: it could not be done.",
    function="airflow_poison.cli.decisions.decide",
    arguments=(
        Argument(("queue",), {"metavar": "QUEUE", "nargs": "?", "help": "the queue (default: list all halted ones)"}, "queues"),
        Argument(("decision",), {"metavar": "DECISION", "nargs": "?", "help": f"{', '.join(DECISIONS)} (default: show)"}, DECISIONS),
        option("--sub-queue", "PLACE", "main, poison (the reader of the poison sub-queue) or any (default: any)", completes=READERS, default="any"),
        option("--lookup-id", "ID", "decide only while this message is what halted the queue"),
        option("--to-queue", "QUEUE", "an existing queue in which a removed message is kept (default: the poison sub-queue)", completes="queues"),
        option("--error", "N", "with end: the code that the partner is told (default: 127)"),
        option("--description", "TEXT", "with end: what the partner reads (default: Unable to process message.)"),
        *WHERE,
    ),
)

RECOVER: Final = Command(
    name="recover",
    help="Remove the message that halted a queue, and enable the queue",
    description="Print or save the message that halted the queue, with its conversation; remove it, then enable the queue. "
    "Asks first on a terminal. Exit code 0: done, 1: no message halted it, or not wanted, 2: it could not be done.",
    function="airflow_poison.cli.removal.recover",
    arguments=(QUEUE, option("--lookup-id", "ID", "another message than the one that halted the queue"), SAVE, YES, *WHERE),
)

MAINTAIN: Final = Command(
    name="maintain",
    help="Keep a queue's folder small and its log short",
    description="Join small files, remove what nobody needs any more, shorten the log; nobody has to stop for it. "
    "Exit code 0: done, 2: it could not be done.",
    function="airflow_poison.cli.changes.maintain",
    arguments=(QUEUE, option("--retention", "DURATION", "how long older versions of the table can still be read (default: 7d)"), *WHERE),
)
