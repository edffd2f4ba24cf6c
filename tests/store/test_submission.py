"""The folder of a submitted pass: what each try finds there of the tries before it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.core.delivery.handlers import resolve_handler
from airflow_poison.core.errors import ClaimLostError, SparkJobError
from airflow_poison.core.passes.receive import ReceivePass
from airflow_poison.core.passes.runs import ReceiveResult
from airflow_poison.core.passes.submitted import OUTCOME, PassOrder, Submission, carry_out
from airflow_poison.core.policies.msmq4 import Msmq4
from airflow_poison.core.store.delta.store import DeltaStore

from .given import CONTROL, NOW

if TYPE_CHECKING:
    from airflow_poison.core.store.queue_table import QueueTable

KEY = "run"


@pytest.fixture
def table(tmp_path: Path) -> QueueTable:
    return DeltaStore(str(tmp_path / "store"), durable=False).create("orders", CONTROL, NOW)


def order(table: QueueTable, since: int = 0) -> PassOrder:
    told = PassOrder(
        store=str(Path(table.uri).parent), durable=False, queue="orders", key=KEY, policy=Msmq4().to_dict(), handler="json:loads", since=since
    )
    return told.handled_by(resolve_handler("json:loads"))


def a_try(table: QueueTable, since: int = 0, **told: Any) -> Submission:
    """Return a try that has submitted, and what its driver told."""
    mine = Submission.of_queue(table, KEY)
    mine.write(order(table, since), ())
    if told:
        Path(mine.order).with_name(OUTCOME).write_text(json.dumps(told))
    return mine


def result(**numbers: Any) -> dict[str, object]:
    return ReceiveResult("orders", KEY, **numbers).to_dict()


def lost() -> dict[str, str]:
    return {"type": "ClaimLostError", "text": "taken over"}


def test_a_staged_handler_is_nobodys_business_but_its_owners_and_groups(table: QueueTable) -> None:
    mine = a_try(table)
    folder = Path(mine.order).parent
    assert folder.stat().st_mode & 0o007 == 0
    assert Path(mine.order).stat().st_mode & 0o007 == 0


def test_a_first_try_finds_nothing(table: QueueTable) -> None:
    first = Submission.of_queue(table, KEY)
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
    heard = Submission.of_queue(table, KEY).outcome()
    assert heard is not None
    assert heard.received == 2


def test_of_what_is_left_the_pass_that_did_something_is_told(table: QueueTable) -> None:
    a_try(table, error=lost())
    a_try(table, result=result(received=3, passes=1))
    a_try(table, result=result())
    left = Submission.of_queue(table, KEY).left()
    assert left is not None
    assert left == replace(ReceiveResult("orders", KEY), received=3, passes=1)


def test_an_error_is_nothing_that_is_left(table: QueueTable) -> None:
    a_try(table, error=lost())
    assert Submission.of_queue(table, KEY).left() is None


def test_where_the_passes_began_is_known_until_the_result_has_been_read(table: QueueTable) -> None:
    a_try(table, since=2)
    a_try(table, since=4)
    assert Submission.of_queue(table, KEY).since() == 2
    Submission.of_queue(table, KEY).remove()
    assert Submission.of_queue(table, KEY).since() is None


def test_whatever_ends_a_driver_is_told(table: QueueTable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_receiving: object, _key: str) -> None:
        raise MemoryError("a mountain of messages")

    monkeypatch.setattr(ReceivePass, "run", fail)
    mine = a_try(table)

    assert carry_out(Path(mine.order)) == 1
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

    assert carry_out(Path(mine.order)) == 0
    assert not mine.folder.exists()
