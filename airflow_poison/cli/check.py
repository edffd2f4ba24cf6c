"""``airflow poison check``: check queue tables against what a store promises, and repair what needs no guess."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.cli.command import QUEUES, WHERE, command, say, switch, wrong_usage
from airflow_poison.cli.stores import opened_store, system_clock
from airflow_poison.cli.terminal import screen, write_json

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from airflow_poison.core.checking.check import CheckResult
    from airflow_poison.core.checking.findings import Finding
    from airflow_poison.core.checking.ledger import Account
    from airflow_poison.core.store import QueueStore


@command(
    "check",
    QUEUES,
    switch("--repair", "mend first what can be mended without guessing"),
    switch("--accept", "with --repair: let what somebody else has committed to these queues stand"),
    switch("--accept-loss", "with --repair: let these queues go on without files and commits that are lost, and without their messages"),
    *WHERE,
)
def check(args: Namespace) -> None:
    """Check queue tables, and mend what needs no guess.

    Hold queue tables against what a store promises, over their whole history. Exit code 0: nothing is wrong, 1: something is, 2: it could not be
    checked.
    """
    if args.accept and not (args.queue and args.repair):
        raise wrong_usage("--accept: expected with --repair, and with the queues whose foreign commits are to stand.")
    if args.accept_loss and not (args.queue and args.repair):
        raise wrong_usage("--accept-loss: expected with --repair, and with the queues that are to go on without what is lost.")
    store = opened_store(args)
    names = _names(store, args.queue)
    done, failed = _repaired(store, names, args, whole=not args.queue) if args.repair else ([], [])
    results = _checked(store, names, whole=not args.queue)
    for text in failed:
        say("error", text)
    if args.output == "json":
        found: dict[str, object] = {"queues": [result.to_dict() for result in results], "done": done, "failed": failed}
        write_json(found)
    else:
        print_check(results, done)
    if failed or any(result.findings for result in results):
        raise SystemExit(1)


def _names(store: QueueStore, wanted: list[str]) -> list[str]:
    """Return the queues that are to be checked. Raises QueueNotFoundError."""
    from airflow_poison.core.errors import QueueNotFoundError

    there = list(store.names())
    for name in wanted:
        if name not in there:
            where = f": {store.absence}" if store.absence else f" in {store.uri}. Queues there: {', '.join(there) or 'none yet'}"
            raise QueueNotFoundError(f"There is no queue {name!r}{where}.")
    if not wanted and not there:
        none = f"There is no queue yet: {store.absence}." if store.absence else f"There is no queue in {store.uri}: nothing to check."
        raise wrong_usage(f"{none} Correct --store or --conn-id.")
    return wanted or there


def _repaired(store: QueueStore, names: list[str], args: Namespace, *, whole: bool) -> tuple[list[str], list[str]]:
    from airflow_poison.core.passes.repair import repair, repair_store

    done, failed = list(repair_store(store)) if whole else [], list[str]()
    for name in names:
        result = repair(store, name, system_clock(), accept=args.accept, accept_loss=args.accept_loss)
        done += [f"{name}: {text}" for text in result.done]
        failed += [f"{name}: {text}" for text in result.failed]
    return done, failed


def _checked(store: QueueStore, names: list[str], *, whole: bool) -> list[CheckResult]:
    from pathlib import Path

    from airflow_poison.core.checking.check import check_folder, check_store

    if whole:
        return list(check_store(store, system_clock()))
    return [check_folder(name, str(Path(store.uri, name)), system_clock()) for name in names]


_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold"}


def print_check(results: Sequence[CheckResult], done: Sequence[str]) -> None:
    """Print what was mended, then each queue with its findings."""
    from rich.text import Text

    out = screen()
    for text in done:
        _say(out, Text(f"mended: {text}"))
    for result in results:
        _say(out, Text.assemble((result.queue or "the store itself", "bold"), f": {_summary(result)}"))
        for finding in result.findings:
            _print_finding(out, finding)


def _summary(result: CheckResult) -> str:
    wrong = f"{len(result.findings)} finding(s)" if result.findings else "nothing is wrong"
    return f"{wrong}; version {result.version}, {_account(result.account)}" if result.queue and result.version >= 0 else wrong


def _account(account: Account) -> str:
    """Return what became of the messages; numbers that are 0 say nothing."""
    names = ("settled", "dropped", "sent_on", "removed", "foreign", "waiting", "before", "unaccounted")
    words = {"sent_on": "sent on", "foreign": "taken out by others", "before": "gone before the log begins", "unaccounted": "unaccounted for"}
    numbers = [f"{number} {words.get(name, name)}" for name in names if (number := getattr(account, name))]
    return f"{account.sent} sent" + (f" = {' + '.join(numbers)}" if numbers else "")


def _print_finding(out: Console, finding: Finding) -> None:
    from rich.text import Text

    where = f"{finding.where}: " if finding.where else ""
    heading = Text.assemble((finding.severity.value, _STYLES[finding.severity.value]), f" {finding.kind}: {where}{finding.what}.")
    _say(out, heading, 2)
    _say(out, Text(f"{finding.todo[0].upper()}{finding.todo[1:]}.", "dim"), 4)


def _say(out: Console, text: Text, indent: int = 0) -> None:
    """Print a sentence: wrapped in a terminal, in one line elsewhere."""
    from rich.padding import Padding
    from rich.text import Text

    if out.is_terminal:
        out.print(Padding(text, (0, 0, 0, indent), expand=False))
    else:
        out.print(Text(" " * indent) + text, soft_wrap=True)
