"""Run the demo: `make demo-conversations`, or `python -m tools.demo_conversations --help`."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from tools.airflow.client import Airflow
from tools.airflow.home import AirflowError, free_port
from tools.airflow.left_over import end_left_over
from tools.airflow.services import WITH_TRIGGERER, Services, running
from tools.demo_conversations.books import faults
from tools.demo_conversations.place import CLONE, Place
from tools.demo_conversations.sides import SHOP, WAREHOUSE, Sides
from tools.demo_conversations.story import Story

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code: 0 when all went well and everything adds up."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_conversations", description="A parts warehouse and a shop, in a real Airflow.")
    parser.add_argument("--port", type=int, default=0, help="port of Airflow's API server on 127.0.0.1 (default: any free one)")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    place = Place()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with place.alone():
            return _demo(console, place, free_port(options.port))
    except AirflowError as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        console.print(f"All logs are in {place.shown(place.logs)}.", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print(f"Stopped; nothing of it runs any more. Logs: {place.shown(place.logs)}.", highlight=False)
        return INTERRUPTED


def _demo(console: Console, place: Place, port: int) -> int:
    end_left_over(place)
    place.begin_anew()
    services = Services(place, place.demo_environment(port), port, WITH_TRIGGERER)
    url, sides = f"http://127.0.0.1:{port}", Sides(place.store, place.parts)
    console.print(f"A real Airflow starts in {place.shown(place.path)}; its page is {url} while the demo runs.", highlight=False)
    services.prepare()
    with running(services):
        Story(place, services, Airflow(url), sides, console).tell()
    return _report(console, place, sides, _stock_before())


def _stock_before() -> Mapping[str, int]:
    sys.path.append(str(CLONE / "dags"))
    from parts.stock import STOCK

    return STOCK


def _report(console: Console, place: Place, sides: Sides, before: Mapping[str, int]) -> int:
    orders, here, there, now = sides.orders(), sides.endpoints(SHOP), sides.endpoints(WAREHOUSE), sides.stock()
    shipped = sum(order.state == "shipped" for order in orders)
    table = Table(box=box.SIMPLE_HEAD, title=f"{len(orders)} orders = {shipped} shipped + {len(orders) - shipped} refused", title_justify="left")
    for heading in ("order", "pieces", "the shop's table", "dialog at the shop", "at the warehouse"):
        table.add_column(heading)
    for order in orders:
        ends = [side[order.conversation].state if order.conversation in side else "-" for side in (here, there)]
        table.add_row(str(order.number), order.text, order.state, *ends)
    console.print(table)
    moved = ", ".join(f"{part} {pieces} - {pieces - now[part]} = {now[part]}" for part, pieces in before.items())
    console.print(f"Stock: {moved}. Messages left: {sides.left(SHOP)} + {sides.left(WAREHOUSE)}.", highlight=False)
    console.print(
        f"The queues lie in {place.shown(place.store)}, the tables of the shop and the warehouse in {place.shown(place.parts)}.", highlight=False
    )
    found = list(faults(sides, before, len(orders)))
    for fault in found:
        console.print(f"It does not add up: {fault}.", style="red", highlight=False, markup=False)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
