"""Sums of the demo: what was produced, what was taken, and where it is, each by number and by a column. They agree, or say where they do not."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_poison.fsck.check import check
from airflow_poison.fsck.files import Severity
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.schema import SubQueue
from tools.demo_sources.feeds import Sum, produced

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from tools.demo_sources.feeds import Feed

_CENTS = re.compile(rb'"cents": ?"?(\d+)')
_PLACES = ("landed", "poison", "malformed")


@dataclass(frozen=True, slots=True)
class Sums:
    """What is where in the end.

    :param taken: every message that a commit of a take has added, as the log of the queue's table has them.
    :param there: what has landed, what the transformation refused, and what was malformed.
    :param ids: of the landed orders: how many different ones; ``numbers``: the lookup ids of all messages.
    :param findings: what is wrong with the queue's table.
    """

    records: int
    taken: Sum
    there: Mapping[str, Sum]
    ids: int
    numbers: tuple[int, ...]
    findings: tuple[str, ...] = ()

    @property
    def expected(self) -> Sum:
        """The sum of what was produced."""
        return sum(produced(self.records).values(), Sum())

    @property
    def everywhere(self) -> Sum:
        """The sum of what is there."""
        return sum(self.there.values(), Sum())

    def faults(self) -> Iterator[str]:
        """Yield what does not agree."""
        expected = produced(self.records)
        for place in _PLACES:
            if self.there[place] != expected[place]:
                yield f"{place}: expected {_said(expected[place])}, found {_said(self.there[place])}"
        for what, found in (("taken", self.taken), ("landed, in poison and malformed together", self.everywhere)):
            if found != self.expected:
                yield f"{what}: {_said(found)}, but {_said(self.expected)} were produced"
        if self.ids != self.there["landed"].number:
            yield f"{self.there['landed'].number - self.ids:,} orders have landed more than once"
        if self.numbers != tuple(range(1, self.records + 1)):
            yield f"lookup ids are not 1 to {self.records:,}, each once"
        yield from self.findings


def sums(feed: Feed, folder: Path, records: int) -> Sums:
    """Add up what is there: reads the table of the queue and the landed one."""
    from deltalake import DeltaTable

    table = open_store(str(folder / "store")).open(feed.queue)
    landed: Any = DeltaTable(str(folder / "landed")).to_pyarrow_table(columns=["message", "id", "cents"])
    files = table.snapshot().files
    rows: list[tuple[str, dict[str, Any]]] = [(file.sub_queue, row) for file in files for row in table.read(file).to_pylist()]
    there = {"landed": Sum(landed.num_rows, sum(landed["cents"].to_pylist())), "poison": Sum(), "malformed": Sum()}
    for where, row in rows:
        malformed = where == SubQueue.POISON and row["last_error"]["type"] == "MalformedError"
        place = "malformed" if malformed else where
        there[place] = there.get(place, Sum()) + _cents([row["body"]])
    return Sums(
        records,
        _cents(_added(folder / "store" / feed.queue)),
        there,
        len(set(landed["id"].to_pylist())),
        tuple(sorted([*landed["message"].to_pylist(), *(row["lookup_id"] for _, row in rows)])),
        tuple(found.what for found in check(table, SystemClock()).findings if found.severity is not Severity.NOTE),
    )


def _cents(bodies: Iterable[bytes]) -> Sum:
    found = [int(match[1]) if (match := _CENTS.search(body)) else 0 for body in bodies]
    return Sum(len(found), sum(found))


def _added(table: Path) -> Iterator[bytes]:
    """Yield the bodies of the messages that takes have added to a queue's table, whatever has become of them."""
    import pyarrow.parquet as pq

    for entry in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        said: Any = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        if json.loads(said.get("userMetadata") or "{}").get("operation") != "append":
            continue
        for action in actions:
            path = action.get("add", {}).get("path", "")
            if path.startswith(("sub_queue=main/", "sub_queue=poison/")):
                bodies: Any = pq.ParquetFile(table / path).read(columns=["body"])["body"]
                yield from bodies.to_pylist()


def _said(found: Sum) -> str:
    return f"{found.number:,} orders of {found.cents / 100:,.2f}"
