"""Talks: what the two services of an episode say to each other. A body says what its receiver does, and which call or task has said it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.dialogs.services import Contract, Service

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

TALKERS: Mapping[str, str] = {"talk-a": "Anna", "talk-b": "Bert"}
"""The queues whose services converse, with their services."""
CONTRACT = Contract("talk", {"word": "ANY"})
WORD = "word"
AS_ASKED, GIVEN_UP = 7, 9
"""The codes of errors that a handler ends with, and somebody outside."""

_DEEDS: Mapping[str, int] = {
    "nothing": 24,
    "reply": 34,
    "reply and end": 4,
    "end": 4,
    "end with error": 4,
    "clean up": 2,
    "set a timer": 8,
    "fail once": 8,
    "fail always": 3,
    "die once": 3,
}
_OF_REPLIES = ("nothing", "nothing", "reply", "end", "fail once")


@dataclass(frozen=True, slots=True)
class Said:
    """What a body says.

    :param by: the call of a handler, or the task, that has sent it; ``number``: which of its messages, from 0.
    """

    by: str
    number: int
    deed: str

    def to_body(self) -> bytes:
        return json.dumps([self.by, self.number, self.deed]).encode()

    @classmethod
    def of(cls, body: bytes) -> Said:
        return cls(*json.loads(body))


def words(chance: random.Random, by: str, most: int) -> list[tuple[str, bytes]]:
    """Return what somebody sends."""
    deeds = chance.choices([*_DEEDS], [*_DEEDS.values()], k=chance.randint(1, most))
    return [(WORD, Said(by, number, deed).to_body()) for number, deed in enumerate(deeds)]


def reply(chance: random.Random, by: str) -> bytes:
    return Said(by, 0, chance.choice(_OF_REPLIES)).to_body()


def services(queue: str) -> list[Service]:
    return [Service(TALKERS[queue], [CONTRACT])]


def partner_of(queue: str) -> str:
    """Return the queue of the other service."""
    [other] = TALKERS.keys() - {queue}
    return other
