"""Rows that an output refuses after their messages have settled: the others land, and those messages come back, into poison."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import tempfile
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_poison import Store
from airflow_poison.delivery.handlers import Batching
from airflow_poison.fsck.check import check_store
from airflow_poison.outputs.output import outputs_of
from airflow_poison.outputs.table_rules import refused_rows, rules_of
from airflow_poison.passes.land import land, take_out, take_out_refused, waiting_rows
from airflow_poison.passes.maintain import maintain
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.errors import MessageNotFoundError, OutputError, SettingError
from airflow_poison.values.events import EventType, acting
from airflow_poison.values.schema import SubQueue
from tests.given.command import run
from tests.given.landing import BODIES, both_outputs, broken, constrain, mended, number, of, once, reached, receive, settle
from tests.given.passes import DiedError, Queue, a_queue
from tests.unit.passes.test_output_tables import POLICY, a_table, field, rows

if TYPE_CHECKING:
    from airflow_poison.values.message import Message


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return a_queue(DeltaStore(str(tmp_path / "store"), durable=False), tmp_path, POLICY)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    write_deltalake(str(tmp_path / "out"), pa.table({"n": pa.array([], pa.int64())}))
    return tmp_path / "out"


def named(frame: pa.Table) -> Any:
    return pa.table({"lookup_id": frame["lookup_id"], "n": frame["body"].cast(pa.string()).cast(pa.int64())})


def unnamed(frame: pa.Table) -> Any:
    return named(frame).drop_columns(["lookup_id"])


def check(queue: Queue, out: Path) -> None:
    """Every message is where it belongs, once, and the history says so."""
    assert Counter(row["n"] for row in rows(out)) == Counter([5, 7, 9])
    poison = queue.rows(SubQueue.POISON)
    assert {number: (row["body"], row["reason"]) for number, row in poison.items()} == {
        2: (b"-1", REASON),
        4: (b"-2", REASON),
    }
    assert queue.table.snapshot().landings == ()
    assert len(queue.rows()) == len(poison)
    assert [finding for result in check_store(queue.store, queue.clock) for finding in result.findings] == []


REASON = "OutputRowError: The output refused a row that fitted when the message was settled: it breaks the constraint 'positive': n > 0"


@pytest.mark.parametrize(
    "settings",
    [{}, {"handler": named, "batching": Batching("arrow")}],
    ids=["a row of a message", "rows of a frame"],
)
def test_a_landing_that_fails_looks_for_its_culprits(queue: Queue, out: Path, settings: dict[str, Any]) -> None:
    with reached(once("output.land.before_write", lambda: constrain(out))):
        receive(queue.sent(*BODIES), out, **settings)

    check(queue, out)
    assert [event for event in queue.happened() if event[0] == "MOVED_POISON"] == [("MOVED_POISON", 2), ("MOVED_POISON", 4)]


def test_a_pass_that_dies_at_any_point_of_it_lets_the_next_one_go_on(tmp_path: Path) -> None:
    points: list[str] = []
    died = 0
    while died <= len(points):
        folder = tmp_path / str(died)
        write_deltalake(str(folder / "out"), pa.table({"n": pa.array([], pa.int64())}))
        queue, out = settle(a_queue(DeltaStore(str(folder / "store"), durable=False), folder, POLICY), folder / "out"), folder / "out"
        met: list[str] = []

        def die(point: str) -> None:
            met.append(point)  # noqa: B023  (of this turn)
            if points and len(met) == died:  # noqa: B023
                raise DiedError

        with reached(die):
            if not died:
                land(queue.table, queue.clock)
                points = met
            else:
                with pytest.raises(DiedError):
                    land(queue.table, queue.clock)
        land(queue.table, queue.clock)
        check(queue, out)
        died += 1
    assert {"output.land.before_write", "output.land.before_force", "pass.land.after_write", "pass.land.before_removal"} <= set(points)


def test_another_lander_that_was_faster_with_the_poison_is_enough(queue: Queue, out: Path) -> None:
    settle(queue, out)

    with reached(once("pass.land.before_removal", lambda: land(queue.table, queue.clock))):
        land(queue.table, queue.clock)

    check(queue, out)


def test_another_lander_for_whom_everything_fitted_decides(queue: Queue, out: Path) -> None:
    settle(queue, out)

    def the_constraint_goes() -> None:
        DeltaTable(str(out)).alter.drop_constraint("positive")
        with reached(once("pass.land.after_write", die)), pytest.raises(DiedError):
            land(queue.table, queue.clock)

    def die() -> None:
        raise DiedError

    tries: list[str] = []

    def at_the_second_write(point: str) -> None:
        tries.extend([point] * (point == "output.land.before_write"))
        if point == "output.land.before_write" and len(tries) == 2:
            the_constraint_goes()

    with reached(at_the_second_write):
        land(queue.table, queue.clock)

    assert Counter(row["n"] for row in rows(out)) == Counter([5, -1, 7, -2, 9])
    assert queue.rows() == {}
    assert queue.table.snapshot().landings == ()


def test_no_part_of_a_message_lands_behind_the_output_that_refused_it(queue: Queue, tmp_path: Path, out: Path) -> None:
    more = tmp_path / "more"
    write_deltalake(str(more), pa.table({"n": pa.array([], pa.int64())}))

    def both(message: Message) -> Any:
        return {"first": {"n": int(message.text)}, "second": {"n": int(message.text)}}

    with reached(once("output.land.before_write", lambda: constrain(out))):
        queue.sent(*BODIES).receive(handler=both, isolation="none", **of({"first": out, "second": more}))

    check(queue, out)
    assert Counter(row["n"] for row in rows(more)) == Counter([5, 7, 9])


def test_rows_that_do_not_name_their_message_charge_none(queue: Queue, out: Path) -> None:
    settle(queue, out, handler=unnamed, batching=Batching("arrow"))

    with pytest.raises(OutputError, match=r"refuses a row \(it breaks the constraint 'positive': n > 0\) that does not say which message"):
        land(queue.table, queue.clock)

    assert (rows(out), queue.rows(), len(queue.table.snapshot().landings)) == ([], {}, 1)


def some_named(frame: pa.Table) -> Any:
    """Name the message of the first row below 0, and of no other."""
    made = named(frame)
    ids = [number if number == 2 else None for number in made["lookup_id"].to_pylist()]
    return made.set_column(0, "lookup_id", pa.array(ids, pa.int64()))


@pytest.mark.parametrize(("handler", "poison"), [(unnamed, []), (some_named, [2])], ids=["no row is named", "one of two is named"])
def test_people_remove_refused_rows_that_name_no_message_and_the_others_land(queue: Queue, out: Path, handler: Any, poison: list[int]) -> None:
    settle(queue, out, handler=handler, batching=Batching("arrow"))

    with acting("shell:ann", "no row below 0"):
        assert take_out_refused(queue.table, queue.clock) == 2

    assert Counter(row["n"] for row in rows(out)) == Counter([5, 7, 9])
    assert sorted(queue.rows()) == sorted(queue.rows(SubQueue.POISON)) == poison
    assert waiting_rows(queue.table) == ()
    gone = [event for event in queue.table.events() if event.type is EventType.DROPPED]
    assert [(event.lookup_id, event.details["rows"], event.details["who"]) for event in gone] == [(None, str(2 - len(poison)), "shell:ann")]
    assert [finding for result in check_store(queue.store, queue.clock) for finding in result.findings] == []


def test_a_death_while_people_remove_refused_rows_loses_no_other(queue: Queue, out: Path) -> None:
    settle(queue, out, handler=unnamed, batching=Batching("arrow"))

    def die() -> None:
        raise DiedError

    with reached(once("pass.land.after_write", die)), pytest.raises(DiedError):
        take_out_refused(queue.table, queue.clock)
    land(queue.table, queue.clock)

    assert Counter(row["n"] for row in rows(out)) == Counter([5, 7, 9])
    assert (queue.rows(), waiting_rows(queue.table)) == ({}, ())
    assert [event.details["rows"] for event in queue.table.events() if event.type is EventType.DROPPED] == ["2"]


def test_rows_of_several_files_that_name_no_message_are_told_apart(queue: Queue, tmp_path: Path, out: Path) -> None:
    more = tmp_path / "more"
    write_deltalake(str(more), pa.table({"n": pa.array([], pa.int64())}))

    def both(frame: pa.Table) -> Any:
        return {"first": unnamed(frame), "second": unnamed(frame)}

    with reached(once("output.land.before_write", lambda: constrain(out))), pytest.raises(OutputError):
        queue.sent(*BODIES).receive(handler=both, isolation="none", batching=Batching("arrow", 2), **of({"first": out, "second": more}))
    take_out_refused(queue.table, queue.clock)

    assert Counter(row["n"] for row in rows(out)) == Counter([5, 7, 9])
    assert Counter(row["n"] for row in rows(more)) == Counter(map(int, BODIES))


# Several outputs, several commits -----------------------------------------------------------------------------------------


def several(message: Message) -> Any:
    return {name: {"n": int(message.text)} for name in ("first", "second", "third")}


def test_an_output_that_fails_keeps_no_row_from_another_one(queue: Queue, tmp_path: Path, out: Path) -> None:
    """Unlike logstash 8524, where one output that fails stops all others."""
    outputs = {"first": tmp_path / "1", "second": out, "third": tmp_path / "3"}
    settings: dict[str, Any] = {"handler": several, "isolation": "none", **of(outputs)}
    with reached(once("output.land.before_write", lambda: broken(out))), pytest.raises(OutputError, match="out"):
        queue.sent("1", "2").receive("one", **settings)

    assert [sorted(row["n"] for row in rows(tmp_path / name)) for name in "13"] == [[1, 2], [1, 2]]
    assert [(each.output, each.rows) for each in waiting_rows(queue.table)] == [("first", 2), ("second", 2), ("third", 2)]

    mended(out)
    queue.sent("3", key="more").receive("two", **settings)

    assert [sorted(row["n"] for row in rows(each)) for each in outputs.values()] == [[1, 2, 3]] * 3
    assert waiting_rows(queue.table) == ()
    assert [finding for result in check_store(queue.store, queue.clock) for finding in result.findings] == []


@pytest.mark.parametrize("refusing", ["first", "second"])
def test_what_an_output_refuses_later_comes_back_although_the_other_one_had_all_its_rows_before(queue: Queue, tmp_path: Path, refusing: str) -> None:
    outputs = {name: tmp_path / name for name in ("first", "second")}
    for each in outputs.values():
        write_deltalake(str(each), pa.table({"n": pa.array([], pa.int64())}))
    late, other = outputs[refusing], next(each for name, each in outputs.items() if name != refusing)

    def die() -> None:
        raise DiedError

    with reached(once("output.land.before_write", die)), pytest.raises(DiedError):
        queue.sent("1", "-2", "3").receive("one", handler=both_outputs, isolation="none", **of(outputs))
    broken(late)
    with pytest.raises(OutputError):
        land(queue.table, queue.clock)
    assert sorted(row["n"] for row in rows(other)) == [-2, 1, 3]

    mended(late)
    constrain(late)
    land(queue.table, queue.clock)

    assert sorted(row["n"] for row in rows(late)) == [1, 3]
    assert sorted(row["n"] for row in rows(other)) == [-2, 1, 3]
    assert [(number, row["body"]) for number, row in queue.rows(SubQueue.POISON).items()] == [(2, b"-2")]
    assert waiting_rows(queue.table) == ()


def test_a_function_that_fails_gets_the_rows_of_each_commit_in_their_order(queue: Queue) -> None:
    given: list[tuple[str, list[int | None]]] = []

    def deliver(table: pa.Table, key: str) -> None:
        given.append((key, table["n"].to_pylist()))
        if len(given) <= 2:
            raise ConnectionError("the database is away")

    settings: dict[str, Any] = {"handler": number, "isolation": "none", "outputs": outputs_of(deliver=True)}
    for key in ("one", "two"):  # by tasks that have no function
        queue.sent("3", key=key).receive(key, **settings)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            land(queue.table, queue.clock, deliver)
    land(queue.table, queue.clock, deliver)

    assert [rows for _, rows in given] == [[3], [3], [3], [3]]
    assert given[0] == given[1] == given[2] != given[3]
    assert waiting_rows(queue.table) == ()


def test_what_is_no_fault_of_a_row_charges_nobody(queue: Queue, out: Path) -> None:
    settle(queue, out)
    entry = max((out / "_delta_log").glob("*.json"))
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    protocol = next(line for line in lines if "protocol" in line)
    protocol["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": ["checkConstraints", "rowTracking"]}
    entry.write_text("\n".join(map(json.dumps, lines)))

    for _ in range(2):
        with pytest.raises(OutputError, match="They wait in the queue's own table"):
            land(queue.table, queue.clock)

    assert (rows(out), queue.rows(), len(queue.table.snapshot().landings)) == ([], {}, 1)


# People ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True], ids=["asked", "forced"])
@pytest.mark.parametrize("target", ["main", "poison", None])
def test_people_take_rows_out_that_wait(queue: Queue, out: Path, target: str | None, force: bool) -> None:  # noqa: FBT001  (a parameter of the test)
    settle(queue, out)
    if force:
        shutil.rmtree(out)

    with acting("shell:ann", "a new constraint"):
        assert take_out(queue.table, queue.clock, target=target, force=force) == len(BODIES)
    land(queue.table, queue.clock)

    if not force:
        assert rows(out) == []
    there = queue.rows() if target is None else queue.rows(SubQueue(target))
    assert [row["body"] for row in there.values()] == ([] if target is None else [body.encode() for body in BODIES])
    assert waiting_rows(queue.table) == ()
    told = [event for event in queue.table.events() if event.details.get("who") == "shell:ann"]
    assert [(event.lookup_id, event.details["why"]) for event in told] == [(number, "a new constraint") for number in range(1, 6)]
    assert {event.type for event in told} == {{None: EventType.DROPPED, "main": EventType.RETURNED, "poison": EventType.MOVED_POISON}[target]}
    assert [found for result in check_store(queue.store, queue.clock) for found in result.findings] == []


def test_rows_of_other_messages_land_when_some_are_taken_out(queue: Queue, out: Path) -> None:
    settle(queue, out)
    (waits,) = waiting_rows(queue.table)
    assert (waits.rows, waits.lookup_ids, waits.uri, waits.unnamed) == (5, "1-5", str(out), 0)

    assert take_out(queue.table, queue.clock, [2, 4], "main") == 2

    assert Counter(row["n"] for row in rows(out)) == Counter([5, 7, 9])
    assert [(number, row["body"]) for number, row in queue.rows(SubQueue.MAIN).items()] == [(2, b"-1"), (4, b"-2")]


def test_what_has_landed_meanwhile_is_not_taken_out(queue: Queue, out: Path) -> None:
    settle(queue, out)
    DeltaTable(str(out)).alter.drop_constraint("positive")

    with reached(once("output.land.before_write", lambda: land(queue.table, queue.clock))):
        assert take_out(queue.table, queue.clock, target="main") == 0

    assert len(rows(out)) == len(BODIES)
    assert queue.rows() == {}


def test_a_death_between_the_commits_of_people_loses_nothing(queue: Queue, out: Path) -> None:
    settle(queue, out)

    def die() -> None:
        raise DiedError

    with reached(once("pass.land.after_write", die)), pytest.raises(DiedError):
        take_out(queue.table, queue.clock)
    land(queue.table, queue.clock)

    assert (rows(out), sorted(queue.rows(SubQueue.POISON))) == ([], [1, 2, 3, 4, 5])


def test_what_cannot_be_taken_out_is_named(queue: Queue, out: Path) -> None:
    with pytest.raises(MessageNotFoundError, match="No rows of any message"):
        take_out(queue.table, queue.clock)
    settle(queue, out)
    with pytest.raises(MessageNotFoundError, match="No rows of message 77"):
        take_out(queue.table, queue.clock, [1, 77])
    with pytest.raises(SettingError, match=r"target='retry' is not allowed; allowed: main or poison"):
        take_out(queue.table, queue.clock, target="retry")
    with pytest.raises(SettingError, match=r"with force all messages of the commit: 1-5"):
        take_out(queue.table, queue.clock, [1], force=True)
    assert (rows(out), queue.rows(), len(waiting_rows(queue.table))) == ([], {}, 1)


def test_the_shell_lists_and_takes_out(queue: Queue, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settle(queue, out)
    store = f"--store {queue.store.uri}"

    assert (
        run(capsys, f"waiting-rows orders {store}").out == f"5 rows for {out} since version {waiting_rows(queue.table)[0].version}, of messages 1-5\n"
    )
    assert run(capsys, f"waiting-rows orders 1-5 {store}").code == 2
    assert (
        run(capsys, f"waiting-rows orders all --to main --reason why {store}").out == "Took the rows of 5 messages of orders out; they are in main.\n"
    )
    assert run(capsys, f"waiting-rows orders 1 --remove {store}").code == 1
    assert run(capsys, f"waiting-rows orders {store}").out == "No rows of orders wait.\n"


def test_the_shell_removes_rows_that_are_refused(queue: Queue, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settle(queue, out, handler=unnamed, batching=Batching("arrow"))
    store = f"--store {queue.store.uri}"

    assert run(capsys, f"waiting-rows orders refused --to poison {store}").code == 2
    ran = run(capsys, f"waiting-rows orders refused --remove --reason why {store}")

    assert ran.out == "All rows of orders landed but 2; messages that they name are in poison.\n"
    assert len(rows(out)) == 3


def test_maintenance_keeps_the_bodies_while_rows_wait(queue: Queue, out: Path) -> None:
    settle(queue, out)
    maintain(queue.table, queue.clock, retention=timedelta(0), safe_age=timedelta(0))

    land(queue.table, queue.clock)

    check(queue, out)
    maintain(queue.table, queue.clock, retention=timedelta(0), safe_age=timedelta(0))
    assert len(queue.rows(SubQueue.POISON)) == 2


def test_bodies_that_somebody_has_vacuumed_are_missed_before_the_output_decides(queue: Queue, out: Path) -> None:
    settle(queue, out)
    for path in Path(queue.table.root).glob("sub_queue=main/*/*.parquet"):
        path.unlink()

    with pytest.raises(OutputError, match="2 messages, whose bodies are gone"):
        land(queue.table, queue.clock)

    assert (rows(out), len(queue.table.snapshot().landings)) == ([], 1)


@pytest.mark.parametrize(
    ("fields", "settings", "given", "refused"),
    [
        ([field("n")], {"configuration": {"delta.constraints.c": "n > 0"}, "features": ("checkConstraints",)}, [1, -1, None, 2], {1, 2}),
        ([field("n", nullable=False)], {}, [1, None, 2], {1}),
        ([field("n", "integer")], {}, [1, 2**40, 2], {1}),
        ([field("n", "string")], {"partitions": ("n",)}, ["a", "", "x" * 300], {1, 2}),
        ([field("n")], {}, [1, 2], set()),
        ([field("m")], {}, [1, 2], set()),
    ],
    ids=["condition", "must have a value", "another type", "partition", "all fit", "no such column"],
)
def test_each_row_that_is_refused_is_found(tmp_path: Path, fields: list[Any], settings: dict[str, Any], given: list[Any], refused: set[int]) -> None:
    a_table(tmp_path / "t", *fields, **settings)

    found = refused_rows(rules_of(DeltaTable(str(tmp_path / "t")), local=True), pa.RecordBatch.from_pydict({"n": given}))

    assert set(found) == refused


def test_a_row_that_the_disk_of_trials_has_no_room_for_is_not_refused(tmp_path: Path) -> None:
    """No row is charged for a disk: the output's is often the same one, and as full."""
    a_table(tmp_path / "t", field("s", "string"), configuration={"delta.constraints.c": "s <> ''"}, features=("checkConstraints",))
    rules = rules_of(DeltaTable(str(tmp_path / "t")), local=True)
    batch = pa.RecordBatch.from_pydict({"s": ["a", os.urandom(300_000).hex(), ""]})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
    try:
        with pytest.raises(OSError, match=re.escape(f"[Errno {errno.EFBIG}] File too large: '{tempfile.gettempdir()}'")):
            refused_rows(rules, batch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused_rows(rules, batch).keys() == {2}


def test_rows_that_could_not_be_tried_wait(queue: Queue, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x")

    monkeypatch.setattr("airflow_poison.passes.land.refused_rows", full)
    with (
        reached(once("output.land.before_write", lambda: constrain(out))),
        pytest.raises(OutputError, match=r"could not be tried on this machine: .*No space left on device: '/tmp/x'. Free some space"),
    ):
        receive(queue.sent(*BODIES), out)
    assert queue.rows(SubQueue.POISON) == {}
    assert len(queue.table.snapshot().landings) == 1
    monkeypatch.undo()
    land(queue.table, queue.clock)
    check(queue, out)


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        (pa.struct([("x", pa.int64()), ("y", pa.int64())]), pa.struct([("x", pa.int64())]), {"x": 1, "y": 2}),
        (pa.struct([("x", pa.int64())]), pa.struct([("z", pa.int64())]), {"x": 1}),
        (pa.list_(pa.struct([("x", pa.int64())])), pa.list_(pa.struct([("z", pa.int64())])), [{"x": 1}]),
        (pa.float64(), pa.float32(), 1e300),
        (pa.timestamp("us"), pa.date32(), datetime(2026, 1, 1, 23, 59)),  # noqa: DTZ001  (it has no zone)
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), datetime(2026, 1, 1)),  # noqa: DTZ001
    ],
)
def test_a_table_that_has_other_columns_when_rows_land_refuses_what_they_do_not_hold(tmp_path: Path, before: Any, after: Any, value: Any) -> None:
    uri, queue = str(tmp_path / "out"), Store(str(tmp_path / "store")).declare("orders", POLICY)
    queue.send([b"1", b"2"])
    write_deltalake(uri, pa.schema([("a", before)]).empty_table())

    def handler(message: Message) -> dict[str, Any]:
        write_deltalake(uri, pa.schema([("a", after)]).empty_table(), mode="overwrite", schema_mode="overwrite")  # a migration runs meanwhile
        return {"a": value if message.text == "1" else None}

    queue.receive(handler, isolation="none", output=uri)

    assert DeltaTable(uri).to_pyarrow_table()["a"].to_pylist() == [None]
    (left,) = [row for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist()]
    assert (left["sub_queue"], left["body"]) == ("poison", b"1")
    assert "does not hold all of a value" in left["reason"]
