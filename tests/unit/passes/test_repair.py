"""Repair: what needs no guess is mended, nothing is lost, and the rest is left as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from airflow_poison.fsck.files import Kind
from airflow_poison.passes.maintain import repair
from airflow_poison.values.errors import TableChangedError
from tests.given.broken_queues import AN_HOUR, DAMAGE, NOW, checked, deliver_and_die, orphan, outbox

if TYPE_CHECKING:
    from tests.given.passes import Queue

MENDED = {
    "last commit empty": "loss of power",
    "last commit cut at the end of a line": "loss of power",
    "acknowledged commit cut": "put 1 damaged commit(s) back from their copies",
    "acknowledged commits removed": "put 3 damaged commit(s) back from their copies",
    "commit unreadable": "put 1 damaged commit(s) back from their copies",
    "commit missing": "put 1 damaged commit(s) back from their copies: version 5",
    "checkpoint cut": "loss of power",
    "checkpoint gone": "loss of power",
    "checkpoint of a version that was lost": "loss of power",
    "old commits gone": "entries of the log aside that a checkpoint covers",
    "old commits and their copies gone": "entries of the log aside that a checkpoint covers",
    "rows deleted": "went back to version",
    "partition deleted": "went back to version",
    "column added": "went back to version",
    "constraint dropped": "went back to version",
    "orphan": "removed 1 orphaned file(s)",
    "claim expired": "gave 6 message(s) of the expired claim dead back",
    "stage without a claim": "removed 1 stage folder(s)",
    "held beside an enabled queue": "brought 1 held message(s) to main",
    "outbox left": "sent 1 message(s) of the outbox on",
}


@pytest.mark.parametrize(("name", "told"), MENDED.items())
def test_repair_mends_it_and_loses_nothing(worked: Queue, name: str, told: str) -> None:
    before = set(worked.rows())
    DAMAGE[name][0](worked)
    result = repair(worked.store, "orders", worked.clock, safe_age=NOW)
    assert told in "; ".join(result.done)
    assert (result.failed, result.after.findings) == ((), ())
    assert set(worked.rows()) == before
    assert worked.sent("ok 99").receive("again").settled
    assert checked(worked).findings == ()


@pytest.mark.parametrize("name", sorted(DAMAGE.keys() - MENDED.keys()))
def test_repair_leaves_alone_what_needs_a_guess(worked: Queue, name: str) -> None:
    before = {path for path in Path(worked.table.uri).rglob("sub_queue=*/*/*.parquet") if path.is_file()}
    damage, expected, _ = DAMAGE[name]
    damage(worked)
    result = repair(worked.store, "orders", worked.clock, safe_age=AN_HOUR)
    assert {finding.kind for finding in result.after.findings} == expected
    lost = before - {path for path in Path(worked.table.uri).rglob("sub_queue=*/*/*.parquet") if path.is_file()}
    assert len(lost) == (1 if name.endswith("file gone") or name == "file gone" else 0)


def test_what_is_mendable_is_what_repair_mends() -> None:
    assert MENDED.keys() <= DAMAGE.keys()


def test_repair_gives_no_claim_back_of_which_something_was_delivered(worked: Queue) -> None:
    deliver_and_die(worked)
    result = repair(worked.store, "orders", worked.clock, safe_age=NOW)
    [finding] = result.after.findings
    assert (finding.kind, finding.mendable) == (Kind.CLAIM_EXPIRED, False)
    assert "run the receive task" in finding.todo
    worked.receive("later")
    assert checked(worked).findings == ()


def test_repair_takes_no_foreign_messages_out(worked: Queue) -> None:
    from tests.store.test_foreign_hands import _raw_add

    _raw_add(DeltaTable(worked.table.uri))
    result = repair(worked.store, "orders", worked.clock, safe_age=NOW)
    assert result.done == ()
    assert "Somebody else has committed" in result.failed[0]
    [foreign] = [finding for finding in result.after.findings if finding.kind is Kind.FOREIGN_COMMIT]
    assert not foreign.mendable


def test_accepting_lets_what_others_did_stand(worked: Queue) -> None:
    DeltaTable(worked.table.uri).delete("sub_queue = 'poison'")
    with pytest.raises(TableChangedError):
        worked.sent("ok 16")
    result = repair(worked.store, "orders", worked.clock, accept=True, safe_age=NOW)
    assert result.done[0].startswith("accepted what somebody else has committed")
    assert result.after.findings == ()
    assert (result.after.account.foreign, result.after.account.unaccounted) == (1, 0)
    assert worked.sent("ok 16").receive("again").settled == 7


def test_a_repair_that_was_killed_is_finished_by_the_next(worked: Queue) -> None:
    outbox(worked)
    orphan(worked)
    DeltaTable(worked.table.uri).delete("sub_queue = 'poison'")
    for _ in range(2):
        result = repair(worked.store, "orders", worked.clock, safe_age=NOW)
    assert (result.done, result.after.findings) == ((), ())
