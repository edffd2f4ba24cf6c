"""What the demo says at its end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from tools.demo.account import Books, Depth, Pass


def print_books(console: Console, books: Books) -> None:
    """Print what was read, and the table of all cycles; each line adds up to what became messages."""
    console.print(
        f"{books.read:,} flights read = {books.landed:,} landed in place + {books.filtered:,} filtered + {books.messages:,} became messages\n",
        highlight=False,
    )
    title = f"{books.messages:,} messages = settled + in main + in retry + in poison"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("cycle")
    for heading in ("received", "attempts", "time", "msg/s", "settled so far", "main", "retry", "poison", "sum"):
        table.add_column(heading, justify="right")
    for cycle in books.cycles:
        table.add_row(str(cycle.number), *_work(cycle.done), *_places(cycle.settled, cycle.depth))
    table.add_section()
    received = sum(cycle.done.received for cycle in books.cycles)
    work = (f"{received:,}", f"{books.attempts:,}", f"{books.seconds:.1f} s", _rate(received, books.seconds))
    table.add_row("all", *work, *_places(books.settled, books.now), style="bold")
    console.print(table)


def _work(done: Pass) -> tuple[str, ...]:
    return f"{done.received:,}", f"{done.attempts:,}", f"{done.seconds:.1f} s", _rate(done.received, done.seconds)


def _places(settled: int, depth: Depth) -> tuple[str, ...]:
    return f"{settled:,}", f"{depth.main:,}", f"{depth.retry:,}", f"{depth.poison:,}", f"{settled + depth.total:,}"


def _rate(messages: int, seconds: float) -> str:
    return f"{messages / seconds:,.0f}" if seconds else "-"


def print_alerts(console: Console, alerts: Sequence[dict[str, object]], shown: str) -> None:
    """Print what was alerted."""
    console.print(f"Alerted ({shown}): {len(alerts) or 'nothing'}", highlight=False)
    for alert in alerts:
        console.print(f"  {alert['reason']} {alert['what_to_do']}", highlight=False, markup=False, soft_wrap=True)


def alerts_in(path: Path) -> Sequence[dict[str, object]]:
    """Return what was alerted, from a file with a line for each."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def print_times(console: Console, books: Books) -> None:
    """Print the time of the first pass beside the time of the same job without protection."""
    if books.in_place is None or books.naive is None:
        return
    console.print("Times, each with the start of Spark:", highlight=False)
    console.print(f"  {books.naive:>6.1f} s  the same job without protection", highlight=False)
    console.print(
        f"  {books.in_place:>6.1f} s  in place: good flights have landed, the others are messages. Cycle 1 follows in the same pass", highlight=False
    )


def print_landed(console: Console, rows: int, flights: int, shown: str, books: Books) -> str | None:
    """Print what has landed; return what is wrong with it, None when it is what landed in place and what was settled, each once."""
    sum_of = f"{books.landed:,} in place + {books.settled:,} settled"
    console.print(f"Landed ({shown}, a Delta table): {rows:,} rows of {flights:,} flights = {sum_of}", highlight=False)
    if rows == flights == books.landed + books.settled:
        return None
    return f"{sum_of} should be in the output, and {rows:,} rows of {flights:,} flights are"


def print_query(console: Console, tables: str, python: str) -> None:
    """Print where the queue tables lie, and a query that the reader can run."""
    query = (
        f"import polars as pl; q = pl.read_delta('{tables}').filter(pl.col('sub_queue') == 'poison'); "
        "print(q.group_by(pl.col('last_error').struct.field('message')).len())"
    )
    console.print(f"The queue table lies in {tables} (Delta Lake format; any reader will do). Why flights are in poison:", highlight=False)
    console.print(f'  {python} -c "{query}"', highlight=False, markup=False, soft_wrap=True)


def print_reasons(console: Console, queue: str, reasons: Sequence[tuple[str, int]], limit: int = 5) -> None:
    """Print why flights are in poison, where nobody can ask later."""
    console.print(
        f"The queue table was {queue}; the object store was in memory, and is gone with this demo. Why flights are in poison:", highlight=False
    )
    for reason, number in reasons[:limit]:
        console.print(f"  {number:>7,}  {reason}", highlight=False, markup=False, soft_wrap=True)
    if len(reasons) > limit:
        console.print(f"  {sum(number for _, number in reasons[limit:]):>7,}  for {len(reasons) - limit} other reasons", highlight=False)
