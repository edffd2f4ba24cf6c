"""Links from tasks to the pages of their queues."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_poison.get_provider_info import get_provider_info
from airflow_poison.links import EventsLink, MessagesLink, PoisonLink, QueueLink, RetryLink
from airflow_poison.operators.manage import QueueAlertOperator, QueueReturnOperator
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

OPERATORS: dict[str, BaseOperator] = {
    "send": QueueSendOperator(task_id="send", queue_name="orders", messages=[b"a"], conn_id="mine"),
    "return": QueueReturnOperator(task_id="return", queue_name="orders", conn_id="mine"),
    "receive": QueueReceiveOperator(task_id="receive", queue_name="orders", handler="json:loads", conn_id="mine"),
    "alert": QueueAlertOperator(task_id="alert", queue_name="orders", conn_id="mine"),
}
KEY: Any = None


@pytest.mark.parametrize("task", OPERATORS)
def test_a_task_links_to_its_queue_and_to_messages_of_it(task: str) -> None:
    operator = OPERATORS[task]
    links = list(operator.operator_extra_links)
    assert isinstance(links[0], QueueLink)
    assert len(links) > 1
    for link in links:
        found = urlsplit(link.get_link(operator, ti_key=KEY))
        assert (found.scheme, found.netloc, found.path) == ("", "", "plugin/poison")
        assert {"conn_id": ["mine"], "queue": ["orders"]}.items() <= parse_qs(found.query).items()


@pytest.mark.parametrize(
    ("link", "query"),
    [
        (MessagesLink(), {"sub_queue": ["main"]}),
        (RetryLink(), {"sub_queue": ["retry"]}),
        (PoisonLink(), {"sub_queue": ["poison"]}),
        (EventsLink(), {"view": ["events"]}),
    ],
)
def test_a_link_says_which_part_of_the_page_it_means(link: QueueLink, query: dict[str, list[str]]) -> None:
    assert query.items() <= parse_qs(urlsplit(link.get_link(OPERATORS["send"], ti_key=KEY)).query).items()


def test_a_task_with_several_queues_links_to_all_of_the_connection() -> None:
    operator = QueueReceiveOperator(task_id="receive", queues=["orders", "bills"], handler="json:loads", conn_id="mine")
    assert QueueLink().get_link(operator, ti_key=KEY) == "plugin/poison?conn_id=mine"


def test_what_was_never_rendered_is_no_address() -> None:
    operator = QueueAlertOperator(task_id="alert", queue_name="orders-{{ ds }}", conn_id="{{ var.value.conn }}")
    assert QueueLink().get_link(operator, ti_key=KEY) == "plugin/poison?"


def test_a_name_cannot_add_to_the_address() -> None:
    operator = QueueAlertOperator(task_id="alert", queue_name="a&queue=b#c?d=<e>")
    assert parse_qs(urlsplit(QueueLink().get_link(operator, ti_key=KEY)).query)["queue"] == ["a&queue=b#c?d=<e>"]


def test_every_link_is_registered_and_named_once() -> None:
    registered = [getattr(importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in get_provider_info()["extra-links"]]  # type: ignore[attr-defined]
    used = {type(link) for operator in OPERATORS.values() for link in operator.operator_extra_links}
    assert used <= set(registered)
    assert len({link().name for link in registered}) == len({link().xcom_key for link in registered}) == len(registered)
