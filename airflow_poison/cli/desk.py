"""``airflow poison groups``, ``query``, ``find`` and ``plans``: what many messages have in common, and what is to become of them. They read only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.cli import terminal, values
from airflow_poison.cli.command import QUEUE, WHERE, Argument, command, end_with_no, option, queue_of, say, switch, wrong_usage
from airflow_poison.cli.selecting import SELECTION, selection
from airflow_poison.cli.terminal import cuttable, line, one_line, screen, table, tell, write_json
from airflow_poison.cli.terminal import messages as counted

if TYPE_CHECKING:
    from argparse import Namespace

    import pyarrow as pa

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
    found = queue_of(args).groups(wanted, limit=LARGEST if limit is None else limit)
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
        end_with_no(args.output, f"no message of {args.queue} {wanted}.")


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
    from airflow_poison.desk.found import answer_as_dict

    limit = values.limit(args.limit or ("all" if args.to is not None else "100"), least=1)
    if args.to is not None:
        _check_file(args.to)
    answer = queue_of(args).query(args.sql, limit=None if limit is None else limit + 1)
    if args.to is not None:
        answer = answer.slice(0, limit)
        _write(answer, args.to, args.queue)
        done = {"queue": args.queue, "columns": answer.column_names, "rows": answer.num_rows, "to": args.to}
        tell(args.output, done, f"Wrote {answer.num_rows:,} rows to {args.to}.")
        return
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
    """Return a plain value as text; None for none."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _check_file(place: str) -> None:
    """Raise InputError for a file that cannot be written, before anything is asked."""
    if Path(place).suffix.lower() not in _FORMATS:
        raise wrong_usage(f"--to {place}: expected a file that ends with {', '.join(_FORMATS)}.")
    if Path(place).exists():
        raise wrong_usage(f"--to {place}: there is such a file already; expected a new one.")


def _write(answer: pa.Table, place: str, queue: str) -> None:
    """Write rows into a new file, or leave none."""
    from airflow_poison.desk.found import answer_as_dict

    path = Path(place)
    with path.open("xb") as file:
        try:
            match path.suffix.lower():
                case ".parquet":
                    import pyarrow.parquet as pq

                    pq.write_table(answer, file)
                case ".csv":
                    import pyarrow as pa
                    import pyarrow.csv as pc

                    rows = answer_as_dict(queue, answer, None)["rows"] if any(map(_is_nested, answer.schema.types)) else None
                    flat = answer if rows is None else pa.table({name: [_text(row[name]) for row in rows] for name in answer.column_names})
                    pc.write_csv(flat, file)
                case _:
                    file.write(json.dumps(answer_as_dict(queue, answer, None)["rows"], indent=1).encode())
        except BaseException:
            path.unlink()
            raise


def _is_nested(kind: pa.DataType) -> bool:
    """Whether CSV has no form for values of a type."""
    from pyarrow import types

    return bool(types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind))


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
    from airflow_poison.desk.found import MOST_ROWS

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
        end_with_no(args.output, f"no message of {args.queue} {wanted}" + (f"; {found.total:,} before --offset {offset}." if found.total else "."))


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
    from airflow_poison.cli.planned import print_plan, print_plans

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
