"""What commands print of plans: what would be done, what was done, how far it is."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING

from rich.text import Text

from airflow_poison.cli import terminal
from airflow_poison.cli.terminal import block, cuttable, line, one_line, screen, table
from airflow_poison.cli.terminal import messages as counted
from airflow_poison.values import json_text

if TYPE_CHECKING:
    from airflow_poison.desk.actions import PlanAction
    from airflow_poison.desk.plans import PlanView, Sample

_GROUPS, _DEEPEST, _UNFIT, _SAMPLES = 15, 50, 5, 3
_WORDS = {
    "put_back": "put back into main",
    "move": "move to {target}",
    "send_to": "send to {target}",
    "remove": "remove for good",
    "edit": "edit",
}


def said(action: PlanAction) -> str:
    """Return an action in words."""
    words = _WORDS[action.verb.value].format(target=action.target or "the queue that each came from")
    changes = []
    if action.patch is not None:
        changes.append(f"patch {json_text.written(action.patch)}")
    if action.function:
        changes.append(f"function {action.function}")
    if action.body is not None:
        changes.append("a new body")
    changes += [f"without property {name}" if value is None else f"{name}={value}" for name, value in action.properties.items()]
    return f"{words}: {', '.join(changes)}" if changes else words


def print_plan(view: PlanView) -> None:
    """Print what a plan would do, or has done: numbers, groups, samples."""
    out = screen()
    name = f"Plan {view.plan}" if view.plan else "Plan"
    line(out, (name, "bold"), f": {said(view.action)}, {counted(view.messages)} of {view.queue} {view.selection}.")
    if view.claimed:
        line(out, f"{counted(view.claimed)} of them are claimed by passes; these wait until the passes have ended.")
    if view.plan:
        line(out, f"It is {progress(view)}; {view.who} on {terminal.instant(view.at)}" + (f": {one_line(view.reason)}" if view.reason else "") + ".")
    if view.canary is not None:
        line(out, f"Canary: {counted(view.canary.messages)} first; the others follow when {view.canary.share:.0%} were settled.")
    if view.groups:
        rows = table("group", "messages", "error", right=["messages"], cut="error")
        for group in view.groups[:_GROUPS]:
            error = f"{group.type}: {one_line(group.text)}" if group.type else "(no failure)"
            rows.add_row(group.error or "-", f"{group.messages:,}", cuttable(error))
        out.print(rows)
        if len(view.groups) > _GROUPS:
            line(out, f"There are more groups; --output json has the {len(view.groups)} largest.")
    for sample in view.samples[: min(max(len(view.groups), 1), _SAMPLES)]:  # one of each group comes first
        _print_sample(sample)
    for each in unfit(view):
        line(out, each)


def _print_sample(sample: Sample) -> None:
    """Print a message of a plan; of an edit, the difference of its body."""
    out = screen()
    line(out, f"message {sample.lookup_id} in {sample.sub_queue}" + (f": {one_line(sample.reason)}" if sample.reason else ""))
    if sample.unfit:
        line(out, (f"stays as it is: {one_line(sample.unfit)}", "yellow"), indent=2)
    elif sample.before is not None and sample.after is not None:
        for each in _differences(sample.before, sample.after):
            out.print(Text(f"  {each}", {"+": "green", "-": "red"}.get(each[:1], "")), soft_wrap=True)


def _differences(before: str, after: str) -> list[str]:
    """Return the lines that differ; JSON is compared in its pretty form."""
    found = list(difflib.unified_diff(_lines(before), _lines(after), n=1, lineterm=""))
    return [each for each in found if not each.startswith(("---", "+++", "@@"))] or ["the body stays as it is"]


def _lines(text: str) -> list[str]:
    with suppress(json_text.JsonError):
        return list(_pretty(json_text.tree(text)))
    return block(text).splitlines()


def _pretty(value: object, before: str = "", behind: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the lines of a JSON value with one name or element in each; numbers and names as they are."""
    indent = "  " * depth
    if not isinstance(value, list) or not value or depth > _DEEPEST:
        yield block(f"{indent}{before}{json_text.written(value)}{behind}")
        return
    ends = "{}" if isinstance(value, json_text.Pairs) else "[]"
    yield block(f"{indent}{before}{ends[0]}")
    for number, each in enumerate(value):
        name, inner = (f"{json_text.written(each[0])}: ", each[1]) if isinstance(value, json_text.Pairs) else ("", each)
        yield from _pretty(inner, name, "," * (number < len(value) - 1), depth + 1)
    yield f"{indent}{ends[1]}{behind}"


def progress(view: PlanView) -> str:
    """Return the state of a plan with its numbers."""
    skipped = f", {view.skipped:,} skipped that have changed since or that it does not fit" if view.skipped else ""
    return f"{view.state}: {view.done:,} of {view.messages:,} done{skipped}"


def unfit(view: PlanView) -> Iterator[str]:
    """Yield a sentence for messages that a plan could not be done to; of many the first ones."""
    for each in view.unfit[:_UNFIT]:
        yield f"Message {each.lookup_id} stays as it is: {each.why}."
    if more := view.unfit[_UNFIT:]:
        yield f"{counted(len(more))} more stay as they are; 'plans {view.queue} {view.plan} --output json' has them."


def print_plans(views: Sequence[PlanView], now: datetime) -> None:
    """Print a row for each plan."""
    rows = table("plan", "state", "done", "messages", "action", "who", "age", "reason", right=["done", "messages"], cut="reason")
    for view in views:
        who = view.who.partition("@")[0] if view.who.startswith("shell:") else view.who
        cells = (view.plan, view.state, f"{view.done:,}", f"{view.messages:,}", view.action.verb.value, one_line(who), terminal.age(view.at, now))
        rows.add_row(*cells, cuttable(view.reason))
    screen().print(rows)


@contextmanager
def progress_bar(view: PlanView, what: str) -> Iterator[Callable[[PlanView], None]]:
    """Give what shows a plan's progress on a terminal: how much is done, how fast, and when it will end. Elsewhere nothing is shown."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=view.messages, completed=view.done, state=view.state)

        def show(now: PlanView) -> None:
            bar.update(task, completed=now.done, state=now.state)

        yield show
