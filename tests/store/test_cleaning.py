"""Cleaning: what no version within the retention needs goes; what anybody may still need or commit stays."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import polars as pl
import pytest
from deltalake import DeltaTable

from airflow_poison.store import checkpoints, disk
from airflow_poison.store import entries as logs
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.store.entries import entry_path
from airflow_poison.store.files import Cleaned, Commit, Replacement
from airflow_poison.values.errors import ClaimLostError, StoreUnreachableError, TableChangedError
from airflow_poison.values.schema import SubQueue
from tests.given import dialogs
from tests.given.tables import CONTROL, LATER, LEASE, NOW, all_rows, claim, copied, ids, park_all, put, rows_of, seal, send

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint

NONE = timedelta(0)
WEEK = timedelta(days=7)
DAY = timedelta(days=1)


def clean(queue: QueueTable, retention: timedelta = NONE, safe_age: timedelta = NONE) -> Cleaned:
    return queue.clean(retention=retention, safe_age=safe_age)


def on_disk(queue: QueueTable) -> set[str]:
    return {found.path for found in queue.folder.data_files()}


def live(queue: QueueTable) -> set[str]:
    return {file.path for file in queue.log.load().files}


def orphan(queue: QueueTable, name: str = "left.parquet") -> Path:
    path = Path(queue.root, "sub_queue=main/move_count=0", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left by a killed verb")
    return path


def settle(queue: QueueTable, key: str = "run") -> None:
    claimed = claim(queue, key)
    assert queue.finish(claimed, seal(queue, claimed), now=NOW)


def test_what_only_versions_before_the_retention_need_goes(queue: QueueTable) -> None:
    send(queue, 3, "1")
    settle(queue)
    send(queue, 2, "2")
    done = clean(queue)
    assert done.expired == 2  # the messages, and the claim's row
    assert done.size > 0
    assert on_disk(queue) == live(queue)
    assert ids(queue) == [4, 5]


def test_what_a_version_within_the_retention_needs_stays(queue: QueueTable) -> None:
    send(queue, 3)
    before = on_disk(queue)
    settle(queue)
    version = queue.snapshot().version
    done = clean(queue, WEEK)
    assert (done.expired, done.kept_retention, done.size) == (0, 2, 0)
    assert before <= on_disk(queue)
    assert queue.snapshot().version == version  # nothing to remove: no commit


def test_a_reader_of_an_older_version_within_the_retention_reads_it(delta_queue: QueueTable) -> None:
    versions: dict[int, list[int]] = {}
    for number in range(8):
        send(delta_queue, 3, str(number))
        versions[delta_queue.snapshot().version] = ids(delta_queue)
        settle(delta_queue, str(number))
    delta_queue.compact(min_files=2)
    clean(delta_queue, timedelta(hours=1))
    delta_queue.shorten_log(retention=timedelta(hours=1))
    for version, there in versions.items():
        frame = pl.read_delta(delta_queue.uri, version=version).filter(pl.col("sub_queue") == "main")
        assert sorted(frame["lookup_id"].to_list()) == there


def test_a_file_removed_before_the_retention_goes_and_later_ones_stay(delta_queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    send(delta_queue, 1, "1")
    with monkeypatch.context() as patch:
        patch.setattr(logs, "now_ms", lambda: time.time_ns() // 1_000_000 - 8 * 24 * 3_600 * 1_000)
        settle(delta_queue, "1")
    entry = max(Path(delta_queue.uri, "_delta_log").glob("*.json"))
    os.utime(entry, (time.time() - 8 * 24 * 3_600,) * 2)
    send(delta_queue, 1, "2")
    settle(delta_queue, "2")
    done = clean(delta_queue, WEEK)
    assert (done.expired, done.kept_retention) == (2, 2)


def test_claimed_files_stay_however_old(queue: QueueTable) -> None:
    send(queue, 3)
    claimed = claim(queue)
    clean(queue)
    assert rows_of(queue, claimed).num_rows == 3
    assert queue.finish(claimed, seal(queue, claimed), now=NOW)


def test_a_second_name_of_a_file_outlives_the_first(queue: QueueTable) -> None:
    send(queue, 3)
    park_all(queue)
    queue.move_files(lambda snapshot: snapshot.files, SubQueue.MAIN, LATER)
    rows = all_rows(queue)
    done = clean(queue)
    assert done.expired >= 2
    assert all_rows(queue) == rows


def test_what_no_version_mentions_goes_when_it_is_old_enough(queue: QueueTable) -> None:
    send(queue, 1)
    left = orphan(queue)
    assert clean(queue, WEEK, DAY) == Cleaned(kept_young=1)
    assert left.exists()
    done = clean(queue, WEEK, NONE)
    assert (done.orphans, done.size, left.exists()) == (1, 21, False)
    assert ids(queue) == [1]


def test_hidden_files_go_and_others_are_not_ours(queue: QueueTable) -> None:
    send(queue, 1)
    hidden, notes = orphan(queue, ".0123"), orphan(queue, "notes.txt")
    assert clean(queue, WEEK, DAY) == Cleaned(kept_young=1)
    assert clean(queue).temporary == 1
    assert (hidden.exists(), notes.exists()) == (False, True)


def test_two_cleaners_at_once_remove_the_same(queue: QueueTable, at_point: AtPoint) -> None:
    send(queue, 3)
    settle(queue)
    send(queue, 1, "2")
    at_point.do("store.clean.before_remove", lambda: clean(queue))
    clean(queue)
    assert on_disk(queue) == live(queue)


# The stage ---------------------------------------------------------------------------------------------------------


def stages(queue: QueueTable) -> set[str]:
    return {str(path.relative_to(Path(queue.root, "_stage"))) for path in Path(queue.root, "_stage").glob("*/*")}


def test_the_stage_of_a_living_claim_stays_with_those_of_its_earlier_holders(queue: QueueTable) -> None:
    send(queue, 3)
    first = claim(queue)
    queue.stage_table(first, put(rows_of(queue, first), "retry", due_at=LATER))
    seal(queue, first)
    second = queue.take_over(first, lease=LEASE, now=NOW)
    assert second is not None
    there = stages(queue)
    clean(queue)
    assert stages(queue) == there
    manifest = queue.manifest(second)
    assert manifest is not None
    assert queue.finish(second, manifest, now=NOW)
    assert ids(queue, SubQueue.RETRY) == [1, 2, 3]


def test_what_a_killed_finish_has_linked_stays_until_somebody_finishes(queue: QueueTable, at_point: AtPoint) -> None:
    send(queue, 3)
    first = claim(queue)
    queue.stage_table(first, put(rows_of(queue, first), "retry", due_at=LATER))
    manifest = seal(queue, first)

    def stop() -> None:
        raise KeyboardInterrupt

    at_point.do("store.finish.after_links", stop)
    with pytest.raises(KeyboardInterrupt):
        queue.finish(first, manifest, now=NOW)
    assert clean(queue).kept_staged == 1
    assert queue.finish(first, manifest, now=NOW)
    assert ids(queue, SubQueue.RETRY) == [1, 2, 3]


def test_the_stage_of_a_pass_that_has_ended_goes(queue: QueueTable, at_point: AtPoint) -> None:
    send(queue, 3)
    first = claim(queue)
    manifest = seal(queue, first)

    def stop() -> None:
        raise KeyboardInterrupt

    at_point.do("store.finish.before_clearing", stop)
    with pytest.raises(KeyboardInterrupt):
        queue.finish(first, manifest, now=NOW)
    assert clean(queue, WEEK, DAY).stages == 1
    assert not any(Path(queue.root, "_stage").iterdir())


def test_a_sends_stage_goes_when_it_is_old(queue: QueueTable) -> None:
    folder = Path(queue.root, "_stage", "send-abc")
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"12345")
    assert clean(queue, WEEK, DAY) == Cleaned(kept_young=1)
    done = clean(queue)
    assert (done.stages, done.size, folder.exists()) == (1, 5, False)


def test_what_a_killed_cleaner_put_aside_goes(queue: QueueTable) -> None:
    Path(queue.root, "_stage", ".gone-1").mkdir(parents=True)
    assert clean(queue, WEEK, DAY).stages == 1


# Races: everything old enough at once ------------------------------------------------------------------------------

RACES: dict[str, Callable[[QueueTable], object]] = {
    "append": lambda queue: send(queue, 2, "second"),
    "move": lambda queue: queue.move_files(lambda snapshot: snapshot.files[:1], SubQueue.POISON, NOW),
    "replace": lambda queue: queue.replace_files([Replacement(queue.snapshot().files[0], put(all_of(queue), "poison"))], []),
    "merge": lambda queue: queue.merge_conversations(lambda rows: rows, min_files=2),
    "transact": lambda queue: dialogs.act(queue, "act", dialogs.endpoint("a", 3), dialogs.letter("hello")),
    "split": lambda queue: queue.split_file(queue.snapshot().files[0], [all_of(queue).slice(0, 1), all_of(queue).slice(1)]),
    "claim": claim,
    "compact": lambda queue: queue.compact(min_files=2),
    "alter": lambda queue: queue.alter(lambda control: replace(control, reason="x"), lambda _, __: []),
}


def small_files(queue: QueueTable) -> None:
    """Six messages in four files, and three versions of a conversation endpoint."""
    send(queue, 3, "0")
    for number in range(3):
        send(queue, 1, f"f{number}")
        dialogs.act(queue, f"a{number}", dialogs.endpoint("a", number))


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> QueueTable:
    queue = DeltaStore(str(tmp_path_factory.mktemp("crowd")), durable=False).create("orders", CONTROL)
    small_files(queue)
    return queue


@pytest.fixture
def crowded(store: QueueStore, crowd: QueueTable) -> QueueTable:
    """A queue of each store with small files, and one that nobody mentions."""
    if isinstance(store, DeltaStore):
        queue = copied(crowd, store.uri, durable=False)
    else:
        queue = store.create("orders", CONTROL)
        small_files(queue)
    orphan(queue)
    return queue


def all_of(queue: QueueTable) -> pa.Table:
    return queue.read(queue.snapshot().files[0])


@pytest.mark.parametrize("verb", RACES)
@pytest.mark.parametrize("point", ["store.clean.after_listing", "store.clean.before_fence", "store.fence.before_commit", "store.clean.before_remove"])
def test_a_verb_that_runs_while_a_cleaner_stands_still_loses_nothing(crowded: QueueTable, at_point: AtPoint, verb: str, point: str) -> None:
    at_point.do(point, lambda: RACES[verb](crowded))
    clean(crowded)
    assert_whole(crowded)
    assert set(range(1, 7)) <= set(ids(crowded))
    for held in crowded.snapshot().claims:
        assert crowded.finish(held, seal(crowded, held), now=NOW)


@pytest.mark.parametrize("verb", RACES)
def test_a_cleaner_that_runs_before_the_commit_of_a_verb_makes_it_begin_again_or_fail_and_loses_nothing(
    crowded: QueueTable, at_point: AtPoint, verb: str
) -> None:
    at_point.do(f"store.{verb}.before_commit", lambda: clean(crowded))
    with suppress(TableChangedError):
        RACES[verb](crowded)
    assert_whole(crowded)
    assert set(range(1, 7)) <= set(ids(crowded))
    for held in crowded.snapshot().claims:
        assert crowded.finish(held, seal(crowded, held), now=NOW)


def assert_whole(queue: QueueTable) -> None:
    """Every file of the newest version is there, and every living claim can be finished."""
    assert live(queue) <= on_disk(queue)
    assert dialogs.endpoints(queue).get("a", 2) in {2, 3}
    for held in queue.snapshot().claims:
        assert Path(queue.stage(held)).is_dir()


def test_a_sender_whose_files_were_cleaned_up_fails_and_sends_once_when_it_runs_again(queue: QueueTable, at_point: AtPoint) -> None:
    at_point.do("store.append.after_files", lambda: clean(queue))
    with pytest.raises(TableChangedError):
        send(queue, 3)
    assert send(queue, 3).first_lookup_id == 1
    assert ids(queue) == [1, 2, 3]


def test_a_final_commit_while_a_cleaner_stands_still_keeps_its_outcomes(queue: QueueTable, at_point: AtPoint) -> None:
    send(queue, 3)
    first = claim(queue)
    queue.stage_table(first, put(rows_of(queue, first), "retry", due_at=LATER))
    manifest = seal(queue, first)
    orphan(queue)
    at_point.do("store.clean.before_fence", lambda: queue.finish(first, manifest, now=NOW))
    clean(queue)
    assert_whole(queue)
    assert ids(queue, SubQueue.RETRY) == [1, 2, 3]


def test_a_holder_that_was_shut_out_leaves_nothing_that_counts(queue: QueueTable) -> None:
    send(queue, 3)
    first = claim(queue)
    queue.stage_table(first, put(rows_of(queue, first), "retry", due_at=LATER))
    manifest = seal(queue, first)
    second = queue.take_over(first, lease=LEASE, now=NOW)
    assert second is not None
    queue.release(second)
    clean(queue)
    with pytest.raises((ClaimLostError, TableChangedError)):
        queue.finish(first, manifest, now=NOW)
    assert ids(queue, SubQueue.MAIN) == [1, 2, 3]


# The log -----------------------------------------------------------------------------------------------------------


def entries(queue: QueueTable) -> list[int]:
    return sorted(int(path.stem) for path in Path(queue.root, "_delta_log").glob("*.json"))


def many(queue: QueueTable, count: int) -> None:
    for number in range(count):
        send(queue, 1, f"many-{queue.snapshot().version}-{number}")


@pytest.fixture(scope="module")
def sixty(tmp_path_factory: pytest.TempPathFactory) -> QueueTable:
    """A queue with sixty sends."""
    queue = DeltaStore(str(tmp_path_factory.mktemp("sixty")), durable=False).create("orders", CONTROL)
    many(queue, 60)
    return queue


@pytest.fixture
def long_log(sixty: QueueTable, delta_root: str) -> QueueTable:
    return copied(sixty, delta_root)


def test_the_log_is_shortened_to_what_the_retention_needs(long_log: QueueTable, delta_root: str) -> None:
    queue = long_log
    many(queue, 10)
    before = all_rows(queue)
    done = queue.shorten_log(retention=WEEK)
    assert (done.entries, done.oldest) == (0, 0)
    done = queue.shorten_log(retention=NONE)
    assert done.oldest == 60
    assert entries(queue)[0] == 60
    assert done.entries == 60 + 2
    assert all_rows(queue) == before
    assert DeltaStore(delta_root).open("orders").snapshot() == queue.snapshot()
    assert send(queue, 1, "many-2-0").repeated
    assert send(queue, 1, "after").first_lookup_id == 71


def test_versions_within_the_retention_can_be_read_after_the_log_was_shortened(long_log: QueueTable) -> None:
    log = Path(long_log.uri, "_delta_log")
    for version in entries(long_log)[:45]:
        os.utime(log / f"{version:020d}.json", (time.time() - 8 * 24 * 3_600,) * 2)
    done = long_log.shorten_log(retention=WEEK)
    assert done.oldest == 40
    assert DeltaTable(long_log.uri, version=44).version() == 44
    assert ids(long_log) == list(range(1, 61))


def test_a_checkpoint_that_does_not_say_what_the_log_says_stops_the_shortening(long_log: QueueTable) -> None:
    log = Path(long_log.uri, "_delta_log")
    (log / f"{60:020d}.checkpoint.parquet").write_bytes((log / f"{20:020d}.checkpoint.parquet").read_bytes())
    with pytest.raises(TableChangedError, match="does not name the files"):
        DeltaStore(long_log.uri.removesuffix("/orders")).open("orders").shorten_log(retention=NONE)
    assert entries(long_log)[0] == 0


def test_a_maintainer_that_shortens_the_log_beside_another_does_not_take_that_for_damage(
    long_log: QueueTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, changes = Path(long_log.uri, "_delta_log"), checkpoints._changes

    def beside_another(entry: Path) -> tuple[set[str], set[str]]:
        if entry == log / f"{5:020d}.json":
            for version in range(30):
                (log / f"{version:020d}.json").unlink(missing_ok=True)
        return changes(entry)

    monkeypatch.setattr(checkpoints, "_changes", beside_another)
    assert long_log.shorten_log(retention=NONE).oldest == 60
    assert ids(long_log) == list(range(1, 61))


def test_an_entry_that_is_missing_between_others_stops_the_shortening(long_log: QueueTable) -> None:
    Path(long_log.uri, "_delta_log", f"{5:020d}.json").unlink()
    with pytest.raises(TableChangedError, match="does not name the files"):
        long_log.shorten_log(retention=NONE)
    assert entries(long_log)[0] == 0


def test_a_maintainer_that_was_killed_before_it_removed_old_checkpoints_stops_no_later_one(long_log: QueueTable) -> None:
    many(long_log, 10)
    log = Path(long_log.uri, "_delta_log")
    for version in range(35):
        (log / f"{version:020d}.json").unlink()
    assert long_log.shorten_log(retention=NONE).oldest == 60
    assert ids(long_log) == list(range(1, 71))


def test_a_commit_that_comes_after_its_place_was_cleaned_up_is_not_acknowledged(delta_queue: QueueTable, at_point: AtPoint) -> None:
    """A process that stood still for longer than the retention: its entry would lie below the checkpoint, where nobody looks."""
    send(delta_queue, 1, "first")

    def meanwhile() -> None:
        many(delta_queue, 70)
        delta_queue.shorten_log(retention=NONE)

    at_point.do("store.alter.before_commit", meanwhile)
    with pytest.raises((TableChangedError, StoreUnreachableError), match=r"shortened|cannot be written"):
        RACES["alter"](delta_queue)
    assert delta_queue.snapshot().control == CONTROL
    RACES["alter"](delta_queue)
    assert delta_queue.snapshot().control.reason == "x"


def test_old_temporary_files_of_the_log_go(delta_queue: QueueTable) -> None:
    log = Path(delta_queue.uri, "_delta_log")
    old, young, other = log / "_commit_1.json.tmp", log / "_commit_2.json.tmp", log / "mine.txt"
    for path in (old, young, other):
        path.write_text(json.dumps({}))
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    assert delta_queue.shorten_log(retention=WEEK).entries == 1
    assert [path.exists() for path in (old, young, other)] == [False, True, True]


# Two threads, each at its point ------------------------------------------------------------------------------------


def in_between(queue: QueueTable, at_point: AtPoint, verb: str, point: str) -> None:
    """Let a verb stand before its commit while a cleaner lists; let it go on when the cleaner stands at a point."""
    stands, goes_on = Event(), Event()

    def stand() -> None:
        stands.set()
        assert goes_on.wait(30)

    at_point.do(f"store.{verb}.before_commit", stand)
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(RACES[verb], queue)

        def let_go() -> None:
            goes_on.set()
            done.result(30)

        at_point.do(point, let_go)
        assert stands.wait(30)
        clean(queue)
        done.result(30)


@pytest.mark.parametrize("point", ["store.clean.before_fence", "store.clean.before_remove"])
@pytest.mark.parametrize("verb", ["append", "move", "replace", "transact", "merge", "split", "claim", "compact"])
def test_what_a_cleaner_has_listed_and_somebody_commits_then_stays(crowded: QueueTable, at_point: AtPoint, verb: str, point: str) -> None:
    """Before the fence, the commit is in the version that the cleaner looks at; after it, the commit begins again with other names."""
    in_between(crowded, at_point, verb, point)
    assert_whole(crowded)
    assert set(range(1, 7)) <= set(ids(crowded))
    for held in crowded.snapshot().claims:
        assert crowded.finish(held, seal(crowded, held), now=NOW)


@pytest.mark.parametrize("late", [False, True])
def test_a_commit_below_the_checkpoint_is_refused(delta_queue: QueueTable, monkeypatch: pytest.MonkeyPatch, *, late: bool) -> None:
    """Where the log was shortened before the entry is made nothing is written; where it is at this moment, the commit is not acknowledged."""
    log = delta_queue.log
    base = log.load()
    shortened, here = entry_path(delta_queue.root, base.version), entry_path(delta_queue.root, base.version + 1)
    if late:
        monkeypatch.setattr(disk, "create", lambda *_, **__: shortened.unlink())
    else:
        shortened.unlink()
    with pytest.raises(TableChangedError, match="shortened beyond version"):
        log.commit(base, Commit("alter", numbers={"late": 1}))
    assert not here.exists()


def test_what_was_removed_within_the_retention_stays_where_somebody_has_deleted_the_entries_that_say_so(delta_root: str) -> None:
    queue = DeltaStore(delta_root, durable=False).create("orders", CONTROL)
    send(queue, 2, "one")
    park_all(queue)
    gone = on_disk(queue) - live(queue)
    send(queue, 1, "two")
    version = queue.log.load().version
    checkpoints.make(queue.root, version, durable=False)
    for folder in ("_delta_log", "_acknowledged"):
        for path in Path(queue.root, folder).glob("*.json"):
            if int(path.name[:20]) < version:
                path.unlink()

    again = DeltaStore(delta_root, durable=False).open("orders")

    assert clean(again, retention=DAY).orphans == 0
    assert gone
    assert gone <= on_disk(again)
