"""Run the demo: `make demo`, `make demo STORE=s3`, or `python -m tools.demo --help`."""

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
from tools.demo.figures import Figures
from tools.demo.lake import FOLDER, S3, home_of_servers, in_bucket, in_folder, start_afresh
from tools.demo.naive import seconds_without
from tools.demo.place import CLONE, Place
from tools.demo.readings import Queue, landed
from tools.demo.report import alerts_in, print_alerts, print_books, print_landed, print_query, print_reasons, print_times
from tools.demo.screen import screen
from tools.demo.watch import Watch
from tools.servers.spark import ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.demo.account import Books
    from tools.demo.lake import Lake

INTERRUPTED = 130
HIGHEST_PORT = 65535


def main(arguments: Sequence[str] | None = None, folder: Path = CLONE / ".demo") -> int:
    """Run the demo; return the exit code: 0 when all went well and the numbers are right.

    :param folder: everything that it writes is below it.
    """
    options = _options(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    place = Place(folder / S3 / "airflow" if options.store == S3 else folder)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with place.alone():
            ended = end_left_over(place) + (end_left_over(home_of_servers(place)) if options.store == S3 else 0)
            if ended:
                console.print(f"Ended {ended} processes that an earlier demo had left behind.", highlight=False)
            if options.store == FOLDER:
                return _demo(console, place, in_folder(place), options)
            left = start_afresh(place)
            console.print(
                f"An object store (moto) that keeps all in memory, and a Spark cluster of two workers that share no folder, start in "
                f"{place.shown(place.path.parent)}. This demo starts afresh{'; what the last one had left there was removed' if left else ''}.",
                highlight=False,
            )
            with in_bucket(place) as lake:
                return _demo(console, place, lake, options)
    except (AirflowError, ServerError) as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        console.print(f"All logs are in {place.shown(place.logs)}.", highlight=False)
        return 1
    except KeyboardInterrupt:
        next_one = "`make demo` goes on from here." if options.store == FOLDER else "The object store was in memory: the next demo starts afresh."
        console.print(f"Stopped; nothing of it runs any more. Logs: {place.shown(place.logs)}. {next_one}", highlight=False)
        return INTERRUPTED


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo", description="A year of flights through a protected job with retry cycles, in a real Airflow."
    )
    parser.add_argument(
        "--store",
        choices=(FOLDER, S3),
        default=FOLDER,
        help="where the tables are: in a folder, or in an object store with a cluster whose workers share no folder (default: folder)",
    )
    parser.add_argument("--delay", type=_at_least_one, default=20, help="RetryCycleDelay in seconds (default: 20)")
    parser.add_argument("--every", type=_at_least_one, default=1, help="use every n-th flight only (default: 1, all of them)")
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


def _demo(console: Console, place: Place, lake: Lake, options: argparse.Namespace) -> int:
    port = free_port(options.port)
    environment = place.demo_environment(port, options.delay, options.every, lake.environment)
    services = Services(place, environment, port)
    url = f"http://127.0.0.1:{port}"
    queue = Queue(lake)
    console.print(f"A real Airflow starts in {place.shown(place.path)}; its page is {url} while the demo runs.", highlight=False)
    services.prepare()
    with running(services), screen(console) as shown:
        watch = Watch(place, services, Airflow(url), queue, shown)
        watch.until_ready()
        watch.until_done()
        new = len(watch.taken) > watch.before
        naive = seconds_without(environment) if new and not lake.goes else None
        books = keep_books(watch.taken, watch.passes(), queue.history(), naive)
    if not new:
        console.print(f"Nothing was new: the {books.read:,} flights had been taken before. The books of all runs:", highlight=False)
    return _report(console, place, lake, books, Figures.of_year(options.every) if len(watch.taken) == 1 else None)


def _report(console: Console, place: Place, lake: Lake, books: Books, figures: Figures | None) -> int:
    """Print how it has ended.

    :param figures: how it must end; None: other samples were taken in other runs.
    """
    print_books(console, books)
    print_times(console, books)
    wrong = print_landed(console, *landed(lake), place.shown(lake.landed), books)
    alerts = alerts_in(place.alerts)
    print_alerts(console, alerts, place.shown(place.alerts))
    if lake.goes:
        print_reasons(console, lake.queue, Queue(lake).reasons())
    else:
        print_query(console, place.shown(lake.queue), place.shown(Path(sys.executable)))
    faults = [*books.faults(), *([wrong] if wrong else []), *(figures.faults(books, alerts) if figures else ())]
    for fault in faults:
        console.print(f"The numbers do not add up: {fault}.", style="red", highlight=False)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
