"""Rows that handlers return land in their outputs: each once, those of settled messages alone, whatever dies in between."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_poison.delivery.handlers import Batching
from airflow_poison.delivery.returned import RowsReader
from airflow_poison.fsck.check import check_store
from airflow_poison.outputs.output import outputs_of
from airflow_poison.passes.alter import disable
from airflow_poison.passes.receive import LEASE
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values import fault_points
from airflow_poison.values.errors import OutputError, QueueHaltedError, ServerSessionError, SettingError
from airflow_poison.values.failures import PoisonRows
from tests.given import forked
from tests.given.landing import of, reached
from tests.given.passes import DiedError, DyingEngine, Queue, a_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_poison.rules.policy import Policy
    from airflow_poison.values.message import Message

forked.preload("tests.unit.passes.test_results")
POLICY = Msmq4(receive_retry_count=2, max_retry_cycles=1, retry_cycle_delay=timedelta(minutes=30), receive_error_handling="Move")
BATCHES = replace(POLICY, max_batch_size=3, receive_retry_count=3)
"""A retry more: a batch that fails counts for each of its members, and after a death batches begin again (spec WCF-41, section 11)."""
with warnings.catch_warnings(action="ignore"):
    AT_MOST_ONCE = replace(POLICY, exactly_once=False, receive_error_handling="Drop")
BROKER = ServiceBroker(max_queue_readers=1)
FULL = os.environ.get("POISON_FAULTS") == "full"
"""``make faults`` dies at every point of a pass; ``make test`` at every fifth, at others each time."""


@dataclass(frozen=True)
class Landing:
    """Returns a row that says which message it is of, and which delivery; raises, or kills the process, as the body says.

    :param log: where calls are noted.
    """

    log: str

    def __call__(self, message: Message) -> Any:
        with Path(self.log).open("a") as file:
            file.write(f"{message.lookup_id}\n")
        called = Path(self.log).read_text().split().count(str(message.lookup_id))
        what, *_ = message.text.split()
        if what == "bad" or (what == "second" and called == 1):
            raise ValueError(what)
        if what == "kill" and called == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "none":
            return None
        if what == "two":
            return [{"id": message.lookup_id, "called": called}, {"id": message.lookup_id, "called": called}]
        return {"id": message.lookup_id, "called": called}


@dataclass(frozen=True)
class LandingFrames:
    """Does the same with the messages of a frame, and returns a table.

    :param log: where calls are noted.
    """

    log: str

    def __call__(self, frame: pa.Table) -> pa.Table:
        ids: list[Any] = frame["lookup_id"].to_pylist()
        words = [body.decode() for body in frame["body"].to_pylist() if body]
        with Path(self.log).open("a") as file:
            file.write("".join(f"{number}\n" for number in ids))
        called = Counter(map(int, Path(self.log).read_text().split()))
        if bad := {n: "it is bad" for n, word in zip(ids, words, strict=True) if word == "bad" or (word == "second" and called[n] == 1)}:
            raise PoisonRows(bad)
        owners = [n for n, word in zip(ids, words, strict=True) for _ in range({"none": 0, "two": 2}.get(word, 1))]
        return pa.table({"lookup_id": pa.array(owners, pa.int64()), "id": pa.array(owners, pa.int64()), "called": [called[n] for n in owners]})


FRAMES = Batching("arrow")


def landed(output: Path | str) -> Counter[int]:
    """How often each message's row is in an output."""
    return Counter(row["id"] for row in rows(output))


def rows(output: Path | str) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(str(output)):
        return []
    found: list[dict[str, Any]] = DeltaTable(str(output)).to_pyarrow_table().to_pylist()
    return found


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return a_queue(DeltaStore(str(tmp_path / "store"), durable=False), tmp_path, POLICY)


def landing(queue: Queue, tmp_path: Path, policy: Policy | None = None, batching: Batching | None = None) -> Queue:
    handler = Landing(str(tmp_path / "landing")) if batching is None else LandingFrames(str(tmp_path / "landing"))
    return queue.having(handler=handler, policy=policy or queue.policy, batching=batching)


BODIES = ("good", "bad", "second", "none", "two", "good")
EXPECTED = Counter({1: 1, 3: 1, 5: 2, 6: 1})


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("policy", [POLICY, BATCHES, AT_MOST_ONCE], ids=["alone", "batches", "at most once"])
def test_what_settled_messages_returned_is_in_the_output_once(queue: Queue, tmp_path: Path, policy: Policy, isolation: str) -> None:
    result = landing(queue.sent(*BODIES), tmp_path, policy).receive(isolation=isolation, **of(tmp_path / "out"))

    expected = EXPECTED if policy is not AT_MOST_ONCE else EXPECTED - Counter({3: 1})
    assert landed(tmp_path / "out") == expected
    assert dict(result.landed) == {"output": expected.total()}
    assert queue.table.snapshot().landings == ()


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_an_endpoint_that_halts_lands_what_was_settled_before(tmp_path: Path, isolation: str) -> None:
    queue = landing(a_queue(DeltaStore(str(tmp_path / "store"), durable=False), tmp_path, BROKER).sent("good", "two", "bad", "good"), tmp_path)
    result = queue.receive(isolation=isolation, **of(tmp_path / "out"))

    assert result.halted is not None
    assert landed(tmp_path / "out") == Counter({1: 1, 2: 2})


def test_what_a_halted_queue_has_settled_lands_although_nothing_is_received(tmp_path: Path) -> None:
    queue = landing(a_queue(DeltaStore(str(tmp_path / "store"), durable=False), tmp_path, BROKER).sent("good", "bad"), tmp_path)

    def die(point: str) -> None:
        if point == "output.land.before_write":
            raise DiedError

    with reached(die), pytest.raises(DiedError):
        queue.receive(**of(tmp_path / "out"))
    with pytest.raises(QueueHaltedError):
        queue.receive("again", **of(tmp_path / "out"))

    assert landed(tmp_path / "out") == Counter({1: 1})


def test_what_the_claim_of_a_dead_run_has_settled_lands_although_the_queue_is_halted_meanwhile(queue: Queue, tmp_path: Path) -> None:
    queue = landing(queue.sent("good", "two"), tmp_path)
    with pytest.raises(DiedError):
        queue.receive(engine=DyingEngine, **of(tmp_path / "out"))
    queue.clock.advance(LEASE)

    def halt(point: str) -> None:
        if point == "store.finish.after_clearing":
            fault_points.install(None)
            disable(queue.table, queue.clock, "for a test")

    with reached(halt), pytest.raises(QueueHaltedError, match="for a test"):
        queue.receive("again", **of(tmp_path / "out"))

    assert landed(tmp_path / "out") == Counter({1: 1, 2: 2})
    assert queue.table.snapshot().landings == ()


def test_a_delivery_that_was_rolled_back_lands_nothing(queue: Queue, tmp_path: Path) -> None:
    landing(queue.sent(*BODIES), tmp_path).receive(**of(tmp_path / "out"))

    assert [row["called"] for row in rows(tmp_path / "out") if row["id"] == 3] == [2]


# Whatever dies ---------------------------------------------------------------------------------------------------------


def points_of(act: Callable[[], object]) -> list[str]:
    """Return the fault points that something reaches, in order."""
    met: list[str] = []
    with reached(met.append):
        act()
    return met


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "batching", "bodies", "expected"),
    [
        (POLICY, None, BODIES, EXPECTED),
        (BATCHES, None, BODIES, EXPECTED),
        (POLICY, FRAMES, BODIES, EXPECTED),
        (BROKER, FRAMES, ("good", "none", "two", "good"), Counter({1: 1, 3: 2, 4: 1})),
    ],
    ids=["alone", "batches", "frames", "ordered frames"],
)
def test_a_pass_that_dies_at_any_point_lands_everything_once_when_it_runs_again(
    tmp_path: Path, policy: Policy, batching: Batching | None, bodies: tuple[str, ...], expected: Counter[int]
) -> None:
    def a_run(name: str) -> tuple[Queue, Path]:
        folder = tmp_path / name
        folder.mkdir()
        queue = a_queue(DeltaStore(str(folder / "store"), durable=False), folder, policy).sent(*bodies, key="first")
        return landing(queue, folder, policy, batching), folder / "out"

    queue, out = a_run("whole")
    met = points_of(lambda: queue.receive(**of(out)))
    assert {"pass.land.after_write", "output.land.before_write", "output.land.before_force"} <= set(met)
    step = 1 if FULL else 5
    for number, point in list(enumerate(met))[random.randrange(step) :: step]:
        queue, out = a_run(str(number))
        assert in_a_process(queue, out.parent, policy, number, batching) == -signal.SIGKILL
        queue.clock.advance(timedelta(minutes=3))
        queue.receive(**of(out))
        queue.receive("again", **of(out))
        assert landed(out) == expected, point
        assert queue.table.snapshot().landings == (), point
        errors = [finding for result in check_store(queue.store, queue.clock) for finding in result.findings]
        assert errors == [], point


def in_a_process(queue: Queue, folder: Path, policy: Policy, die_at: int = -1, batching: Batching | None = None) -> int | None:
    """Receive in a process of its own, which may be killed at a fault point; return how it ended."""
    return forked.run(_receive, queue.store.uri, str(folder), policy, die_at, batching).code


def _receive(root: str, folder: str, policy: Policy, die_at: int, batching: Batching | None) -> None:
    numbers = count()

    def reached(_: str) -> None:
        if next(numbers) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    queue = a_queue(DeltaStore(root, durable=False), Path(folder), policy)
    fault_points.install(reached)
    landing(queue, Path(folder), policy, batching).receive(**of(Path(folder, "out")))
    os._exit(0)  # delta-rs has threads that do not like to be ended


@pytest.mark.parametrize("batching", [None, FRAMES], ids=["alone", "frames"])
def test_what_a_dead_pass_had_delivered_lands_with_the_pass_that_takes_over(queue: Queue, tmp_path: Path, batching: Batching | None) -> None:
    queue = landing(queue.sent(*BODIES), tmp_path, batching=batching)
    with pytest.raises(DiedError):
        queue.having(engine=DyingEngine).receive(**of(tmp_path / "out"))
    assert landed(tmp_path / "out") == Counter()
    delivered = Path(tmp_path / "landing").read_text()
    queue.clock.advance(timedelta(minutes=3))

    result = queue.receive("another", **of(tmp_path / "out"))

    assert landed(tmp_path / "out") == EXPECTED
    assert result.settled == 5
    assert Path(tmp_path / "landing").read_text() == delivered, "nothing is delivered again"


def test_what_was_returned_by_a_dead_pass_needs_the_output_that_it_was_returned_for(queue: Queue, tmp_path: Path) -> None:
    queue = landing(queue.sent("good"), tmp_path)
    with pytest.raises(DiedError):
        queue.having(engine=DyingEngine).receive(**of(tmp_path / "out"))
    queue.clock.advance(timedelta(minutes=3))

    with pytest.raises(OutputError, match=r"returned rows for the output 'output', which this run does not declare.*declare it as before"):
        queue.receive("another")

    queue.clock.advance(timedelta(minutes=3))
    queue.receive("another", **of(tmp_path / "out"))
    assert landed(tmp_path / "out") == Counter({1: 1})


@pytest.mark.parametrize("lost", ["records", "file"])
def test_a_message_whose_record_is_lost_with_a_machine_is_delivered_again(queue: Queue, tmp_path: Path, lost: str) -> None:
    queue = landing(queue.sent("good", "good", "good"), tmp_path)
    with pytest.raises(DiedError):
        queue.having(engine=DyingEngine).receive(**of(tmp_path / "out"))
    (path,) = Path(queue.store.uri).rglob("*.rows")
    if lost == "file":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    queue.clock.advance(timedelta(minutes=3))

    queue.receive("another", **of(tmp_path / "out"))

    assert landed(tmp_path / "out") == Counter({1: 1, 2: 1, 3: 1})
    assert queue.rows() == {}


def test_a_message_that_kills_the_pass_lands_no_row_twice(queue: Queue, tmp_path: Path) -> None:
    queue.sent("good", "two", "kill", "good")

    assert [in_a_process(queue, tmp_path, POLICY) for _ in range(2)] == [-signal.SIGKILL, 0]

    assert landed(tmp_path / "out") == Counter({1: 1, 2: 2, 3: 1, 4: 1})


def test_a_message_that_kills_its_child_lands_no_row_twice(queue: Queue, tmp_path: Path) -> None:
    landing(queue.sent("good", "two", "kill", "good"), tmp_path).receive(isolation="process", **of(tmp_path / "out"))

    assert landed(tmp_path / "out") == Counter({1: 1, 2: 2, 3: 1, 4: 1})


def test_a_queue_that_was_restored_from_a_backup_lands_all_its_rows(queue: Queue, tmp_path: Path) -> None:
    queue = landing(queue.sent("good", key="one"), tmp_path)
    backup = tmp_path / "backup"
    shutil.copytree(queue.store.uri, backup, symlinks=True)
    queue.receive("one", **of(tmp_path / "out"))
    shutil.rmtree(queue.store.uri)
    shutil.copytree(backup, queue.store.uri, symlinks=True)
    store = DeltaStore(queue.store.uri, durable=False)
    restored = queue.having(store=store, table=store.open("orders"))

    restored.receive("other", **of(tmp_path / "out"))

    assert landed(tmp_path / "out") == Counter({1: 2}), "its people restored what had been received: it is received again"


def test_others_who_write_to_the_output_disturb_nothing(queue: Queue, tmp_path: Path) -> None:
    out = tmp_path / "out"
    queue = landing(queue, tmp_path)
    for number in range(3):
        queue.sent("good", key=str(number)).receive(str(number), **of(out))
        write_deltalake(str(out), pa.table({"id": pa.array([1_000 + number]), "called": pa.array([0])}), mode="append")
        DeltaTable(str(out)).optimize.compact()

    assert landed(out) == Counter({1: 1, 2: 1, 3: 1, 1_000: 1, 1_001: 1, 1_002: 1})


def test_queues_of_one_name_in_two_stores_share_an_output(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        landing(a_queue(DeltaStore(str(folder / "store"), durable=False), folder, POLICY).sent("good"), folder).receive(**of(out))

    assert landed(out) == Counter({1: 2})


# Columns ---------------------------------------------------------------------------------------------------------------


def echo(message: Message) -> Any:
    """Return the body's JSON."""
    return json.loads(message.body)


def received(queue: Queue, *bodies: object, **settings: Any) -> Queue:
    queue = queue.sent(*map(json.dumps, bodies), key=str(queue.table.snapshot().version)).having(handler=echo)
    queue.receive(str(queue.table.snapshot().version), **settings)
    return queue


def errors_of(queue: Queue) -> list[str]:
    return [row["last_error"]["message"] for row in queue.rows().values()]  # type: ignore[index]


def test_a_row_that_does_not_fit_is_a_failure_of_its_message(queue: Queue, tmp_path: Path) -> None:
    queue = received(queue, {"n": 1}, {"n": "two"}, {"n": 3, "m": 4}, {"n": 1 << 70}, **of(tmp_path / "out", schema="n bigint"))

    assert rows(tmp_path / "out") == [{"n": 1}]
    assert errors_of(queue) == [
        "Column 'n' of the output is long; 'two' (str) does not fit.",
        "The output has no column 'm'; it has n. Did you mean 'n'? Return other rows, or declare evolve=True to add columns.",
        "Column 'n' of the output is long; 1180591620717411303424 (int) does not fit: expected -9223372036854775808 to 9223372036854775807.",
    ]


def test_without_a_schema_the_first_rows_say_which_columns_there_are(queue: Queue, tmp_path: Path) -> None:
    queue = received(queue, {"n": 1, "text": None}, {"n": 2, "text": "two"}, {"n": 3, "text": 4}, {"other": 1}, **of(tmp_path / "out"))

    assert rows(tmp_path / "out") == [{"n": 1, "text": None}, {"n": 2, "text": "two"}]
    assert len(errors_of(queue)) == 2


def test_a_row_without_columns_is_a_failure_of_its_message(queue: Queue, tmp_path: Path) -> None:
    """Such rows could not say which columns an output has."""
    result = queue.sent("a").having(handler=lambda _message: {}).receive(isolation="none", **of(tmp_path / "out"))

    assert (result.settled, result.parked) == (0, 1)
    assert "has no columns" in str(result.errors[0]["error"])


def test_the_schema_of_a_table_that_is_there_holds(queue: Queue, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "out"), pa.table({"n": pa.array([0], pa.int32()), "text": pa.array(["zero"])}))
    queue = received(queue, {"n": 1}, {"n": 1 << 40}, {"more": 1}, **of(tmp_path / "out"))

    assert rows(tmp_path / "out") == [{"n": 1, "text": None}, {"n": 0, "text": "zero"}]
    assert len(errors_of(queue)) == 2


def test_columns_are_added_when_that_is_asked_for(queue: Queue, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_deltalake(str(out), pa.table({"n": pa.array([0])}))
    queue = received(queue, {"n": 1}, {"n": 2, "more": "x"}, {"n": 3, "more": 3}, **of(out, evolve=True))

    assert sorted(map(str, rows(out))) == sorted(map(str, [{"n": 0, "more": None}, {"n": 1, "more": None}, {"n": 2, "more": "x"}]))
    assert len(errors_of(queue)) == 1


def test_rows_replace_those_with_the_same_key(queue: Queue, tmp_path: Path) -> None:
    settings = of(tmp_path / "out", keys=["id"])
    queue = received(queue, {"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": "c"}, **settings)
    received(queue, {"id": 2, "v": "d"}, {"id": 3, "v": "e"}, **settings)

    assert {row["id"]: row["v"] for row in rows(tmp_path / "out")} == {1: "c", 2: "d", 3: "e"}
    assert len(rows(tmp_path / "out")) == 3


def several(message: Message) -> Any:
    """Return rows for two outputs, or for one that is none."""
    match message.text:
        case "late":
            return {"late": [{"id": 1}, {"id": 2}]}
        case "wrong":
            return {"lost": {"id": 1}}
        case "row":
            return {"id": 1}
        case "number":
            return 7
    return {"landed": {"id": 3}, "late": None}


def test_rows_go_to_several_outputs(queue: Queue, tmp_path: Path) -> None:
    queue = queue.sent("on time", "late", "wrong", "row", "number").having(handler=several)
    result = queue.receive(**of({"landed": tmp_path / "landed", "late": tmp_path / "late"}))

    assert (landed(tmp_path / "landed"), landed(tmp_path / "late")) == (Counter({3: 1}), Counter({1: 1, 2: 1}))
    assert dict(result.landed) == {"landed": 1, "late": 2}
    assert errors_of(queue) == [
        "The handler returned rows for 'lost', which is no output; there are 'landed', 'late'.",
        "The handler returned rows for 'id', which is no output; there are 'landed', 'late'.",
        "The handler returned 7 (int); expected a mapping of outputs to rows: 'landed', 'late'.",
    ]


def test_rows_carry_their_origin_on_request(queue: Queue, tmp_path: Path) -> None:
    received(queue, {"n": 1}, **of(tmp_path / "out", provenance=True))
    (row,) = rows(tmp_path / "out")

    assert (row["_queue"], row["_lookup_id"], row["_received_at"]) == ("orders", 1, queue.clock.now())
    assert row["_pass"].startswith("1-") or row["_pass"]


def yielding(message: Message) -> Iterator[dict[str, Any]]:
    """Yield rows, and fail behind the first one where the body says so."""
    yield {"id": message.lookup_id, "at": datetime(2026, 1, 2, tzinfo=UTC), "price": Decimal("1.50"), "parts": [{"a": 1}], "raw": b"\xff"}
    if message.text == "bad":
        raise ValueError
    yield {"id": message.lookup_id, "at": None, "price": None, "parts": None, "raw": None}


def test_a_generator_lands_what_it_yields_when_it_gets_to_its_end(queue: Queue, tmp_path: Path) -> None:
    queue.sent("good", "bad").having(handler=yielding).receive(**of(tmp_path / "out"))

    assert landed(tmp_path / "out") == Counter({1: 2})
    first = next(row for row in rows(tmp_path / "out") if row["price"] is not None)
    assert (first["at"], first["price"], first["parts"], first["raw"]) == (
        datetime(2026, 1, 2, tzinfo=UTC),
        Decimal("1.5"),
        [{"a": 1}],
        b"\xff",
    )


# Without an output, and with a function --------------------------------------------------------------------------------


def test_rows_without_an_output_are_told_of_once_a_pass(queue: Queue, tmp_path: Path) -> None:
    told: list[str] = []
    result = landing(queue.sent(*BODIES), tmp_path).receive(progress=told.append)

    assert result.not_landed == 4
    assert [line for line in told if "output" in line] == [
        "queue orders: 4 deliveries returned rows, which are dropped: no output is declared. Declare output='/path/of/a/table' to keep them."
    ]


def test_a_function_gets_the_rows_with_a_key_that_stays_the_same(queue: Queue, tmp_path: Path) -> None:
    given: list[tuple[str, list[dict[str, Any]]]] = []

    def deliver(table: pa.Table, key: str) -> None:
        given.append((key, table.to_pylist()))
        if len(given) == 1:
            raise ConnectionError("the database is away")

    queue = landing(queue.sent("good", "two"), tmp_path)
    with pytest.raises(ConnectionError):
        queue.receive(outputs=outputs_of(deliver=True), deliver=deliver)
    result = queue.receive(outputs=outputs_of(deliver=True), deliver=deliver)
    queue.receive("third", outputs=outputs_of(deliver=True), deliver=deliver)

    assert dict(result.landed) == {"output": 3}
    assert given[0] == given[1]
    assert len(given) == 2


# Wrong declarations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "settings", "says"),
    [
        (7, {}, "output=7 is not allowed; allowed: a path or URI"),
        ("", {}, "output='' is not allowed"),
        ("None", {}, "output='None' is not allowed; .* a template whose value is none"),
        ({}, {}, r"output=\{\} is not allowed"),
        ({"a b": "/x"}, {}, "names of outputs like 'landed'"),
        ({"a": "/x", "b": "/x/"}, {}, "output='/x' is not allowed; allowed: every table once"),
        ("/x", {"schema": "n bigint,"}, "output_schema='n bigint,'"),
        ("/x", {"schema": 7}, "output_schema=7 is not allowed; allowed: DDL like"),
        ("/x", {"keys": "id"}, "output_keys='id' is not allowed; allowed: a list of column names"),
        ("/x", {"schema": "n bigint", "keys": ["id"]}, "output_keys='id' is not allowed; allowed: a column of the schema: n"),
        ({"a": "/x", "b": "/y"}, {"schema": "n bigint"}, "a mapping of the outputs' names: a, b"),
        ({"a": "/x", "b": "/y"}, {"keys": {"c": ["id"]}}, "output_keys='c' is not allowed; allowed: a name of an output: a, b"),
        (None, {"schema": "n bigint"}, "a setting of an output; declare output=... too"),
        ("/x", {"deliver": True}, "an output or a deliver function, not both"),
    ],
)
def test_a_wrong_declaration_says_what_is_wanted(given: object, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        outputs_of(given, **settings)


def test_an_output_that_cannot_be_opened_is_told_before_anything_is_claimed(queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "out" / "_delta_log").mkdir(parents=True)
    (tmp_path / "out" / "_delta_log" / f"{0:020d}.json").write_text("no JSON")

    with pytest.raises(OutputError, match=r"The output '.*out' cannot be opened"):
        landing(queue.sent("good"), tmp_path).receive(**of(tmp_path / "out"))

    assert queue.table.snapshot().claims == ()


def test_an_output_that_lacks_a_declared_column_is_told_before_anything_is_claimed(queue: Queue, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "out"), pa.table({"n": pa.array([0])}))

    with pytest.raises(OutputError, match=r"has no column 'm'; it has n\. .*evolve=True"):
        landing(queue.sent("good"), tmp_path).receive(**of(tmp_path / "out", schema="n bigint, m string"))
    with pytest.raises(SettingError, match=r"output_schema='n string' is not allowed; allowed: the type that the output has: int64"):
        landing(queue, tmp_path).receive(**of(tmp_path / "out", schema="n string"))


def test_rows_that_an_output_does_not_take_any_more_wait(queue: Queue, tmp_path: Path) -> None:
    out = tmp_path / "out"
    queue = landing(queue.sent("good"), tmp_path)

    def spoil(point: str) -> None:
        if point == "output.land.before_write" and not out.exists():
            write_deltalake(str(out), pa.table({"another": pa.array([0])}))

    with (
        reached(spoil),
        pytest.raises(OutputError, match=r"Rows cannot be added to the output .* no column 'id'.*They wait in the queue's own table"),
    ):
        queue.receive(**of(out))
    assert len(queue.table.snapshot().landings) == 1
    shutil.rmtree(out)

    queue.receive("again", **of(out))

    assert landed(out) == Counter({1: 1})


def test_no_message_settles_without_what_it_returned(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has emptied the file beside the journal while the pass was under way."""
    with monkeypatch.context() as patch:
        patch.setattr(RowsReader, "news", lambda _self: iter(()))
        with pytest.raises(ServerSessionError, match=r"What 2 delivered message\(s\) returned, 1 among them, cannot be found"):
            landing(queue.sent("good", "good"), tmp_path).receive(**of(tmp_path / "out"))
    assert len(queue.rows()) == 2

    landing(queue, tmp_path).receive(**of(tmp_path / "out"))

    assert landed(tmp_path / "out") == Counter({1: 1, 2: 1})
