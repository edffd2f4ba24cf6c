"""Check: hold a queue table against everything that a store promises, over its whole history. Reads numbers and footers, never a body.

The log is read version by version (`checking.ledger`), messages one by one as far as files of both sides of a commit are still there
(`checking.rows`), then files, claims and state as they are now. Nothing is mended: see ``mend``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.errors import InputError, StoreUnreachableError
from airflow_poison.core.passes.checking import dialogs, disk, foreigners, holders, ledger, rows, staged, state
from airflow_poison.core.passes.checking.findings import REPAIR, Finding, Kind, Severity
from airflow_poison.core.store.delta import creation
from airflow_poison.core.store.delta import past as pasts
from airflow_poison.core.store.delta.repair import remains
from airflow_poison.core.store.unreachable import why

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.passes.checking.ledger import Account
    from airflow_poison.core.store.seam import QueueStore, QueueTable

SAFE_AGE = timedelta(days=1)
"""How old what nobody names must be before it counts as left behind, by the machine's clock."""
_SEVERITIES = tuple(Severity)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found.

    :param queue: the queue; empty: the store itself.
    :param version: the newest version that can be read, -1: none.
    :param findings: the worst first.
    :param account: what became of every message that was ever sent.
    """

    queue: str
    uri: str
    version: int
    findings: tuple[Finding, ...]
    account: Account

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        found = [finding.to_dict() for finding in self.findings]
        return {"queue": self.queue, "uri": self.uri, "version": self.version, "findings": found, "account": self.account.to_dict()}


def check(table: QueueTable, clock: Clock, *, safe_age: timedelta = SAFE_AGE) -> CheckResult:
    """Check a queue.

    :param safe_age: what is younger and named by no version may belong to a verb that is under way, and is passed over.
    Raises InputError for a store that keeps no log, StoreUnreachableError when the folder cannot be read.
    """
    if not Path(table.uri, pasts.LOG).is_dir():
        raise InputError(f"The queue {table.name!r} has no log: a check reads tables in Delta format, and the store in memory keeps no log.")
    return check_folder(table.name, table.uri, clock, safe_age=safe_age)


def check_store(store: QueueStore, clock: Clock, *, safe_age: timedelta = SAFE_AGE) -> tuple[CheckResult, ...]:
    """Check the store's own folder (under the name ``""``) and every queue in it, also those that no verb can open."""
    queues = [check_folder(name, str(Path(store.uri, name)), clock, safe_age=safe_age) for name in store.names()]
    left = tuple(_left_creations(Path(store.uri), safe_age))
    return (*([CheckResult("", store.uri, -1, left, ledger.Account())] if left else []), *queues)


def check_folder(name: str, root: str, clock: Clock, *, safe_age: timedelta = SAFE_AGE) -> CheckResult:
    """Check the queue table in a folder. Raises InputError, StoreUnreachableError."""
    if not Path(root, pasts.LOG).is_dir():
        if remains(Path(root)):
            what = "the folder is gone, and there are files of messages: verbs refuse the table"
            gone = Finding(Kind.LOG_DAMAGED, Severity.ERROR, what, pasts.LOG, f"restore {pasts.LOG} from a backup")
            return CheckResult(name, root, -1, (gone,), ledger.Account())
        raise InputError(f"{root} holds no queue table in Delta format, which is what a check reads (the store in memory keeps no log).")
    try:
        past = pasts.read(root)
        found = sorted(set(_findings(name, root, past, clock, safe_age)), key=_order)
        account = ledger.account(past, list(ledger.steps(past)))
    except PermissionError as error:
        message = f"The queue table {root} cannot be read: {error}. Give this user the right to read all of it; nothing was checked."
        raise StoreUnreachableError(message) from error
    except OSError as error:
        raise StoreUnreachableError(f"The queue table {root} cannot be read, so nothing was checked: {why(error)}.") from error
    return CheckResult(name, root, past.version, tuple(found), account)


def _order(finding: Finding) -> tuple[int, str, str]:
    return _SEVERITIES.index(finding.severity), finding.where, finding.what


def _findings(name: str, root: str, past: pasts.Past, clock: Clock, safe_age: timedelta) -> Iterator[Finding]:
    yield from disk.check_log(root, past)
    if past.damage:
        return  # which files count cannot be told
    live, now, steps = past.live(), clock.now(), list(ledger.steps(past))
    yield from foreigners.check_foreign(past)
    yield from foreigners.check_protection(past)
    yield from ledger.check_steps(steps)
    yield from ledger.check_account(ledger.account(past, steps))
    yield from rows.check_rows(root, steps)
    yield from rows.check_ids(root, live.values(), past.numbers().get("seq", 0))
    yield from disk.check_files(root, live.values())
    yield from disk.check_orphans(root, past, safe_age)
    yield from disk.check_events(past)
    yield from dialogs.check_dialogs(root, past, live.values())
    claims = holders.read_claims(root, live)
    yield from holders.check_claims(root, claims, live, now)
    yield from staged.check_staged(root, claims.found, now)
    yield from holders.check_stages(root, claims, past, safe_age)
    control = state.read_control(root, name, live)
    if isinstance(control, Finding):
        yield control
    else:
        yield from state.check_state(control, live, past.version, now)
    yield from state.check_outbox(live)


def _left_creations(root: Path, safe_age: timedelta) -> Iterator[Finding]:
    """Yield folders of queues that were being made when their maker was killed."""
    for folder in creation.left_over(root, safe_age.total_seconds()):
        what = "a queue was being made here when its maker was killed; no queue of the store is meant"
        yield Finding(Kind.CREATION_LEFT, Severity.NOTE, what, folder.name, f"{REPAIR}, or maintain any queue of the store", mendable=True)


def worst(results: Sequence[CheckResult]) -> Severity | None:
    """Return how bad the worst finding is; None when there is none."""
    return min((finding.severity for result in results for finding in result.findings), key=_SEVERITIES.index, default=None)
