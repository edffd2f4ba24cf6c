"""Run the demo: `make demo-sources`, or `python -m tools.demo_sources --help`."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from tools.demo_sources.feeds import FEEDS, Sum
from tools.demo_sources.play import CLONE, DemoError, play
from tools.demo_sources.sums import sums
from tools.servers.spark import ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tools.demo_sources.feeds import Feed
    from tools.demo_sources.sums import Sums

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None, folder: Path = CLONE / ".demo" / "sources") -> int:
    """Run the demo; return the exit code: 0 when all sums agree.

    :param folder: everything that it writes is below it; what an earlier one has left there is removed.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.demo_sources", description="Sources that are taken once, whoever is killed. No Airflow.")
    parser.add_argument("--records", type=int, default=200_000, help="orders in the Kafka topic; the other sources have a tenth (default: 200000)")
    parser.add_argument("--kills", type=int, default=12, help="of those who take; a third of it of those who receive (default: 12)")
    parser.add_argument("--seed", type=int, default=None, help="when who is killed (default: any)")
    options = parser.parse_args(arguments)
    console, seed = Console(width=None if sys.stdout.isatty() else 120), options.seed or random.randrange(1, 1_000_000)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shutil.rmtree(folder, ignore_errors=True)
    console.print(f"Queues, tables and logs are in {_shown(folder)}. Seed: {seed}.", highlight=False)
    draw, faults = random.Random(seed), list[str]()
    try:
        for feed in FEEDS:
            faults += _demo(console, feed, folder / feed.queue, options.records // feed.share, kills=max(2, options.kills // feed.share), draw=draw)
    except (DemoError, ServerError) as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("Stopped; nothing of it runs any more.", highlight=False)
        return INTERRUPTED
    return 1 if faults else 0


def _demo(console: Console, feed: Feed, folder: Path, records: int, *, kills: int, draw: random.Random) -> list[str]:
    """Play a feed and print its sums; return what does not agree."""
    began, landing = time.monotonic(), folder / "source"
    landing.mkdir(parents=True)
    console.print(f"\n{records:,} orders are put into {feed.title}.", highlight=False)
    with feed.filled(landing, records) as filling:
        for seen in play(feed, folder, filling, kills=kills, limit=max(1, records // 20), draw=draw):
            console.print(f"{time.monotonic() - began:5.0f} s  {seen}", highlight=False)
    found = sums(feed, folder, records)
    _print(console, feed, found)
    faults = list(found.faults())
    for fault in faults:
        console.print(f"It does not add up: {fault}.", style="red", highlight=False, markup=False)
    if not faults:
        console.print(f"All agree: each order came once. {time.monotonic() - began:.0f} s.", highlight=False)
    return faults


def _print(console: Console, feed: Feed, found: Sums) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=f"Orders of {feed.title}", title_justify="left")
    for heading in ("", "number", "sum"):
        table.add_column(heading, justify="right" if heading else "left")

    def row(what: str, there: Sum) -> None:
        table.add_row(what, f"{there.number:,}", f"{there.cents / 100:,.2f}")

    row("records produced", found.expected)
    row("messages that takes have added", found.taken)
    table.add_section()
    row("rows landed", found.there["landed"])
    row("poison: the transformation refused them", found.there["poison"])
    row("poison: malformed records", found.there["malformed"])
    row("together", found.everywhere)
    console.print(table)


def _shown(path: Path) -> str:
    return str(path.relative_to(CLONE)) if path.is_relative_to(CLONE) else str(path)


if __name__ == "__main__":
    sys.exit(main())
