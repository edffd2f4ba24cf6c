"""The folder of a submitted pass: what each try finds there of the tries before it."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.delivery.handlers import HandlerRef
from airflow_poison.passes.alter import declare
from airflow_poison.passes.declaration import Receive
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.runs import ReceiveResult
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.passes.submitted import PassOrder, Submission, carry_out, travelling
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.spark.executors import own_package
from airflow_poison.store.control import QueueState
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import ClaimLostError, HandlerNotFoundError, SparkJobError
from tests import local_driver
from tests.given.tables import CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message

KEY = "run"


def no_connection(name: str) -> Any:
    raise AssertionError(name)


@pytest.fixture
def table(tmp_path: Path) -> QueueTable:
    return DeltaStore(str(tmp_path / "store"), durable=False).create("orders", CONTROL)


def order(table: QueueTable, since: int = 0, **options: Any) -> PassOrder:
    receive = travelling(Receive.of("orders", **{"handler": "json:loads", "policy": Msmq4(), **options}), no_connection)
    return PassOrder.of(receive, store=str(Path(table.uri).parent), durable=False, queue="orders", key=KEY, since=since)


def a_try(table: QueueTable, since: int = 0, **told: Any) -> Submission:
    """Return a try that has submitted, and what its driver told."""
    mine = Submission(table, KEY)
    mine.write(order(table, since), ())
    if told:
        mine.write_outcome(told)
    return mine


def driven(mine: Submission) -> int:
    """Be the driver of a try; return its exit code."""
    with zipfile.ZipFile(mine.application) as archive:
        said = json.loads(archive.read("order.json"))
    assert [Path(name).name for name in said.pop("files")] == [Path(own_package()).name]
    return carry_out(PassOrder(**said))


def result(**numbers: Any) -> dict[str, object]:
    return ReceiveResult("orders", KEY, **numbers).to_dict()


def lost() -> dict[str, str]:
    return {"type": "ClaimLostError", "text": "taken over"}


def test_a_staged_handler_is_nobodys_business_but_its_owners_and_groups(table: QueueTable) -> None:
    mine = a_try(table)
    application = Path(mine.application)
    assert application.parent.stat().st_mode & 0o007 == 0
    assert application.stat().st_mode & 0o007 == 0


def test_a_first_try_finds_nothing(table: QueueTable) -> None:
    first = Submission(table, KEY)
    assert (first.since(), first.left(), first.outcome()) == (None, None, None)


def test_a_try_hears_its_own_driver_and_not_that_of_another_try(table: QueueTable) -> None:
    """Two at once: the one that lost the claim tells so, however late, and is not taken for the other."""
    early, late = a_try(table, error=lost()), a_try(table, result=result(received=3))
    with pytest.raises(ClaimLostError, match="taken over"):
        early.outcome()
    heard = late.outcome()
    assert heard is not None
    assert heard.received == 3
    assert a_try(table).outcome() is None


def test_a_try_that_finds_a_driver_again_hears_the_last_one(table: QueueTable) -> None:
    a_try(table, error=lost())
    a_try(table, result=result(received=2))
    heard = Submission(table, KEY).outcome()
    assert heard is not None
    assert heard.received == 2


def test_of_what_is_left_the_pass_that_did_something_is_told(table: QueueTable) -> None:
    a_try(table, error=lost())
    a_try(table, result=result(received=3, passes=1))
    a_try(table, result=result())
    left = Submission(table, KEY).left()
    assert left is not None
    assert left == replace(ReceiveResult("orders", KEY), received=3, passes=1)


def test_an_error_is_nothing_that_is_left(table: QueueTable) -> None:
    a_try(table, error=lost())
    assert Submission(table, KEY).left() is None


def test_where_the_passes_began_is_known_until_the_result_has_been_read(table: QueueTable) -> None:
    a_try(table, since=2)
    a_try(table, since=4)
    assert Submission(table, KEY).since() == 2
    Submission(table, KEY).remove()
    assert Submission(table, KEY).since() is None


def test_whatever_ends_a_driver_is_told(table: QueueTable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_receiving: object, _key: str) -> None:
        raise MemoryError("a mountain of messages")

    monkeypatch.setattr(ReceivePass, "run", fail)
    mine = a_try(table)

    assert driven(mine) == 1
    with pytest.raises(SparkJobError, match="MemoryError: a mountain of messages"):
        mine.outcome()
    assert "Traceback" in capsys.readouterr().err


def test_a_driver_whose_folder_is_gone_ends_in_silence(table: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another try has told the result meanwhile."""
    mine = a_try(table)

    def run(_receiving: object, _key: str) -> ReceiveResult:
        mine.remove()
        return ReceiveResult("orders", KEY)

    monkeypatch.setattr(ReceivePass, "run", run)

    assert driven(mine) == 0
    assert not Path(table.root, mine.folder).exists()


@pytest.mark.usefixtures("without_jvm")
def test_the_driver_counts_rollbacks_in_the_queues_that_its_transaction_spans(tmp_path: Path) -> None:
    store = DeltaStore(str(tmp_path / "store"), durable=False)
    table, bills = (declare(store, name, ServiceBroker(), SystemClock()) for name in ("orders", "bills"))
    send(table, messages_to_batches(["no JSON"]), key="sent", clock=SystemClock())
    mine = Submission(table, KEY)
    mine.write(order(table, policy=ServiceBroker(), isolation="none", spans=["bills"]), ())

    assert driven(mine) == 0

    assert [each.snapshot().control.state for each in (table, bills)] == [QueueState.DISABLED] * 2


# Rows that go to a function --------------------------------------------------------------------------------------------


def text_of(message: Message) -> dict[str, object]:
    return {"text": message.text}


def told_to(table: QueueTable, deliver: Callable[[pa.Table, str], None]) -> Submission:
    """Return a try whose order has a function that takes rows."""
    mine = Submission(table, KEY)
    mine.write(order(table, isolation="none", handler=text_of, deliver=deliver), ())
    return mine


@pytest.fixture
def without_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that delivers in this process."""
    local_driver.without_jvm(monkeypatch)


@pytest.mark.usefixtures("without_jvm")
def test_the_driver_gives_rows_to_a_function_and_after_its_death_once_more_with_the_same_key(table: QueueTable, tmp_path: Path) -> None:
    send(table, messages_to_batches(["one", "two"]), key="sent", clock=SystemClock())
    taken = str(tmp_path / "taken")

    def take(rows: pa.Table, key: str) -> None:
        told = Path(taken).read_text() if Path(taken).exists() else ""
        Path(taken).write_text(f"{told}{key} {sorted(map(str, rows['text'].to_pylist()))}\n")
        if not told:
            raise ConnectionError("the database is away")

    first = told_to(table, take)
    assert driven(first) == 1
    with pytest.raises(SparkJobError, match="ConnectionError: the database is away"):
        first.outcome()
    assert sum(file.rows for file in table.snapshot().files) == 0, "the messages have settled"

    second = told_to(table, take)
    assert driven(second) == 0
    third = told_to(table, take)
    assert driven(third) == 0

    calls = Path(taken).read_text().splitlines()
    assert len(calls) == 2
    assert calls[0] == calls[1]
    assert calls[0].endswith("['one', 'two']")
    heard = second.outcome()
    assert heard is not None
    assert heard.landed == {"output": 2}


@pytest.mark.usefixtures("without_jvm")
def test_a_function_that_the_driver_does_not_find_is_told_before_anything_is_claimed(table: QueueTable) -> None:
    send(table, messages_to_batches(["one"]), key="sent", clock=SystemClock())
    mine = Submission(table, KEY)
    receive = travelling(Receive.of("orders", handler=text_of, policy=Msmq4(), deliver=print, isolation="none"), no_connection)
    gone = replace(receive, deliver=HandlerRef("not_there:upsert"))  # type: ignore[arg-type]  # as it travels
    mine.write(PassOrder.of(gone, store=str(Path(table.uri).parent), durable=False, queue="orders", key=KEY), ())

    assert driven(mine) == 1
    with pytest.raises(HandlerNotFoundError, match=r"deliver: .*'not_there:upsert' cannot be found"):
        mine.outcome()
    assert table.snapshot().claims == ()
    assert sum(file.rows for file in table.snapshot().files) == 1
