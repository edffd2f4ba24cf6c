"""What ``check`` prints for people: a line for each queue, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from airflow_poison.cli.tables import console
from airflow_poison.core.checking.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from airflow_poison.core.checking.check import CheckResult
    from airflow_poison.core.checking.findings import Finding
    from airflow_poison.core.checking.ledger import Account

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold"}


def print_check(results: Sequence[CheckResult], done: Sequence[str]) -> None:
    """Print what was mended, then each queue with its findings."""
    out = console()
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
    where = f"{finding.where}: " if finding.where else ""
    heading = Text.assemble((finding.severity.value, _STYLES[finding.severity]), f" {finding.kind}: {where}{finding.what}.")
    _say(out, heading, 2)
    _say(out, Text(f"{finding.todo[0].upper()}{finding.todo[1:]}.", "dim"), 4)


def _say(out: Console, text: Text, indent: int = 0) -> None:
    """Print a sentence: wrapped in a terminal, in one line elsewhere."""
    if out.is_terminal:
        out.print(Padding(text, (0, 0, 0, indent), expand=False))
    else:
        out.print(Text(" " * indent) + text, soft_wrap=True)
