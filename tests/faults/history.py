"""The history of a queue table as its log and its files tell it, with what was put aside before verbs removed it; read without the product."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults.exact import Given, digest, given
from tests.faults.keeping import damaged_in, kept_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.verdict import Verdict

OUTBOX = "_outbox"
MESSAGES = frozenset({"main", "retry", "poison", "postponed", "transmission", OUTBOX})


@dataclass(frozen=True, slots=True)
class Row:
    """A message as it stood in one file.

    :param body: the digest of its body.
    :param given: its properties but for those of the product.
    """

    number: int
    message_id: str
    place: str
    m: int
    a: int
    crashes: int
    body: str = ""
    given: Given = ()

    @property
    def content(self) -> tuple[str, Given]:
        """What it was given, in digests."""
        return self.body, self.given


@dataclass(frozen=True, slots=True)
class Happened:
    """An event."""

    type: str
    number: int | None
    m: int
    a: int
    details: dict[str, Any]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The messages of an event that a part of a plan has recorded; else the message that it is about."""
        if "lookup_ids" not in self.details:
            return () if self.number is None else (self.number,)
        ranges = [part.partition("-") for part in self.details["lookup_ids"].split(",")]
        return tuple(number for first, _, last in ranges for number in range(int(first), int(last or first) + 1))

    @property
    def by_hand(self) -> bool:
        return self.details.get("by") in {"hand", "end conversation"}

    @property
    def is_news(self) -> bool:
        """Whether people are alerted of it: nobody has done it by hand, and it is not how every dialog ends."""
        return not self.by_hand and self.details.get("by") != "conversation"


@dataclass(frozen=True, slots=True)
class File:
    """A file that a commit adds or removes."""

    path: str
    place: str
    m: int


@dataclass(frozen=True, slots=True)
class Made:
    """One commit.

    :param at: when its entry was written, in seconds since 1970.
    :param details: what it says of itself; empty for a commit of somebody else.
    """

    version: int
    at: float
    details: dict[str, Any]
    added: tuple[File, ...]
    removed: tuple[File, ...]

    @property
    def operation(self) -> str:
        return str(self.details.get("operation", ""))

    @property
    def foreign(self) -> bool:
        return not self.details


@dataclass(slots=True)
class History:
    """A queue.

    :ivar kept: where what was removed from its folder is; ``taken``: old entries that people have taken out of it.
    :ivar came: messages by number, as they came in; ``relayed``: those that another queue has sent; ``malformed``: those of a source that
        wait in ``poison`` for people.
    :ivar left: those that left the queue for good: settled, dropped, removed by hand.
    :ivar settled: of them, those that a pass has settled.
    :ivar bodies: each body that a message had, by its digest.
    :ivar contents: by message, each body and properties that it had.
    :ivar edited: by message, the plans that have edited it and were not undone, with what it was before.
    :ivar planned: by message, the plans that have done something to it.
    :ivar delivered: counts of each DELIVERED event by message.
    :ivar dropped: by message, the event that says why it was dropped.
    """

    name: str
    root: Path
    kept: Path
    taken: Path
    verdict: Verdict
    commits: list[Made] = field(default_factory=list)
    came: dict[int, Row] = field(default_factory=dict)
    relayed: set[int] = field(default_factory=set)
    malformed: set[int] = field(default_factory=set)
    left: list[Row] = field(default_factory=list)
    settled: list[Row] = field(default_factory=list)
    events: list[Happened] = field(default_factory=list)
    delivered: dict[int, Counter[tuple[int, int]]] = field(default_factory=lambda: defaultdict(Counter))
    dropped: dict[int, Happened] = field(default_factory=dict)
    live: dict[str, File] = field(default_factory=dict)
    bodies: dict[str, bytes] = field(default_factory=dict)
    contents: dict[int, set[tuple[str, Given]]] = field(default_factory=lambda: defaultdict(set))
    edited: dict[int, list[tuple[str, tuple[str, Given]]]] = field(default_factory=lambda: defaultdict(list))
    planned: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    _rows: dict[str, tuple[Row, ...]] = field(default_factory=dict)

    def rows(self, file: File) -> tuple[Row, ...]:
        """Return the messages in a file, which may have left the table."""
        if file.path not in self._rows:
            columns = ["lookup_id", "message_id", "abort_count", "crash_count", "body", "properties"]
            self._rows[file.path] = tuple(self._row(file, row) for row in self._read(file.path, columns))
        return self._rows[file.path]

    def _row(self, file: File, row: dict[str, Any]) -> Row:
        body = row["body"] or b""
        hashed, properties = digest(body), given(row["properties"] or ())
        self.bodies.setdefault(hashed, body)
        self.contents[row["lookup_id"]].add((hashed, properties))
        return Row(row["lookup_id"], row["message_id"], file.place, file.m, row["abort_count"] or 0, row["crash_count"] or 0, hashed, properties)

    def _read(self, path: str, columns: list[str]) -> list[dict[str, Any]]:
        """Read a file where it lies now; one that cannot be read has lost what it held."""
        place = self.root / path if (self.root / path).exists() else self.kept / path
        try:
            with pq.ParquetFile(place) as parquet:
                found: list[dict[str, Any]] = parquet.read(columns).to_pylist()
        except (OSError, pa.ArrowInvalid) as error:
            self.verdict.lost.append(f"{self.name}: {path} cannot be read: {str(error).partition(chr(10))[0]}")
            return []
        return found

    def told_in(self, file: File) -> list[Happened]:
        """Return the events in a file."""
        found = []
        for row in self._read(file.path, ["lookup_id", "message_type", "abort_count", "body"]):
            details = json.loads(row["body"])
            if "plan" not in details:
                details.pop("lookup_ids", None)  # what joining adds
            found.append(Happened(row["message_type"], row["lookup_id"], details.pop("move_count"), row["abort_count"] or 0, details))
        return found

    def of_dialogs(self, file: File) -> list[dict[str, Any]]:
        """Return the rows of a file of conversation endpoints, or of messages that are on their way to the partner."""
        return self._read(file.path, ["lookup_id", "message_id", "message_type", "conversation_id", "body", "properties"])

    def body(self, file: File) -> tuple[str, str, dict[str, Any]]:
        """Return the name, the type and the JSON of a row that is no message: of a claim its key, of the control row its state."""
        rows = self._read(file.path, ["message_id", "message_type", "body"])
        if not rows:
            return "", "", {}
        (row,) = rows
        return row["message_id"], row["message_type"], json.loads(row["body"])

    def present(self) -> Iterator[Row]:
        """Yield every message that is in the queue now."""
        for file in self.live.values():
            if file.place in MESSAGES:
                yield from self.rows(file)

    def seen(self) -> Iterator[Row]:
        """Yield every message of every file that was read: as it was at any time."""
        for rows in self._rows.values():
            yield from rows

    def committed(self, number: int) -> bool:
        """Whether a pass has settled a message."""
        return any(row.number == number for row in self.settled)


def read_histories(folder: Path, verdict: Verdict) -> dict[str, History]:
    """Read every queue of a store, and hold each against what delta-rs says of it.

    :param folder: the episode's, which has what was removed from the store, too.
    """
    found = {}
    for place in sorted(Path(folder, "store").iterdir()):
        if place.name.startswith(".") or not (place / "_delta_log").is_dir():
            continue
        history = found[place.name] = History(place.name, place, kept_in(folder) / place.name, damaged_in(folder) / place.name / "old", verdict)
        history.commits = [*_commits(history, verdict)]
        _compare(history, verdict)
    return found


def _commits(history: History, verdict: Verdict) -> Iterator[Made]:
    there = _entries(history.root)
    removed = {version: path for version, path in _taken(history).items() if version < min(there)}
    entries = sorted((removed | there).items())
    if [version for version, _ in entries] != list(range(len(entries))):
        verdict.log.append(f"{history.name}: the log has holes")
    for version, path in entries:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        info: dict[str, Any] = next((line["commitInfo"] for line in lines if "commitInfo" in line), {})
        yield Made(
            version,
            min(path.stat().st_mtime, info.get("timestamp", float("inf")) / 1_000),  # a repair may have written it again
            json.loads(info.get("userMetadata") or "{}"),
            tuple(_file(line["add"]) for line in lines if "add" in line),
            tuple(_file(line["remove"]) for line in lines if "remove" in line),
        )


def _entries(table: Path) -> dict[int, Path]:
    return {int(path.stem): path for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit()}


def _taken(history: History) -> dict[int, Path]:
    """Return old entries that verbs have removed, that a repair has set aside because a checkpoint covers them, or that people have taken away."""
    aside = sorted(history.root.glob("_repaired/*.json"), key=lambda path: path.stat().st_ctime_ns)
    set_aside = {int(path.stem.rpartition("-")[2]): path for path in aside if path.stem.rpartition("-")[2].isdigit() and path.stat().st_size}
    return set_aside | _entries(history.taken) | _entries(history.kept)


def _file(action: dict[str, Any]) -> File:
    values = action["partitionValues"]
    return File(unquote(action["path"]), values["sub_queue"], int(values["move_count"]))


def _compare(history: History, verdict: Verdict) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    live: set[str] = set()
    for made in history.commits:
        live -= {file.path for file in made.removed}
        live |= {file.path for file in made.added}
    try:
        table = DeltaTable(str(history.root))
    except DeltaError as error:
        verdict.log.append(f"{history.name}: delta-rs cannot read the log: {str(error).partition(chr(10))[0]}")
        return
    theirs = {unquote(uri).partition(f"/{history.name}/")[2] for uri in table.file_uris()}
    gone = sorted(path for path in live if not (history.root / path).exists())
    if gone:
        verdict.lost.append(f"{history.name}: {len(gone)} files of the newest version are gone, such as {gone[0]}")
    if table.version() != history.commits[-1].version or theirs != live:
        verdict.log.append(f"{history.name}: delta-rs sees {len(theirs)} files in version {table.version()}, the log says {len(live)}")
