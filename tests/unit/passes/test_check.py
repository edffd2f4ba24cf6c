"""Check: a queue that only the package has touched is clean, and each kind of damage is found."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.applying import apply
from airflow_poison.desk.plans import plan, record
from airflow_poison.desk.selection import Selection
from airflow_poison.fsck.check import check, check_store
from airflow_poison.fsck.files import Finding, Kind, Severity
from airflow_poison.passes.alter import declare
from airflow_poison.passes.due import return_due
from airflow_poison.passes.maintain import repair_store
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.store.files import Replacement, Transaction
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values.errors import InputError, QueueNameError
from tests.given.broken_queues import AN_HOUR, DAMAGE, NOW, a_file, checked, dialog, landing, orphan, outbox, path_of, stage, tear_last_commit
from tests.given.passes import LEASE, Queue, a_queue

if TYPE_CHECKING:
    from collections.abc import Callable

# A clean queue --------------------------------------------------------------------------------------------------------


def test_a_queue_that_only_the_package_has_touched_is_clean(worked: Queue) -> None:
    found = checked(worked)
    assert found.findings == ()
    account = found.account
    assert (account.sent, account.waiting, account.removed, account.unaccounted, account.foreign) == (15, 9, 1, 0, 0)
    assert account.settled + account.dropped + account.sent_on + account.removed + account.waiting == 15


@pytest.mark.parametrize(("filtered", "problems"), [(2, []), (1, ["read 10 rows in place, and says landed 7 + filtered 1 + messages 1"])])
def test_rows_of_a_source_are_landed_filtered_or_messages(worked: Queue, filtered: int, problems: list[str]) -> None:
    counts = {"read": 10, "landed": 7, "filtered": filtered}
    first = worked.table.append([pa.record_batch({"body": [b"{}"]})], "in place", worked.clock.now(), counts=counts)
    again = worked.table.append([pa.record_batch({"body": [b"{}"]})], "in place", worked.clock.now(), counts=counts)

    assert first.counts == again.counts == counts
    assert (first.repeated, again.repeated) == (False, True)
    assert [finding.what for finding in checked(worked).findings if finding.kind is Kind.NOT_CONSERVED] == [
        f"the commit 'append' of in place {problem}" for problem in problems
    ]


def test_every_queue_of_a_store_is_checked(worked: Queue) -> None:
    assert [(result.queue, result.findings) for result in check_store(worked.store, worked.clock, safe_age=NOW)] == [
        ("elsewhere", ()),
        ("orders", ()),
        ("orders.dead-letter", ()),
    ]


def test_a_queue_stays_clean_when_its_log_is_shortened_and_its_files_are_cleaned(worked: Queue) -> None:
    for number in range(45):
        worked.sent(f"ok {number}")
    worked.receive("all")
    worked.table.compact(min_files=2)
    worked.table.clean(retention=NOW, safe_age=NOW)
    worked.table.shorten_log(retention=NOW)
    found = checked(worked)
    assert found.findings == ()
    assert (found.account.sent, found.account.unaccounted) == (60, 0)
    assert found.account.before > 0


def test_a_living_claim_is_no_finding(worked: Queue) -> None:
    assert worked.table.claim("alive", lease=LEASE, now=worked.clock.now(), max_messages=10)
    assert checked(worked).findings == ()


def test_a_check_changes_nothing(worked: Queue) -> None:
    tear_last_commit(worked)
    before = {path: path.stat().st_mtime_ns for path in Path(worked.table.uri).rglob("*") if path.is_file()}
    checked(worked)
    assert {path: path.stat().st_mtime_ns for path in Path(worked.table.uri).rglob("*") if path.is_file()} == before


def test_a_body_that_has_changed_is_found_and_not_shown(worked: Queue) -> None:
    files = [path for path in Path(worked.table.uri).rglob("sub_queue=main/*/*.parquet") if b"ok 1" in path.read_bytes()]
    for path in files:
        path.write_bytes(path.read_bytes().replace(b"ok 1", b"ko 1"))
    found = checked(worked).findings
    live = {file.path for file in worked.table.snapshot().files}
    assert {finding.where for finding in found} == live & {str(path.relative_to(worked.table.uri)) for path in files} != set()
    assert {finding.kind for finding in found} == {Kind.FILE_CHANGED}
    assert all("its content has changed" in finding.what and "k 1" not in finding.what for finding in found)


def test_a_store_in_memory_has_nothing_to_check(tmp_path: Path) -> None:
    queue = a_queue(MemoryStore(), tmp_path)
    with pytest.raises(InputError, match="store in memory keeps no log"):
        check(queue.table, queue.clock)


def test_a_queue_that_takes_part_in_dialogs_is_clean(worked: Queue) -> None:
    before = checked(worked).account
    for number in range(3):
        dialog(worked, str(number), number + 1)
    taken = a_file(worked)
    first, second, third = worked.table.snapshot().transmissions
    less = Replacement(taken, worked.table.read(taken).slice(1), removed=1)
    assert worked.table.transact(lambda _: Transaction(replacements=(less,), remove=(first, second)), "sent", worked.clock.now())
    worked.table.remove_transmissions([third])
    assert worked.table.merge_conversations(lambda rows: rows, min_files=2).files == 3
    found = checked(worked)
    assert found.findings == ()
    assert (found.account.removed, found.account.waiting) == (before.removed + 1, before.waiting - 1)


# Damage ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("damage", "expected", "told"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_and_nothing_else(worked: Queue, damage: Callable[[Queue], object], expected: set[Kind], told: str) -> None:
    damage(worked)
    found = checked(worked).findings
    assert {finding.kind for finding in found} == expected
    assert any(told in f"{finding.where} {finding.what}" for finding in found), found
    assert all(finding.todo for finding in found)


def test_every_kind_of_finding_has_its_damage() -> None:
    tested = set().union(*(expected for _, expected, _ in DAMAGE.values()))
    assert set(Kind) - tested == {Kind.CREATION_LEFT, Kind.OTHER_TABLE, Kind.FILE_UNREADABLE, Kind.CONDITION_IGNORED, Kind.QUEUE_UNREADABLE}


def test_a_table_that_is_no_queue_is_named_once_and_never_opened(worked: Queue) -> None:
    # given an output beside the queues
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(Path(worked.store.uri, "landed")), pa.table({"n": [1]}))
    # then
    found = [(finding.kind, finding.where) for result in check_store(worked.store, worked.clock) for finding in result.findings]
    assert found == [(Kind.OTHER_TABLE, "landed")]
    assert "landed" not in worked.store.names()
    for act in (worked.store.open, lambda name: declare(worked.store, name, worked.policy, worked.clock)):
        with pytest.raises(QueueNameError, match="is a Delta table, but no queue"):
            act("landed")


@pytest.mark.parametrize("left", ["no_messages", "no_log"])
def test_a_damaged_queue_is_still_a_queue(worked: Queue, left: str) -> None:
    # given a queue that has lost its log, or everything else
    root = Path(worked.table.uri)
    for folder in root.iterdir():
        if (folder.name == "_delta_log") == (left == "no_log"):
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
    # then
    assert root.name in worked.store.names()
    assert worked.store.others() == []


def test_what_is_young_may_be_under_way(worked: Queue) -> None:
    orphan(worked)
    stage(worked)
    landing(worked)
    assert checked(worked, safe_age=AN_HOUR).findings == ()


def test_a_queue_that_was_never_made_is_found_and_removed(worked: Queue) -> None:
    left = Path(worked.store.uri, ".new-1")
    left.mkdir()
    os.utime(left, (time.time() - 90_000, time.time() - 90_000))
    first = check_store(worked.store, worked.clock)[0]
    assert [finding.kind for finding in first.findings] == [Kind.CREATION_LEFT]
    assert repair_store(worked.store) == ("removed .new-1, a queue that was never made",)
    assert all(result.queue for result in check_store(worked.store, worked.clock))


def test_the_worst_comes_first(worked: Queue) -> None:
    orphan(worked)
    outbox(worked)
    path_of(worked).unlink()
    assert [finding.severity for finding in checked(worked).findings] == [Severity.ERROR, Severity.WARNING, Severity.NOTE]


def test_a_finding_is_plain_values(worked: Queue) -> None:
    orphan(worked)
    [finding] = checked(worked).findings
    assert json.loads(json.dumps(checked(worked).to_dict()))["findings"] == [finding.to_dict()]
    with pytest.raises(AttributeError):
        finding.what = ""  # type: ignore[misc]  # frozen


def test_findings_are_equal_by_value() -> None:
    assert Finding(Kind.OUTBOX_LEFT, Severity.NOTE, "a", "b", "c") == Finding(Kind.OUTBOX_LEFT, Severity.NOTE, "a", "b", "c")


def test_a_file_that_came_back_from_retry_and_was_moved_whole_is_no_finding(tmp_path: Path) -> None:
    """Its rows keep the due time that has passed; the log's entry has none. A fault campaign has found it."""
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=1, receive_error_handling="Move")
    clean = a_queue(DeltaStore(str(tmp_path / "store"), durable=False), tmp_path, policy).sent("bad 1")
    assert clean.receive("one").parked == 1
    clean.clock.advance(AN_HOUR)
    assert return_due(clean.table, clean.clock).returned == 1
    wanted = plan(clean.table, Selection(sub_queue=None), PlanAction(verb=Verb.MOVE, target="poison"), clean.clock)
    apply(clean.table, record(clean.table, wanted, clean.clock, who="ann"), clean.clock)
    assert [file.sub_queue for file in clean.table.snapshot().files] == ["poison"]
    assert check(clean.table, clean.clock).findings == ()
