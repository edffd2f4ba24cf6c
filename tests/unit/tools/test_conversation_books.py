"""The books of the demo of conversations: each thing that does not add up is found, and named."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.demo_conversations.books import faults
from tools.demo_conversations.sides import SHOP, WAREHOUSE, Order, Sides

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.passes.conversations import ConversationRow

BEFORE = {"bolt": 10, "gear": 5}
SHIPPED = Order(1, "bolt", 4, "c1", "shipped", "")
REFUSED = Order(2, "gear", 9, "c2", "refused", "No. (1)")


@dataclass(frozen=True)
class Row:
    handle: str
    state: str = "CD"


@dataclass
class Given(Sides):
    """Sides that have what a test says; by default all is well."""

    given_orders: list[Order] = field(default_factory=lambda: [SHIPPED, REFUSED])
    given_stock: dict[str, int] = field(default_factory=lambda: {"bolt": 6, "gear": 5})
    given_shipments: list[tuple[str, str, int]] = field(default_factory=lambda: [("t1", "bolt", 4)])
    here: dict[str, Row] = field(default_factory=lambda: {"c1": Row("c1"), "c2": Row("c2")})
    there: dict[str, Row] = field(default_factory=lambda: {"c1": Row("t1"), "c2": Row("t2")})
    waiting: dict[str, int] = field(default_factory=dict)
    found: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(Path(), Path())

    def orders(self) -> list[Order]:
        return self.given_orders

    def stock(self) -> dict[str, int]:
        return self.given_stock

    def shipments(self) -> list[tuple[str, str, int]]:
        return self.given_shipments

    def endpoints(self, name: str) -> dict[str, ConversationRow]:
        return self.here if name == SHOP else self.there  # type: ignore[return-value]  # what the books look at

    def left(self, name: str) -> int:
        return self.waiting.get(name, 0)

    def findings(self) -> Iterator[str]:
        yield from self.found


def test_books_that_add_up_have_no_faults() -> None:
    assert list(faults(Given(), BEFORE, 2)) == []


@pytest.mark.parametrize(
    ("sides", "fault"),
    [
        (Given(given_orders=[SHIPPED, replace(REFUSED, state="sent")]), "2 orders, but 1 shipped and 0 refused"),
        (Given(given_orders=[SHIPPED]), "2 orders, but 1 shipped and 0 refused"),
        (Given(given_stock={"bolt": 2, "gear": 5}), "8 x bolt have left the stock, 4 were shipped, and the shop was told of 4"),
        (
            Given(given_stock={"bolt": 2, "gear": 5}, given_shipments=[("t1", "bolt", 4), ("t9", "bolt", 4)]),
            "8 x bolt have left the stock, 8 were shipped, and the shop was told of 4",
        ),
        (Given(given_shipments=[("t2", "bolt", 4)]), "what was shipped is not what the dialogs were about"),
        (Given(there={"c1": Row("t1", "DO"), "c2": Row("t2")}), "the dialog of order 1 is CD at the shop and DO at the warehouse"),
        (Given(there={"c1": Row("t1")}), "the dialog of order 2 is CD at the shop and None at the warehouse"),
        (Given(waiting={WAREHOUSE: 2}), f"2 messages are left in queue {WAREHOUSE}"),
        (Given(found=["the check of queue x: lost"]), "the check of queue x: lost"),
    ],
)
def test_what_does_not_add_up_is_named(sides: Given, fault: str) -> None:
    assert fault in list(faults(sides, BEFORE, 2))
