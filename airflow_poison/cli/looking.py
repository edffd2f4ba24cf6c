"""``airflow poison list``, ``show``, ``inspect`` and ``history``: what is in queues, and what has happened to it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from airflow_poison.cli import queue_tables, values
from airflow_poison.cli.declared.argument import PLACES
from airflow_poison.cli.each_queue import end_with, looked_for
from airflow_poison.cli.stores import opened_store, queue_to_read
from airflow_poison.cli.telling import NO, check_output, command, say
from airflow_poison.core.clock import SystemClock
from airflow_poison.core.errors import InputError, QueueHaltedError
from airflow_poison.core.events import EventType
from airflow_poison.core.passes import browse as verbs
from airflow_poison.core.passes.messages import Chosen
from airflow_poison.core.policies.settings import LARGEST
from airflow_poison.core.schema import SubQueue

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from airflow_poison.core.passes.browse import MessageRow

_BODY = ("body", "body_encoding", "body_bytes", "body_cut")


@command
def list_queues(args: Namespace) -> None:
    """Print a line for each queue. Ends with exit code 1 when there is none; a queue that cannot be opened is an error behind the others."""
    output, store, clock = check_output(args.output), opened_store(args), SystemClock()
    found, failed = looked_for(store, args.queue, lambda table: [verbs.overview(table, clock)])
    if output == "json":
        write_json({"store": store.uri, "exists": not store.absence, "queues": [queue.to_dict() for queue in found], "errors": failed})
    elif found:
        queue_tables.print_queues(found)
    known = f"there is no queue yet: {store.absence}" if store.absence else f"there is no queue in {store.uri}"
    nothing = f"{known}. The first send to a queue makes it: send QUEUE BODY --system Msmq4"
    end_with(failed, found=bool(found), nothing="" if output == "json" else nothing)


@command
def show(args: Namespace) -> None:
    """Print a queue and messages of it. Ends with exit code 1 when it is halted, or when a message that was asked for is not there."""
    output, limit = check_output(args.output), values.limit(args.limit)
    wanted = values.lookup_ids([] if args.lookup_id is None else [args.lookup_id])
    places = [SubQueue(values.one_of("--sub-queue", each, PLACES)) for each in values.listed(args.sub_queue, PLACES)]
    if wanted and args.sub_queue:
        raise InputError("--lookup-id and --sub-queue: expected one of them; a message is looked for everywhere.")
    table = queue_to_read(args)
    queue = verbs.overview(table, SystemClock())
    more: Mapping[SubQueue, int] = {}
    if wanted:
        messages = verbs.look_up(table, Chosen.ids(wanted))
    elif limit != 0:
        browsed = verbs.browse(table, places, LARGEST if limit is None else limit, bodies=args.body)
        messages, more = browsed.messages, browsed.more
    else:
        messages = ()
    missing = sorted(set(wanted) - {message.lookup_id for message in messages})
    if output == "json":
        rows = [plain(message, body=args.body or bool(wanted)) for message in messages]
        write_json(queue.to_dict() | {"messages": rows, "more": {place.value: count for place, count in more.items()}, "missing": missing})
    else:
        queue_tables.print_queue(queue)
        if wanted:
            queue_tables.print_whole(table.name, messages, queue.at)
        else:
            queue_tables.print_messages(table.name, messages, more, queue.at, bodies=args.body)
    if missing:
        say("nothing", f"not in queue {table.name!r}: {', '.join(map(str, missing))}. Settled, moved or removed, or never sent.")
    if missing or queue.halted:
        raise SystemExit(NO)


@command
def inspect(args: Namespace) -> None:
    """Print what an inspection sees. Ends with exit code 1 when it sees nothing."""
    from airflow_poison.core.passes.inspect import inspect as look
    from airflow_poison.core.policies.recovery import NO_MESSAGE, Inspection

    output = check_output(args.output)
    number = None if args.lookup_id is None else values.whole("--lookup-id", args.lookup_id)
    mode = None if args.mode is None else values.one_of("--mode", args.mode, list(Inspection))
    if number is not None and args.conversation is not None:
        raise InputError("--lookup-id and --conversation: expected one of them.")
    clock = SystemClock()
    try:
        seen = look(queue_to_read(args), clock, lookup_id=number, conversation_id=args.conversation, mode=mode, every=args.every)
    except QueueHaltedError as error:
        raise QueueHaltedError(f"{error} Here that is --mode browse.") from error
    if output == "json":
        write_json(seen.to_dict())
    else:
        queue_tables.print_inspected(seen, clock.now())
    if not seen.messages:
        if output != "json":
            say("nothing", NO_MESSAGE)
        raise SystemExit(NO)


@command
def recorded_events(args: Namespace) -> None:
    """Print events. Ends with exit code 1 when there is none."""
    from airflow_poison.core.passes.history import recorded_events

    output, now = check_output(args.output), SystemClock().now()
    wanted = None if args.lookup_id is None else values.lookup_ids([args.lookup_id])
    kinds = [EventType(values.one_of("--type", each, list(EventType))) for each in values.listed(args.type, ())]
    since = None if args.since is None else values.since(args.since, now)
    limit = values.limit(args.limit, least=1)
    told = recorded_events(queue_to_read(args), lookup_ids=wanted, types=kinds or None, since=since, limit=limit)
    if output == "json":
        write_json(told.to_dict())
    elif told.events:
        queue_tables.print_events(told)
    else:
        say("nothing", f"no such event of queue {told.queue!r} is recorded.")
    if not told.events:
        raise SystemExit(NO)


def write_json(value: object) -> None:
    """Write one JSON value to standard output."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def plain(message: MessageRow, *, body: bool) -> dict[str, object]:
    """Return a message as JSON values."""
    whole = message.to_dict()
    return whole if body else {name: value for name, value in whole.items() if name not in _BODY}
