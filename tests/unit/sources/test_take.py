"""Takes: messages and position in one commit, malformed records in poison, keys, backfills, several sources and takers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_poison.fsck.check import check
from airflow_poison.passes.alter import disable, enable
from airflow_poison.passes.take import positions, reset_position, take
from airflow_poison.sources import rows
from airflow_poison.sources.schemas import Schema
from airflow_poison.sources.source import ERROR, Reached, Source, Take
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.testing.sources import SourceContract
from airflow_poison.values.errors import InputError, MalformedError, SourceError, SourceTakenError
from airflow_poison.values.mapping import ColumnMapping
from airflow_poison.values.schema import SubQueue
from tests.given.passes import DiedError, Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_poison.passes.take import TakeResult
    from airflow_poison.sources.source import Position
    from tests.given.points import AtPoint

_numbers = count()


@dataclass
class Lines(Source):
    """Lines of a list; those that say ``bad`` are malformed. ``keyed``: no order tells what was taken."""

    lines: list[str]
    name: str = "lines"
    schema: Schema | None = None
    keyed: bool = False
    since: int | None = None
    on_read: Callable[[], object] | None = None

    def plan(self, position: Position, *, limit: int | None) -> Take | None:
        taken = set(position.keys()["key"].to_pylist()) if self.keyed else set(self.lines[: int(position.at.get("line", 0))])  # type: ignore[arg-type]
        new = [line for line in self.lines if line not in taken][:limit]
        return self._take(new, len(taken) + len(new)) if new else None

    def between(self, start: str, end: str) -> Take:
        return self._take(self.lines[int(start) : int(end)], 0)

    def _take(self, new: Sequence[str], end: int) -> Take:
        def batches() -> Iterator[pa.RecordBatch]:
            if self.on_read is not None:
                self.on_read()
            for first in range(0, len(new), 3):
                some = new[first : first + 3]
                errors = [f"{line!r} is no good line" if line.startswith("bad") else None for line in some]
                yield pa.record_batch({"body": pa.array([line.encode() for line in some]), ERROR: pa.array(errors, pa.string())})

        keys = pa.table({"key": pa.array(new), "at": pa.array(range(end - len(new), end), pa.int64())}) if self.keyed else None
        return Take(what=f"{len(new)} lines", batches=batches, reached=lambda: Reached({"line": end}, keys, self.since))


class TestContract(SourceContract):
    """The source of these tests is one."""

    @pytest.fixture(autouse=True)
    def _empty(self) -> None:
        self.lines: list[str] = []

    def source(self) -> Source:
        return Lines(self.lines)

    def add(self, bodies: Sequence[str]) -> None:
        self.lines.extend(bodies)


class TestKeyedContract(TestContract):
    """So is one whose position are keys."""

    def source(self) -> Source:
        return Lines(self.lines, keyed=True)


def taken(queue: Queue, source: Source, key: str = "", **more: Any) -> TakeResult:
    return take(queue.table, source, key=key or f"take-{next(_numbers)}", clock=queue.clock, **more)


def bodies(queue: Queue, place: SubQueue | None = None) -> list[str]:
    return [row["body"].decode() for _, row in sorted(queue.rows(place).items())]  # type: ignore[attr-defined]  # bytes


def is_whole(queue: Queue) -> None:
    if isinstance(queue.store, DeltaStore):
        found = check(queue.table, queue.clock)
        assert not found.findings, found


def test_messages_and_position_are_in_one_commit(queue: Queue) -> None:
    before = queue.table.snapshot().version
    result = taken(queue, Lines(["a", "b", "c", "d"]))
    assert (result.sent, result.malformed, result.first_lookup_id, result.what, result.position) == (4, 0, 1, "4 lines", "line: 4")
    assert queue.table.snapshot().version == before + 1
    assert bodies(queue) == ["a", "b", "c", "d"]
    is_whole(queue)


def test_malformed_records_are_poison_with_their_error_and_behind_the_others(queue: Queue) -> None:
    result = taken(queue, Lines(["bad 1", "b", "bad 2", "bad 3", "c"]))
    assert (result.sent, result.malformed) == (5, 3)
    assert bodies(queue, SubQueue.MAIN) == ["b", "c"]
    assert bodies(queue, SubQueue.POISON) == ["bad 1", "bad 2", "bad 3"]
    assert list(queue.rows()) == [1, 2, 3, 4, 5]
    row: Any = queue.rows()[3]
    assert (row["last_error"]["kind"], row["last_error"]["type"], row["last_error"]["message"]) == (
        "unreadable",
        "MalformedError",
        "'bad 1' is no good line",
    )
    assert row["reason"] == "MalformedError: 'bad 1' is no good line"
    assert queue.happened() == [("MOVED_POISON", 3), ("MOVED_POISON", 4), ("MOVED_POISON", 5)]
    is_whole(queue)


def test_a_schema_decodes_bodies_and_what_it_refuses_keeps_its_bytes(queue: Queue) -> None:
    class Upper(Schema):
        def decode(self, body: bytes) -> bytes:
            if body == b"no":
                raise MalformedError("no is not allowed")
            return body.upper()

    assert taken(queue, Lines(["a", "no", "bad"], schema=Upper())).malformed == 2
    assert bodies(queue, SubQueue.MAIN) == ["A"]
    assert bodies(queue, SubQueue.POISON) == ["no", "bad"]


def test_a_key_takes_once(queue: Queue) -> None:
    lines = ["a"]
    assert taken(queue, Lines(lines), "run 1").sent == 1
    lines.append("b")
    again = taken(queue, Lines(lines), "run 1")
    assert (again.sent, again.repeated) == (1, True)
    assert bodies(queue) == ["a"]
    assert taken(queue, Lines(lines), "run 2").sent == 1


def test_two_sources_have_two_positions(queue: Queue) -> None:
    taken(queue, Lines(["a", "b"], "one"))
    taken(queue, Lines(["c"], "two"))
    assert [(each.source, each.at, each.messages, each.kind) for each in positions(queue.table)] == [
        ("one", {"line": 2}, 2, "Lines"),
        ("two", {"line": 1}, 1, "Lines"),
    ]
    assert taken(queue, Lines(["a", "b"], "one")).sent == 0


def test_a_backfill_leaves_the_position(queue: Queue) -> None:
    lines = ["a", "b", "c"]
    taken(queue, Lines(lines), limit=1)
    assert taken(queue, Lines(lines), between=("0", "2")).sent == 2
    assert taken(queue, Lines(lines)).sent == 2
    assert bodies(queue) == ["a", "a", "b", "b", "c"]


def test_a_reset_source_is_forgotten_with_its_keys(queue: Queue) -> None:
    taken(queue, Lines(["a", "b"], keyed=True))
    assert reset_position(queue.table, "lines", queue.clock)
    assert not reset_position(queue.table, "lines", queue.clock)
    assert positions(queue.table) == ()
    assert taken(queue, Lines(["a", "b"], keyed=True)).sent == 2
    is_whole(queue)


@pytest.mark.parametrize("point", ["store.forget_source.before_commit", "store.forget_source.after_commit"])
def test_who_dies_while_a_position_is_reset_has_reset_it_or_not(queue: Queue, point: str, at_point: AtPoint) -> None:
    def die() -> None:
        raise DiedError

    taken(queue, Lines(["a"], keyed=True))
    at_point.do(point, die)
    with pytest.raises(DiedError):
        reset_position(queue.table, "lines", queue.clock)
    assert len(positions(queue.table)) == (point == "store.forget_source.before_commit")
    assert reset_position(queue.table, "lines", queue.clock) == (point == "store.forget_source.before_commit")
    assert queue.happened() == [("POSITION_RESET", None)]
    is_whole(queue)


def test_keys_of_many_takes_are_joined(queue: Queue) -> None:
    lines: list[str] = []
    for number in range(40):
        lines.append(f"line {number}")
        assert taken(queue, Lines(lines, keyed=True)).sent == 1
    found = queue.table.stored_source("lines")
    assert found is not None
    assert len(found.keys) < 20
    assert sorted(queue.table.source_keys(found)["key"].to_pylist()) == sorted(lines)  # type: ignore[type-var]  # text
    is_whole(queue)


def test_old_keys_are_forgotten_where_the_source_says_so(queue: Queue) -> None:
    taken(queue, Lines(["a", "b", "c"], keyed=True))
    taken(queue, Lines(["a", "b", "c", "d"], keyed=True, since=2))
    found = queue.table.stored_source("lines")
    assert found is not None
    assert queue.table.source_keys(found).to_pydict() == {"key": ["c", "d"], "at": [2, 3]}


POINTS: tuple[str, ...] = ("store.append.before_files", "store.append.after_files", "store.append.after_position", "store.append.after_numbering")
POINTS += ("store.append.before_commit", "store.append.after_commit")


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("keyed", [False, True])
def test_killed_anywhere_and_run_again_each_comes_once(queue: Queue, point: str, at_point: AtPoint, keyed: bool) -> None:  # noqa: FBT001
    lines = ["a", "bad", "c"]
    taken(queue, Lines(lines, keyed=keyed), limit=1)

    def die() -> None:
        raise DiedError

    at_point.do(point, die)
    with pytest.raises(DiedError):
        taken(queue, Lines(lines, keyed=keyed), "run")
    again = taken(queue, Lines(lines, keyed=keyed), "run")
    assert (again.sent, again.malformed, again.repeated) == (2, 1, point == "store.append.after_commit")
    assert bodies(queue) == ["a", "c", "bad"]
    assert taken(queue, Lines(lines, keyed=keyed)).sent == 0
    is_whole(queue)


@pytest.mark.parametrize("point", ["store.append.after_files", "store.append.after_numbering"])
@pytest.mark.parametrize("keyed", [False, True])
def test_who_was_overtaken_takes_only_what_is_left(
    queue: Queue, point: str, at_point: AtPoint, monkeypatch: pytest.MonkeyPatch, *, keyed: bool
) -> None:
    monkeypatch.setattr("airflow_poison.store.appending._PATIENCE", 0.5)  # the one that is overtaken holds the turn
    lines = ["a", "b"]

    def meanwhile() -> None:
        taken(queue, Lines(lines, keyed=keyed))
        lines.append("c")

    at_point.do(point, meanwhile)
    assert taken(queue, Lines(lines, keyed=keyed)).sent == 1
    assert bodies(queue) == ["a", "b", "c"]
    is_whole(queue)


def test_many_at_once_take_each_record_once(queue: Queue) -> None:
    lines = [f"{number:03}" for number in range(60)]

    def taker() -> None:
        while taken(queue, Lines(lines), limit=4).sent:
            pass

    threads = [threading.Thread(target=taker) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert bodies(queue) == lines
    is_whole(queue)


def test_a_source_that_others_always_take_first_is_an_error_that_names_it(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def overtaken(*_given: object, **_how: bool) -> None:
        raise SourceTakenError

    monkeypatch.setattr(type(queue.table), "append", overtaken)
    with pytest.raises(SourceError, match=r"'lines' was taken into queue 'orders' by others 20 times"):
        taken(queue, Lines(["a"]))


def test_what_reading_raises_leaves_everything_as_it_was(queue: Queue) -> None:
    def fail() -> None:
        raise SourceError("the server is away")

    version = queue.table.snapshot().version
    with pytest.raises(SourceError, match="away"):
        taken(queue, Lines(["a"], on_read=fail))
    assert queue.table.snapshot().version == version
    assert taken(queue, Lines(["a"])).sent == 1


def test_while_the_queue_is_disabled_messages_wait_and_the_position_goes_on(queue: Queue) -> None:
    broker = queue.having(table=queue.table)
    disable(broker.table, broker.clock)
    result = taken(broker, Lines(["a", "bad"]))
    enable(broker.table, broker.clock)
    assert (result.sent, result.malformed) == (2, 1)
    assert bodies(queue, SubQueue.MAIN) == ["a"]
    assert bodies(queue, SubQueue.POISON) == ["bad"]
    assert taken(broker, Lines(["a", "bad"])).sent == 0


def test_a_limit_below_one_is_refused(queue: Queue) -> None:
    with pytest.raises(InputError, match="limit=0"):
        taken(queue, Lines(["a"]), limit=0)


def test_a_body_that_is_null_or_too_large_is_malformed(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_poison.passes import send as module

    monkeypatch.setattr(module, "MAX_BODY_BYTES", 4)

    @dataclass
    class Odd(Lines):
        def plan(self, position: Position, *, limit: int | None) -> Take | None:
            found = super().plan(position, limit=limit)
            batch = pa.record_batch({"body": pa.array([b"good", None, b"too large"], pa.binary())})
            return None if found is None else replace(found, batches=lambda: iter([batch]))

    assert taken(queue, Odd(["x"])).malformed == 2
    assert bodies(queue, SubQueue.POISON) == ["", "too "]
    assert [str(row["reason"]) for row in queue.rows(SubQueue.POISON).values()] == [
        "MalformedError: the record has no body: it is null",
        "MalformedError: the record has 9 bytes; at most 4 are allowed. These are the first of them",
    ]


# One bad record among good ones --------------------------------------------------------------------------------------


class RaisesOn(Schema):
    """A schema whose library raises for a record that says so, and one that has no answer for another."""

    def decode(self, body: bytes) -> bytes:
        if body == b"odd":
            raise ZeroDivisionError("by a record")
        if body == b"gone":
            raise SourceError("The registry does not answer. Nothing was sent.")
        return body


def test_what_a_schema_raises_for_a_record_is_that_records_error(queue: Queue) -> None:
    result = taken(queue, Lines(["a", "odd", "b"], schema=RaisesOn()))

    assert (result.sent, result.malformed, bodies(queue, SubQueue.MAIN), bodies(queue, SubQueue.POISON)) == (3, 1, ["a", "b"], ["odd"])
    (row,) = queue.rows(SubQueue.POISON).values()
    assert row["reason"] == "MalformedError: ZeroDivisionError: by a record"


def test_what_concerns_all_records_ends_the_take(queue: Queue) -> None:
    with pytest.raises(SourceError, match="The registry does not answer"):
        taken(queue, Lines(["a", "gone"], schema=RaisesOn()))
    with pytest.raises(InputError, match=r"properties='poison\.edits'"):
        taken(queue, Lines(["{}"]), mapping=ColumnMapping(properties=("poison.edits",)))
    assert bodies(queue) == []


@dataclass
class Columns(Source):
    """Rows of a table in one batch."""

    table: dict[str, Any]
    name: str = "columns"
    schema: Schema | None = None

    columns = True

    def plan(self, position: Position, *, limit: int | None) -> Take | None:
        del limit
        return (
            None if position.at else Take(what="rows", batches=lambda: iter([pa.record_batch(self.table)]), reached=lambda: Reached({"done": True}))
        )


def test_a_row_for_which_a_library_raises_is_malformed_alone(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    real = rows.to_messages

    def raises(batch: pa.RecordBatch, *rest: Any) -> pa.RecordBatch:
        if 617 in batch.column("id").to_pylist():
            raise OverflowError("this value")
        return real(batch, *rest)

    monkeypatch.setattr("airflow_poison.passes.take.to_messages", raises)
    result = taken(queue, Columns({"id": pa.array(range(1_000)), "v": pa.array([b"\xff"] * 1_000)}))

    assert (result.sent, result.malformed) == (1_000, 1)
    (row,) = queue.rows(SubQueue.POISON).values()
    assert (row["body"], row["reason"]) == (b'{"id": 617, "v": "/w=="}', "MalformedError: OverflowError: this value")
    assert bodies(queue, SubQueue.MAIN) == [f'{{"id":{number},"v":"/w=="}}' for number in range(1_000) if number != 617]
    is_whole(queue)


@dataclass
class Forged(Lines):
    """Records of which one has a property that only the product sets."""

    def _take(self, new: Sequence[str], end: int) -> Take:
        cells = [[("poison.edits", "[]")] if line == "forged" else [("kind", "x")] for line in new]
        made = pa.record_batch({"body": pa.array(new), "properties": pa.array(cells, pa.map_(pa.string(), pa.string()))})
        return Take(what="all", batches=lambda: iter([made]), reached=lambda: Reached({"line": end}))


def test_a_record_with_a_property_of_the_product_is_malformed_alone(queue: Queue) -> None:
    result = taken(queue, Forged(["a", "forged", "b"]))

    assert (result.sent, result.malformed, bodies(queue, SubQueue.MAIN), bodies(queue, SubQueue.POISON)) == (3, 1, ["a", "b"], ["forged"])
    (row,) = queue.rows(SubQueue.POISON).values()
    assert row["reason"].startswith("MalformedError: Property 'poison.edits' has a value")  # type: ignore[attr-defined]  # text
    assert not row["properties"]


def test_fields_become_parts_of_messages_as_they_are_written(queue: Queue) -> None:
    lines = [
        '{"g": 1.10, "p": 7, "k": 12345678901234567.890}',
        '{"g": "x", "p": 7.0, "k": null}',
        '{"g": 1, "g": 2}',
        '{"g": {"a": 1.0}, "k": 1, "other": 1, "other": 2}',
    ]
    taken(queue, Lines(lines), mapping=ColumnMapping(group="g", priority="p", properties=("k",)))

    found: dict[str, Any] = {row["body"].decode(): row for row in queue.rows().values()}  # type: ignore[attr-defined]  # bytes
    first, second, twice, last = (found[line] for line in lines)
    assert (first["group_id"], first["priority"], dict(first["properties"])) == ("1.10", 7, {"k": "12345678901234567.890"})
    assert second["reason"].startswith("MalformedError: priority='p': '7.0' is no priority")
    assert twice["reason"].startswith("MalformedError: its field 'g' is wanted, and stands twice in it")
    assert (last["group_id"], dict(last["properties"]), last["reason"]) == ('{"a": 1.0}', {"k": "1"}, None)
