"""The note with which a try begins its delivery, written to disk before it: what its journals will be worth when it has ended."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path


class Forced(StrEnum):
    """What of a try's journals is forced to disk."""

    NOTHING = "nothing"  # but the journal of messages that are delivered alone
    SECTIONS = "sections"  # each section before its first delivery
    MARKS = "marks"  # each message before it is with its handler


@dataclass(frozen=True, slots=True)
class Begun:
    """How a try delivers.

    :param machine: where all its processes run, as ``platform.machine()`` names it; empty: on several.
    """

    machine: str
    forced: Forced = Forced.NOTHING

    def told(self) -> str:
        """Return the text of the note."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a note; None where there is none, or it was not finished: no delivery had begun."""
        try:
            told = json.loads(path.read_text())
            return cls(str(told["machine"]), Forced(told["forced"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
