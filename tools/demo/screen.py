"""How the demo shows that it works: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tools.demo.account import Depth
from tools.demo.readings import Working

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What is to be seen at one moment.

    :param what: what Airflow is doing, a few words.
    :param read: rows that were read; 0 while unknown.
    """

    what: str
    read: int = 0
    depth: Depth = field(default_factory=Depth)
    working: Working = field(default_factory=Working)

    @property
    def landed(self) -> int:
        """Rows that are not in the queue."""
        return max(self.read - self.depth.total, 0)


class Screen(Protocol):
    """Shows one sight after another."""

    def show(self, sight: Sight) -> None:
        """Show this."""
        ...


@contextmanager
def screen(console: Console) -> Iterator[Screen]:
    """Return bars that move when the console is a terminal, and lines when it is not."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=8, transient=True) as live:
            yield _Bars(live)
    else:
        yield _Lines(console)


class _Bars:
    def __init__(self, live: Live) -> None:
        self._live = live
        self._started = time.monotonic()

    def show(self, sight: Sight) -> None:
        head = Text.assemble((_clock(self._started), "bold"), "  ", sight.what)
        self._live.update(Group(head, _bars(sight)) if sight.read else head)


def _bars(sight: Sight) -> Table:
    grid = Table.grid(padding=(0, 2))
    colours = {"landed": "green", "main": "blue", "retry": "yellow", "poison": "red"}
    numbers = {"landed": sight.landed, "main": sight.depth.main, "retry": sight.depth.retry, "poison": sight.depth.poison}
    for name, number in numbers.items():
        grid.add_row(f"  {name}", ProgressBar(total=sight.read, completed=number, width=40, complete_style=colours[name]), f"{number:>9,}")
    if sight.working.attempts:
        bar = ProgressBar(total=max(sight.depth.main, 1), completed=sight.working.messages, width=40, complete_style="cyan")
        grid.add_row("  this pass", bar, f"{sight.working.messages:>9,} handled in {sight.working.attempts:,} attempts")
    return grid


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._last: tuple[str, Depth] | None = None
        self._shown_at = 0.0

    def show(self, sight: Sight) -> None:
        changed = (sight.what, sight.depth) != self._last
        moving = sight.working.attempts and time.monotonic() - self._shown_at > PLAIN_SECONDS
        if changed or moving:
            self._last, self._shown_at = (sight.what, sight.depth), time.monotonic()
            self._console.print(_line(_clock(self._started), sight), highlight=False, soft_wrap=True)


def _line(clock: str, sight: Sight) -> str:
    if not sight.read:
        return f"{clock}  {sight.what}"
    depth = sight.depth
    line = f"{clock}  {sight.what}: {sight.landed:,} landed, {depth.main:,} in main, {depth.retry:,} in retry, {depth.poison:,} in poison"
    if sight.working.attempts:
        line += f"; this pass: {sight.working.messages:,} handled in {sight.working.attempts:,} attempts"
    return line


def _clock(started: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - started), 60)
    return f"{minutes}:{seconds:02}"
