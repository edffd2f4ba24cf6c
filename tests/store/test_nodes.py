"""Two nodes that share nothing but the objects: what one has shared the other goes on with, and who is shut out changes nothing."""

from __future__ import annotations

import errno
import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import obstore.store
import pytest

from airflow_poison.delivery.handlers import HandlerRef
from airflow_poison.delivery.stage import StageJob
from airflow_poison.fsck.check import check
from airflow_poison.fsck.files import Kind, Severity
from airflow_poison.spark import nodes
from airflow_poison.spark.nodes import NodeSite
from airflow_poison.store import bucket_store as logs
from airflow_poison.store.objects import Objects
from airflow_poison.values.clock import SystemClock, VirtualClock
from airflow_poison.values.errors import ClaimLostError, StoreUnreachableError, TableChangedError
from airflow_poison.values.schema import SubQueue
from tests.given.passes import NO_RETRY
from tests.given.tables import CONTROL, LATER, LEASE, NOW, batch, claim, ids, outcome_of_a_third, rows_of, seal, send
from tests.store.conftest import bucket_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store.bucket_folder import BucketFolder
    from airflow_poison.store.bucket_store import BucketStore
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint

    Node = Callable[[str], BucketStore]


@pytest.fixture
def objects() -> Objects:
    """An object store of this process."""
    return Objects("bucket://memory", obstore.store.MemoryStore())


@pytest.fixture
def node(objects: Objects, tmp_path: Path) -> Node:
    """Stores over the same objects, each with the folder of its node."""
    return lambda name: bucket_store(tmp_path / name, objects)


@pytest.fixture
def one(node: Node) -> QueueTable:
    """The queue on the first node."""
    return node("one").create("orders", CONTROL)


@pytest.fixture
def two(one: QueueTable, node: Node) -> QueueTable:
    """The same queue on the second node."""
    assert one.snapshot().version == 0
    return node("two").open("orders")


def taken_over(queue: QueueTable, lost: Claim) -> Claim:
    mine = queue.take_over(lost, lease=LEASE, now=LATER)
    assert mine is not None
    return mine


def test_nodes_have_folders_and_names_of_their_own(one: QueueTable, two: QueueTable, node: Node) -> None:
    assert one.root != two.root
    assert one.node != two.node
    assert node("one").open("orders").node == one.node
    assert one.uri == two.uri == "bucket://memory/orders"


def test_what_one_node_commits_the_other_sees(one: QueueTable, two: QueueTable) -> None:
    send(one, 3)
    assert ids(two) == [1, 2, 3]
    assert send(two, 2, "more").first_lookup_id == 4
    assert ids(one) == [1, 2, 3, 4, 5]
    assert send(one, 2, "more").repeated


def test_a_sealed_pass_is_finished_on_another_node_as_it_was_sealed(one: QueueTable, two: QueueTable) -> None:
    send(one, 6)
    lost = claim(one)
    one.begin(lost, "note")
    one.stage_table(lost, outcome_of_a_third(rows_of(one, lost)))
    seal(one, lost, {"sealed": "on the first node"})
    shutil.rmtree(one.root)  # the node is lost

    mine = taken_over(two, lost)
    sealed = two.manifest(mine)

    assert sealed is not None
    assert sealed.result == {"sealed": "on the first node"}
    assert two.finish(mine, sealed, now=LATER)
    assert ids(two, SubQueue.RETRY) == [3, 6]
    assert ids(two, SubQueue.MAIN) == []


def test_a_sealed_pass_is_finished_when_its_files_were_linked_and_its_node_was_lost(one: QueueTable, two: QueueTable, at_point: AtPoint) -> None:
    send(one, 6)
    lost = claim(one)
    one.stage_table(lost, outcome_of_a_third(rows_of(one, lost)))
    sealed = seal(one, lost)
    at_point.do("store.finish.before_commit", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        one.finish(lost, sealed, now=NOW)

    mine = taken_over(two, lost)

    assert two.finish(mine, seal(two, mine), now=LATER)
    assert ids(one, SubQueue.RETRY) == [3, 6]
    with pytest.raises(ClaimLostError):
        one.renew(lost, lease=LEASE, now=LATER)


def test_a_holder_that_wakes_up_on_its_node_is_told_that_it_is_shut_out(one: QueueTable, two: QueueTable) -> None:
    send(one, 6)
    lost = claim(one)
    share = one.sharing(lost)
    assert share is not None
    share("0-1.journal", 0, b"granted")
    one.stage_table(lost, outcome_of_a_third(rows_of(one, lost)))
    mine = taken_over(two, lost)

    with pytest.raises(ClaimLostError, match="shut out"):
        share("0-1.journal", 7, b"the next section")
    with pytest.raises(ClaimLostError):
        seal(one, lost)
    assert two.manifest(mine) is None


def test_a_holder_that_ends_its_own_work_is_shut_out_and_the_next_one_finds_what_it_has_shared(one: QueueTable, two: QueueTable) -> None:
    send(one, 6)
    ended = claim(one)
    share = one.sharing(ended)
    assert share is not None
    share("0-1.journal", 0, b"granted")
    one.stage_table(ended, outcome_of_a_third(rows_of(one, ended)))
    for _ in range(2):
        one.close(ended)

    with pytest.raises(ClaimLostError, match="shut out"):
        share("0-1.journal", 7, b"the next section")
    with pytest.raises(ClaimLostError):
        seal(one, ended)
    [found] = [each for each in check(two, VirtualClock(LATER)).findings if each.where == ended.key]
    assert (found.kind, found.severity, found.mendable) == (Kind.CLAIM_EXPIRED, Severity.WARNING, False), "and nothing is damaged"
    assert "1 journal(s)" in found.what
    mine = taken_over(two, ended)
    assert two.manifest(mine) is None
    [folder] = two.journals(mine)
    assert Path(folder, "0-1.journal").read_bytes() == b"grantedthe next section", "a section is an object before its holder looks"


def test_of_a_holder_that_seals_and_one_that_shuts_it_out_one_wins(one: QueueTable, two: QueueTable, at_point: AtPoint) -> None:
    """The later one comes when everything is sealed but the manifest."""
    send(one, 6)
    lost = claim(one)
    one.stage_table(lost, outcome_of_a_third(rows_of(one, lost)))
    at_point.do("store.seal.before_rename", lambda: taken_over(two, lost))

    with pytest.raises(ClaimLostError):
        seal(one, lost)


def test_journals_travel_in_pieces_and_whole(one: QueueTable, two: QueueTable) -> None:
    send(one, 1)
    lost = claim(one)
    share = one.sharing(lost)
    assert share is not None
    share("0-1.journal", 4, b"later")
    share("0-1.journal", 0, b"1234")
    share("0-1.log", 0, b"text")
    share("0-1.journal", 4, b"LATER")

    (folder,) = two.journals(taken_over(two, lost))

    assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == {"0-1.journal": b"1234LATER", "0-1.log": b"text"}


def test_a_try_that_ends_in_order_leaves_its_journals_and_no_note(one: QueueTable, two: QueueTable) -> None:
    send(one, 1)
    lost = claim(one)
    one.begin(lost, "note")
    Path(one.stage(lost), "journal", "0-1.journal").write_bytes(b"all of it")
    one.leave(lost)

    (folder,) = two.journals(taken_over(two, lost))

    assert [path.read_bytes() for path in Path(folder).iterdir()] == [b"all of it"]
    assert not Path(folder).with_name("begun").exists()


def test_a_try_whose_node_is_lost_leaves_its_note(one: QueueTable, two: QueueTable) -> None:
    send(one, 1)
    lost = claim(one)
    one.begin(lost, "note")

    (folder,) = two.journals(taken_over(two, lost))

    assert Path(folder).with_name("begun").read_text() == "note"


def test_a_move_needs_no_copy_on_the_node(one: QueueTable, two: QueueTable, objects: Objects) -> None:
    send(one, 3)
    before = objects.requests["get"]
    (path,) = [file.path for file in two.snapshot().files]
    two.move_files(lambda snapshot: snapshot.files, SubQueue.POISON, NOW)
    (moved,) = [file.path for file in two.snapshot().files]

    assert objects.requests["copy"] == 1
    assert not any(Path(two.root, each).exists() for each in (path, moved))
    assert objects.requests["get"] - before < 10
    assert ids(one, SubQueue.POISON) == [1, 2, 3]


def test_a_node_forgets_what_others_have_taken_out_of_the_table_when_it_sees_that(one: QueueTable, two: QueueTable) -> None:
    send(one, 3)
    assert ids(two) == [1, 2, 3]
    (path,) = [file.path for file in two.snapshot().files]
    claimed = claim(one)
    one.finish(claimed, seal(one, claimed), now=NOW)
    assert Path(two.root, path).exists()

    assert ids(two) == []
    assert not Path(two.root, path).exists()
    assert two.folder.here(path).exists(), "an older version has it still"


def test_a_node_forgets_what_nobody_needs_when_it_cleans(one: QueueTable, two: QueueTable) -> None:
    send(one, 3)
    assert ids(two) == [1, 2, 3]
    claimed = claim(one)
    one.finish(claimed, seal(one, claimed), now=NOW)
    done = two.clean(retention=NOW - NOW, safe_age=NOW - NOW)

    assert done.expired
    assert {found.path for found in two.folder.data_files()} == {file.path for file in two.log.load().files}


def test_a_task_whose_node_has_no_space_tells_of_the_nodes_folder(one: QueueTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cast("BucketFolder", one.folder)
    site = NodeSite(folder, one.root, "_stage/run/first")
    job = StageJob("orders", NO_RETRY, HandlerRef("shop:land"), f"{one.root}/_stage/run/first/journal", SystemClock())
    folder.objects.put("_stage/run/first/begun", b"")
    full = OSError(errno.ENOSPC, "No space left on device", "a file of the task")

    with (
        pytest.raises(StoreUnreachableError, match=rf"^The folder {one.root} of the machine .*the disk is full \(a file of the task\)"),
        site.working(job, "0"),
    ):
        raise full
    with pytest.raises(FileNotFoundError, match="of the task"), site.working(job, "0"):
        raise FileNotFoundError(errno.ENOENT, "of the task")
    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_batch", lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(StoreUnreachableError, match=f"^The folder {one.root} of the machine "):
        nodes._written([batch(b"good")], folder, "results")


# The log of a node that has slept, or of another table ----------------------------------------------------------------


def slept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let so much time go by that a node looks at its newest entry again."""
    real = logs.boot_seconds
    monkeypatch.setattr(logs, "boot_seconds", lambda: real() + 10 * logs.TRUSTED_SECONDS)


def go_on_without(one: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit so often that the log is shortened beyond what another node knows, and let time go by."""
    for number in range(45):
        send(one, 1, str(number))
    one.shorten_log(retention=NOW - NOW)
    slept(monkeypatch)


def test_a_node_that_slept_while_the_log_was_shortened_reads_it_anew(one: QueueTable, two: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    send(two, 1)
    go_on_without(one, monkeypatch)

    assert len(ids(two)) == 46
    assert two.snapshot().version == one.snapshot().version


def test_a_commit_that_comes_when_its_place_was_cut_off_is_an_error(
    one: QueueTable, two: QueueTable, at_point: AtPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would ever see it; whoever repeats the verb begins with what is there."""
    send(two, 1, "first")

    def meanwhile() -> None:
        go_on_without(one, monkeypatch)

    at_point.do("store.append.before_commit", meanwhile)
    with pytest.raises(TableChangedError, match="shortened"):
        send(two, 1, "late")
    assert send(two, 1, "late").repeated is False
    assert len(ids(one)) == 47


def test_a_commit_for_a_place_that_another_thread_saw_taken_and_cut_off_is_made_later(
    one: QueueTable, two: QueueTable, at_point: AtPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(two, 1, "first")

    def meanwhile() -> None:
        go_on_without(one, monkeypatch)
        assert len(ids(two)) == 46  # another thread of the same process

    at_point.do("store.append.after_numbering", meanwhile)
    send(two, 1, "late")
    assert len(ids(one)) == 47


def test_a_queue_that_was_made_anew_under_its_name_is_seen_as_it_is(
    one: QueueTable, two: QueueTable, node: Node, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(two, 3)
    objects.remove([each.path for each in objects.list("")])
    again = node("three").create("orders", CONTROL)
    send(again, 1)
    slept(monkeypatch)

    assert ids(two) == [1]
    assert one.identity() == again.identity()


def test_a_list_that_is_late_hides_nothing(one: QueueTable, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        send(one, 1, str(number))
    whole = Objects.list

    def late(self: Objects, prefix: str, after: str | None = None) -> object:
        return iter([each for each in whole(self, prefix, after) if not each.path.endswith(("4.json", "5.json"))])

    monkeypatch.setattr(Objects, "list", late)

    assert len(ids(node("new").open("orders"))) == 7


def test_a_list_that_is_late_lets_nobody_clean_what_was_removed_just_now(one: QueueTable, two: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    send(one, 3)
    (file,) = one.snapshot().files
    claimed = claim(two)
    two.finish(claimed, seal(two, claimed), now=NOW)
    listed = Objects.list

    def late(self: Objects, prefix: str, after: str | None = None) -> object:
        newest = max((each.path for each in listed(self, "_delta_log/")), default="")
        return iter([each for each in listed(self, prefix, after) if each.path != newest])

    monkeypatch.setattr(Objects, "list", late)
    one.snapshot()
    assert file.path in one.log.removals()
    one.clean(retention=timedelta(hours=1), safe_age=timedelta(0))
    assert not one.missing(file)


def test_a_hint_that_names_a_checkpoint_that_is_gone_is_passed_over(one: QueueTable, node: Node, objects: Objects) -> None:
    for number in range(45):
        send(one, 1, str(number))
    one.shorten_log(retention=NOW - NOW)
    objects.put("orders/_delta_log/_last_checkpoint", b'{"version": 3, "size": 1}')

    assert len(ids(node("new").open("orders"))) == 45


def test_a_copy_of_the_log_that_is_damaged_is_fetched_again(one: QueueTable) -> None:
    send(one, 3)
    for entry in Path(one.root, "_delta_log").glob("*1.json"):
        entry.write_text("no json")

    assert ids(one) == [1, 2, 3]


# What a store answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_commit_whose_answer_is_lost_counts_once(one: QueueTable, two: QueueTable, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    import obstore
    from obstore.exceptions import GenericError

    real, failed = obstore.put, list[str]()

    def put(client: Any, path: str, content: bytes, **how: Any) -> object:
        if how and not failed:
            failed.append(path)
            if lost == "after":
                real(client, path, content, **how)
            raise GenericError("the line was cut")
        return real(client, path, content, **how)

    monkeypatch.setattr(obstore, "put", put)
    send(one, 3)

    assert failed == ["orders/_delta_log/00000000000000000001.json"]
    assert ids(two) == [1, 2, 3]
    assert two.snapshot().version == 1


def test_a_store_that_does_not_answer_is_an_error_with_the_next_step(one: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore
    from obstore.exceptions import GenericError

    def get(*_: object) -> None:
        raise GenericError("connection refused")

    monkeypatch.setattr(obstore, "get", get)
    with pytest.raises(StoreUnreachableError, match=r"bucket://memory/orders.*connection refused.*run the task again"):
        one.snapshot()


def test_what_a_take_over_fetched_before_it_died_is_not_taken_for_all(two: QueueTable, objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, folder = "_stage/run/first", cast("BucketFolder", two.folder)
    for task in (0, 1):
        objects.put(f"orders/{holder}/journal/{task}-begun.journal.at-000000000000", b"words")
    with monkeypatch.context() as patch:
        real, kept = folder.keep, list[str]()

        def keep(path: str, content: bytes) -> None:
            if kept:
                raise KeyboardInterrupt
            kept.append(path)
            real(path, content)

        patch.setattr(folder, "keep", keep)
        with pytest.raises(KeyboardInterrupt):
            folder.shut_out(holder, f"{holder}.fenced")

    folder.shut_out(holder, f"{holder}.fenced")

    assert sorted(path.name for path in Path(two.root, f"{holder}.fenced", "journal").iterdir()) == ["0-begun.journal", "1-begun.journal"]
