"""Commands that look at queues."""

from __future__ import annotations

from typing import Final

from airflow_poison.cli.declared.argument import PLACES, QUEUE, QUEUES, WHERE, Command, option, switch

LIST: Final = Command(
    name="list",
    help="List queues with their state and depths",
    description="List the queues of a store: state, messages in each sub-queue, the oldest message, what is due next, expired claims. "
    "Exit code 0: listed, 1: there is no queue, 2: it could not be listed.",
    function="airflow_poison.cli.looking.list_queues",
    arguments=(QUEUES, *WHERE),
)

SHOW: Final = Command(
    name="show",
    help="Show a queue and its messages",
    description="Show one queue: state and reason, settings, claims, depths, and its messages with their counts and last errors. "
    "Exit code 0: shown, and every endpoint receives, 1: one is halted, or a message that was asked for is not there, 2: it could not be shown.",
    function="airflow_poison.cli.looking.show",
    arguments=(
        QUEUE,
        option("--sub-queue", "PLACE,...", f"only messages of these: {', '.join(PLACES)}", completes=PLACES),
        option("--lookup-id", "ID,...", "these messages, whole, wherever they are"),
        option("--limit", "N", "so many messages of each sub-queue or all (default: 10; 0: none)", default="10"),
        switch("--body", "with the bodies, the first 64 KiB of each"),
        *WHERE,
    ),
)

INSPECT: Final = Command(
    name="inspect",
    help="Look at a suspect as a receive would see it, and roll back",
    description="Look at a message, at a conversation's next one, or at the suspect: what halted the queue, else its head. Nothing is changed, "
    "but that a strict inspection counts as a rollback. Exit code 0: shown, 1: no message is available, or the queue is halted, 2: it could not be.",
    function="airflow_poison.cli.looking.inspect",
    arguments=(
        QUEUE,
        option("--lookup-id", "ID", "the message"),
        option("--conversation", "ID", "the conversation, instead of a message"),
        option(
            "--mode",
            "MODE",
            "browse reads everything; exempt and strict see what a receive would get, and strict counts (default: as the queue's settings say)",
            completes=("browse", "exempt", "strict"),
        ),
        switch("--every", "all messages of the conversation, at most 100"),
        *WHERE,
    ),
)

HISTORY: Final = Command(
    name="history",
    help="Show what has happened to a queue and its messages",
    description="Show the recorded events as a timeline, the newest last. Exit code 0: shown, 1: there is no such event, 2: it could not be shown.",
    function="airflow_poison.cli.looking.history",
    arguments=(
        QUEUE,
        option("--lookup-id", "ID,...", "only events of these messages"),
        option("--type", "EVENT,...", "only events of these types, for example MOVED_POISON,queue-disabled", completes="events"),
        option("--since", "WHEN", "only events from then on: an instant (2013-01-01T12:00Z), or a duration before now (2h)"),
        option("--limit", "N", "at most so many, the newest; or all (default: 50)", default="50"),
        *WHERE,
    ),
)

CHECK: Final = Command(
    name="check",
    help="Check queue tables, and mend what needs no guess",
    description="Hold queue tables against what a store promises, over their whole history. Exit code 0: nothing is wrong, 1: something is, "
    "2: it could not be checked.",
    function="airflow_poison.cli.check.check",
    arguments=(
        QUEUES,
        switch("--repair", "mend first what can be mended without guessing"),
        switch("--accept", "with --repair: let what somebody else has committed to these queues stand"),
        switch("--accept-loss", "with --repair: let these queues go on without files and commits that are lost, and without their messages"),
        *WHERE,
    ),
)
