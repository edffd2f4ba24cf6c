"""Run the demo: `make demo`, or `python -m tools.demo --help`."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tools.airflow.client import Airflow
from tools.airflow.home import AirflowError, free_port
from tools.airflow.left_over import end_left_over
from tools.airflow.services import Services, running
from tools.demo.account import keep_books
from tools.demo.place import Place
from tools.demo.readings import Queue, landed
from tools.demo.report import print_alerts, print_books, print_landed, print_query
from tools.demo.screen import screen
from tools.demo.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.demo.account import Books

INTERRUPTED = 130
HIGHEST_PORT = 65535


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code: 0 when all went well and the numbers add up."""
    options = _options(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    place = Place()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with place.alone():
            return _demo(console, place, options)
    except AirflowError as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        console.print(f"All logs are in {place.shown(place.logs)}.", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print(f"Stopped; nothing of it runs any more. Logs: {place.shown(place.logs)}. `make demo` goes on from here.", highlight=False)
        return INTERRUPTED


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo", description="A year of flights through a queue with retry cycles, in a real Airflow."
    )
    parser.add_argument("--delay", type=_at_least_one, default=20, help="RetryCycleDelay in seconds (default: 20)")
    parser.add_argument("--every", type=_at_least_one, default=1, help="send every n-th flight only (default: 1, all of them)")
    parser.add_argument("--port", type=_port, default=0, help="port of Airflow's API server on 127.0.0.1 (default: any free one)")
    return parser.parse_args(arguments)


def _port(text: str) -> int:
    if not 0 <= int(text) <= HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"{text} is not a port: 1 to {HIGHEST_PORT}")
    return int(text)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _demo(console: Console, place: Place, options: argparse.Namespace) -> int:
    port = free_port(options.port)
    ended = end_left_over(place)
    if ended:
        console.print(f"Ended {ended} processes that an earlier demo had left behind.", highlight=False)
    services = Services(place, place.demo_environment(port, options.delay, options.every), port)
    url = f"http://127.0.0.1:{port}"
    queue = Queue(place.path / "poison")
    console.print(f"A real Airflow starts in {place.shown(place.path)}; its page is {url} while the demo runs.", highlight=False)
    services.prepare()
    with running(services), screen(console) as shown:
        watch = Watch(place, services, Airflow(url), queue, shown)
        watch.until_ready()
        watch.until_done()
        passes = watch.passes()
    books = keep_books(watch.sending.sent, passes, queue.history())
    if watch.sending.repeated:
        console.print(
            f"Nothing was sent: the {books.sent:,} flights had been sent before, and their send has a key. The books of all runs:", highlight=False
        )
    return _report(console, place, queue, books)


def _report(console: Console, place: Place, queue: Queue, books: Books) -> int:
    print_books(console, books)
    wrong = print_landed(console, *landed(place.landed), place.shown(place.landed), books.settled)
    print_alerts(console, place.alerts, place.shown(place.alerts))
    print_query(console, place.shown(queue.root), place.shown(Path(sys.executable)))
    faults = [*books.faults(), *([wrong] if wrong else [])]
    for fault in faults:
        console.print(f"The numbers do not add up: {fault}.", style="red", highlight=False)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
