"""``airflow poison list``, ``show``, ``inspect``, ``history`` and ``check``: what is in queues, what has happened to it, and whether it is whole.

``airflow poison groups``, ``query``, ``find`` and ``plans``: what many messages have in common, and what is to become of them. They read only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING

from airflow_poison.cli import terminal, values
from airflow_poison.cli.command import (
    NO,
    PLACES,
    QUEUE,
    QUEUES,
    REASON,
    UNMASK,
    WHERE,
    Argument,
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
from airflow_poison.cli.terminal import cuttable, line, one_line, report, screen, table, write_json
from airflow_poison.cli.terminal import messages as counted
from airflow_poison.cli.values import SELECTION, selection

if TYPE_CHECKING:
    from argparse import Namespace

    import pyarrow as pa

    from airflow_poison.desk.selection import Selection
    from airflow_poison.fsck.check import CheckResult
    from airflow_poison.fsck.ledger import Account
    from airflow_poison.queue import Queue, Store
    from airflow_poison.store import QueueStore
    from airflow_poison.values.schema import SubQueue


@command("list", QUEUES, *WHERE)
def list_queues(args: Namespace) -> None:
    """List queues with their state and depths.

    List the queues of a store: state, messages in each sub-queue, the oldest message, what is due next, expired claims. Exit code 0: listed, 1: there
    is no queue, 2: it could not be listed.
    """
    from airflow_poison.cli import tables

    queues = store_of(args)
    found, failed = looked_for(queues, args.queue, lambda queue: [queue.overview()])
    store = queues.tables
    unreadable = [name for name in store.names() if name in failed] if failed else []
    if args.output == "json":
        write_json({"store": store.uri, "exists": not store.missing_reason, "queues": [queue.to_dict() for queue in found], "errors": failed})
    elif found or unreadable:
        tables.print_queues(found, unreadable)
    known = f"there is no queue yet: {store.missing_reason}" if store.missing_reason else f"there is no queue in {store.uri}"
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
    found = queue_of(args).history(lookup_ids=wanted, types=kinds or None, since=since, limit=limit)
    if args.output == "json":
        write_json(found.to_dict())
    elif found.events:
        tables.print_events(found)
    if not found.events:
        end_with_no(args.output, f"no such event of queue {found.queue!r} is recorded.")


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
            where = f": {store.missing_reason}" if store.missing_reason else f" in {store.uri}. Queues there: {', '.join(there) or 'none yet'}"
            raise QueueNotFoundError(f"There is no queue {name!r}{where}.")
    if not wanted and not there:
        none = f"There is no queue yet: {store.missing_reason}." if store.missing_reason else f"There is no queue in {store.uri}: nothing to check."
        raise wrong_usage(f"{none} Correct --store or --conn-id.")
    return wanted or there


def _repaired(store: Store, names: list[str], args: Namespace, *, whole: bool) -> tuple[list[str], list[str]]:
    from airflow_poison.passes.maintain import repair, repair_store
    from airflow_poison.values.errors import PoisonError

    done, failed = list(repair_store(store.tables)) if whole else [], list[str]()
    for name in names:
        try:
            result = repair(store.tables, name, store.clock, accept=args.accept, accept_loss=args.accept_loss)
        except (PoisonError, OSError) as error:  # the others are mended
            failed.append(f"{name}: {error}")
            continue
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


_ORDERS = ("lookup_id", "enqueued_at", "move_count", "abort_count", "crash_count", "error_type", "message_type", "group_id")
_SPARKS = "▁▂▃▄▅▆▇█"
_FORMATS = (".parquet", ".csv", ".json")


@command("groups", QUEUE, *SELECTION, option("--limit", "N", "so many groups or all, the largest (default: 50)", default="50"), *WHERE)
def groups(args: Namespace) -> None:
    """Count messages by what they failed with.

    List the error groups of a selection: messages that failed alike, with their number, their share, when they failed first and last, and a trend.
    Exit code 0: listed, 1: no message is selected, 2: it could not be listed.
    """
    from airflow_poison.rules.settings import LARGEST

    limit, wanted = values.limit(args.limit, least=1), selection(args)
    queue = queue_of(args)
    found = queue.groups(wanted, limit=LARGEST if limit is None else limit)
    if args.output == "json":
        write_json(found.to_dict())
    elif found.groups:
        rows = table("group", "messages", "share", "first", "last", "trend", "error", right=["messages", "share"], cut="error")
        for group in found.groups:
            error = f"{group.type}: {one_line(group.text)}" if group.type else "(no failure)"
            times = [terminal.age(at, found.at) for at in (group.first_seen, group.last_seen)]
            rows.add_row(group.error or "-", f"{group.messages:,}", f"{group.share:.1%}", *times, trend(group.trend), cuttable(error))
        screen().print(rows)
        more = f"; {found.more:,} more groups, --limit shows them" if found.more else ""
        line(screen(), f"{counted(found.messages)} {wanted}{more}.")
    if not found.groups:
        end_with_no(args.output, f"no message of {args.queue} {wanted}{_elsewhere(queue, wanted)}.")


def _elsewhere(queue: Queue, wanted: Selection) -> str:
    """Return in which other sub-queues messages wait, for a selection of one that has none."""
    places = {} if wanted.sub_queue is None or wanted.lookup_ids is not None else queue.overview().sub_queues
    others = {place: depth.messages for place, depth in places.items() if depth.messages}
    if not others or wanted.sub_queue in others:
        return ""
    most = max(others, key=lambda place: others[place])
    return f"; {', '.join(f'{number:,} in {place.value}' for place, number in others.items())}: --sub-queue {most.value}"


def trend(counts: tuple[int, ...]) -> str:
    """Return numbers as a line of blocks, joined by threes."""
    joined = [sum(counts[start : start + 3]) for start in range(0, len(counts), 3)]
    most = max(joined, default=0)
    return "".join(" " if not count else _SPARKS[min(len(_SPARKS) - 1, count * len(_SPARKS) // (most + 1))] for count in joined)


@command(
    "query",
    QUEUE,
    Argument(("sql",), {"metavar": "SELECT", "help": 'on the tables messages and events: "select error_type, count(*) from messages group by 1"'}),
    option("--to", "FILE", "write all rows into this new file: .parquet, .csv or .json"),
    option("--limit", "N", "at most so many rows, or all (default: 100; with --to: all)"),
    *WHERE,
)
def query(args: Namespace) -> None:
    """Answer a SQL query on a queue's messages and events.

    Answer a SELECT on the newest version of a queue. It reads nothing else, and changes nothing. Exit code 0: answered, 1: there is no row, 2: it
    could not be answered.
    """
    from airflow_poison.desk.queries import answer_as_dict

    limit = values.limit(args.limit or ("all" if args.to is not None else "100"), least=1)
    if args.to is not None:
        _check_file(args.to)
        with queue_of(args).query_batches(args.sql, limit=limit) as batches:
            number = _write(batches, args.to)
            done = {"queue": args.queue, "columns": batches.schema.names, "rows": number, "to": args.to}
        report(args.output, done, f"Wrote {number:,} rows to {args.to}.")
        return
    answer = queue_of(args).query(args.sql, limit=None if limit is None else limit + 1)
    plain = answer_as_dict(args.queue, answer, limit)
    if args.output == "json":
        write_json(plain)
    elif plain["rows"]:
        numbers = [field.name for field in answer.schema if str(field.type).startswith(("int", "uint", "double", "float", "decimal"))]
        rows = table(*map(one_line, answer.column_names), right=set(map(one_line, numbers)), wrapped=True)
        for row in plain["rows"]:
            rows.add_row(*(_shown(row[name]) for name in answer.column_names))
        screen().print(rows)
        if plain["more"]:
            say("hint", "there are more rows: --limit all shows them, --to FILE keeps them.")
    if not plain["rows"]:
        end_with_no(args.output, "the query has no rows.")


def _shown(value: object) -> str:
    return one_line(_text(value) or "")


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _check_file(place: str) -> None:
    """Raise InputError for a file that cannot be written, before anything is asked."""
    if Path(place).suffix.lower() not in _FORMATS:
        raise wrong_usage(f"--to {place}: expected a file that ends with {', '.join(_FORMATS)}.")
    if Path(place).exists():
        raise wrong_usage(f"--to {place}: there is such a file already; expected a new one.")


def _write(answer: pa.RecordBatchReader, place: str) -> int:
    """Write rows into a new file, or leave none; return how many there are."""
    path, progress, number = Path(place), terminal.ProgressLine(), 0
    write = {".parquet": _write_parquet, ".csv": _write_csv}.get(path.suffix.lower(), _write_json)

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal number
        reported_at = time.monotonic()
        for batch in answer:
            yield batch
            number += batch.num_rows
            if time.monotonic() - reported_at > _SAYS_EVERY:
                reported_at = time.monotonic()
                progress.report(f"{number:,} rows so far")

    with path.open("xb") as file:
        try:
            write(answer.schema, batches(), file, place)
        except BaseException:
            path.unlink()
            raise
        finally:
            progress.end()
    return number


_SAYS_EVERY = 5.0


def _write_parquet(schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: IO[bytes], place: str) -> None:
    import pyarrow.parquet as pq

    _check_parquet(schema, place)
    with pq.ParquetWriter(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_csv(schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: IO[bytes], _place: str) -> None:
    import pyarrow as pa
    import pyarrow.csv as pc

    from airflow_poison.desk.queries import plain_rows

    as_texts = any(map(_is_nested, schema.types))
    texts = pa.schema([(name, pa.string()) for name in schema.names])
    with pc.CSVWriter(file, texts if as_texts else schema) as writer:
        for batch in batches:
            rows = [{name: _text(cell) for name, cell in row.items()} for row in plain_rows(batch)] if as_texts else None
            writer.write_batch(batch if rows is None else pa.RecordBatch.from_pylist(rows, texts))


def _write_json(_schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: IO[bytes], _place: str) -> None:
    from airflow_poison.desk.queries import plain_rows

    before = b"[\n "
    for row in chain.from_iterable(map(plain_rows, batches)):
        file.write(before + json.dumps(row).encode())
        before = b",\n "
    file.write(b"[]" if before == b"[\n " else b"\n]")


def _check_parquet(schema: pa.Schema, place: str) -> None:
    """Raise InputError for a column of a type that Parquet does not have."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for field in schema:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise wrong_usage(
                f"--to {place}: column {field.name!r} is of type {field.type}, which Parquet does not have. Cast it, for example with "
                "cast(… as varchar)."
            ) from error


def _is_nested(kind: pa.DataType) -> bool:
    """Whether CSV has no form for values of a type."""
    from pyarrow import types

    return any(test(kind) for test in (types.is_nested, types.is_binary, types.is_large_binary))


@command(
    "find",
    QUEUE,
    *SELECTION,
    option("--limit", "N", "so many messages, 1 to 200 (default: 50)", default="50"),
    option("--offset", "N", "leave out so many (default: 0)", default="0"),
    option("--order", "COLUMN", f"{', '.join(_ORDERS)} (default: lookup_id)", default="lookup_id", completes=_ORDERS),
    switch("--descending", "the highest first"),
    *WHERE,
)
def find(args: Namespace) -> None:
    """List the messages of a selection.

    List a page of the messages of a selection, without their bodies. Exit code 0: listed, 1: no message is selected, 2: it could not be listed.
    """
    from airflow_poison.cli import tables
    from airflow_poison.desk.queries import MOST_ROWS

    wanted, offset = selection(args), values.whole("--offset", args.offset)
    limit, order = values.whole("--limit", args.limit, 1, MOST_ROWS), values.one_of("--order", args.order, _ORDERS)
    queue = queue_of(args)
    found = queue.find(wanted, offset=offset, limit=limit, order=order, descending=args.descending)
    if args.output == "json":
        write_json(found.to_dict())
    elif found.messages:
        tables.print_messages(args.queue, found.messages, {}, queue.clock.now(), bodies=False)
        line(screen(), f"{offset + 1:,} to {offset + len(found.messages):,} of {counted(found.total)} {wanted}.")
    if not found.messages:
        others = f"; {found.total:,} before --offset {offset}" if found.total else _elsewhere(queue, wanted)
        end_with_no(args.output, f"no message of {args.queue} {wanted}{others}.")


@command(
    "plans",
    QUEUE,
    Argument(("plan",), {"metavar": "PLAN", "nargs": "?", "help": "the id of a plan (default: list all)"}, "plans"),
    *WHERE,
)
def plans(args: Namespace) -> None:
    """List what people have decided about many messages.

    List the plans of a queue, the newest first, or show one. Exit code 0: shown, 1: there is none, 2: it could not be shown.
    """
    from airflow_poison.cli.tables import print_plan, print_plans

    queue = queue_of(args)
    if args.plan is not None:
        view = queue.find_plan(args.plan)
        if args.output == "json":
            write_json(view.to_dict())
        else:
            print_plan(view)
        return
    found = queue.plans()
    if args.output == "json":
        write_json({"queue": queue.name, "plans": [each.to_dict() for each in found]})
    elif found:
        print_plans(found, queue.clock.now())
    if not found:
        end_with_no(args.output, f"queue {queue.name} has no plan.")
