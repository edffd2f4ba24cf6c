"""Small passes are delivered in this process; whoever makes the engine is not asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_poison import Message, Msmq4
from airflow_poison.delivery.handlers import Transformation
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import VirtualClock
from tests.given.transforms import bodies

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.passes.engines import Engine

POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


class AskedError(Exception):
    """Somebody wants the engine."""


def asked() -> Engine:
    raise AskedError


def take(message: Message) -> None:
    if message.body == b"bad":
        raise LookupError("bad")


@pytest.fixture
def ten(tmp_path: Path) -> ReceivePass:
    """A pass over ten messages, one of them poison."""
    table = declare(DeltaStore(str(tmp_path / "store"), durable=False), "orders", POLICY, VirtualClock())
    send(table, messages_to_batches([b"bad", *[b"good"] * 9]), key="first", clock=VirtualClock())
    return ReceivePass(table=table, policy=POLICY, handler=take, engine=asked, clock=VirtualClock(), isolation="none", small_pass=10)


def test_a_small_pass_is_delivered_here(ten: ReceivePass) -> None:
    result = ten.run("run")

    assert (result.settled, result.poisoned) == (9, 1)


@pytest.mark.parametrize("small_pass", [0, 9])
def test_a_larger_one_is_not(ten: ReceivePass, small_pass: int) -> None:
    with pytest.raises(AskedError):
        replace(ten, small_pass=small_pass).run("run")
    assert ten.table.snapshot().claims == (), "the engine is made before anything is claimed"


def test_a_pass_that_takes_no_more_is_small(ten: ReceivePass) -> None:
    assert replace(ten, small_pass=5, max_messages=5).run("run").received == 5


def test_few_messages_in_large_files_are_not_small(ten: ReceivePass, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_poison.passes.receive.SMALL_BYTES", 100)
    with pytest.raises(AskedError):
        ten.run("run")


def test_a_transformation_wants_spark(ten: ReceivePass) -> None:
    with pytest.raises(AskedError):
        replace(ten, handler=Transformation(f"{bodies.__module__}:cast"), isolation="process").run("run")


def test_a_small_pass_goes_on_where_a_large_one_stopped(ten: ReceivePass) -> None:
    class Dies(LocalEngine):
        def run(self, *_: object, **__: object) -> None:
            raise AskedError

    with pytest.raises(AskedError):
        replace(ten, small_pass=0, engine=Dies).run("run")

    result = ten.run("run")

    assert (result.settled, result.poisoned) == (9, 1)
