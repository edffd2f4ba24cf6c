"""Where commands print to, and how ages, instants, sizes and numbers read: instants in people's time zone.

A terminal gets what fits it; a pipe gets one line for each row, without colours.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from io import TextIOWrapper
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime, timedelta

    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

_UNBOUNDED = 100_000
_NARROWEST = 60
"""Columns of a table are gone where it is narrower; a terminal that is narrower wraps its lines."""
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_STEP = 1024
_SIZES = ("KiB", "MiB", "GiB", "TiB")


def screen(*, unbounded: bool = True) -> Console:
    """Return standard output; signs that it cannot show become question marks.

    :param unbounded: a pipe gets lines of any length; else they are wrapped as in a terminal of 80 columns.
    """
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> NoReturn:
            """Let the command end as it ends for every broken pipe."""
            raise BrokenPipeError

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    wide = unbounded and not sys.stdout.isatty() and os.environ.get("COLUMNS", "0") == "0"
    width = _UNBOUNDED if wide else max(get_terminal_size().columns, _NARROWEST)
    return Screen(markup=False, highlight=False, emoji=False, width=width)


def table(*headings: str, right: Collection[str] = (), cut: str = "", wrapped: bool = False) -> Table:
    """Return an empty table.

    :param right: headings of numbers.
    :param cut: the heading of cells that give way where the terminal ends, see ``cuttable``; the others come after them.
    :param wrapped: every cell but a number may take several lines.
    """
    from rich import box
    from rich.table import Table

    class Rows(Table):
        def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
            """Add a row whose texts write no lines of their own."""
            super().add_row(*(visible(cell) if isinstance(cell, str) else cell for cell in cells), **options)

    made = Rows(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        made.add_column(
            heading, justify="right" if heading in right else "left", no_wrap=heading in right if wrapped else heading != cut, overflow="fold"
        )
    return made


def cuttable(text: str) -> Text:
    """Return a cell that is cut where the terminal ends."""
    from rich.text import Text

    return Text(one_line(text), no_wrap=True, overflow="ellipsis")


def line(out: Console, *parts: str | tuple[str, str], indent: int = 0, hanging: bool = False) -> None:
    """Print a sentence: wrapped in a terminal, in one line elsewhere. What texts of messages, errors and names would steer is escaped.

    :param hanging: indent all its lines, not just the first.
    """
    from rich.padding import Padding
    from rich.text import Text

    parts = tuple(visible(part, "\t") if isinstance(part, str) else (visible(part[0], "\t"), part[1]) for part in parts)
    if hanging and out.is_terminal:
        out.print(Padding(Text.assemble(*parts), (0, 0, 0, indent), expand=False))
    else:
        out.print(Text.assemble(" " * indent, *parts), soft_wrap=not out.is_terminal)


def visible(text: str, keep: str = "") -> str:
    """Return a text in which each sign can be seen; see ``values.texts.visible``."""
    from airflow_poison.values.texts import visible

    return visible(text, keep)


def one_line(text: str) -> str:
    """Return a text that does not break a table: line ends, control and direction signs are escaped."""
    return visible(text.strip())


def block(text: str) -> str:
    """Return a text of several lines without what would steer a terminal."""
    return visible(text, "\n\t")


def about(span: timedelta) -> str:
    """Return a duration with its two largest units: ``2 d 3 h``, ``4 min 5 s``, ``0 s``."""
    left = max(0, round(span.total_seconds()))
    words = list[str]()
    for unit, seconds in _UNITS:
        count, left = divmod(left, seconds)
        if count or words:
            words.append(f"{count} {unit}" if count else "")
    return " ".join(word for word in words[:2] if word) or "0 s"


def age(at: datetime | None, now: datetime) -> str:
    """Return how long ago something was; empty for never."""
    return "" if at is None else about(now - at)


def due(at: datetime | None, now: datetime) -> str:
    """Return when something falls due; empty for never."""
    return "" if at is None else "now" if at <= now else f"in {about(at - now)}"


def instant(at: datetime) -> str:
    """Return an instant in people's time zone, to the second."""
    from airflow_poison.values.clock import show_instant

    return show_instant(at)


def is_utc() -> bool:
    """Return whether instants are shown in UTC, so that a heading can say so once."""
    from airflow_poison.values.clock import zone_of_people

    return str(zone_of_people()) == "UTC"


def localized(at: datetime) -> datetime:
    """Return a typed instant; one without an offset is in people's time zone."""
    from airflow_poison.values.clock import zone_of_people

    return at if at.tzinfo else at.astimezone() if (zone := zone_of_people()) is None else at.replace(tzinfo=zone)


def size(count: int) -> str:
    """Return a number of bytes: ``12 bytes``, ``1.5 KiB``."""
    if count < _STEP:
        return f"{count} byte" if count == 1 else f"{count} bytes"
    unit = min((count.bit_length() - 1) // 10, len(_SIZES))
    return f"{count / _STEP**unit:.1f} {_SIZES[unit - 1]}"


def messages(count: int) -> str:
    """Return a number of messages."""
    from airflow_poison.values.texts import counted

    return counted(count, "message")


def write_json(value: object) -> None:
    """Write one JSON value to standard output."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def report(output: str, plain: Mapping[str, object], *sentences: str) -> None:
    """Print what a command did: as JSON, or in sentences for people."""
    if output == "json":
        write_json(dict(plain))
        return
    out = screen()
    for sentence in sentences:
        line(out, sentence)


class ProgressLine:
    """Lines about a pass under way, on standard error: on a terminal one that is written over."""

    def __init__(self) -> None:
        self._written = False

    def report(self, text: str) -> None:
        """Show a line."""
        text = visible(text)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}")
            self._written = True
        else:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Take the line away; what comes next begins at the left."""
        if self._written:
            sys.stderr.write("\r\x1b[K")
            self._written = False
