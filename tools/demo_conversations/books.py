"""The books of the demo: what must add up at its end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tools.demo_conversations.sides import SHOP, WAREHOUSE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tools.demo_conversations.sides import Sides

ENDED = "CD"


def faults(sides: Sides, before: Mapping[str, int], ordered: int) -> Iterator[str]:
    """Yield what does not add up.

    :param before: the stock at the beginning. :param ordered: how many orders there are.
    """
    orders = sides.orders()
    states = Counter(order.state for order in orders)
    if states["shipped"] + states["refused"] != ordered:
        yield f"{ordered} orders, but {states['shipped']} shipped and {states['refused']} refused"
    yield from _stock_faults(sides, before)
    yield from _endpoint_faults(sides)
    for name in (SHOP, WAREHOUSE):
        if left := sides.left(name):
            yield f"{left} messages are left in queue {name}"
    yield from sides.findings()


def _stock_faults(sides: Sides, before: Mapping[str, int]) -> Iterator[str]:
    """Yield what is wrong unless exactly what the shop was told to be shipped has left the stock, once."""
    shipped = Counter[str]()
    for order in sides.orders():
        shipped[order.part] += order.pieces if order.state == "shipped" else 0
    noted = Counter[str]()
    for _, part, pieces in sides.shipments():
        noted[part] += pieces
    now = sides.stock()
    for part, pieces in before.items():
        if not pieces - now[part] == noted[part] == shipped[part]:
            yield f"{pieces - now[part]} x {part} have left the stock, {noted[part]} were shipped, and the shop was told of {shipped[part]}"


def _endpoint_faults(sides: Sides) -> Iterator[str]:
    """Yield what is wrong unless each dialog has ended at both sides, and a shipment is what a dialog was about."""
    here, there = sides.endpoints(SHOP), sides.endpoints(WAREHOUSE)
    for order in sides.orders():
        both = [None if order.conversation not in side else side[order.conversation].state for side in (here, there)]
        if both != [ENDED, ENDED]:
            yield f"the dialog of order {order.number} is {both[0]} at the shop and {both[1]} at the warehouse"
    about = {there[order.conversation].handle for order in sides.orders() if order.state == "shipped" and order.conversation in there}
    if about != {handle for handle, _, _ in sides.shipments()}:
        yield "what was shipped is not what the dialogs were about"
