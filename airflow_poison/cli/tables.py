"""What the commands print for people: tables that fit the terminal, and sentences."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from airflow_poison.cli import timeline
from airflow_poison.core.clock import show_duration
from airflow_poison.core.events import ROUTINE
from airflow_poison.core.policies import policy_class
from airflow_poison.core.policies.described import Kind, settings_of
from airflow_poison.core.policies.settings import seconds
from airflow_poison.core.simulation.simulated import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import timedelta

    from airflow_poison.core.events import Event
    from airflow_poison.core.policies.described import Setting, System
    from airflow_poison.core.policies.policy import Policy
    from airflow_poison.core.simulation.simulated import Simulation

WIDE: Final = 120
"""Terminals of so many columns show settings in a table, narrower ones one below the other."""

MOST_ROWS: Final = 40
_FIRST_ROWS, _LAST_ROWS = 12, 4
_INDENT: Final = (0, 0, 0, 4)


def console() -> Console:
    """Return standard output, without guesses about what a text means; signs that it cannot show become question marks."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(markup=False, highlight=False, emoji=False)


# Systems and settings -------------------------------------------------------------------------------------------


def print_systems(systems: Sequence[System]) -> None:
    """Print the messaging systems."""
    table = _table("SYSTEM", "messaging system: its rules")
    for system in systems:
        table.add_row(Text(system.name, "bold"), f"{system.title}: {system.summary}.")
    out = console()
    out.print(table)
    out.print()
    _say(out, "'policies SYSTEM' lists its settings, 'simulate SYSTEM' shows what they do.")


def print_settings(system: System) -> None:
    """Print a system's settings."""
    out = console()
    _say(out, f"{system.name}", "bold")
    _say(out, f"{system.title}: {system.summary}.")
    out.print()
    if out.width >= WIDE:
        out.print(_settings_table(system.settings))
    else:
        for setting in system.settings:
            _print_setting(out, setting)
    out.print()
    _say(out, f"Wherever settings are typed, the manuals' words do as well: simulate {system.name} --set {_example(system.settings)}")


def _example(settings: Sequence[Setting]) -> str:
    """Return a setting in a manual's word that needs no quotes, with its default."""
    found = (f"{alias}={default_of(setting)}" for setting in settings for alias in setting.aliases)
    return next((text for text in found if " " not in text), f"{settings[0].name}={default_of(settings[0])}")


def _settings_table(settings: Sequence[Setting]) -> Table:
    table = _table("setting", "the manuals' words", "value", "default", "meaning")
    for setting in settings:
        table.add_row(Text(setting.name, "bold"), "\n".join(setting.aliases), _value(setting), default_of(setting), setting.meaning)
    return table


def _print_setting(out: Console, setting: Setting) -> None:
    out.print(Text.assemble((setting.name, "bold"), f" = {default_of(setting)} ", (f"({_value(setting)})", "dim")))
    if setting.aliases:
        out.print(Padding(Text(f"also {', '.join(setting.aliases)}", "dim"), _INDENT, expand=False))
    out.print(Padding(Text(setting.meaning), _INDENT, expand=False))


def _value(setting: Setting) -> str:
    kind = ", ".join(setting.choices) if setting.kind is Kind.CHOICE else setting.kind
    return f"{kind} or none" if setting.optional else kind


def default_of(setting: Setting) -> str:
    """Return a setting's default as people write it."""
    return show_value(setting.default, is_duration=setting.kind is Kind.DURATION)


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

    :param events: print the events one by one instead of what happened in short.
    :param routine: with deliveries, commits and rollbacks.
    """
    out = console()
    _say(out, headline(simulation.policy), "bold")
    out.print()
    happened = _events(simulation, routine=routine) if events else _happened(simulation)
    if happened.row_count:
        out.print(happened)
        out.print()
    if simulation.fates:
        out.print(_messages(simulation))
        out.print()
    for sentence in simulation.answer:
        _say(out, sentence)


def headline(policy: Policy) -> str:
    """Return the system, and the settings that differ from their defaults."""
    now = policy.to_dict()
    changed = [
        f"{setting.name}={show_value(now[setting.name], is_duration=setting.kind is Kind.DURATION)}"
        for setting in settings_of(policy_class(policy.system))
        if now[setting.name] != setting.default
    ]
    return f"{policy.system}: {', '.join(changed) or 'every setting as by default'}"


def _happened(simulation: Simulation) -> Table:
    found = timeline.rows(simulation)
    counted = any(row.move_count for row in found)
    table = _table(
        "time", "message", "what happens", "abort\ncount", *(["move\ncount"] if counted else []), right={"time", "abort\ncount", "move\ncount"}
    )
    for row in _shortened(found):
        counts = (row.abort_count, row.move_count) if counted else (row.abort_count,)
        table.add_row(*(_time(row.at), row.message, row.what, *("" if count is None else str(count) for count in counts)))
    return table


def _shortened(found: Sequence[timeline.Row]) -> list[timeline.Row]:
    """Leave the middle of a long story out."""
    if len(found) <= MOST_ROWS:
        return list(found)
    left_out = len(found) - _FIRST_ROWS - _LAST_ROWS
    gap = timeline.Row(found[_FIRST_ROWS].at, "...", f"{left_out:,} more rows; --events lists every event")
    return [*found[:_FIRST_ROWS], gap, *found[-_LAST_ROWS:]]


def _events(simulation: Simulation, *, routine: bool) -> Table:
    table = _table("time", "event", "message", "abort\ncount", "move\ncount", "details", right={"time", "abort\ncount", "move\ncount"})
    for event in simulation.replay.events:
        if routine or event.type not in ROUTINE:
            name = event.details.get("message", "")
            counts = (str(event.abort_count), str(event.move_count)) if name else ("", "")
            table.add_row(_time(simulation.since_start(event)), event.type, name, *counts, _details(simulation, event))
    return table


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
    table = _table("message", *numbers, "end", "last\nevent", right={*numbers, "last\nevent"})
    for fate in simulation.fates:
        end = fate.end
        times = [_time(fate.arrives)] * late
        counts = [f"{end.deliveries:,}", f"{end.receives:,}", f"{fate.moves:,}", show_duration(end.waited)]
        table.add_row(fate.name, *times, *counts, shown(simulation.queue, end.place), _time(fate.at) if fate.at is not None else "")
    return table


# Shared ---------------------------------------------------------------------------------------------------------


def _table(*headings: str, right: Collection[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        number = heading in right
        table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return table


def _say(out: Console, text: str, style: str = "") -> None:
    """Print a sentence: wrapped in a terminal, in one line elsewhere."""
    out.print(Text(text, style), soft_wrap=not out.is_terminal)


def _time(at: timedelta) -> str:
    return show_duration(at)
