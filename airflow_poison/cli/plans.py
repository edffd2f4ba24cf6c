"""``put-back``, ``send-to``, ``edit``, ``redrive``, ``pause``, ``resume``, ``cancel`` and ``undo``, and how any command acts on a selection.

A plan is shown, wanted, recorded and applied. Ctrl-C pauses it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from airflow_poison.cli import values
from airflow_poison.cli.command import (
    INTERRUPTED,
    NO,
    QUEUE,
    REASON,
    WHERE,
    YES,
    Argument,
    command,
    end_with_no,
    option,
    queue_of,
    say,
    several,
    switch,
    wrong_usage,
)
from airflow_poison.cli.terminal import messages as counted
from airflow_poison.cli.terminal import report, write_json
from airflow_poison.cli.values import SELECTION, is_selected, selection

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.desk.actions import PlanAction
    from airflow_poison.desk.plans import PlanView
    from airflow_poison.passes.declaration import Canary
    from airflow_poison.queue import Queue

PLANNED: Final = (
    *SELECTION,
    switch("--dry-run", "show what would become of which messages, and do nothing"),
    YES,
    option("--limit", "N", "only so many messages, those with the lowest lookup ids (default: all)"),
    option("--rate", "N/s", "so many messages a second, at most, for example 500/s (default: as fast as it goes)"),
    option("--chunk", "N", "messages of one commit (default: 50000, or what --rate allows in a second)"),
    REASON,
)
"""What a command takes that does something with the messages of a selection."""
WAIT_FOR: Final = "how long to wait for passes that have claimed some of the messages (default: not at all)"
PLAN: Final = Argument(("plan",), {"metavar": "PLAN", "help": "the plan's id, as 'plans' lists it"}, "plans")
_TICK = 0.1  # seconds


# How any command acts -------------------------------------------------------------------------------------------------


def act(args: Namespace, action: PlanAction, *, canary: Canary | None = None, patience: timedelta | None = timedelta(0)) -> None:
    """Plan an action on what the options select, show it, ask, and do it. Ends with an exit code that is not 0 unless all is done.

    :param patience: how long passes are waited for; None: without an end.
    """
    from airflow_poison.cli.tables import action_text, print_plan

    fastest, chunk = rate(args.rate), _number("--chunk", args.chunk)
    if not args.dry_run:
        check_asking(args)
    queue = queue_of(args)
    planned = queue.planned(selection(args), action, limit=_number("--limit", args.limit))
    view = planned.view
    if args.output != "json":
        print_plan(view)
        sys.stdout.flush()
    elif args.dry_run or not view.messages:
        write_json(view.to_dict())
    if not view.messages:
        end_with_no(args.output, f"no message of {args.queue} {view.selection} that it can be done to.")
    if args.dry_run:
        return
    words = action_text(view.action)
    ask(args, f"{words[0].upper()}{words[1:]}: {counted(view.messages)} of {view.queue}?")
    plan = queue.record_plan(planned, rate=fastest, chunk=chunk, canary=canary, reason=args.reason or "")
    _go_on(args, queue, plan, patience)


def _go_on(args: Namespace, queue: Queue, plan: str, patience: timedelta | None) -> None:
    """Apply a plan with its progress; an interrupt pauses it. Prints what was done."""
    from airflow_poison.cli.tables import progress, progress_bar
    from airflow_poison.values.errors import PlanStateError

    with progress_bar(queue.find_plan(plan), plan) as show, _interrupts() as interrupted:
        view = queue.apply(plan, progress=show, stop=lambda: interrupted.asked, wait=interrupted.wait, patience=patience)
    if interrupted.asked and view.state != "done":
        try:
            view = queue.pause(plan, "interrupted")
        except PlanStateError:  # it has ended meanwhile
            view = queue.find_plan(plan)
        say("interrupted", f"plan {plan} is {progress(view)}; {_ways_on(view)}")
        raise SystemExit(INTERRUPTED)
    _report(args, queue, view)


def _ways_on(view: PlanView) -> str:
    undoes = f", 'undo {view.queue} {view.plan}' takes back messages that were not received since" if view.undoable else ""
    return f"'resume {view.queue} {view.plan}' goes on{undoes}."


def _report(args: Namespace, queue: Queue, view: PlanView) -> None:
    """Print the state of a plan. Ends with exit code 1 when it is not done."""
    from airflow_poison.cli.tables import progress, unfit
    from airflow_poison.desk.plans import paused_by, why_stopped

    report(args.output, view.to_dict(), f"Plan {view.plan} is {progress(view)}.", *unfit(view))
    match view.state:
        case "done":
            return
        case "stopped":
            say("stopped", f"{why_stopped(queue.reading, view.plan)}; {_ways_on(view)}".replace("goes on,", "goes on without a canary,", 1))
        case "failed":
            say("failed", f"{view.error}; {_ways_on(view)}")
        case "paused":
            say("paused", f"by {paused_by(queue.reading, view.plan)}; {_ways_on(view)}")
        case "canary":
            say("waiting", f"for passes that receive the canary; {_ways_on(view)}")
        case "running":
            say("waiting", f"for passes that have claimed some of the messages; {_ways_on(view)}")
        case _:
            say("ended", f"the plan has ended: it is {view.state}.")
    raise SystemExit(NO)


@dataclass(slots=True)
class _Interrupts:
    """Whether Ctrl-C was pressed; a second time ends the command at once."""

    asked: bool = False

    def ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def wait(self, seconds: float) -> None:
        """Sleep, until it is pressed."""
        end = time.monotonic() + seconds
        while not self.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(_TICK, left))


@contextmanager
def _interrupts() -> Iterator[_Interrupts]:
    """Let Ctrl-C end a loop between two chunks."""
    interrupts = _Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts.ask)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def rate(text: str | None) -> int | None:
    """Return messages a second of ``500/s`` or ``500``; None for nothing. Raises InputError."""
    return _number("--rate", None if text is None else text.strip().removesuffix("/s"))


def _number(flag: str, text: str | None) -> int | None:
    return None if text is None else values.whole(flag, text, 1)


def check_asking(args: Namespace, nothing: str = "done; --dry-run shows the plan") -> None:
    """Raise InputError where --yes is missing and there is no terminal for a question.

    :param nothing: was done or removed, and what can be done instead.
    """
    if not args.yes and not sys.stdin.isatty():
        raise wrong_usage(f"--yes is missing: standard input is no terminal, so the question cannot be asked. Nothing was {nothing}.")


def ask(args: Namespace, question: str, nothing: str = "done") -> None:
    """Go on when the answer is yes; else end with exit code 1."""
    if args.yes:
        return
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        say("nothing", f"was {nothing}.")
        raise SystemExit(NO)


_OF_PLANS = ("dry_run", "limit", "rate", "chunk")


def is_planned(args: Namespace) -> bool:
    """Whether a command that takes ids, too, is to act on a selection. Raises InputError for both, for neither, and for options of plans with ids."""
    if not is_selected(args):
        if not args.lookup_ids:
            check_selected(args, "ID …, or ")
        given = [f"--{name.replace('_', '-')}" for name in _OF_PLANS if getattr(args, name)]
        if given:
            raise wrong_usage(f"{given[0]}: expected with options of a selection, for example --ids 1,2,5-9, instead of lookup ids.")
        return False
    if args.lookup_ids:
        raise wrong_usage(f"{' '.join(args.lookup_ids)}: expected lookup ids, or options of a selection, and not both.")
    return True


def check_selected(args: Namespace, instead: str = "") -> None:
    """Raise InputError when nothing selects messages: all poison has to be named."""
    if not is_selected(args):
        raise wrong_usage(f"no message is selected: expected {instead}options such as --error, --where or --ids; --sub-queue poison is all poison.")


# Verbs ----------------------------------------------------------------------------------------------------------------


@command("put-back", QUEUE, *PLANNED, option("--wait", "DURATION", WAIT_FOR, default="0s"), *WHERE)
def put_back(args: Namespace) -> None:
    """Put poison messages back into main.

    Put the messages of a selection back from poison to main, for another cycle; without options all of them. Asks first on a terminal. Exit code 0:
    all are there, 1: no message is selected, not wanted, or passes hold some of them, 2: it could not be done.
    """
    from airflow_poison.desk.actions import PlanAction, Verb

    act(args, PlanAction(verb=Verb.PUT_BACK), patience=_patience(args))


@command(
    "send-to",
    QUEUE,
    option("--to-queue", "QUEUE", "an existing queue (default: the one that each message came from)", completes="queues"),
    *PLANNED,
    option("--wait", "DURATION", WAIT_FOR, default="0s"),
    *WHERE,
)
def send_to(args: Namespace) -> None:
    """Send messages to another queue.

    Send the messages of a selection to another queue; it cannot be undone from here. Asks first on a terminal. Exit code 0: all are sent, 1: no
    message is selected, not wanted, or passes hold some of them, 2: it could not be done.
    """
    from airflow_poison.desk.actions import PlanAction, Verb

    check_selected(args)
    act(args, PlanAction(verb=Verb.SEND_TO, target=args.to_queue or ""), patience=_patience(args))


CANARY: Final = (
    option("--canary", "N", "put so many messages back first, some of each error group; the others follow when they went well"),
    option("--share", "SHARE", "of the canary that must be settled, above 0 to 1 (default: 1)"),
)


@command(
    "redrive",
    QUEUE,
    *PLANNED,
    *CANARY,
    option("--wait", "DURATION", "how long to wait for passes that receive the canary, or have claimed messages (default: until they have ended)"),
    *WHERE,
)
def redrive(args: Namespace) -> None:
    """Put poison messages back, a canary first, and wait for the passes.

    Put the messages of a selection back from poison to main; without options all of them. It waits for the passes, which it does not run. Asks first
    on a terminal. Exit code 0: all are there, 1: no message is selected, not wanted, the canary has stopped it, or the wait was too long, 2: it could
    not be done; 130: interrupted, and paused.
    """
    from airflow_poison.desk.actions import PlanAction, Verb

    act(args, PlanAction(verb=Verb.PUT_BACK), canary=_canary(args), patience=_patience(args))


def _canary(args: Namespace) -> Canary | None:
    from airflow_poison.passes.declaration import Canary

    number = _number("--canary", args.canary)
    if number is None:
        if args.share is not None:
            raise wrong_usage("--share: expected with --canary.")
        return None
    try:
        share = 1.0 if args.share is None else float(args.share)
    except ValueError:
        raise wrong_usage(f"--share {args.share}: expected a number above 0 and at most 1, for example 0.95.") from None
    return Canary(number, share)


def _patience(args: Namespace) -> timedelta | None:
    return None if args.wait is None else values.duration("--wait", args.wait)


@command(
    "edit",
    QUEUE,
    *PLANNED,
    option("--patch", "JSON", 'a JSON merge patch for each body (RFC 7396): \'{"currency": "EUR", "old": null}\'; or @FILE'),
    Argument(
        ("--function",),
        {
            "metavar": "MODULE:FUNCTION",
            "dest": "edit_function",
            "help": "called with each body's bytes, returns the new ones; found in the current folder, too",
        },
    ),
    option("--body-from", "FILE", "the whole new body of one message; - reads standard input"),
    several("--set-property", "NAME=VALUE", "new values of properties"),
    several("--drop-property", "NAME", "properties that are removed"),
    switch("--put-back", "put the edited messages back to main in the same commit"),
    *CANARY,
    option("--wait", "DURATION", f"{WAIT_FOR}; with --canary: until they have ended", default=None),
    *WHERE,
)
def edit(args: Namespace) -> None:
    """Change bodies and properties of messages.

    Change the messages of a selection where they are, or put them back, too; what they were stays with them, and 'undo' brings it back. Of
    one message, without any of the options, $EDITOR opens the body. Shows differences, and asks first on a terminal. Exit code 0: all are changed,
    1: no message is selected, not wanted, nothing was changed, or passes hold some of them, or the canary has stopped it, 2: it could not be done.
    """
    from airflow_poison.desk.actions import PlanAction, Verb

    check_selected(args)
    if args.edit_function is not None:
        values.importable_here()
    dropped = dict.fromkeys(args.drop_property or ())
    changes: dict[str, Any] = {"properties": {**values.pairs("--set-property", args.set_property or ()), **dropped}}
    changes |= {"patch": None if args.patch is None else _patch(args.patch), "function": args.edit_function or ""}
    if args.body_from is not None:
        changes["body"] = _read("--body-from", args.body_from)
        if not changes["body"]:
            raise wrong_usage(f"--body-from {args.body_from}: it is empty; expected the whole new body. 'remove' takes messages out.")
    if not any(given not in (None, "", {}) for given in changes.values()):
        if not sys.stdin.isatty():
            raise wrong_usage("no change is given: expected --patch, --function, --body-from, --set-property or --drop-property.")
        changes["body"] = _by_hand(args)
    canary = _canary(args)
    args.wait = args.wait or ("0s" if canary is None else None)
    act(args, PlanAction(verb=Verb.EDIT, target="main" if args.put_back else "", **changes), canary=canary, patience=_patience(args))


def _patch(text: str) -> object:
    from airflow_poison.values import json_text

    text = _read("--patch", text[1:]) if text.startswith("@") else text
    try:
        return json_text.values_to_write(text)
    except json_text.JsonError as error:
        raise wrong_usage(f"--patch {text}: no JSON: {error}.") from error


def _read(flag: str, place: str) -> str:
    try:
        return sys.stdin.read() if place == "-" else Path(place).read_bytes().decode()
    except UnicodeDecodeError as error:
        raise wrong_usage(f"{flag} {place}: expected UTF-8; use --function for other bytes.") from error


def _by_hand(args: Namespace) -> str:
    """Return the body of the one selected message as it was edited. Ends with exit code 1 when it is as it was."""
    queue = queue_of(args)
    found = queue.find(selection(args), limit=1)
    if found.total != 1:
        raise wrong_usage(f"{counted(found.total)} are selected: an editor changes one; use --patch or --function for others.")
    [message] = queue.look_up([found.messages[0].lookup_id])
    if message.text is None:
        raise wrong_usage(f"message {message.lookup_id}: its body is no UTF-8 text; use --function, or --body-from.")
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with TemporaryDirectory(prefix="airflow-poison-") as folder:
        file = Path(folder, f"message-{message.lookup_id}")
        file.write_bytes(message.body)
        try:
            ended = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
        except OSError as error:
            raise wrong_usage(f"$EDITOR {editor}: {error.strerror}; set EDITOR, or use --body-from.") from error
        if ended:
            raise wrong_usage(f"$EDITOR {editor} ended with exit code {ended}. Nothing was changed.")
        after = _read("$EDITOR", str(file))
    if after.encode() in {message.body, message.body + b"\n"}:
        end_with_no(args.output, f"message {message.lookup_id} stays as it is.")
    return after if message.body.endswith(b"\n") else after.removesuffix("\n")


# Plans ----------------------------------------------------------------------------------------------------------------


@command("pause", QUEUE, PLAN, REASON, *WHERE)
def pause(args: Namespace) -> None:
    """Pause a plan.

    Let nothing more become of a plan until it is resumed; a chunk that is being committed is the last one. Exit code 0: it is paused, 1: there is no
    such plan, 2: it has ended.
    """
    _show_state(args, queue_of(args).pause(args.plan, args.reason or ""))


@command("cancel", QUEUE, PLAN, REASON, *WHERE)
def cancel(args: Namespace) -> None:
    """End a plan.

    End a plan; what it has done stays done, and can be undone. Exit code 0: it is cancelled, 1: there is no such plan, 2: it has ended before.
    """
    _show_state(args, queue_of(args).cancel(args.plan, args.reason or ""))


def _show_state(args: Namespace, view: PlanView) -> None:
    from airflow_poison.cli.tables import progress

    report(args.output, view.to_dict(), f"Plan {view.plan} is {progress(view)}.")


@command("resume", QUEUE, PLAN, REASON, option("--wait", "DURATION", "how long to wait for passes (default: until they have ended)"), *WHERE)
def resume(args: Namespace) -> None:
    """Go on with a plan.

    Go on with a plan that is paused, or whose process has died; one that its canary has stopped goes on without it. Exit codes as of redrive.
    """
    patience, queue = _patience(args), queue_of(args)
    view = queue.find_plan(args.plan)
    if view.state != "done":
        if view.action.function:
            values.importable_here()
        queue.resume(args.plan, args.reason or "", apply=False)
    _go_on(args, queue, args.plan, patience)


@command("undo", QUEUE, PLAN, REASON, YES, *WHERE)
def undo(args: Namespace) -> None:
    """Take back what a plan has done.

    Take back what a plan has done to messages that were not received, moved or edited since; removed messages come back while the table still has
    their files. Asks first on a terminal. Exit code 0: undone, as far as it can be, 1: there is no such plan, not wanted, or passes hold some of the
    messages, 2: it cannot be undone; 130: interrupted.
    """
    from airflow_poison.cli.tables import action_text, progress, progress_bar

    check_asking(args)
    queue = queue_of(args)
    before = queue.find_plan(args.plan)
    ask(args, f"Undo plan {before.plan} ({action_text(before.action)}), {before.done:,} of {counted(before.messages)} done?")
    with progress_bar(before, f"undo {before.plan}") as show, _interrupts() as interrupted:
        view = queue.undo(args.plan, args.reason or "", progress=show, stop=lambda: interrupted.asked)
    if view.state != "undone" and interrupted.asked:
        say("interrupted", f"plan {view.plan} is {progress(view)}; 'undo {view.queue} {view.plan}' goes on.")
        raise SystemExit(INTERRUPTED)
    stay = f"; {counted(view.done)} received, changed or moved since stay as they are" if view.done else ""
    report(args.output, view.to_dict(), f"Plan {view.plan} is {view.state}: {counted(before.done - view.done)} taken back{stay}.")
    if view.state != "undone":
        say("waiting", f"for passes that have claimed some of the messages; 'undo {view.queue} {view.plan}' goes on when they have ended.")
        raise SystemExit(NO)
