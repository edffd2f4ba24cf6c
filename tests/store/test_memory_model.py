"""A queue against a model of it: whatever is done in whatever order, no message is lost or doubled and no count falls."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from airflow_poison.store.control import Control, QueueState
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values.errors import ClaimLostError, QueueHaltedError
from airflow_poison.values.schema import SubQueue
from tests.given.examples import examples
from tests.given.tables import CONTROL, LEASE, NOW, numbered, put, rows_of, seal

if TYPE_CHECKING:
    from airflow_poison.store.files import Claim

Place = tuple[str, int]


class QueueMachine(RuleBasedStateMachine):
    """The model: where each living message is and how often it was moved; who holds a claim, and which run keys have finished."""

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.queue = MemoryStore().create("orders", CONTROL)
        self.now = NOW
        self.places: dict[int, Place] = {}
        self.keys: dict[str, tuple[int, int]] = {}
        self.holders: dict[str, Claim] = {}
        self.finished: set[str] = set()
        self.sent = 0
        self.disabled = False

    @rule(count=st.integers(0, 6), key=st.sampled_from("abcdef"))
    def send(self, count: int, key: str) -> None:
        done = self.queue.append([numbered(count)], key, self.now)
        if key in self.keys:
            assert (done.messages, done.first_lookup_id, done.repeated) == (*self.keys[key], True)
            return
        self.keys[key] = (count, self.sent + 1)
        assert (done.messages, done.first_lookup_id, done.repeated) == (count, self.sent + 1, False)
        assert done.held == (count if self.disabled else 0)
        place = "transmission" if self.disabled else "main"
        self.places |= dict.fromkeys(range(self.sent + 1, self.sent + count + 1), (place, 0))
        self.sent += count

    @rule()
    def disable(self) -> None:
        self.queue.alter(lambda control: replace(control, state=QueueState.DISABLED), lambda _, __: [])
        self.disabled = True

    @rule()
    def enable(self) -> None:
        self.queue.alter(Control.enabled, lambda _, __: [])
        self.disabled = False
        self.places = {number: ("main", 0) if place == ("transmission", 0) else place for number, place in self.places.items()}

    @rule(target=claims, key=st.sampled_from(["one", "two", "three", "four"]), most=st.integers(1, 8))
    def claim(self, key: str, most: int) -> Claim | None:
        if self.disabled:
            with pytest.raises(QueueHaltedError):
                self.queue.claim(key, lease=LEASE, now=self.now, max_messages=most)
            return None
        claimed = self.queue.claim(key, lease=LEASE, now=self.now, max_messages=most)
        if key in self.finished:
            assert claimed is None
        elif key in self.holders:
            assert claimed is not None
            assert (claimed.files, claimed.epoch) == (self.holders[key].files, self.holders[key].epoch + 1)
        if claimed is not None:
            self.holders[key] = claimed
        return claimed

    @rule(target=claims, claim=claims)
    def take_over(self, claim: Claim | None) -> Claim | None:
        if claim is None:
            return None
        taken = self.queue.take_over(claim, lease=LEASE, now=self.now)
        assert (taken is not None) == (self.holders.get(claim.key) == claim)
        if taken is not None:
            self.holders[claim.key] = taken
        return taken

    @rule(claim=consumes(claims))
    def release(self, claim: Claim | None) -> None:
        if claim is not None:
            self.queue.release(claim)
            if self._holds(claim):
                del self.holders[claim.key]

    @rule(claim=consumes(claims), fate=st.sampled_from(["settled", "retry", "poison"]))
    def finish(self, claim: Claim | None, fate: str) -> None:
        if claim is None:
            return
        try:
            rows = rows_of(self.queue, claim)
            if fate != "settled":
                self.queue.stage_table(claim, put(rows, fate, claim.files[0].move_count + 1, self.now + timedelta(minutes=5)))
            manifest = seal(self.queue, claim, {"fate": fate})
            done = self.queue.finish(claim, manifest, now=self.now)
        except ClaimLostError:
            assert not self._holds(claim)
            return
        assert done
        assert self._holds(claim)
        self.finished.add(claim.key)
        del self.holders[claim.key]
        assert self.queue.result(claim.key) == {"fate": fate}
        for number in rows["lookup_id"].to_pylist():
            assert number is not None
            if fate == "settled":
                del self.places[number]
            else:
                self.places[number] = (fate, claim.files[0].move_count + 1)

    @rule(minutes=st.integers(1, 10))
    def return_due(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes)
        due = [file for file in self.queue.snapshot().files if file.sub_queue == "retry" and file.max_due_at and file.max_due_at <= self.now]
        numbers = [number for file in due for number in self.queue.read(file)["lookup_id"].to_pylist()]
        moved = self.queue.move_files(lambda _: due, SubQueue.MAIN, self.now)
        assert moved.messages == len(numbers)
        for number in numbers:
            assert number is not None
            self.places[number] = ("main", self.places[number][1] + 1)

    @invariant()
    def every_message_is_where_the_model_has_it(self) -> None:
        found: dict[int, Place] = {}
        for file in self.queue.snapshot().files:
            for number in self.queue.read(file)["lookup_id"].to_pylist():
                assert number is not None
                assert number not in found
                found[number] = (file.sub_queue, file.move_count)
        assert found == self.places

    @invariant()
    def claims_are_the_holders_and_disjoint(self) -> None:
        claims = self.queue.snapshot().claims
        assert {claim.key: claim for claim in claims} == self.holders
        paths = [file.path for claim in claims for file in claim.files]
        assert len(paths) == len(set(paths))

    def _holds(self, claim: Claim) -> bool:
        held = self.holders.get(claim.key)
        return held is not None and held.attempt == claim.attempt


QueueMachine.TestCase.settings = settings(max_examples=examples(15), stateful_step_count=25)
TestQueueAgainstItsModel = QueueMachine.TestCase
