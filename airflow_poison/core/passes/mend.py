"""Mend: what a check found and what can be mended without guessing. No message is ever deleted, and nothing that a journal says is forgotten."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_poison.core.errors import PoisonError, TableChangedError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.passes.check import SAFE_AGE, CheckResult, check_folder
from airflow_poison.core.passes.checking import foreigners, holders, lost_files
from airflow_poison.core.passes.checking.findings import Kind
from airflow_poison.core.passes.due import return_held
from airflow_poison.core.passes.relay import relay
from airflow_poison.core.store import durability
from airflow_poison.core.store.delta import creation, foreign
from airflow_poison.core.store.delta import past as pasts
from airflow_poison.core.store.delta import repair as power
from airflow_poison.core.store.delta.log import DeltaLog
from airflow_poison.core.store.log import Commit
from airflow_poison.core.store.unreachable import named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.passes.checking.foreigners import Intrusion
    from airflow_poison.core.store.seam import QueueStore, QueueTable

LEASE = timedelta(minutes=2)
_EVERYTHING = timedelta(days=365_000)
"""A retention that keeps every file of every version: to remove them is maintenance, not repair."""


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What a repair did.

    :param done: what was mended, a sentence each.
    :param failed: what could not be, and why.
    :param after: the check of the queue afterwards.
    """

    queue: str
    done: tuple[str, ...]
    failed: tuple[str, ...]
    after: CheckResult

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return {"queue": self.queue, "done": list(self.done), "failed": list(self.failed), "after": self.after.to_dict()}


def repair(
    store: QueueStore, name: str, clock: Clock, *, accept: bool = False, accept_loss: bool = False, safe_age: timedelta = SAFE_AGE
) -> RepairResult:
    """Mend a queue as far as that needs no guess.

    What a loss of power left of the log is set aside; damaged entries of the log are put back from their copies; commits of somebody else are
    undone where that loses nothing; the table gets this version's format; the outbox is sent on, held messages come to ``main``; expired claims of
    which nothing was delivered are given back; orphans and stages without a claim are removed. Safe beside every other verb, and to repeat.

    :param accept: let what somebody else has committed stand, as it is now.
    :param accept_loss: go on without files of the table, and without the newest commits, that are damaged or gone and of which there is no copy.
        Their messages are lost. An event and the result tell the lookup ids; what is left of the files is kept in the folder ``_repaired``.
    """
    root = str(Path(store.uri, name))
    done: list[str] = []
    failed: list[str] = []
    try:
        with named(root):
            done += _mend_log(root, accept_loss=accept_loss)
        done += _settle_foreign(root, accept=accept)
        if accept_loss:
            done += lost_files.give_up(root, clock)
        if any(finding.kind is Kind.FORMAT_OLDER for finding in check_folder(name, root, clock, safe_age=safe_age).findings):
            done.append("upgraded the table to the format of this version")
        table = store.open(name)
    except PoisonError as error:
        failed.append(str(error))
    else:
        for step in (_relay, _bring_held, _release, _clean):
            try:
                done += step(store, table, clock, safe_age)
            except PoisonError as error:
                failed.append(str(error))
    return RepairResult(name, tuple(done), tuple(failed), check_folder(name, root, clock, safe_age=safe_age))


def repair_store(store: QueueStore, *, safe_age: timedelta = SAFE_AGE) -> tuple[str, ...]:
    """Remove what killed makers of queues have left beside the queues."""
    with named(store.uri):
        gone = creation.sweep(Path(store.uri), safe_age.total_seconds())
    return tuple(f"removed {name}, a queue that was never made" for name in gone)


# The log --------------------------------------------------------------------------------------------------------------


def _mend_log(root: str, *, accept_loss: bool) -> Iterator[str]:
    """Mend the log itself. Raises TableChangedError for what needs people's consent, or a backup."""
    if power.set_aside(root):
        yield "took away what a loss of power had left of the log"
    versions = power.put_back(root)
    if versions:
        yield f"put {len(versions)} damaged commit(s) back from their copies: version {', '.join(map(str, versions))}"
    found = power.diagnose(root)
    checkpoint = pasts.covering(root) if found.lost else None
    if checkpoint is not None and found.lost[-1].version < checkpoint:
        yield _cut_behind(root, checkpoint)
        found = power.diagnose(root)
    if found.lost or found.unmarked:
        if not accept_loss:
            lost = [mark.version for mark in found.lost] or [found.version]
            raise TableChangedError(
                f"The log of the queue table {root} has lost {len(lost)} commit(s), from version {lost[0]} on, and no copy is whole. Restore "
                f"{pasts.LOG} from a backup; or go on without them, and without the messages that they brought: add --accept-loss."
            )
        yield lost_files.give_up_commits(root)
    past = pasts.read(root)
    if past.gap and not past.damage:
        yield _cut_behind(root, past.entries[0].version - 1 if past.entries else max(power.versions(Path(root, pasts.LOG))))


def _cut_behind(root: str, checkpoint: int) -> str:
    aside = power.cut_behind_checkpoint(root, checkpoint)
    return f"set {len(aside)} entries of the log aside that a checkpoint covers"


# Somebody else's commits ----------------------------------------------------------------------------------------------


def _settle_foreign(root: str, *, accept: bool) -> Iterator[str]:
    """Undo or accept what somebody else has committed last."""
    past = pasts.read(root)
    last = [found for found in foreigners.intrusions(past) if not found.seen and found.changed]
    for found in last:
        if accept:
            _force(root, found)
            yield _accept(root, found)
        elif foreigners.restorable(found):
            _force(root, found)
            yield _restore(root, found)


def _force(root: str, found: Intrusion) -> None:
    """Force somebody else's commits and files to disk before one of ours is built upon them: other writers may not do so themselves."""
    for path in (*(foreign.json_path(root, entry.version) for entry in found.entries), *(Path(root, file.path) for file in found.fresh)):
        durability.sync_if_there(path)
    durability.sync(Path(root, pasts.LOG))


def _accept(root: str, found: Intrusion) -> str:
    log = DeltaLog(root, durable=True)
    state = log.newest()
    details = {"from": found.entries[0].version, "to": found.entries[-1].version}
    if state.version != found.entries[-1].version or not log.commit(state, Commit("accept", details=details)):
        raise TableChangedError(f"Somebody has committed to {root} while its changes were being accepted. Look again with a check.")
    return f"accepted what somebody else has committed: version {details['from']} to {details['to']}"


def _restore(root: str, found: Intrusion) -> str:
    """Go back to the last version of ours, with our mark: what was there after it is no part of the table any more, and stays on disk."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import CommitProperties

    details = {"operation": "restore", "mark": uuid4().hex, "to": found.last_own}
    properties = CommitProperties(max_commit_retries=0, custom_metadata={"userMetadata": json.dumps(details)})
    table = DeltaTable(root)
    if table.version() != found.entries[-1].version:
        raise TableChangedError(f"Somebody has committed to {root} while it was being mended. Look again with a check.")
    reach("pass.repair.before_restore")
    try:
        table.restore(found.last_own, commit_properties=properties)
    except DeltaError as error:
        cause = str(error).partition("\n")[0]
        message = f"The queue table {root} cannot go back to version {found.last_own}: {cause}. Restore the missing files from a backup."
        raise TableChangedError(message) from error
    log = DeltaLog(root, durable=True)
    log.confirm(log.newest())
    return f"went back to version {found.last_own}: undid what somebody else has committed since"


# What was left undone -------------------------------------------------------------------------------------------------


def _relay(store: QueueStore, table: QueueTable, clock: Clock, safe_age: timedelta) -> list[str]:
    del safe_age
    sent = relay(store, table, clock)
    return [f"sent {sent} message(s) of the outbox on"] if sent else []


def _bring_held(store: QueueStore, table: QueueTable, clock: Clock, safe_age: timedelta) -> list[str]:
    del store, safe_age
    moved = return_held(table, clock.now())
    return [f"brought {moved} held message(s) to main"] if moved else []


def _release(store: QueueStore, table: QueueTable, clock: Clock, safe_age: timedelta) -> list[str]:
    """Give expired claims back of which nothing was delivered: looked at again when no earlier holder can write any more."""
    del store, safe_age
    done = []
    for claim in table.expired(clock.now()):
        if holders.worked(table.uri, claim):
            continue
        mine = table.take_over(claim, lease=LEASE, now=clock.now())
        if mine is not None and not holders.worked(table.uri, mine):
            table.release(mine)
            done.append(f"gave {mine.messages} message(s) of the expired claim {mine.key} back")
    return done


def _clean(store: QueueStore, table: QueueTable, clock: Clock, safe_age: timedelta) -> list[str]:
    del store, clock
    cleaned = table.clean(retention=_EVERYTHING, safe_age=safe_age)
    numbers = {"orphaned file(s)": cleaned.orphans, "stage folder(s)": cleaned.stages, "unfinished file(s)": cleaned.temporary}
    told = ", ".join(f"{number} {name}" for name, number in numbers.items() if number)
    return [f"removed {told}"] if told else []
