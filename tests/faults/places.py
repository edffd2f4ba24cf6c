"""Places of episodes for tests of the checker: entered as a run enters them, and copied, so that each test can break its own."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.store import delta_store
from airflow_poison.store.entries import entry_of
from tests.faults import ledger
from tests.faults.actor import Place
from tests.faults.actors import enter
from tests.faults.handler import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARIABLES = (ledger.FOLDER, ledger.RUN, ledger.QUEUE, ledger.PARENT, ORIGIN)


@contextmanager
def entered(folder: Path, queue: str) -> Iterator[Place]:
    """Enter a new place as the first run, and put everything back afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _VARIABLES:
            patch.setenv(name, "")
        for name in ("unlink", "remove"):
            patch.setattr(os, name, getattr(os, name))  # put back afterwards what a keeper puts there
        patch.setattr(delta_store.DeltaLog, "commit", delta_store.DeltaLog.commit)  # and what a watch puts there
        patch.setattr(delta_store, "entry_of", entry_of)
        there = Place(str(folder), time.monotonic())
        enter(there, 1, queue)
        yield there


def copied(place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return the same in a folder of its own."""
    copy = Path(shutil.copytree(place.folder, folder / "copy"))
    for name in _VARIABLES:
        monkeypatch.setenv(name, os.environ[name])
    monkeypatch.setenv(ledger.FOLDER, str(copy))
    return Place(str(copy), place.origin)
