"""A handler of several queues can ask a message which one it came from, whatever process calls it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison import Message, Msmq4, PoisonSubQueue, ServiceBroker
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.move import remove
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.testing import receive
from airflow_poison.values.clock import VirtualClock
from tests.given.passes import needs_processes

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore

MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


@dataclass(frozen=True)
class NoteQueue:
    """Writes the queue of each message into a file; a message that says ``bad`` fails."""

    seen: str

    def __call__(self, message: Message) -> None:
        with Path(self.seen).open("a") as file:
            file.write(f"{message.queue}\n")
        if message.text == "bad":
            raise ValueError(message.text)


@pytest.mark.parametrize("isolation", ["process", "none"])
@pytest.mark.parametrize("policy", [MOVE, ServiceBroker()], ids=["decides for each message", "counts for the endpoint"])
def test_a_handler_of_several_queues_reads_which_one_a_message_is_from(isolation: str, policy: Policy, store: QueueStore, tmp_path: Path) -> None:
    if isolation == "process":
        needs_processes(store)
    clock, handler = VirtualClock(), NoteQueue(str(tmp_path / "seen"))
    for name in ("orders", "bills"):
        table = declare(store, name, policy, clock)
        send(table, messages_to_batches([b"good", b"also good"]), key="first", clock=clock)
        ReceivePass(table=table, policy=policy, handler=handler, engine=LocalEngine, clock=clock, isolation=isolation, store=store).run("run")
    assert Path(handler.seen).read_text().split() == ["orders"] * 2 + ["bills"] * 2


def test_a_reader_of_poison_and_whoever_removes_a_message_read_the_queues_own_name(store: QueueStore, tmp_path: Path) -> None:
    clock, handler = VirtualClock(), NoteQueue(str(tmp_path / "seen"))
    table = declare(store, "orders", MOVE, clock)
    send(table, messages_to_batches([b"bad"]), key="first", clock=clock)
    for policy in (MOVE, PoisonSubQueue(receive_error_handling="Drop", receive_retry_count=0, max_retry_cycles=0)):
        ReceivePass(table=table, policy=policy, handler=handler, engine=LocalEngine, clock=clock, isolation="none", store=store).run(policy.system)
    assert Path(handler.seen).read_text().split() == ["orders"] * 2
    send(table, messages_to_batches([b"good"]), key="second", clock=clock)
    assert remove(table, 2, clock).queue == "orders"


def test_a_message_of_a_test_has_the_queue_that_the_test_says() -> None:
    seen: list[str] = []
    receive(lambda message: seen.append(message.queue), ["good"], MOVE, queue="orders")
    assert (seen, Message(b"", queue="bills").queue, Message(b"").queue) == (["orders"], "bills", "")
