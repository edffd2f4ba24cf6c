"""``airflow poison list``, ``show``, ``inspect`` and ``history``: what is in queues, and what has happened to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.cli import values
from airflow_poison.cli.command import NO, PLACES, QUEUE, QUEUES, WHERE, command, end_with_no, option, say, switch, wrong_usage
from airflow_poison.cli.stores import end_with, looked_for, opened_store, queue_to_read, system_clock
from airflow_poison.cli.terminal import write_json

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from airflow_poison.core.schema import SubQueue


@command("list", QUEUES, *WHERE)
def list_queues(args: Namespace) -> None:
    """List queues with their state and depths.

    List the queues of a store: state, messages in each sub-queue, the oldest message, what is due next, expired claims. Exit code 0: listed, 1: there
    is no queue, 2: it could not be listed.
    """
    from airflow_poison.cli import tables
    from airflow_poison.core.passes import browse as verbs

    store, clock = opened_store(args), system_clock()
    found, failed = looked_for(store, args.queue, lambda table: [verbs.overview(table, clock)])
    if args.output == "json":
        write_json({"store": store.uri, "exists": not store.absence, "queues": [queue.to_dict() for queue in found], "errors": failed})
    elif found:
        tables.print_queues(found)
    known = f"there is no queue yet: {store.absence}" if store.absence else f"there is no queue in {store.uri}"
    nothing = f"{known}. The first send to a queue makes it: send QUEUE BODY --system Msmq4"
    end_with(args.output, failed, found=bool(found), nothing=nothing)


@command(
    "show",
    QUEUE,
    option("--sub-queue", "PLACE,...", f"only messages of these: {', '.join(PLACES)}", completes=PLACES),
    option("--lookup-id", "ID,...", "these messages, whole, wherever they are"),
    option("--limit", "N", "so many messages of each sub-queue or all (default: 10; 0: none)", default="10"),
    switch("--body", "with the bodies, the first 64 KiB of each"),
    *WHERE,
)
def show(args: Namespace) -> None:
    """Show a queue and its messages.

    Show one queue: state and reason, settings, claims, depths, and its messages with their counts and last errors. Exit code 0: shown, and every
    endpoint receives, 1: one is halted, or a message that was asked for is not there, 2: it could not be shown.
    """
    from airflow_poison.cli import tables
    from airflow_poison.core.passes import browse as verbs
    from airflow_poison.core.passes.messages import Chosen
    from airflow_poison.core.policies.settings import LARGEST
    from airflow_poison.core.schema import SubQueue

    limit = values.limit(args.limit)
    wanted = values.lookup_ids([] if args.lookup_id is None else [args.lookup_id])
    places = [SubQueue(values.one_of("--sub-queue", each, PLACES)) for each in values.listed(args.sub_queue, PLACES)]
    if wanted and args.sub_queue:
        raise wrong_usage("--lookup-id and --sub-queue: expected one of them; a message is looked for everywhere.")
    table = queue_to_read(args)
    queue = verbs.overview(table, system_clock())
    more: Mapping[SubQueue, int] = {}
    if wanted:
        messages = verbs.look_up(table, Chosen.ids(wanted))
    elif limit != 0:
        browsed = verbs.browse(table, places, LARGEST if limit is None else limit, bodies=args.body)
        messages, more = browsed.messages, browsed.more
    else:
        messages = ()
    missing = sorted(set(wanted) - {message.lookup_id for message in messages})
    if args.output == "json":
        rows = [message.to_dict() if args.body or wanted else message.without_body() for message in messages]
        write_json(queue.to_dict() | {"messages": rows, "more": {place.value: count for place, count in more.items()}, "missing": missing})
    else:
        tables.print_queue(queue)
        if wanted:
            tables.print_whole(table.name, messages, queue.at)
        else:
            tables.print_messages(table.name, messages, more, queue.at, bodies=args.body)
    if missing:
        say("nothing", f"not in queue {table.name!r}: {', '.join(map(str, missing))}. Settled, moved or removed, or never sent.")
    if missing or queue.halted:
        raise SystemExit(NO)


@command(
    "inspect",
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
)
def inspect(args: Namespace) -> None:
    """Look at a suspect as a receive would see it, and roll back.

    Look at a message, at a conversation's next one, or at the suspect: what halted the queue, else its head. Nothing is changed, but that a strict
    inspection counts as a rollback. Exit code 0: shown, 1: no message is available, or the queue is halted, 2: it could not be.
    """
    from airflow_poison.cli import tables
    from airflow_poison.core.errors import QueueHaltedError
    from airflow_poison.core.passes.inspect import inspect as look
    from airflow_poison.core.policies.recovery import NO_MESSAGE, Inspection

    number = None if args.lookup_id is None else values.whole("--lookup-id", args.lookup_id)
    mode = None if args.mode is None else values.one_of("--mode", args.mode, list(Inspection))
    if number is not None and args.conversation is not None:
        raise wrong_usage("--lookup-id and --conversation: expected one of them.")
    clock = system_clock()
    try:
        seen = look(queue_to_read(args), clock, lookup_id=number, conversation_id=args.conversation, mode=mode, every=args.every)
    except QueueHaltedError as error:
        raise QueueHaltedError(f"{error} Here that is --mode browse.") from error
    if args.output == "json":
        write_json(seen.to_dict())
    else:
        tables.print_inspected(seen, clock.now())
    if not seen.messages:
        end_with_no(args.output, NO_MESSAGE)


@command(
    "history",
    QUEUE,
    option("--lookup-id", "ID,...", "only events of these messages"),
    option("--type", "EVENT,...", "only events of these types, for example MOVED_POISON,queue-disabled", completes="events"),
    option("--since", "WHEN", "only events from then on: an instant (2013-01-01T12:00Z), or a duration before now (2h)"),
    option("--limit", "N", "at most so many, the newest; or all (default: 50)", default="50"),
    *WHERE,
)
def history(args: Namespace) -> None:
    """Show what has happened to a queue and its messages.

    Show the recorded events as a timeline, the newest last. Exit code 0: shown, 1: there is no such event, 2: it could not be shown.
    """
    from airflow_poison.cli import tables
    from airflow_poison.core.events import EventType
    from airflow_poison.core.passes.history import recorded_events

    now = system_clock().now()
    wanted = None if args.lookup_id is None else values.lookup_ids([args.lookup_id])
    kinds = [EventType(values.one_of("--type", each, list(EventType))) for each in values.listed(args.type, ())]
    since = None if args.since is None else values.since(args.since, now)
    limit = values.limit(args.limit, least=1)
    told = recorded_events(queue_to_read(args), lookup_ids=wanted, types=kinds or None, since=since, limit=limit)
    if args.output == "json":
        write_json(told.to_dict())
    elif told.events:
        tables.print_events(told)
    if not told.events:
        end_with_no(args.output, f"no such event of queue {told.queue!r} is recorded.")
