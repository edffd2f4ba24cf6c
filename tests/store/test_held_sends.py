"""Messages sent to a disabled queue wait in ``transmission`` and come to ``main`` in the commit that enables it (spec SB-12, SB-18, SB-19)."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.due import return_held
from airflow_poison.store.control import Control, QueueState
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.store.files import Sent
from airflow_poison.store.queue_table import QueueTable
from airflow_poison.values.errors import ConservationError, QueueHaltedError
from airflow_poison.values.schema import SubQueue
from tests.given import children
from tests.given.tables import LEASE, NOW, all_rows, claim, ids, numbered, put, rows_of, seal, send

if TYPE_CHECKING:
    from tests.given.points import AtPoint

TRANSMISSION, MAIN = SubQueue.TRANSMISSION, SubQueue.MAIN


def set_state(queue: QueueTable, state: QueueState) -> None:
    queue.alter(lambda control: replace(control, state=state), lambda _, __: [])


def disable(queue: QueueTable) -> None:
    set_state(queue, QueueState.DISABLED)


def enable(queue: QueueTable) -> None:
    queue.alter(Control.enabled, lambda _, __: [])


def test_sb_18_sb_19_a_send_to_a_disabled_queue_succeeds_and_adds_nothing_to_it(queue: QueueTable) -> None:
    send(queue, 2, "before")
    disable(queue)
    assert send(queue, 3, "held") == Sent(messages=3, first_lookup_id=3, held=3)
    assert ids(queue, MAIN) == [1, 2]
    assert ids(queue, TRANSMISSION) == [3, 4, 5]
    assert queue.snapshot().depth(TRANSMISSION, NOW).messages == 3
    assert queue.snapshot().depth(MAIN, NOW).messages == 2


def test_sb_19_they_arrive_uncounted_and_untold_when_the_queue_is_on_again(queue: QueueTable) -> None:
    disable(queue)
    send(queue, 3)
    before = all_rows(queue)
    enable(queue)
    assert all_rows(queue) == [row | {"sub_queue": "main"} for row in before]
    assert {row["move_count"] for row in before} == {0}
    assert list(queue.events()) == []


def test_sb_19_their_order_is_the_order_in_which_they_were_sent(queue: QueueTable) -> None:
    send(queue, 1, "1")
    disable(queue)
    send(queue, 2, "2")
    send(queue, 1, "3")
    enable(queue)
    send(queue, 1, "4")
    assert rows_of(queue, claim(queue))["lookup_id"].to_pylist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("state", [QueueState.STOPPED, QueueState.FAULTED])
def test_sb_12_an_endpoint_that_is_halted_otherwise_takes_messages(queue: QueueTable, state: QueueState) -> None:
    set_state(queue, state)
    assert send(queue, 2) == Sent(messages=2, first_lookup_id=1)
    assert ids(queue, MAIN) == [1, 2]


def test_a_disabled_reader_of_the_poison_sub_queue_holds_no_sends(queue: QueueTable) -> None:
    queue.alter(lambda control: replace(control, poison_state=QueueState.DISABLED), lambda _, __: [])
    assert send(queue, 2).held == 0


def test_a_repeated_send_tells_what_the_first_one_did(queue: QueueTable) -> None:
    disable(queue)
    send(queue, 3, "k")
    assert send(queue, 3, "k") == Sent(messages=3, first_lookup_id=1, repeated=True, held=3)
    enable(queue)
    assert send(queue, 3, "k") == Sent(messages=3, first_lookup_id=1, repeated=True, held=3)
    assert ids(queue) == [1, 2, 3]


def test_a_queue_that_is_disabled_while_the_files_are_written_holds_them(queue: QueueTable, at_point: AtPoint) -> None:
    at_point.do("store.append.after_files", lambda: disable(queue))
    assert send(queue, 3).held == 3
    assert (ids(queue, MAIN), ids(queue, TRANSMISSION)) == ([], [1, 2, 3])


def test_a_queue_that_is_disabled_right_before_the_commit_holds_them(queue: QueueTable, at_point: AtPoint) -> None:
    at_point.do("store.append.before_commit", lambda: disable(queue))
    assert send(queue, 3).held == 3
    assert (ids(queue, MAIN), ids(queue, TRANSMISSION)) == ([], [1, 2, 3])


def test_a_queue_that_is_enabled_right_before_the_commit_takes_them(queue: QueueTable, at_point: AtPoint) -> None:
    disable(queue)
    at_point.do("store.append.before_commit", lambda: enable(queue))
    assert send(queue, 3).held == 0
    assert (ids(queue, MAIN), ids(queue, TRANSMISSION)) == ([1, 2, 3], [])
    assert len(list(Path(queue.root).rglob("sub_queue=transmission/**/*.parquet"))) == 0


def test_a_send_that_is_overtaken_and_held_numbers_its_messages_anew(queue: QueueTable, at_point: AtPoint) -> None:
    def overtake() -> None:
        send(queue, 2, "faster")
        disable(queue)

    at_point.do("store.append.after_files", overtake)
    assert send(queue, 3, "slower") == Sent(messages=3, first_lookup_id=3, held=3)
    assert (ids(queue, MAIN), ids(queue, TRANSMISSION)) == ([1, 2], [3, 4, 5])


def test_a_send_right_before_the_commit_that_enables_comes_to_main_too(queue: QueueTable, at_point: AtPoint) -> None:
    disable(queue)
    send(queue, 1, "1")
    at_point.do("store.alter.before_commit", lambda: send(queue, 2, "2"))
    enable(queue)
    assert (ids(queue, MAIN), ids(queue, TRANSMISSION)) == ([1, 2, 3], [])
    assert len(list(Path(queue.root).rglob("sub_queue=main/**/*.parquet"))) == 2, "the overtaken try left a file"


def test_nobody_receives_from_transmission(queue: QueueTable) -> None:
    send(queue, 2, "before")
    disable(queue)
    send(queue, 3, "held")
    enable(queue)
    disable(queue)
    send(queue, 1, "again")
    with pytest.raises(QueueHaltedError):
        queue.claim("run", lease=LEASE, now=NOW, max_messages=10)
    assert ids(queue, TRANSMISSION) == [6]


def test_no_task_can_put_messages_there(queue: QueueTable) -> None:
    send(queue, 1)
    claimed = claim(queue)
    queue.stage_table(claimed, put(rows_of(queue, claimed), "transmission", 0))
    with pytest.raises(ConservationError, match="transmission"):
        seal(queue, claimed)


def test_a_pass_that_changes_the_state_of_a_disabled_queue_lets_them_in(queue: QueueTable) -> None:
    send(queue, 1)
    claimed = claim(queue)
    disable(queue)
    send(queue, 2, "held")
    queue.finish(claimed, seal(queue, claimed), change=Control.enabled, now=NOW)
    assert (ids(queue, MAIN), ids(queue, TRANSMISSION)) == ([2, 3], [])


@pytest.mark.parametrize(("reason", "both"), [("by us", "by us; message 1 halted it"), ("", "message 1 halted it")])
def test_a_queue_that_people_have_disabled_stays_so_when_a_pass_halts(queue: QueueTable, reason: str, both: str) -> None:
    queue.alter(lambda control: replace(control, state=QueueState.DISABLED, reason=reason), lambda _, __: [])
    queue.alter(lambda control: control.halted(MAIN, QueueState.FAULTED, "message 1 halted it"), lambda _, __: [])
    control = queue.snapshot().control
    assert (control.state, control.reason) == (QueueState.DISABLED, both)


def test_a_send_does_not_list_the_files_of_a_queue(delta_queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue may have ten thousand."""
    from airflow_poison.store import entries

    send(delta_queue, 1, "numbered")
    listed: list[object] = []
    monkeypatch.setattr(entries, "files_of", listed.append)
    send(delta_queue, 1, "unlisted")
    assert listed == []


def test_what_a_restored_table_holds_back_is_returned(queue: QueueTable) -> None:
    """A table that somebody restored to an earlier version may have an enabled control row beside held messages."""
    disable(queue)
    send(queue, 3)
    assert return_held(queue, NOW) == 0
    forget_held(queue)
    assert (return_held(queue, NOW), ids(queue, MAIN)) == (3, [1, 2, 3])
    assert list(queue.events()) == []


def forget_held(queue: QueueTable) -> None:
    """Enable the queue as a version of the package would that knows nothing of held messages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QueueTable, "held_files", lambda *_: [])
        enable(queue)
    assert ids(queue, TRANSMISSION) == [1, 2, 3]


@pytest.mark.parametrize("point", ["store.append.after_files", "store.append.before_commit", "store.append.after_commit"])
def test_a_held_send_that_is_killed_and_run_again_sends_once(delta_root: str, delta_queue: QueueTable, point: str) -> None:
    disable(delta_queue)
    child = children.start(send_killed, delta_root, point)
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    send(delta_queue, 3, "killed")
    assert (ids(delta_queue, MAIN), ids(delta_queue, TRANSMISSION)) == ([], [1, 2, 3])


@pytest.mark.parametrize("point", ["store.held.after_links", "store.alter.before_commit", "store.alter.after_commit"])
def test_an_enabling_that_is_killed_and_run_again_lets_each_message_in_once(delta_root: str, delta_queue: QueueTable, point: str) -> None:
    disable(delta_queue)
    send(delta_queue, 3)
    child = children.start(enable_killed, delta_root, point)
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    enabled = delta_queue.snapshot().control.state is QueueState.ENABLED
    assert ids(delta_queue, MAIN if enabled else TRANSMISSION) == [1, 2, 3]
    enable(delta_queue)
    assert (ids(delta_queue, MAIN), ids(delta_queue, TRANSMISSION)) == ([1, 2, 3], [])


def send_killed(root: str, point: str) -> None:
    queue = DeltaStore(root).open("orders")
    children.kill_at(point)
    queue.append([numbered(3)], "killed", NOW)


def enable_killed(root: str, point: str) -> None:
    queue = DeltaStore(root).open("orders")
    children.kill_at(point)
    enable(queue)
