"""Claims: disjoint, expiring, taken over with a higher epoch; the holders before are shut out."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from airflow_poison.store import claiming
from airflow_poison.store.control import Control, QueueState
from airflow_poison.store.files import Claim
from airflow_poison.values.errors import ClaimLostError, QueueHaltedError, SettingError, StoreUnreachableError
from airflow_poison.values.schema import SubQueue
from tests.given.tables import LATER, LEASE, NOW, batch, claim, ids, park_all, put, rows_of, seal, send

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint


def test_an_empty_queue_gives_no_claim_and_leaves_nothing_behind(queue: QueueTable) -> None:
    version = queue.snapshot().version
    assert queue.claim("run", lease=LEASE, now=NOW, max_messages=10) is None
    assert queue.snapshot().version == version
    assert not Path(queue.root, "_stage", "run").exists()


def test_files_are_claimed_by_priority_then_lookup_id_while_they_fit(queue: QueueTable) -> None:
    queue.append([batch(b"a", b"b")], "1", NOW)
    queue.append([batch(b"c", priority=[9])], "2", NOW)
    queue.append([batch(b"d", b"e")], "3", NOW)
    claimed = claim(queue, messages=4)
    assert [file.min_lookup_id for file in claimed.files] == [3, 1]
    assert claimed.messages == 3


def test_no_file_is_passed_over_because_a_later_one_would_fit(queue: QueueTable) -> None:
    send(queue, 2, "1")
    send(queue, 3, "2")
    send(queue, 1, "3")
    assert [file.rows for file in claim(queue, messages=3).files] == [2]


def test_a_first_file_above_the_limit_is_split_once(queue: QueueTable) -> None:
    send(queue, 10)
    claimed = claim(queue, messages=4)
    assert rows_of(queue, claimed)["lookup_id"].to_pylist() == [1, 2, 3, 4]
    assert [file.rows for file in queue.snapshot().files] == [4, 4, 2]
    assert ids(queue) == list(range(1, 11))


def test_a_split_keeps_the_order_of_priorities(queue: QueueTable) -> None:
    queue.append([batch(b"a", b"b", b"c", priority=[1, 9, 5])], "k", NOW)
    assert rows_of(queue, claim(queue, messages=2))["lookup_id"].to_pylist() == [2, 3]


@pytest.mark.parametrize("most", range(1, 9))
def test_exclusive_claims_one_after_the_other_take_all_in_the_order_of_a_receive(queue: QueueTable, most: int) -> None:
    """A file whose first message is urgent brings none of its others along in front of older ones: they may be of one conversation."""
    sent = [[5, 5, 5], [9, 5], [1], [5, 9, 1], [5], [9, 9, 5, 5]]
    for number, priorities in enumerate(sent):
        queue.append([batch(*[b"x"] * len(priorities), priority=[*priorities])], str(number), NOW)
    received = list[int]()
    for number in range(sum(map(len, sent))):
        claimed = queue.claim(f"run {number}", lease=LEASE, now=NOW, max_messages=most, exclusive=True)
        if claimed is None:
            break
        rows = rows_of(queue, claimed)
        assert 0 < rows.num_rows <= most
        received += [row["lookup_id"] for row in rows.sort_by([("priority", "descending"), ("lookup_id", "ascending")]).to_pylist()]
        assert queue.finish(claimed, seal(queue, claimed), now=NOW)
    assert received == [4, 8, 11, 12, 1, 2, 3, 5, 7, 10, 13, 14, 6, 9]


@pytest.mark.parametrize("seed", range(12))
def test_exclusive_claims_keep_the_order_of_a_receive_where_files_interleave(queue: QueueTable, seed: int) -> None:
    """An edit of some messages, and those that come back from ``retry``, leave files whose lookup ids interleave."""
    chance = np.random.default_rng(seed)
    number = int(chance.integers(2, 40))
    priorities = chance.integers(3, 6, number).tolist() if seed % 2 else [5] * number
    queue.append([batch(*[b"x"] * number, priority=priorities)], "all", NOW)
    [file] = queue.snapshot().files
    pieces = chance.integers(0, chance.integers(1, 6), number)
    rows = queue.read(file)
    queue.split_file(file, [rows.filter(pieces == piece) for piece in set(pieces.tolist())])
    received = list[int | None]()
    while True:
        most, probe = int(chance.integers(1, 12)), bool(chance.integers(0, 4) == 0)
        claimed = queue.claim(f"run {len(received)}", lease=LEASE, now=NOW, max_messages=most, exclusive=True, probe=probe)
        if claimed is None:
            break
        assert 0 < claimed.messages <= most
        received += rows_of(queue, claimed).sort_by([("priority", "descending"), ("lookup_id", "ascending")])["lookup_id"].to_pylist()
        assert queue.finish(claimed, seal(queue, claimed), now=NOW)
    assert received == sorted(range(1, number + 1), key=lambda lookup_id: (-priorities[lookup_id - 1], lookup_id))


def test_files_that_alternate_take_two_more_commits_a_pass_at_most(queue: QueueTable) -> None:
    send(queue, 2_000)
    [file] = queue.snapshot().files
    rows = queue.read(file)
    odd = rows["lookup_id"].to_numpy() % 2 == 1
    queue.split_file(file, [rows.filter(odd), rows.filter(~odd)])
    before, passes = queue.snapshot().version, 20
    for number in range(passes):
        claimed = queue.claim(f"run {number}", lease=LEASE, now=NOW, max_messages=100, exclusive=True)
        assert claimed is not None
        assert rows_of(queue, claimed).sort_by("lookup_id")["lookup_id"].to_pylist() == list(range(number * 100 + 1, number * 100 + 101))
        assert queue.finish(claimed, seal(queue, claimed), now=NOW)
    assert queue.snapshot().version - before <= 4 * passes + 2


def test_files_that_are_in_order_are_claimed_without_reading_them(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        send(queue, 5, str(number))
    monkeypatch.setattr(claiming, "_next", None)
    claimed = queue.claim("run", lease=LEASE, now=NOW, max_messages=12, exclusive=True)
    assert claimed is not None
    assert claimed.messages == 10


def test_claims_of_two_passes_are_disjoint(queue: QueueTable) -> None:
    for number in range(4):
        send(queue, 1, str(number))
    one, two = claim(queue, "one", 2), claim(queue, "two", 2)
    assert {file.path for file in one.files}.isdisjoint(file.path for file in two.files)
    assert queue.claim("three", lease=LEASE, now=NOW, max_messages=2) is None


def test_claims_made_at_the_same_time_are_disjoint(queue: QueueTable) -> None:
    for number in range(12):
        send(queue, 1, str(number))
    with ThreadPoolExecutor(4) as threads:
        claims = list(threads.map(lambda key: claim(queue, key, 3), ["a", "b", "c", "d"]))
    paths = [file.path for claimed in claims for file in claimed.files]
    assert len(paths) == len(set(paths)) == 12


def test_a_claim_that_was_overtaken_looks_again(queue: QueueTable, at_point: AtPoint) -> None:
    send(queue, 1, "1")
    send(queue, 1, "2")
    at_point.do("store.claim.before_commit", lambda: claim(queue, "faster", 1))
    assert [file.min_lookup_id for file in claim(queue, "slower", 1).files] == [2]


def test_the_poison_sub_queue_has_claims_of_its_own(queue: QueueTable) -> None:
    send(queue, 2)
    claimed = claim(queue)
    queue.stage_table(claimed, put(rows_of(queue, claimed), "poison"))
    queue.finish(claimed, seal(queue, claimed), now=NOW)
    send(queue, 1, "more")
    assert queue.claim("main", lease=LEASE, now=NOW, max_messages=9, exclusive=True) is not None
    reader = queue.claim("reader", lease=LEASE, now=NOW, max_messages=9, exclusive=True, sub_queue=SubQueue.POISON)
    assert reader is not None
    assert {file.sub_queue for file in reader.files} == {"poison"}


def test_an_exclusive_claim_wants_to_be_alone(queue: QueueTable) -> None:
    send(queue, 1, "1")
    send(queue, 1, "2")
    claim(queue, "one", 1)
    assert queue.claim("two", lease=LEASE, now=NOW, max_messages=1, exclusive=True) is None


def test_nothing_is_claimed_beside_an_exclusive_claim(queue: QueueTable) -> None:
    send(queue, 1, "1")
    send(queue, 1, "2")
    assert queue.claim("one", lease=LEASE, now=NOW, max_messages=1, exclusive=True) is not None
    assert queue.claim("two", lease=LEASE, now=NOW, max_messages=1) is None


@pytest.mark.parametrize("state", [QueueState.DISABLED, QueueState.STOPPED, QueueState.FAULTED])
def test_a_halted_queue_is_not_claimed(queue: QueueTable, state: QueueState) -> None:
    send(queue, 1)
    queue.alter(lambda control: replace(control, state=state, reason="five rollbacks"), lambda _, __: [])
    with pytest.raises(QueueHaltedError, match=f"{state.value}.*five rollbacks"):
        queue.claim("run", lease=LEASE, now=NOW, max_messages=1)


def test_a_limit_below_one_is_refused(queue: QueueTable) -> None:
    with pytest.raises(SettingError, match="max_messages=0"):
        queue.claim("run", lease=LEASE, now=NOW, max_messages=0)


def test_the_same_key_takes_its_own_claim_over(queue: QueueTable) -> None:
    send(queue, 2)
    first = claim(queue)
    send(queue, 2, "later")
    second = claim(queue)
    assert (second.epoch, second.files, second.earlier) == (2, first.files, (first.attempt,))
    assert second.attempt != first.attempt
    assert queue.snapshot().claims == (second,)


def test_a_finished_key_claims_nothing_again(queue: QueueTable) -> None:
    send(queue, 1)
    claimed = claim(queue)
    queue.finish(claimed, seal(queue, claimed), now=NOW)
    send(queue, 1, "more")
    assert queue.claim("run", lease=LEASE, now=NOW, max_messages=1) is None


def test_an_expired_claim_is_told_and_can_be_taken_over(queue: QueueTable) -> None:
    send(queue, 1)
    old = claim(queue)
    assert queue.expired(NOW) == []
    assert queue.expired(NOW + LEASE) == [old]
    new = queue.take_over(old, lease=LEASE, now=LATER)
    assert new is not None
    assert (new.key, new.epoch, new.files, new.expires_at) == ("run", 2, old.files, LATER + LEASE)
    assert queue.expired(LATER) == []


def test_only_one_takes_an_expired_claim_over(queue: QueueTable) -> None:
    send(queue, 1)
    old = claim(queue)
    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda _: queue.take_over(old, lease=LEASE, now=LATER), range(4)))
    assert sum(new is not None for new in taken) == 1


def test_a_claim_that_was_renewed_meanwhile_is_not_taken_over(queue: QueueTable) -> None:
    send(queue, 1)
    old = claim(queue)
    queue.renew(old, lease=LEASE, now=LATER)
    assert queue.take_over(old, lease=LEASE, now=LATER) is None


def test_a_renewed_claim_expires_later_and_keeps_its_epoch(queue: QueueTable) -> None:
    send(queue, 1)
    claimed = claim(queue)
    renewed = queue.renew(claimed, lease=LEASE, now=LATER)
    assert renewed == replace(claimed, expires_at=LATER + LEASE)
    assert queue.snapshot().claims == (renewed,)
    assert queue.finish(claimed, seal(queue, claimed), now=NOW)


def test_a_lost_claim_cannot_be_renewed(queue: QueueTable) -> None:
    send(queue, 1)
    old = claim(queue)
    claim(queue)
    with pytest.raises(ClaimLostError, match="not held any more"):
        queue.renew(old, lease=LEASE, now=NOW)


def test_released_files_can_be_claimed_by_others(queue: QueueTable) -> None:
    send(queue, 2)
    claimed = claim(queue)
    queue.release(claimed)
    assert queue.snapshot().claims == ()
    assert not Path(queue.root, "_stage", "run").exists()
    assert claim(queue, "other").files == claimed.files


def test_a_lost_claim_releases_nothing(queue: QueueTable) -> None:
    send(queue, 2)
    old = claim(queue)
    new = claim(queue)
    queue.release(old)
    assert queue.snapshot().claims == (new,)
    assert Path(queue.stage(new)).is_dir()


def test_a_released_holder_is_not_the_one_who_claims_under_its_key_again(queue: QueueTable) -> None:
    send(queue, 2)
    old = claim(queue)
    manifest = seal(queue, old)
    queue.release(old)
    new = claim(queue)
    assert new.epoch == old.epoch
    with pytest.raises(ClaimLostError):
        queue.finish(old, manifest, now=NOW)
    assert queue.manifest(new) is None
    assert ids(queue) == [1, 2]


def test_a_zombie_cannot_open_a_new_journal(queue: QueueTable) -> None:
    send(queue, 1)
    old = claim(queue)
    folder = Path(queue.stage(old), "journal")
    (folder / "0-0-a").write_bytes(b"counts")
    new = claim(queue)
    with pytest.raises(FileNotFoundError):
        (folder / "0-1-b").write_bytes(b"too late")
    with pytest.raises(ClaimLostError):
        queue.stage(old)
    (journals,) = queue.journals(new)
    assert [path.read_bytes() for path in Path(journals).iterdir()] == [b"counts"]


def test_a_journal_that_gets_its_name_while_its_holder_is_shut_out_is_none(queue: QueueTable) -> None:
    """The system finds the folder first, and renames in it then, wherever it has gone meanwhile."""
    send(queue, 1)
    old = claim(queue)
    folder = Path(queue.stage(old), "journal")
    (folder / ".0-0-a.new").touch()
    found = os.open(folder, os.O_PATH)
    new = claim(queue)
    with pytest.raises(FileNotFoundError):
        os.rename(".0-0-a.new", "0-0-a.journal", src_dir_fd=found, dst_dir_fd=found)
    os.close(found)
    (journals,) = queue.journals(new)
    assert not list(Path(journals).iterdir())


def test_a_zombie_that_makes_its_folder_anew_is_not_listened_to(queue: QueueTable) -> None:
    send(queue, 1)
    old = claim(queue)
    stage = Path(queue.stage(old))
    claim(queue)
    (stage / "journal").mkdir(parents=True)
    queue.stage_table(old, put(rows_of(queue, old), "poison"))
    with suppress(ClaimLostError):  # of an object store: the place of its manifest is taken
        seal(queue, old, {"zombie": True})
    third = claim(queue)
    assert queue.manifest(third) is None
    assert all("fenced" in path for path in queue.journals(third))


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_fence_that_the_disk_refuses_lets_nobody_go_on(queue: QueueTable, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """What the earlier holder has journalled is looked for behind the fence: to go on without would deliver it again, uncounted."""
    send(queue, 1)
    old = claim(queue)
    Path(queue.stage(old), "journal", "0-0-a").write_bytes(b"counts")

    def refused(path: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number), str(path), str(target))

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(StoreUnreachableError):
        claim(queue)
    monkeypatch.undo()

    journals, _ = queue.journals(claim(queue))
    assert [path.read_bytes() for path in Path(journals).iterdir()] == [b"counts"]


def test_journals_of_all_earlier_holders_are_kept(queue: QueueTable) -> None:
    send(queue, 1)
    for number in range(3):
        held = claim(queue)
        Path(queue.stage(held), "journal", str(number)).touch()
    last = claim(queue)
    assert [path.name for folder in queue.journals(last) for path in Path(folder).iterdir()] == ["0", "1", "2"]


def test_a_stage_folder_is_there_and_private_to_its_holder(queue: QueueTable) -> None:
    send(queue, 1, "1")
    send(queue, 1, "2")
    one, two = claim(queue, "one", 1), claim(queue, "two", 1)
    assert queue.stage(one) == queue.stage(one) != queue.stage(two)
    assert queue.stage(one).startswith(f"{queue.root}/_stage/one/")


def test_a_key_that_cannot_be_a_folder_is_hashed(queue: QueueTable) -> None:
    send(queue, 1)
    claimed = claim(queue, "dag/run=2013-01-01T00:00:00+00:00/../task")
    assert Path(queue.stage(claimed)).parent.parent == Path(queue.root, "_stage")
    assert queue.finish(claimed, seal(queue, claimed), now=NOW)


def test_parked_messages_are_not_claimed(queue: QueueTable) -> None:
    send(queue, 1)
    park_all(queue)
    assert queue.claim("run", lease=LEASE, now=LATER + timedelta(days=1), max_messages=1) is None


def test_depth_counts_what_is_claimed(queue: QueueTable) -> None:
    send(queue, 3, "1")
    send(queue, 2, "2")
    claim(queue, messages=3)
    depth = queue.snapshot().depth(SubQueue.MAIN, NOW)
    assert (depth.messages, depth.claimed) == (5, 3)


def test_a_claim_and_a_control_row_come_back_as_they_were(queue: QueueTable) -> None:
    send(queue, 1)
    claimed = claim(queue)
    snapshot = queue.snapshot()
    assert snapshot.claims == (claimed,)
    assert isinstance(snapshot.claims[0], Claim)
    assert snapshot.control == Control(policy={"system": "msmq4", "receive_retry_count": 5})


def test_many_small_files_are_joined_before_they_are_claimed(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "_MANY", 4)
    for number in range(6):
        send(queue, 2, str(number))
    held = claim(queue)
    assert [(file.min_lookup_id, file.max_lookup_id) for file in held.files] == [(1, 12)]
    assert queue.read(held.files[0])["lookup_id"].to_pylist() == list(range(1, 13))


def test_a_joined_file_that_is_too_large_is_split_again_and_claimed_in_order(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "_MANY", 4)
    for number in range(8):
        send(queue, 1, str(number))
    held = claim(queue, messages=5)
    assert [number for file in held.files for number in queue.read(file)["lookup_id"].to_pylist()] == [1, 2, 3, 4, 5]
    assert ids(queue) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_many_small_files_that_cannot_be_joined_are_claimed_as_they_are(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "_MANY", 4)
    for number in range(6):
        queue.append([batch(b"x", priority=[number])], str(number), NOW)
    assert len(claim(queue).files) == 6


def test_files_that_another_pass_claims_while_they_are_joined_are_left_to_it(
    queue: QueueTable, monkeypatch: pytest.MonkeyPatch, at_point: AtPoint
) -> None:
    monkeypatch.setattr(claiming, "_MANY", 4)
    for number in range(6):
        send(queue, 1, str(number))
    at_point.do("store.compact.after_files", lambda: claim(queue, "faster", 2))
    held = claim(queue)
    assert [file.min_lookup_id for file in held.files] == [3, 4, 5, 6]
