"""A disk that is full, whatever page it happens at: nothing is lost, the error says what to do, and with space a rerun completes."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore.store
import pytest

from airflow_poison.fsck.check import check_store
from airflow_poison.fsck.files import Severity
from airflow_poison.passes.alter import declare, disable, enable
from airflow_poison.passes.due import return_due
from airflow_poison.passes.maintain import RepairResult, maintain, repair
from airflow_poison.passes.move import put_back
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.store.objects import Objects
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import ServerSessionError, StoreUnreachableError
from tests.given import dialogs
from tests.given.passes import DiedError, DyingEngine, Handler, Queue, a_queue, calls
from tests.store.conftest import bucket_store
from tests.store.disk import Disk, mounted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=timedelta(minutes=30), receive_error_handling="Move")
BODIES = ("good 1", "bad 2", "good 3", "bad 4", "good 5 " + "x" * 9_000)
ADVICE = re.compile(r"free (some )?space", re.IGNORECASE)
MOST_PAGES = 120
IN_A_ROW = 3
"""Successes until the disk counts as large enough: pages come back while a verb works, so it may succeed with fewer than it failed with."""
FULL = os.environ.get("POISON_FAULTS") == "full"
"""``make faults`` tries every number of pages; ``make test`` leaves some out where there are many, others each time."""


@dataclass(frozen=True)
class Case:
    """A verb on a queue, and what it needs.

    :param prepare: what is done before, with space.
    :param act: the verb; it may be run again.
    :param check: whether it is done.
    :param step: how many pages more each time, unless every number is tried.
    """

    act: Callable[[Queue], object]
    prepare: Callable[[Queue], object] = lambda _: None
    check: Callable[[Queue], bool] = lambda _: True
    step: int = 1


def _parked(queue: Queue) -> None:
    queue.receive("first")
    queue.clock.advance(timedelta(hours=1))


def _poisoned(queue: Queue) -> None:
    _parked(queue)
    return_due(queue.table, queue.clock)
    queue.receive("second")


def _small_files(queue: Queue) -> None:
    for number in range(6):
        queue.sent(f"good more {number}", key=f"more-{number}")
    with pytest.raises(DiedError):
        queue.having(engine=DyingEngine).receive("dead", max_messages=5)
    path = next(Path(queue.table.uri, file.path) for file in queue.table.snapshot().files)
    shutil.copyfile(path, path.with_name("orphan.parquet"))


def _dead(queue: Queue) -> None:
    with pytest.raises(DiedError):
        queue.having(engine=DyingEngine).receive("run")


def _begun(queue: Queue) -> None:
    """Claimed, and nothing delivered."""
    assert queue.table.claim("run-0", lease=timedelta(minutes=2), now=queue.clock.now(), max_messages=100)


def _expired(queue: Queue) -> None:
    assert queue.table.claim("dead", lease=timedelta(minutes=2), now=queue.clock.now(), max_messages=100)
    queue.table.alter(lambda control: control, lambda _, __: [])
    queue.clock.advance(timedelta(hours=1))


def _repaired(queue: Queue) -> RepairResult:
    """A repair that failed may have taken a claim over."""
    queue.clock.advance(timedelta(hours=1))
    return repair(queue.store, "orders", queue.clock)


def _versions(queue: Queue, wanted: int) -> None:
    """Make the next commit write a checkpoint."""
    while queue.table.snapshot().version < wanted:
        (disable if queue.table.snapshot().version % 2 else enable)(queue.table, queue.clock)


def _ready_for_a_checkpoint(queue: Queue) -> None:
    _versions(queue, 17)
    enable(queue.table, queue.clock)


def _places(queue: Queue) -> dict[int, object]:
    return {number: row["sub_queue"] for number, row in queue.rows().items()}


def _received(queue: Queue) -> bool:
    return {number: place for number, place in _places(queue).items() if number <= 5} == {2: "retry", 4: "retry"}


CASES: dict[str, Case] = {
    "send": Case(lambda queue: queue.sent("good 6", "bad 7 " + "y" * 20_000, key="more"), check=lambda queue: {6, 7} <= queue.rows().keys()),
    "send that makes a checkpoint": Case(
        lambda queue: queue.sent("good 6", "bad 7", key="more"),
        prepare=lambda queue: _versions(queue, 19),
        check=lambda queue: {6, 7} <= queue.rows().keys(),
    ),
    "receive": Case(lambda queue: queue.receive("run"), check=_received, step=3),
    "receive that makes a checkpoint": Case(lambda queue: queue.receive("run"), prepare=_ready_for_a_checkpoint, check=_received, step=3),
    "receive in a process of its own": Case(lambda queue: queue.receive("run", isolation="process"), check=_received, step=5),
    "receive what a dead pass had delivered": Case(lambda queue: queue.receive("run"), _dead, _received, step=3),
    "receive what a dead pass had begun": Case(lambda queue: queue.receive("run"), _begun, _received, step=3),
    "return": Case(lambda queue: return_due(queue.table, queue.clock), _parked, lambda queue: _places(queue) == {2: "main", 4: "main"}),
    "act in a conversation": Case(
        lambda queue: dialogs.act(queue.table, "act", dialogs.endpoint("a", 1), dialogs.letter("hello " + "z" * 20_000)),
        check=lambda queue: (dialogs.endpoints(queue.table), len(dialogs.letters(queue.table))) == ({"a": 1}, 1),
    ),
    "merge endpoints": Case(
        lambda queue: queue.table.merge_conversations(lambda rows: rows, min_files=2),
        prepare=lambda queue: [dialogs.act(queue.table, str(version), dialogs.endpoint("a", version)) for version in range(1, 4)],
        check=lambda queue: (dialogs.endpoints(queue.table), len(queue.table.snapshot().conversations)) == ({"a": 3}, 1),
    ),
    "disable": Case(lambda queue: disable(queue.table, queue.clock), check=lambda queue: queue.table.snapshot().control.holds_sends),
    "put back": Case(lambda queue: put_back(queue.table, queue.clock), _poisoned, lambda queue: set(_places(queue).values()) == {"main"}),
    "maintain": Case(lambda queue: maintain(queue.table, queue.clock, store=queue.store, min_files=2, safe_age=timedelta(0)), _small_files, step=3),
    "check and repair": Case(_repaired, _expired, lambda queue: queue.table.snapshot().claims == ()),
    "make a queue": Case(lambda queue: declare(queue.store, "another", POLICY, queue.clock), check=lambda queue: "another" in queue.store.names()),
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    yield from mounted(tmp_path / "disk")


def given(folder: Path, case: Case) -> Queue:
    """The queue, somewhere with space."""
    queue = a_queue(DeltaStore(str(folder / "store")), folder, POLICY).sent(*BODIES, key="first")
    case.prepare(queue)
    return queue


def on(disk: Disk, queue: Queue, number: int) -> Queue:
    """A copy of it on the disk."""
    disk.empty()
    shutil.copytree(queue.store.uri, disk.root / "store", symlinks=True)
    store = DeltaStore(str(disk.root / "store"))
    clock = VirtualClock()
    clock.advance(queue.clock.now() - clock.now())
    return queue.having(store=store, table=store.open("orders"), clock=clock, handler=Handler(f"{queue.handler.calls}-{number}"))


@pytest.mark.parametrize("name", CASES)
def test_a_verb_meets_a_full_disk_and_is_run_again(disk: Disk, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    before = given(tmp_path, case)
    messages = before.rows().keys()
    settled = calls(before.handler, "done").keys()
    failed = succeeded = 0
    step = 1 if FULL else case.step
    for pages in range(random.randrange(step), MOST_PAGES, step):
        queue = on(disk, before, pages)
        disk.fill(but=pages)
        told = _tried(case, queue)
        disk.make_room()
        if told:
            failed += 1
            assert str(disk.root) in told or name.startswith("receive"), told
            assert ADVICE.search(told), told
        case.act(queue)
        assert case.check(queue), told
        _assert_nothing_lost(queue, set(messages), settled)
        succeeded = 0 if told else succeeded + 1
        if succeeded == IN_A_ROW:
            break
    assert failed >= 3, "the disk was never full"
    assert succeeded == IN_A_ROW, f"never succeeded with {MOST_PAGES} pages"


def _tried(case: Case, queue: Queue) -> str:
    """Return what the verb tells; nothing when it succeeds."""
    try:
        result = case.act(queue)
    except (StoreUnreachableError, ServerSessionError) as error:
        return str(error)
    return "; ".join(getattr(result, "failed", ()))


def _assert_nothing_lost(queue: Queue, messages: set[int], settled: AbstractSet[int]) -> None:
    done = calls(queue.handler, "done")
    assert messages <= queue.rows().keys() | done.keys() | settled
    assert not settled & done.keys(), "delivered again after it was settled"
    assert not queue.rows().keys() & done.keys()
    assert max(done.values(), default=1) == 1, "a message was settled twice"
    found = [finding for result in check_store(queue.store, queue.clock) for finding in result.findings]
    assert [finding for finding in found if finding.severity is Severity.ERROR] == []


# The folder of a node, beside an object store: neither the table nor the store is at fault, and the error does not say so ---------------------


ON_A_NODE: dict[str, Callable[[Queue], object]] = {
    "look": lambda queue: queue.rows(),
    "send": lambda queue: queue.sent("good 6", "bad 7 " + "y" * 20_000, key="more"),
    "receive": lambda queue: queue.receive("run"),
    "check": lambda queue: check_store(queue.store, queue.clock),
}


@pytest.mark.long
@pytest.mark.parametrize("name", ON_A_NODE)
def test_a_node_whose_folder_is_full_tells_of_that_folder(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(disk.root))
    failed = succeeded = 0
    for pages in range(MOST_PAGES):
        disk.empty()
        objects = Objects("bucket://memory", obstore.store.MemoryStore())
        spacious = a_queue(bucket_store(tmp_path / str(pages), objects), tmp_path, POLICY).sent(*BODIES, key="first")
        queue = spacious.having(handler=Handler(f"{spacious.handler.calls}-{pages}"))
        disk.fill(but=pages)
        told = _tried(Case(lambda queue: ON_A_NODE[name](at_node(disk, queue, objects))), queue)  # noqa: B023  (called here)
        disk.make_room()
        if told:
            failed += 1
            assert str(disk.root) in told
            assert ADVICE.search(told), told
            assert "object store bucket" not in told
        succeeded = 0 if told else succeeded + 1
        ON_A_NODE[name](at_node(disk, queue, objects))
        _assert_nothing_lost(queue, set(range(1, 6)), set())
        if succeeded == IN_A_ROW:
            break
    assert failed >= 3, "the disk was never full"
    assert succeeded == IN_A_ROW, f"never succeeded with {MOST_PAGES} pages"


def at_node(disk: Disk, queue: Queue, objects: Objects) -> Queue:
    """The queue, as a node has it whose folder is on the disk."""
    store = bucket_store(disk.root, objects)
    return queue.having(store=store, table=store.open("orders"))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_copy_that_cannot_be_read_or_written_on_a_node_is_no_damage_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    objects = Objects("bucket://memory", obstore.store.MemoryStore())
    a_queue(bucket_store(tmp_path / "one", objects), tmp_path, POLICY).sent(*BODIES, key="first")
    other = bucket_store(tmp_path / "two", objects).open("orders")
    [file] = other.snapshot().files

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(Path(other.root, file.path)))

    for place in ("airflow_poison.store.objects.Objects.download", "pyarrow.parquet.ParquetFile"):
        with monkeypatch.context() as patch:
            patch.setattr(place, fail)
            with pytest.raises(StoreUnreachableError, match=f"^The folder {other.root} of the machine .* TMPDIR names another one"):
                other.read(file)
    assert other.read(file).num_rows == len(BODIES)
