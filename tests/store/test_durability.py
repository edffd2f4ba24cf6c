"""After a call returns, a loss of power takes nothing of it back (store.md section 7): held against a disk that keeps only what was synced."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from airflow_poison.passes.maintain import repair
from airflow_poison.passes.relay import relay
from airflow_poison.store import entries, open_store
from airflow_poison.store.control import QueueState
from airflow_poison.store.delta_store import CHECKPOINT_INTERVAL, DeltaLog, DeltaStore
from airflow_poison.store.files import Replacement
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.schema import DESTINATION, SubQueue
from tests.faults.powerloss import Disk, PowerLostError
from tests.given.dialogs import act, endpoint, letter, rows
from tests.given.tables import CONTROL, LATER, LEASE, NOW, all_rows, claim, numbered, park_all, put, rows_of, seal, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

PLACE = "new/parents of/the store"


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk", tmp_path / "memory")
    disk.watch(monkeypatch.setattr)
    return disk


@pytest.fixture
def store(disk: Disk) -> DeltaStore:
    return DeltaStore(str(disk.root / PLACE))


@pytest.fixture
def queue(store: DeltaStore) -> QueueTable:
    return store.create("orders", CONTROL)


def told(queue: QueueTable) -> object:
    """Everything that a table says: files, claims, control row, rows and events."""
    snapshot = queue.snapshot()
    beside = [queue.read(file).to_pylist() for file in (*snapshot.outbox, *snapshot.conversations, *snapshot.transmissions)]
    return snapshot, all_rows(queue), beside, list(queue.events())


def survives(disk: Disk, store: QueueStore, target: Path) -> None:
    """Fail unless every queue says after a loss of power what it says now."""
    after = DeltaStore(str(disk.after_power_loss(target) / PLACE), durable=False)
    assert list(after.names()) == list(store.names())
    for name in store.names():
        assert told(after.open(name)) == told(store.open(name))


def appended(queue: QueueTable) -> None:
    send(queue, 10)


def appended_in_many_files(queue: QueueTable) -> None:
    queue.append([numbered(40)], "many", NOW)
    file = queue.snapshot().files[0]
    found = queue.read(file)
    queue.split_file(file, [found.slice(number, 1) for number in range(40)])


def held(queue: QueueTable) -> None:
    queue.alter(lambda control: replace(control, state=QueueState.DISABLED))
    send(queue, 3)


def enabled(queue: QueueTable) -> None:
    held(queue)
    queue.alter(lambda control: control.enabled(), lambda _before, _after: (Event(EventType.QUEUE_ENABLED, NOW),))


def claimed(queue: QueueTable) -> None:
    send(queue, 10)
    claim(queue)


def claimed_a_piece(queue: QueueTable) -> None:
    send(queue, 10)
    claim(queue, messages=3)


def renewed(queue: QueueTable) -> None:
    send(queue, 10)
    queue.renew(claim(queue), lease=LEASE, now=LATER)


def taken_over(queue: QueueTable) -> None:
    send(queue, 10)
    assert queue.take_over(claim(queue), lease=LEASE, now=LATER)


def released(queue: QueueTable) -> None:
    send(queue, 10)
    queue.release(claim(queue))


def finished(queue: QueueTable) -> None:
    send(queue, 10)
    park_all(queue)


def returned(queue: QueueTable) -> None:
    finished(queue)
    assert queue.move_files(lambda snapshot: snapshot.files, SubQueue.MAIN, LATER).messages == 10


def replaced(queue: QueueTable) -> None:
    send(queue, 10)
    file = queue.snapshot().files[0]
    queue.replace_file(file, put(queue.read(file).slice(3), "poison"), [Event(EventType.DROPPED, NOW, 1)])


def removed(queue: QueueTable) -> None:
    send(queue, 10)
    file = queue.snapshot().files[0]
    queue.replace_file(file, queue.read(file).slice(0, 0), [])


def conversed(queue: QueueTable) -> None:
    send(queue, 10)
    file = queue.snapshot().files[0]
    less = Replacement(file, queue.read(file).slice(1), removed=1)
    assert act(queue, "act", endpoint("a", 1), letter("hello"), replacements=(less,), events=(Event(EventType.DROPPED, NOW, 1),))


def answered(queue: QueueTable) -> None:
    conversed(queue)
    held = claim(queue)
    queue.stage_table(held, rows(endpoint("a", 2), letter("answer")))
    assert queue.finish(held, seal(queue, held), now=NOW)


def merged(queue: QueueTable) -> None:
    answered(queue)
    assert queue.merge_conversations(lambda found: found, min_files=2).files == 2
    queue.remove_transmissions(queue.snapshot().transmissions[:1])


def checkpointed(queue: QueueTable) -> None:
    for number in range(CHECKPOINT_INTERVAL + 1):
        send(queue, 1, f"send-{number}")


STEPS = [
    appended,
    appended_in_many_files,
    held,
    enabled,
    claimed,
    claimed_a_piece,
    renewed,
    taken_over,
    released,
    finished,
    returned,
    replaced,
    removed,
    conversed,
    answered,
    merged,
    checkpointed,
]


def test_a_new_queue_with_new_folders_above_it_survives(disk: Disk, store: DeltaStore, queue: QueueTable, tmp_path: Path) -> None:
    survives(disk, store, tmp_path / "after")


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_what_a_call_has_done_survives(disk: Disk, store: DeltaStore, queue: QueueTable, tmp_path: Path, step: Callable[[QueueTable], None]) -> None:
    step(queue)

    survives(disk, store, tmp_path / "after")


def test_a_sealed_outcome_survives(disk: Disk, store: DeltaStore, queue: QueueTable, tmp_path: Path) -> None:
    send(queue, 10)
    held = claim(queue)
    queue.stage_table(held, put(rows_of(queue, held), "retry", due_at=LATER))
    sealed = seal(queue, held, {"seen": 10})

    after = DeltaStore(str(disk.after_power_loss(tmp_path / "after") / PLACE), durable=False).open("orders")
    found = after.manifest(held)
    assert found == sealed
    assert after.finish(held, found, now=NOW)
    assert all_rows(after) == all_rows(after)
    assert [file.rows for file in after.snapshot().files] == [10]


def test_what_the_relay_has_sent_on_survives_in_both_queues(disk: Disk, store: DeltaStore, queue: QueueTable, tmp_path: Path) -> None:
    send(queue, 10)
    _into_the_outbox(queue)

    assert relay(store, queue, VirtualClock(NOW)) == 10

    survives(disk, store, tmp_path / "after")


def _into_the_outbox(queue: QueueTable) -> None:
    file = queue.snapshot().files[0]
    found = [row | {"sub_queue": "_outbox", "properties": [(DESTINATION, "elsewhere")]} for row in queue.read(file).to_pylist()]
    import pyarrow as pa

    from airflow_poison.values.schema import table_schema

    queue.replace_file(file, pa.Table.from_pylist(found, schema=table_schema()), [])


@pytest.mark.parametrize("accept", [False, True], ids=["undone", "accepted"])
def test_what_becomes_of_somebody_elses_commits_survives_with_them(
    disk: Disk, store: DeltaStore, queue: QueueTable, tmp_path: Path, *, accept: bool
) -> None:
    """Other writers force nothing to disk: a commit of ours behind one of theirs would stay, and theirs would go."""
    finished(queue)
    send(queue, 5, "more")
    for place in ("main", "retry"):
        DeltaTable(queue.uri).delete(f"sub_queue = '{place}'")

    repaired = repair(store, "orders", VirtualClock(NOW), accept=accept)

    assert repaired.done
    survives(disk, store, tmp_path / "after")
    log = Path(disk.after_power_loss(tmp_path / "again"), PLACE, "orders", "_delta_log")
    assert all(entry.stat().st_size for entry in log.glob("*.json"))


def test_a_checkpoint_does_not_outlive_the_entry_of_somebody_else_that_it_covers(disk: Disk, queue: QueueTable, tmp_path: Path) -> None:
    """Maintenance makes a checkpoint of the newest version, which another writer has not forced to disk."""
    finished(queue)
    DeltaTable(queue.uri).delete("sub_queue = 'retry'")
    version = DeltaTable(queue.uri).version()

    assert DeltaLog(queue.uri, durable=True).shorten(timedelta(0)).checkpoint == version

    log = Path(disk.after_power_loss(tmp_path / "after"), PLACE, "orders", "_delta_log")
    assert (log / f"{version:020d}.checkpoint.parquet").stat().st_size
    assert (log / f"{version:020d}.json").read_bytes() == (Path(queue.root) / "_delta_log" / f"{version:020d}.json").read_bytes()


def test_an_acknowledged_commit_has_its_mark_on_disk_and_one_that_nobody_was_told_of_has_none(disk: Disk, queue: QueueTable, tmp_path: Path) -> None:
    send(queue, 1)
    version = queue.snapshot().version
    dies_before_the_sync_of(disk, lambda path: path.name == "_delta_log", lambda: send(queue, 1, "more"))

    after = Path(disk.after_power_loss(tmp_path / "after"), PLACE, "orders")

    assert max(entries.read_marks(str(after))) == version
    assert max(entries.read_marks(queue.uri)) == version
    assert DeltaStore(str(after.parent)).open("orders").snapshot().version == version


# Answers that rest on what a dead process has committed ---------------------------------------------------------------


def dies_before_the_sync_of(disk: Disk, what: Callable[[Path], bool], act: Callable[[], object]) -> None:
    """Do something whose process ends before it has synced a path."""

    def die(path: Path) -> None:
        if what(path):
            raise PowerLostError

    disk.before_sync = die
    with pytest.raises(PowerLostError):
        act()
    disk.before_sync = lambda _path: None


def is_entry(version: int) -> Callable[[Path], bool]:
    return lambda path: path.name == f"{version:020d}.json"


def test_a_repeated_send_is_acknowledged_when_the_first_ones_commit_is_on_disk(
    disk: Disk, store: DeltaStore, queue: QueueTable, tmp_path: Path
) -> None:
    newest = queue.snapshot().version
    dies_before_the_sync_of(disk, is_entry(newest + 1), lambda: send(queue, 10))

    assert send(store.open("orders"), 10).repeated

    survives(disk, store, tmp_path / "after")


def test_an_act_that_was_done_before_is_on_disk_when_that_is_told(disk: Disk, store: DeltaStore, queue: QueueTable, tmp_path: Path) -> None:
    newest = queue.snapshot().version
    dies_before_the_sync_of(disk, is_entry(newest + 1), lambda: act(queue, "act", endpoint("a", 1), letter("hello")))

    assert not act(store.open("orders"), "act", endpoint("a", 1), letter("hello"))

    survives(disk, store, tmp_path / "after")


def test_a_pass_that_was_finished_before_is_on_disk_when_that_is_told(disk: Disk, store: DeltaStore, queue: QueueTable, tmp_path: Path) -> None:
    send(queue, 10)
    held = claim(queue)
    queue.stage_table(held, put(rows_of(queue, held), "retry", due_at=LATER))
    sealed = seal(queue, held)
    dies_before_the_sync_of(disk, is_entry(queue.snapshot().version + 1), lambda: queue.finish(held, sealed, now=NOW))

    assert not store.open("orders").finish(held, sealed, now=NOW)

    survives(disk, store, tmp_path / "after")


def test_a_change_that_had_been_made_before_is_on_disk_when_that_is_told(disk: Disk, store: DeltaStore, queue: QueueTable, tmp_path: Path) -> None:
    def disable(queue: QueueTable) -> object:
        return queue.alter(lambda control: replace(control, state=QueueState.DISABLED))

    dies_before_the_sync_of(disk, is_entry(queue.snapshot().version + 1), lambda: disable(queue))

    disable(store.open("orders"))

    survives(disk, store, tmp_path / "after")


def test_a_relay_removes_nothing_before_what_a_dead_one_had_sent_is_on_disk(disk: Disk, store: DeltaStore, queue: QueueTable, tmp_path: Path) -> None:
    """Else the message would be in neither queue."""
    send(queue, 10)
    _into_the_outbox(queue)
    elsewhere = store.create("elsewhere", CONTROL)
    first = elsewhere.snapshot().version + 1
    dies_before_the_sync_of(
        disk, lambda path: path.name == f"{first:020d}.json" and "elsewhere" in str(path), lambda: relay(store, queue, VirtualClock(NOW))
    )

    relay(store, queue, VirtualClock(NOW))

    survives(disk, store, tmp_path / "after")
    assert len(all_rows(elsewhere)) == 10


def test_a_queue_that_a_dead_process_has_made_is_on_disk_when_it_is_made_again(disk: Disk, store: DeltaStore, tmp_path: Path) -> None:
    dies_before_the_sync_of(disk, lambda path: path == disk.root / PLACE, lambda: store.create("orders", CONTROL))
    assert (disk.root / PLACE / "orders").is_dir()

    send(store.create("orders", CONTROL), 3)

    survives(disk, store, tmp_path / "after")


# Order and cost -------------------------------------------------------------------------------------------------------


def test_files_are_on_disk_before_the_commit_that_names_them(disk: Disk, queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data files and their folders; then the entry and the log's folder; then its mark; then the acknowledgement. The entry built upon is marked."""
    version = queue.snapshot().version + 1
    disk.order.clear()

    send(queue, 10)

    (file,) = queue.snapshot().files
    root = f"{PLACE}/orders"
    log = f"{root}/_delta_log"
    data, parents = f"{root}/{file.path}", [str(parent) for parent in Path(root, file.path).parents][:3]
    assert disk.order == [data, *parents, f"{log}/{version:020d}.json", log, f"{root}/_acknowledged"]


def test_nothing_is_synced_when_durability_is_switched_off(disk: Disk) -> None:
    queue = DeltaStore(str(disk.root / PLACE), durable=False).create("orders", CONTROL)

    finished(queue)

    assert disk.order == []


def test_who_switches_durability_off_by_name_is_warned_once(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    uri = str(disk.root / PLACE)

    send(open_store(uri, durable=False).create("orders", CONTROL), 3)
    send(open_store(uri, durable=False).open("orders"), 3, "again")

    assert disk.order == []
    (record,) = [record for record in caplog.records if "durable=False" in record.getMessage()]
    assert (record.levelname, uri in record.getMessage()) == ("WARNING", True)


def test_the_disk_of_these_tests_loses_what_was_not_synced(disk: Disk, tmp_path: Path) -> None:
    store = DeltaStore(str(disk.root / PLACE), durable=False)
    send(store.create("orders", CONTROL), 3)

    with pytest.raises(AssertionError):
        survives(disk, store, tmp_path / "after")
