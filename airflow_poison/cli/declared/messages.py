"""Commands that move messages: in, through, between and out of queues."""

from __future__ import annotations

from typing import Final

from airflow_poison.cli.declared.argument import POLICY, QUEUE, SAVE, WHERE, YES, Argument, Command, option, several, switch

_FORMATS: Final = ("lines", "jsonl", "csv", "parquet", "saved")
_IDS: Final = Argument(("lookup_ids",), {"metavar": "ID", "nargs": "+", "help": "lookup ids of messages"})

SEND: Final = Command(
    name="send",
    help="Put messages into a queue",
    description="Send messages in one commit, all or none, without a JVM. Exit code 0: sent, or sent before with this key, 2: nothing was sent.",
    function="airflow_poison.cli.send.send",
    arguments=(
        QUEUE,
        Argument(("bodies",), {"metavar": "BODY", "nargs": "*", "help": "messages, one argument each"}),
        option("--file", "FILE", "send what is in this file, - reads standard input"),
        option(
            "--format", "FORMAT", "of the file: lines, jsonl, csv, parquet or saved (default: by the file's name, else lines)", completes=_FORMATS
        ),
        several(
            "--map",
            "PART=COLUMN",
            "which columns become which parts of a message: body=payload group=carrier priority=urgency properties=origin,dest message_id "
            "message_type conversation expires_after (default: the body is one JSON object of all columns)",
        ),
        option("--group", "GROUP", "group of every message"),
        option("--priority", "N", "priority of every message, 0 to 10 (default: 5)"),
        several("--property", "NAME=VALUE", "properties of every message"),
        option("--message-type", "TYPE", "type of every message"),
        option("--conversation", "ID", "conversation of every message"),
        option("--expires-after", "DURATION", "time to live of every message"),
        option("--send-key", "KEY", "names what is sent: a later send to the queue with the same key sends nothing"),
        switch("--resend", "send anew although the key was used before"),
        *POLICY,
        *WHERE,
    ),
)

RECEIVE: Final = Command(
    name="receive",
    help="Hand a queue's messages to a handler, once",
    description="Run one receive pass. Exit code 0: the pass has ended, 1: the queue is halted, 2: it could not be received; 130: interrupted, "
    "run it again.",
    function="airflow_poison.cli.receive.receive",
    arguments=(
        QUEUE,
        Argument(("--handler",), {"metavar": "MODULE:FUNCTION", "required": True, "help": "called with each message; raises to roll back"}),
        *POLICY,
        several(
            "--services", "MODULE:NAME", "services that receive from the queue, declared on it first: each a Service, or a list or tuple of them"
        ),
        option(
            "--engine",
            "ENGINE",
            "spark, or local: in this process, one message after the other, without a JVM (default: spark)",
            default="spark",
            completes=("spark", "local"),
        ),
        option("--spark", "MASTER", "where Spark runs (default: as the connection says, else local[*])"),
        option("--max-messages", "N", "how many messages the pass takes at most (default: 10000000; local: 100000)"),
        option(
            "--isolation",
            "WAY",
            "process: handlers run in supervised child processes; none: inline (default: process)",
            default="process",
            completes=("process", "none"),
        ),
        several("--unprocessable", "MODULE:TYPE", "exception types that go to the final disposition at once"),
        several("--py-files", "FILE", ".py, .zip, .egg and .whl files that Spark's executors import handlers from, and what those import"),
        option("--run-key", "KEY", "names the run: the next run with the same key finishes at once what this one leaves when it is killed"),
        *WHERE,
    ),
)

RETURN: Final = Command(
    name="return",
    help="End the retry cycle of what is due",
    description="Move every message whose retry delay is over from retry to main. Exit code 0: done, also when nothing was "
    "due, 2: it could not be done.",
    function="airflow_poison.cli.changes.return_due",
    arguments=(QUEUE, *WHERE),
)

MOVE: Final = Command(
    name="move",
    help="Move messages to another sub-queue or queue",
    description="Move messages, all or none: to main for another cycle, to poison, or into another queue. Exit code 0: moved, 1: one of them is not "
    "there, 2: it could not be done.",
    function="airflow_poison.cli.changes.move",
    arguments=(
        QUEUE,
        Argument(_IDS.flags, {**_IDS.options, "help": "lookup ids of messages, or the word all: what is in poison and not claimed goes to main"}),
        option(
            "--to", "PLACE", "main, poison, or origin: the queue that each message came from (default: main)", completes=("main", "poison", "origin")
        ),
        option("--to-queue", "QUEUE", "another queue, which must exist", completes="queues"),
        *WHERE,
    ),
)

REMOVE: Final = Command(
    name="remove",
    help="Take messages out of a queue for good",
    description="Print messages whole, or save them, then take them out of the queue, all or none. Asks first on a terminal. Exit code 0: removed, "
    "1: not there, or not wanted, 2: it could not be done.",
    function="airflow_poison.cli.removal.remove",
    arguments=(QUEUE, _IDS, switch("--conversation", "with all messages of the conversations that they belong to"), SAVE, YES, *WHERE),
)
