"""`park_group` against a model: whatever fails, is put back, removed or killed, and whatever comes in between, no message overtakes one of its group.

The model is one sentence: when a message is delivered, each earlier one of its group that was sent has been settled or removed.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_poison.delivery.handlers import Batching
from airflow_poison.passes.alter import set_park_group
from airflow_poison.passes.due import return_due
from airflow_poison.passes.maintain import maintain
from airflow_poison.passes.move import put_back, remove
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values import fault_points
from airflow_poison.values.errors import MessageClaimedError, MessageNotFoundError
from airflow_poison.values.failures import Postpone
from tests.given.examples import examples
from tests.given.passes import LEASE, DiedError, Queue, a_queue
from tests.given.points import AtPoint

if TYPE_CHECKING:
    from airflow_poison.values.message import Message

POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=timedelta(minutes=1), receive_error_handling="Move")
POINTS = [
    "store.split.after_files",
    "store.split.after_commit",
    "store.claim.after_commit",
    "store.claim.after_fence",
    "delivery.stage.before_batch",
    "delivery.stage.after_batch",
    "pass.deliver.after_staging",
    "store.finish.before_links",
    "store.finish.after_commit",
]


class World:
    """What was sent, what has become of it, and which messages fail."""

    def __init__(self) -> None:
        self.groups: dict[int, str | None] = {}
        self.gone: set[int] = set()
        self.bad: dict[int, str] = {}
        self.delivered: list[int] = []
        self.settled: list[int] = []

    def begin(self, lookup_id: int) -> None:
        """Check the promise when a message is delivered."""
        self.delivered.append(lookup_id)
        group = self.groups[lookup_id]
        open_ones = [number for number, other in self.groups.items() if group and other == group and number < lookup_id and number not in self.gone]
        assert not open_ones, f"{lookup_id} was delivered before {open_ones} of its group {group}"

    def deliver(self, lookup_id: int) -> None:
        """Do with a message what is to be done with it."""
        self.begin(lookup_id)
        match self.bad.get(lookup_id):
            case "later":
                raise Postpone(timedelta(seconds=30))
            case "bad":
                raise ValueError(lookup_id)
            case _:
                self.settle([lookup_id])

    def settle(self, lookup_ids: list[int]) -> None:
        self.settled += lookup_ids
        self.gone.update(lookup_ids)


world = World()


def take(message: Message) -> None:
    world.deliver(message.lookup_id)


def take_batch(frame: Any) -> None:
    """Take all of a batch or nothing, as a handler of batches does."""
    ids = frame["lookup_id"].to_pylist()
    names = Counter(world.groups[number] for number in ids if world.groups[number])
    assert not [name for name, number in names.items() if number > 1], f"two messages of a group in one batch: {ids}"
    for number in ids:
        world.begin(number)
    if failing := [number for number in ids if number in world.bad]:
        raise ValueError(failing)
    world.settle(ids)


class Driver:
    """Does steps with a queue, each a tuple of a word and what it takes."""

    def __init__(self, folder: Path, *, batches: bool) -> None:
        self.queue: Queue = a_queue(MemoryStore(), folder, POLICY)
        set_park_group(self.queue.table, self.queue.clock, park_group=True)
        self.batches = batches
        self.passes = 0

    def do(self, what: str, *given: Any) -> None:
        getattr(self, what)(*given)

    def send(self, groups: str) -> None:
        first = len(world.groups) + 1
        names = [None if name == "-" else name for name in groups]
        columns: dict[str, pa.Array[Any]] = {
            "body": pa.array([b"x"] * len(names), pa.binary()),
            "group_id": pa.array(names, pa.string()),
            "priority": pa.array([(number * 7) % 3 for number in range(len(names))], pa.int32()),
        }
        send(self.queue.table, [pa.RecordBatch.from_pydict(columns)], key=f"send-{first}", clock=self.queue.clock)
        world.groups |= dict(enumerate(names, first))

    def spoil(self, number: int, word: str) -> None:
        if world.groups:
            world.bad[number % len(world.groups) + 1] = word

    def heal(self) -> None:
        world.bad = {}

    def wait(self) -> None:
        self.queue.clock.advance(timedelta(minutes=2))
        return_due(self.queue.table, self.queue.clock)

    def put_back(self) -> None:
        with suppress(MessageClaimedError, MessageNotFoundError):
            put_back(self.queue.table, self.queue.clock)

    def remove(self, number: int) -> None:
        lookup_id = number % (len(world.groups) + 1) + 1
        with suppress(MessageClaimedError, MessageNotFoundError):
            remove(self.queue.table, lookup_id, self.queue.clock)
            world.gone.add(lookup_id)

    def maintain(self) -> None:
        maintain(self.queue.table, self.queue.clock)

    def die(self) -> None:
        raise DiedError

    def expire(self) -> None:
        self.queue.clock.advance(2 * LEASE)

    def receive(self, most: int, at: str | None = None, between: tuple[Any, ...] | None = None) -> None:
        """Receive; in between, once, at a point, another step is done."""
        self.passes += 1
        more: dict[str, object] = (
            {"handler": f"{__name__}:take_batch", "batching": Batching("arrow", 3)} if self.batches else {"handler": f"{__name__}:take"}
        )
        hook, key = AtPoint(), f"run-{self.passes}"
        if at is not None and between is not None:
            hook.do(at, lambda: self.do(*between))
            fault_points.install(hook)
        try:
            self.queue.receive(key, max_messages=most, **more)
        except DiedError:
            pass
        finally:
            if at is not None:
                fault_points.install(None)
        self.check()

    def check(self) -> None:
        """Nobody is there twice (``rows``), and whoever was never delivered has counts of nothing, and no error."""
        touched = set(world.delivered)
        for number, row in self.queue.rows().items():
            if number not in touched:
                assert (row["abort_count"], row["move_count"], row["last_error"]) == (0, 0, None), number

    def end(self) -> None:
        """With nothing that fails any more, everything is settled, each group in its order."""
        world.bad = {}
        for _ in range(4):
            self.expire()
            self.wait()
            self.put_back()
            self.receive(100)
        assert self.queue.rows() == {}
        assert world.gone == set(world.groups)
        firsts = list(dict.fromkeys(world.settled))
        for name in {*world.groups.values()} - {None}:
            mine = [number for number in firsts if world.groups[number] == name]
            assert mine == sorted(mine)


plain = st.one_of(
    st.tuples(st.just("send"), st.text("aab-", min_size=1, max_size=8)),
    st.tuples(st.just("spoil"), st.integers(0, 30), st.sampled_from(["bad", "bad", "later"])),
    st.tuples(st.sampled_from(["heal", "wait", "put_back", "expire", "maintain"])),
    st.tuples(st.just("remove"), st.integers(0, 30)),
)
receives = st.tuples(st.just("receive"), st.integers(1, 12))
between = st.one_of(plain, receives, st.just(("die",)))
steps = st.one_of(plain, receives, st.tuples(st.just("receive"), st.integers(1, 12), st.sampled_from(POINTS), between))


@pytest.mark.long
@settings(max_examples=examples(60), deadline=None)
@example(
    steps=[("send", "aab"), ("spoil", 0, "bad"), ("receive", 9), ("send", "ab"), ("receive", 9, "store.claim.after_fence", ("put_back",))],
    batches=False,
)
@given(steps=st.lists(steps, min_size=3, max_size=14), batches=st.booleans())
def test_no_message_overtakes_one_of_its_group(*, steps: list[tuple[Any, ...]], batches: bool) -> None:
    world.__init__()  # type: ignore[misc]  # as new
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(Path(folder), batches=batches)
        driver.send("aabb-a")
        for step in steps:
            driver.do(*step)
        driver.end()
