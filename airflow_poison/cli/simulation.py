"""What ``policies`` and ``simulate`` print for people: settings, and a simulation in as few rows as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from rich.padding import Padding
from rich.text import Text

from airflow_poison.cli.terminal import line, screen, table
from airflow_poison.rules import policy_class
from airflow_poison.rules.described import Setting, SettingKind, System, settings_of
from airflow_poison.rules.retry_schedule import window_of
from airflow_poison.rules.settings import seconds
from airflow_poison.rules.simulation.result import Simulation, shown
from airflow_poison.rules.simulation.scripted_host import OutcomeKind
from airflow_poison.values.clock import show_duration
from airflow_poison.values.events import ROUTINE, Event, EventType

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from airflow_poison.rules.policy import Policy


WIDE: Final = 120
"""Terminals of so many columns show settings in a table, narrower ones one below the other."""

MOST_ROWS: Final = 40
_FIRST_ROWS, _LAST_ROWS = 12, 4
_INDENT: Final = (0, 0, 0, 4)


# Systems and settings -------------------------------------------------------------------------------------------


def print_systems(systems: Sequence[System]) -> None:
    """Print the messaging systems."""
    made = table("SYSTEM", "messaging system: its rules", wrapped=True)
    for system in systems:
        made.add_row(Text(system.name, "bold"), f"{system.title}: {system.summary}.")
    out = screen(unbounded=False)
    out.print(made)
    out.print()
    line(out, "'policies SYSTEM' lists its settings, 'simulate SYSTEM' shows what they do.")


def print_settings(system: System) -> None:
    """Print a system's settings."""
    out = screen(unbounded=False)
    line(out, (system.name, "bold"))
    line(out, f"{system.title}: {system.summary}.")
    out.print()
    if out.width >= WIDE:
        out.print(_settings_table(system.settings))
    else:
        for setting in system.settings:
            _print_setting(out, setting)
    out.print()
    line(out, f"Wherever settings are typed, the manuals' words do as well: simulate {system.name} --set {_example(system.settings)}")


def _example(settings: Sequence[Setting]) -> str:
    """Return a setting in a manual's word that needs no quotes, with its default."""
    found = (f"{alias}={default_of(setting)}" for setting in settings for alias in setting.aliases)
    return next((text for text in found if " " not in text), f"{settings[0].name}={default_of(settings[0])}")


def _settings_table(settings: Sequence[Setting]) -> Table:
    made = table("setting", "the manuals' words", "value", "default", "meaning", wrapped=True)
    for setting in settings:
        made.add_row(Text(setting.name, "bold"), "\n".join(setting.aliases), _value(setting), default_of(setting), setting.meaning)
    return made


def _print_setting(out: Console, setting: Setting) -> None:
    out.print(Text.assemble((setting.name, "bold"), f" = {default_of(setting)} ", (f"({_value(setting)})", "dim")))
    if setting.aliases:
        out.print(Padding(Text(f"also {', '.join(setting.aliases)}", "dim"), _INDENT, expand=False))
    out.print(Padding(Text(setting.meaning), _INDENT, expand=False))


def _value(setting: Setting) -> str:
    kind = ", ".join(setting.choices) if setting.kind is SettingKind.CHOICE else setting.kind
    return f"{kind} or none" if setting.optional else kind


def default_of(setting: Setting) -> str:
    """Return a setting's default as people write it."""
    return show_value(setting.default, is_duration=setting.kind is SettingKind.DURATION)


def show_value(value: object, *, is_duration: bool) -> str:
    """Return a setting's JSON value as people write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if is_duration and isinstance(value, int | float):
        return show_duration(seconds("", value))
    return str(value) or "(empty)"


# Simulations ----------------------------------------------------------------------------------------------------


def print_simulation(simulation: Simulation, *, events: bool, routine: bool) -> None:
    """Print what happened, what became of each message, and the answer.

    :param events: print the events one by one instead of a summary.
    :param routine: with deliveries, commits and rollbacks.
    """
    out = screen(unbounded=False)
    line(out, (headline(simulation.policy), "bold"))
    out.print()
    happened = _events(simulation, routine=routine) if events else _happened(simulation)
    if happened.row_count:
        out.print(happened)
        out.print()
    if simulation.fates:
        out.print(_messages(simulation))
        out.print()
    for sentence in simulation.answer:
        line(out, sentence)


def headline(policy: Policy) -> str:
    """Return the system, and the settings that differ from their defaults."""
    now = policy.to_dict()
    changed = [
        f"{setting.name}={show_value(now[setting.name], is_duration=setting.kind is SettingKind.DURATION)}"
        for setting in settings_of(policy_class(policy.system))
        if now[setting.name] != setting.default
    ]
    return f"{policy.system}: {', '.join(changed) or 'every setting as by default'}"


def _happened(simulation: Simulation) -> Table:
    found = rows(simulation)
    counted = any(row.move_count for row in found)
    shows = _shows(simulation)
    made = table(
        "time",
        *(["clock"] if shows else []),
        "message",
        "what happens",
        "abort\ncount",
        *(["move\ncount"] if counted else []),
        right={"time", "abort\ncount", "move\ncount"},
        wrapped=True,
    )
    for row in _shortened(found):
        counts = (row.abort_count, row.move_count) if counted else (row.abort_count,)
        clock = [shows(row.at)] if shows else []
        made.add_row(*(show_duration(row.at), *clock, row.message, row.what, *("" if count is None else str(count) for count in counts)))
    return made


def _shows(simulation: Simulation) -> Callable[[timedelta], str] | None:
    """Return what a clock on a wall in the zone of the retry window shows, by the time since the start; None without a window."""
    text = getattr(simulation.policy, "retry_window", None)
    if text is None:
        return None
    zone = window_of(text).zone
    return lambda at: f"{(simulation.replay.started + at).astimezone(zone):%a %d %b %H:%M %Z}"


def _shortened(found: Sequence[Row]) -> list[Row]:
    """Leave the middle of a long story out."""
    if len(found) <= MOST_ROWS:
        return list(found)
    left_out = len(found) - _FIRST_ROWS - _LAST_ROWS
    gap = Row(found[_FIRST_ROWS].at, "...", f"{left_out:,} more rows; --events lists every event")
    return [*found[:_FIRST_ROWS], gap, *found[-_LAST_ROWS:]]


def _events(simulation: Simulation, *, routine: bool) -> Table:
    made = table("time", "event", "message", "abort\ncount", "move\ncount", "details", right={"time", "abort\ncount", "move\ncount"}, wrapped=True)
    for event in simulation.replay.events:
        if routine or event.type not in ROUTINE:
            name = event.details.get("message", "")
            counts = (str(event.abort_count), str(event.move_count)) if name else ("", "")
            made.add_row(show_duration(simulation.since_start(event)), event.type, name, *counts, _details(simulation, event))
    return made


def _details(simulation: Simulation, event: Event) -> str:
    """Return facts in a line; a document is too long for a table."""
    shown_facts = []
    for key, value in event.details.items():
        if key == "place":
            shown_facts.append(f"place={shown(simulation.queue, value)}")
        elif key not in {"message", "document"}:
            shown_facts.append(f"{key}={value}")
    return ", ".join(shown_facts)


def _messages(simulation: Simulation) -> Table:
    late = any(fate.arrives for fate in simulation.fates)
    numbers = ["arrives"] * late + ["deliveries", "receives", "moves", "waited\nin retry"]
    made = table("message", *numbers, "end", "last\nevent", right={*numbers, "last\nevent"}, wrapped=True)
    for fate in simulation.fates:
        end = fate.end
        times = [show_duration(fate.arrives)] * late
        counts = [f"{end.deliveries:,}", f"{end.receives:,}", f"{fate.moves:,}", show_duration(end.waited)]
        made.add_row(fate.name, *times, *counts, shown(simulation.queue, end.place), show_duration(fate.at) if fate.at is not None else "")
    return made


# Timeline: a summary in as few rows as possible; deliveries of one kind in a row are one row -------------


@dataclass(frozen=True, slots=True)
class Row:
    """A row.

    :param at: when it began, after the start.
    :param first: the number of the message's first delivery in this row; 0: the row is no delivery.
    :param last: the number of the last one.
    :param abort_count: the message's count afterwards; None: the row is about no message.
    """

    at: timedelta
    message: str
    text: str
    first: int = 0
    last: int = 0
    abort_count: int | None = None
    move_count: int | None = None

    @property
    def what(self) -> str:
        """What happened, in words."""
        if not self.first:
            return self.text
        return f"delivery {self.first}: {self.text}" if self.first == self.last else f"deliveries {self.first} to {self.last}: {self.text}"


def rows(simulation: Simulation) -> list[Row]:
    """Return what happened, in order."""
    return list(_Timeline(simulation).rows())


class _Timeline:
    """Follows the events; deliveries are gathered until something happens that is no routine."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._outcomes = iter(simulation.replay.deliveries)
        self._delivered: Counter[str] = Counter()
        self._consumed: set[str] = set()
        self._gathered: list[_Delivery] = []

    def rows(self) -> Iterator[Row]:
        events = self._simulation.replay.events
        for event, following in zip_longest(events, events[1:]):
            match event.type:
                case EventType.DELIVERED:
                    self._begin(event)
                case EventType.COMMITTED | EventType.ROLLED_BACK:
                    self._end(event)
                case EventType.POISON_EXCEPTION if _goes_on(event, following):
                    pass
                case _:
                    yield from self._gather()
                    yield self._row(event, _words(self._simulation, event))
        for delivery in self._gathered:
            delivery.open = False
        yield from self._gather()

    def _begin(self, event: Event) -> None:
        name = event.details["message"]
        self._delivered[name] += 1
        outcome = OutcomeKind(next(self._outcomes).outcome)
        text = _UNCOUNTED.get(outcome, str(outcome))
        if name in self._consumed:
            text = "processed" if outcome is OutcomeKind.OK else f"lost ({outcome})"
        row = replace(self._row(event, text), first=self._delivered[name], last=self._delivered[name])
        self._gathered.append(_Delivery(row, open=name not in self._consumed and outcome not in _UNCOUNTED))

    def _end(self, event: Event) -> None:
        """Write the end of a delivery down; there was none when the message is consumed first, or never reaches its handler."""
        name = event.details["message"]
        error = event.details.get("error", "")
        text = "committed" if event.type is EventType.COMMITTED else _rollback(error)
        begun = next((delivery for delivery in reversed(self._gathered) if delivery.row.message == name), None)
        if begun is not None and error != OutcomeKind.BEFORE_OPERATION and (begun.open or begun.row.text in _UNCOUNTED.values()):
            begun.row = replace(begun.row, text=text, abort_count=event.abort_count, move_count=event.move_count)
            begun.open = False
        elif event.type is EventType.COMMITTED:
            self._consumed.add(name)
        else:
            self._gathered.append(_Delivery(self._row(event, f"not delivered: {text}"), open=False))

    def _gather(self) -> list[Row]:
        """Return the deliveries that have ended; those of a message that ended in the same way are one row."""
        found: list[Row] = []
        last: dict[str, int] = {}
        for row in (delivery.row for delivery in self._gathered if not delivery.open):
            before = found[last[row.message]] if row.message in last else None
            if before and row.first and before.text == row.text:
                found[last[row.message]] = replace(row, at=before.at, first=before.first)
            else:
                last[row.message] = len(found)
                found.append(row)
        self._gathered = [delivery for delivery in self._gathered if delivery.open]
        return found

    def _row(self, event: Event, text: str) -> Row:
        name = event.details.get("message", "")
        at = self._simulation.since_start(event)
        return Row(at, name, text, abort_count=event.abort_count, move_count=event.move_count) if name else Row(at, name, text)


@dataclass(slots=True)
class _Delivery:
    """A delivery; open until its commit or rollback has happened."""

    row: Row
    open: bool


_UNCOUNTED: Final = {OutcomeKind.POSTPONE: "postponed", OutcomeKind.SAVEPOINT: "rolled back to its savepoint"}
"""Outcomes after which neither a commit nor a rollback of the message follows, unless the delivery is cut short."""

_FOUND: Final = {EventType.MOVED_RETRY, EventType.MOVED_POISON, EventType.DROPPED, EventType.REJECTED, EventType.DEAD_LETTERED, EventType.FAULTED}


def _goes_on(event: Event, following: Event | None) -> bool:
    """Return whether the next event is the disposition of a message that was found poison."""
    return following is not None and following.type in _FOUND and following.lookup_id == event.lookup_id


def _rollback(error: str) -> str:
    return "rolled back" if error in {"", OutcomeKind.RB} else f"rolled back {error}" if error.startswith("with ") else f"rolled back ({error})"


def _words(simulation: Simulation, event: Event) -> str:
    details = event.details
    place = shown(simulation.queue, details.get("place", ""))
    words = {
        EventType.POISON_EXCEPTION: "found poison, and locked by another reader",
        EventType.MOVED_RETRY: f"found poison, moved to {place}",
        EventType.RETURNED: "put back by hand" if "origin" in details else f"returned to {simulation.queue}",
        EventType.MOVED_POISON: f"found poison, moved to {place}",
        EventType.DROPPED: "dropped",
        EventType.REJECTED: "rejected to the sender",
        EventType.DEAD_LETTERED: f"sent to {place}",
        EventType.EXCEPTIONED: f"sent to {place}",
        EventType.REQUEUED: f"requeued to {place}",
        EventType.BLOCKED: "blocked",
        EventType.FAULTED: "found poison, the endpoint faults",
        EventType.STOPPED: "the endpoint stops",
        EventType.QUEUE_DISABLED: "the queue is disabled",
        EventType.QUEUE_ENABLED: "the queue is enabled",
        EventType.STARTED: "the endpoint starts again",
    }
    why = details.get("obstacle", "").partition(":")[0] or details.get("warning") or ""
    word = words.get(event.type, event.type.lower().replace("_", " "))
    return f"{word} ({why})" if why else word
