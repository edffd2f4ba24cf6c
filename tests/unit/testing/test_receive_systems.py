"""Every messaging system under the public test helper: what becomes of a message that always fails, and of its neighbour."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison import ActivationSpecification, ListenerPort, Message, Msmq3, Msmq4, ServiceBroker
from airflow_poison.testing import receive

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Policy


def fail_on_bad(message: Message) -> None:
    if message.text == "bad":
        raise ValueError("bad")


@pytest.mark.parametrize(
    ("policy", "places", "deliveries", "halted"),
    [
        (Msmq4(receive_retry_count=1, max_retry_cycles=1, receive_error_handling="Move"), ["poison", "processed"], 5, None),
        (Msmq3(receive_retry_count=1, receive_error_handling="Drop"), ["dropped", "processed"], 3, None),
        (ServiceBroker(), ["main", "main"], 5, "disabled"),
        (
            ActivationSpecification(stop_endpoint_if_delivery_fails=False, backout_threshold=3, backout_requeue_queue="orders.backout"),
            ["SYSTEM.DEAD.LETTER.QUEUE", "processed"],  # no such backout queue
            4,
            None,
        ),
        (ListenerPort(max_retries=2), ["main", "main"], 2, "stopped"),
    ],
    ids=lambda value: value.system if hasattr(value, "system") else None,
)
def test_a_hopeless_message_and_its_neighbour(policy: Policy, places: list[str], deliveries: int, halted: str | None) -> None:
    received = receive(fail_on_bad, ["bad", "good"], policy)

    assert (received.places, received.deliveries, received.halted) == (places, deliveries, halted)


def test_a_blocked_destination_is_tried_again_when_its_time_has_come() -> None:
    from airflow_poison import DefaultMessaging

    policy = DefaultMessaging(max_failed_deliveries=2, exception_destination="None")
    calls: list[str] = []

    def succeed_at_last(message: Message) -> None:
        calls.append(message.text)
        if message.text == "bad" and calls.count("bad") < 4:
            raise ValueError("bad")

    received = receive(succeed_at_last, ["bad", "good"], policy)

    assert calls == ["bad", "bad", "bad", "bad", "good"]
    assert (received.places, received.elapsed) == (["processed", "processed"], timedelta(seconds=10))
