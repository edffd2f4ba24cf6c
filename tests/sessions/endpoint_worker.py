"""A worker with an endpoint, for the tests to kill: delivers one batch and tells what became of it.

``python -m tests.sessions.endpoint_worker <folder> <isolation> <policy as JSON> <word> ...``; the first worker of a folder writes its pid down.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

from airflow_poison.core.delivery.sessions.crash_attribution import read_history
from airflow_poison.core.policies import policy_from_dict
from tests.sessions.conftest import opened_session
from tests.sessions.endpoints import saying
from tests.sessions.messages import batch_of


def main(folder: Path, isolation: str, policy: str, words: list[str]) -> None:
    """Deliver."""
    journals = folder / "journal"
    if not list(journals.iterdir()):
        (folder / "worker").write_text(str(os.getpid()))
    story = read_history([journals])
    with opened_session(
        policy=policy_from_dict(json.loads(policy)),
        handler="tests.sessions.endpoint_handlers:recorded",
        journal_folder=journals,
        isolation=isolation,
        carry=story.carry,
        singly=bool(story.alone),
    ) as session:
        report = session.deliver(batch_of(saying(folder, *words)))
        counters = session.counters()
    assert report.decided is not None
    ends = {row: type(end).__name__ for row, end in report.decided.ends.items()}
    print(json.dumps({"words": report.words.tolist(), "ends": ends, "halted": report.halted, "counters": dict(counters)}))  # noqa: T201


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
