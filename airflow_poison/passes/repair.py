"""Repair: what a check found and what can be repaired without guessing. No message is ever deleted, and nothing that a journal says is forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.fsck import table_repair
from airflow_poison.fsck.check import SAFE_AGE, CheckResult, check_queue
from airflow_poison.fsck.claims import worked
from airflow_poison.passes.due import return_held
from airflow_poison.passes.relay import relay
from airflow_poison.store.disk import named
from airflow_poison.values.errors import InputError, PoisonError
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

LEASE = timedelta(minutes=2)
_EVERYTHING = timedelta(days=365_000)
"""A retention that keeps every file of every version: to remove them is maintenance, not repair."""


@dataclass(frozen=True, slots=True)
class RepairResult(Plain):
    """What a repair did.

    :param done: what was mended, a sentence each.
    :param failed: what could not be, and why.
    """

    queue: str
    done: tuple[str, ...]
    failed: tuple[str, ...]
    after: CheckResult


def repair(
    store: QueueStore, name: str, clock: Clock, *, accept: bool = False, accept_loss: bool = False, safe_age: timedelta = SAFE_AGE
) -> RepairResult:
    """Repair a queue as far as that needs no guess.

    What a loss of power left of the log is set aside; damaged entries of the log are put back from their copies; commits of other programs are
    undone where that loses nothing; the outbox is sent on, held messages come to ``main``; expired claims of
    which nothing was delivered are given back; orphans and stages without a claim are removed. Safe beside every other verb, and to repeat.
    In an object store, whose log is not mended here, that begins with the outbox.

    :param accept: accept the commits of other programs, as they are now.
    :param accept_loss: go on without files of the table, and without the newest commits, that are damaged or gone and of which there is no copy.
        Their messages are lost. An event and the result have the lookup ids; what is left of the files is kept in the folder ``_repaired``.
    """
    done: list[str] = []
    failed: list[str] = []
    try:
        if store.is_folder:
            done += _table(str(Path(store.uri, name)), clock, accept=accept, accept_loss=accept_loss)
        elif accept or accept_loss:
            raise InputError(
                f"The queue {name!r} is in the object store {store.uri}: what somebody else has committed there, and what is lost, is no matter of a "
                "repair. RESTORE the table to the last version of ours with any Delta writer, or put the objects back from a backup."
            )
        table = store.open(name)
    except PoisonError as error:
        failed.append(str(error))
    else:
        for step in (_relay(store, table, clock), _bring_held(table, clock), _release(table, clock), _clean(table, safe_age)):
            try:
                done += step
            except PoisonError as error:
                failed.append(str(error))
    return RepairResult(name, tuple(done), tuple(failed), check_queue(store, name, clock, safe_age=safe_age))


def _table(root: str, clock: Clock, *, accept: bool, accept_loss: bool) -> Iterator[str]:
    """Mend the table itself, in the folder in which it lies."""
    with named(root):
        yield from table_repair.repair_log(root, accept_loss=accept_loss)
    yield from table_repair.settle_foreign(root, accept=accept)
    if accept_loss:
        yield from table_repair.give_up_files(root, clock)


def repair_store(store: QueueStore, *, safe_age: timedelta = SAFE_AGE) -> tuple[str, ...]:
    """Remove what killed makers of queues have left beside the queues."""
    return tuple(f"removed {name}, a queue that was never made" for name in store.sweep(safe_age))


# What was left undone: each step does its work when it is asked what it did ------------------------------------------


def _relay(store: QueueStore, table: QueueTable, clock: Clock) -> Iterator[str]:
    if sent := relay(store, table, clock):
        yield f"sent {sent} message(s) of the outbox on"


def _bring_held(table: QueueTable, clock: Clock) -> Iterator[str]:
    if moved := return_held(table, clock.now()):
        yield f"brought {moved} held message(s) to main"


def _release(table: QueueTable, clock: Clock) -> Iterator[str]:
    """Give expired claims back of which nothing was delivered: looked at again when no earlier holder can write any more."""
    for claim in table.expired(clock.now()):
        if worked(table.root, claim):
            continue
        mine = table.take_over(claim, lease=LEASE, now=clock.now())
        if mine is not None and not worked(table.root, mine):
            table.release(mine)
            yield f"gave {mine.messages} message(s) of the expired claim {mine.key} back"


def _clean(table: QueueTable, safe_age: timedelta) -> Iterator[str]:
    cleaned = table.clean(retention=_EVERYTHING, safe_age=safe_age)
    numbers = {"orphaned file(s)": cleaned.orphans, "stage folder(s)": cleaned.stages, "unfinished file(s)": cleaned.temporary}
    if told := ", ".join(f"{number} {name}" for name, number in numbers.items() if number):
        yield f"removed {told}"
