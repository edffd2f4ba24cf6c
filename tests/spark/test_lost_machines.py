"""On Spark: a message that kills driver, JVM and workers each time, and whose machine loses whatever was not forced to disk."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.alter import declare
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import SystemClock
from tests.given.drivers import receive_and_tell, told
from tests.sessions.platter import MACHINE, PLATTER, lose
from tests.spark.culprits import Dangerous

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable

MESSAGES, CULPRIT, ATTEMPTS, VANISHED = 600, 340, 2, 2
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Lost(Dangerous):
    """A queue on a disk that is forced to keep what is committed."""

    def table(self) -> QueueTable:
        """Open the queue."""
        return declare(DeltaStore(self.root), "orders", self.policy, SystemClock())

    def receive_on(self, machine: str) -> tuple[int, dict[str, str]]:
        """Start a driver on a machine of that name; return how it ended, and what it said."""
        watched = {PLATTER: f"{self.root}.platter", MACHINE: machine, "PYTHONPATH": os.pathsep.join([str(HERE / "lost"), str(HERE.parents[1])])}
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.test_lost_machines", self.root],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=HERE.parents[1],
            env=os.environ | watched,
            start_new_session=True,  # a group of its own, which is killed
        )
        return driver.wait(), told(driver)


@pytest.mark.campaign
def test_the_claim_narrows_down_to_the_culprit_and_nobody_else_is_charged(tmp_path: Path) -> None:
    work = Lost(str(tmp_path / "store"))
    work.sent(["task" if number == CULPRIT else "good" for number in range(1, MESSAGES + 1)])
    Path(f"{work.root}.platter").mkdir()
    ends: list[int] = []
    while not ends or (ends[-1] and len(ends) < 9):
        status, said = work.receive_on(f"machine {len(ends)}")
        ends.append(status)
        _wait_for_writers(Path(work.table().uri))
        if status:
            lose(Path(work.table().uri), Path(f"{work.root}.platter"))

    assert ends == [-9] * (VANISHED + ATTEMPTS) + [0]
    assert {number: row["crash_count"] for number, row in work.rows().items()} == {CULPRIT: ATTEMPTS}
    assert (said["received"], said["settled"], said["poisoned"], said["crashes"], said["rollbacks"]) == ("600", "599", "1", "2", "2")
    assert set(work.calls("done")) == set(range(1, MESSAGES + 1)) - {CULPRIT}


def _wait_for_writers(queue: Path) -> None:
    """Wait until the last process that may write to a journal has ended."""
    for journal in queue.glob("_stage/*/*/journal/*.journal"):
        with journal.open("rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)


if __name__ == "__main__":
    receive_and_tell(Lost(sys.argv[1]), "the task instance")
