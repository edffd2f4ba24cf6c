"""``airflow poison list``, ``show``, ``inspect``, ``history`` and ``check``: what is in queues, what has happened to it, and whether it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.cli import values
from airflow_poison.cli.command import (
    NO,
    PLACES,
    QUEUE,
    QUEUES,
    REASON,
    UNMASK,
    WHERE,
    command,
    end_with,
    end_with_no,
    looked_for,
    option,
    queue_of,
    say,
    store_of,
    switch,
    wrong_usage,
)
from airflow_poison.cli.terminal import line, screen, write_json

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

    from airflow_poison.fsck.check import CheckResult
    from airflow_poison.fsck.ledger import Account
    from airflow_poison.queue import Store
    from airflow_poison.store import QueueStore
    from airflow_poison.values.schema import SubQueue


@command("list", QUEUES, *WHERE)
def list_queues(args: Namespace) -> None:
    """List queues with their state and depths.

    List the queues of a store: state, messages in each sub-queue, the oldest message, what is due next, expired claims. Exit code 0: listed, 1: there
    is no queue, 2: it could not be listed.
    """
    from airflow_poison.cli import tables

    whole = store_of(args)
    found, failed = looked_for(whole, args.queue, lambda queue: [queue.overview()])
    store = whole.tables
    unreadable = [name for name in store.names() if name in failed] if failed else []
    if args.output == "json":
        write_json({"store": store.uri, "exists": not store.absence, "queues": [queue.to_dict() for queue in found], "errors": failed})
    elif found or unreadable:
        tables.print_queues(found, unreadable)
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
    UNMASK,
    *WHERE,
)
def show(args: Namespace) -> None:
    """Show a queue and its messages.

    Show one queue: state and reason, settings, claims, depths, and its messages with their counts and last errors. Exit code 0: shown, and every
    endpoint receives, 1: one is halted, or a message that was asked for is not there, 2: it could not be shown.
    """
    from airflow_poison.cli import tables
    from airflow_poison.passes.browse import browse
    from airflow_poison.rules.settings import LARGEST
    from airflow_poison.values.schema import SubQueue

    limit = values.limit(args.limit)
    wanted = values.lookup_ids([] if args.lookup_id is None else [args.lookup_id])
    places = [SubQueue(values.one_of("--sub-queue", each, PLACES)) for each in values.listed(args.sub_queue, PLACES)]
    if wanted and args.sub_queue:
        raise wrong_usage("--lookup-id and --sub-queue: expected one of them; a message is looked for everywhere.")
    queue = queue_of(args)
    view, behind = queue.overview(), queue.reading.behind()
    more: Mapping[SubQueue, int] = {}
    if wanted:
        messages = queue.look_up(wanted, unmask=args.unmask)
    elif limit != 0:
        browsed = browse(queue.reading, places, LARGEST if limit is None else limit, bodies=args.body, unmask=args.unmask)
        messages, more = browsed.messages, browsed.more
    else:
        messages = ()
    missing = sorted(set(wanted) - {message.lookup_id for message in messages})
    if args.output == "json":
        rows = [message.to_dict() if args.body or wanted else message.without_body() for message in messages]
        left = {place.value: count for place, count in more.items()}
        waiting = {"behind": behind.messages, "behind_groups": behind.groups}
        write_json(view.to_dict() | waiting | {"messages": rows, "more": left, "missing": missing})
    else:
        tables.print_queue(view)
        tables.print_behind(behind)
        tables.print_unsent(queue.transmission_queue() if view.unsent else ())
        if wanted:
            tables.print_whole(queue.name, messages, view.at)
        else:
            tables.print_messages(queue.name, messages, more, view.at, bodies=args.body)
    if missing:
        say("nothing", f"not in queue {queue.name!r}: {', '.join(map(str, missing))}. Settled, moved or removed, or never sent.")
    if missing or view.halted:
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
    UNMASK,
    *WHERE,
)
def inspect(args: Namespace) -> None:
    """Look at a suspect as a receive would see it, and roll back.

    Look at a message, at a conversation's next one, or at the suspect: what halted the queue, else its head. Nothing is changed, but that a strict
    inspection counts as a rollback. Exit code 0: shown, 1: no message is available, or the queue is halted, 2: it could not be.
    """
    from airflow_poison.cli import tables
    from airflow_poison.passes.conversations import printed_body
    from airflow_poison.rules.queue_disabling import NO_MESSAGE, Inspection
    from airflow_poison.values.errors import QueueHaltedError

    number = None if args.lookup_id is None else values.whole("--lookup-id", args.lookup_id)
    mode = None if args.mode is None else values.one_of("--mode", args.mode, list(Inspection))
    if number is not None and args.conversation is not None:
        raise wrong_usage("--lookup-id and --conversation: expected one of them.")
    queue = queue_of(args)
    try:
        seen = queue.inspect(lookup_id=number, conversation_id=args.conversation, mode=mode, every=args.every, unmask=args.unmask)
    except QueueHaltedError as error:
        raise QueueHaltedError(f"{error} Here that is --mode browse.") from error
    if args.output == "json":
        write_json(seen.to_dict())
    else:
        tables.print_inspected(seen, queue.clock.now(), lambda message: printed_body(queue.reading, message))
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
    from airflow_poison.values.events import EventType

    wanted = None if args.lookup_id is None else values.lookup_ids([args.lookup_id])
    kinds = [EventType(values.one_of("--type", each, list(EventType))) for each in values.listed(args.type, ())]
    since = None if args.since is None else values.since(args.since, values.now())
    limit = values.limit(args.limit, least=1)
    told = queue_of(args).history(lookup_ids=wanted, types=kinds or None, since=since, limit=limit)
    if args.output == "json":
        write_json(told.to_dict())
    elif told.events:
        tables.print_events(told)
    if not told.events:
        end_with_no(args.output, f"no such event of queue {told.queue!r} is recorded.")


@command(
    "check",
    QUEUES,
    switch("--repair", "mend first what can be mended without guessing"),
    switch("--accept", "with --repair: accept what other programs have committed to these queues"),
    switch("--accept-loss", "with --repair: let these queues go on without files and commits that are lost, and without their messages"),
    REASON,
    *WHERE,
)
def check(args: Namespace) -> None:
    """Check queue tables, and mend what needs no guess.

    Hold queue tables against what a store promises, over their whole history. Exit code 0: nothing is wrong, 1: something is, 2: it could not be
    checked.
    """
    from airflow_poison.fsck.files import Kind
    from airflow_poison.queue import Queue

    if args.accept and not (args.queue and args.repair):
        raise wrong_usage("--accept: expected with --repair, and with the queues whose foreign commits are to stand.")
    if args.accept_loss and not (args.queue and args.repair):
        raise wrong_usage("--accept-loss: expected with --repair, and with the queues that are to go on without what is lost.")
    store = store_of(args)
    names = _names(store.tables, args.queue)
    done, failed = _repaired(store, names, args, whole=not args.queue) if args.repair else ([], [])
    results = [Queue(store, name).check() for name in names] if args.queue else list(store.check())
    for text in failed:
        say("error", text)
    if args.output == "json":
        write_json({"queues": [result.to_dict() for result in results], "done": done, "failed": failed})
    else:
        print_check(results, done)
    if failed or any(finding.kind is not Kind.OTHER_TABLE for result in results for finding in result.findings):
        raise SystemExit(1)


def _names(store: QueueStore, wanted: list[str]) -> list[str]:
    """Return the queues that are to be checked. Raises QueueNotFoundError."""
    from airflow_poison.store import no_queue
    from airflow_poison.values.errors import QueueNotFoundError

    there = list(store.names())
    for name in wanted:
        if name in store.others():
            raise no_queue(name, store.uri)
        if name not in there:
            where = f": {store.absence}" if store.absence else f" in {store.uri}. Queues there: {', '.join(there) or 'none yet'}"
            raise QueueNotFoundError(f"There is no queue {name!r}{where}.")
    if not wanted and not there:
        none = f"There is no queue yet: {store.absence}." if store.absence else f"There is no queue in {store.uri}: nothing to check."
        raise wrong_usage(f"{none} Correct --store or --conn-id.")
    return wanted or there


def _repaired(store: Store, names: list[str], args: Namespace, *, whole: bool) -> tuple[list[str], list[str]]:
    from airflow_poison.passes.maintain import repair, repair_store

    done, failed = list(repair_store(store.tables)) if whole else [], list[str]()
    for name in names:
        result = repair(store.tables, name, store.clock, accept=args.accept, accept_loss=args.accept_loss)
        done += [f"{name}: {text}" for text in result.done]
        failed += [f"{name}: {text}" for text in result.failed]
    return done, failed


_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold"}


def print_check(results: Sequence[CheckResult], done: Sequence[str]) -> None:
    """Print what was mended, then each queue with its findings."""
    out = screen()
    for text in done:
        line(out, f"mended: {text}")
    for result in results:
        line(out, (result.queue or "the store itself", "bold"), f": {_summary(result)}")
        for finding in result.findings:
            severity, where = finding.severity.value, f"{finding.where}: " if finding.where else ""
            line(out, (severity, _STYLES[severity]), f" {finding.kind}: {where}{finding.what}.", indent=2, hanging=True)
            line(out, (f"{finding.todo[0].upper()}{finding.todo[1:]}.", "dim"), indent=4, hanging=True)


def _summary(result: CheckResult) -> str:
    wrong = f"{len(result.findings)} finding(s)" if result.findings else "nothing is wrong"
    return f"{wrong}; version {result.version}, {_account(result.account)}" if result.queue and result.version >= 0 else wrong


def _account(account: Account) -> str:
    """Return what became of the messages; numbers that are 0 say nothing."""
    names = ("settled", "dropped", "sent_on", "removed", "foreign", "waiting", "before", "unaccounted")
    words = {"sent_on": "sent on", "foreign": "taken out by others", "before": "gone before the log begins", "unaccounted": "unaccounted for"}
    numbers = [f"{number} {words.get(name, name)}" for name in names if (number := getattr(account, name))]
    return f"{account.sent} sent" + (f" = {' + '.join(numbers)}" if numbers else "")
