"""Damagers: each damage is refused by name or harmless, is mended without any loss, and the checker is content with a history that was mended."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.alter import declare
from airflow_poison.values.errors import PoisonError
from tests.faults import damagers
from tests.faults.actor import Actor, Place, Task
from tests.faults.actors import act_quietly
from tests.faults.checker import check
from tests.faults.damagers import AWAY, DAMAGE
from tests.faults.ledger import Reader
from tests.faults.places import copied, entered
from tests.faults.watches import watch_commits
from tests.faults.world import queues

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUEUE = "engine"
REFUSED = {"entry cut", "entry emptied", "entries removed", AWAY}
"""What every verb that begins has to refuse; the others do not concern them, or are mended by who writes."""


TELL = Task("alert", QUEUE, "last", 0)
"""Malformed records of files are poison, of which somebody wants to hear."""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A queue with two checkpoints, and messages in it."""
    with entered(tmp_path_factory.mktemp("damaged"), QUEUE) as there:
        watch_commits()
        declare(there.store, QUEUE, queues()[QUEUE].policy, there.clock)
        for number in range(45):
            act_quietly(Task("send", QUEUE, f"send-{QUEUE}-{number}", number), there)
        yield there


@pytest.fixture
def place(history: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The same in a folder of its own."""
    return copied(history, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", [*DAMAGE, AWAY])
def test_every_damage_is_mended_and_loses_nothing(place: Place, name: str) -> None:
    actor = Actor(Task("damage", QUEUE, "damage", 1), place, random.Random(1))
    during = Task("send", QUEUE, f"send-{QUEUE}-during", 0)  # a sender: in a copy, files of the first place are others
    assert damagers.begins(actor, name)
    if name in REFUSED:
        with pytest.raises(PoisonError):
            act_quietly(during, place)
    else:
        act_quietly(during, place)
    damagers.mends(actor)
    act_quietly(during, place)
    act_quietly(TELL, place)
    assert check(place.folder, {}).lines() == []
    assert [line["what"] for line in Reader(place.folder).news() if line["kind"] == "damage"] == [name]


def test_a_queue_is_not_damaged_again_before_it_was_mended(place: Place) -> None:
    actor = Actor(Task("damage", QUEUE, "damage", 0), place, random.Random(0))
    assert damagers.begins(actor, "entry cut")
    assert not damagers.begins(actor, "entries removed")
    damagers.mends(actor)
    assert damagers.begins(actor, "entries removed")
    damagers.mends(actor)
    act_quietly(TELL, place)
    assert check(place.folder, {}).lines() == []
