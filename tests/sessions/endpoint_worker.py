"""A worker with an endpoint, for the tests to kill: delivers one batch and tells what became of it.

The first worker of a folder writes its pid down.
"""

from __future__ import annotations

import json
import os
import warnings
from typing import TYPE_CHECKING

from airflow_poison.delivery.recovered import read_history
from tests.given.endpoints import saying
from tests.given.messages import batch_of
from tests.sessions.conftest import opened_session

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.rules.policy import Policy


def main(folder: Path, isolation: str, policy: Policy, words: list[str]) -> None:
    """Deliver."""
    warnings.simplefilter("ignore")
    journals = folder / "journal"
    if not list(journals.iterdir()):
        (folder / "worker").write_text(str(os.getpid()))
    story = read_history([journals])
    with opened_session(
        policy=policy,
        handler="tests.sessions.endpoint_handlers:recorded",
        journal_folder=journals,
        isolation=isolation,
        carry=story.recovered,
        singly=bool(story.alone),
    ) as session:
        report = session.deliver(batch_of(saying(folder, *words)))
        counters = session.counters()
    assert report.decided is not None
    ends = {row: type(end).__name__ for row, end in report.decided.ends.items()}
    print(json.dumps({"words": report.words.tolist(), "ends": ends, "halted": report.halted, "counters": dict(counters)}))  # noqa: T201
