"""A worker whose claim somebody else has taken over ends itself: each test in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.spark import shares

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_SECONDS = 60.0
WORKER = """
import os, sys, time
from airflow_poison.spark import shares

shares.LOOK_SECONDS, shares.GRACE_SECONDS = 0.01, float(sys.argv[2])
looks, really = [], os.path.isdir

def looked(path):
    looks.append(really(path))
    return looks[-1]

os.path.isdir = looked
until = time.monotonic() + {patience}
with shares.Fence(sys.argv[1]):
    print("works", flush=True)
    while time.monotonic() < until and not ({done}):
        time.sleep(0.01)
print("done", looks[-1], flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a worker that has looked at its claim's folder, and works until it is done."""

    def start(done: str, grace: float) -> subprocess.Popen[str]:
        journal = tmp_path / "journal"
        journal.mkdir()
        code = WORKER.format(patience=PATIENCE_SECONDS, done=done)
        begun = subprocess.Popen(
            [sys.executable, "-c", code, str(journal), str(grace)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        assert begun.stdout is not None
        assert begun.stdout.readline() == "works\n"
        return begun

    return start


def test_a_worker_that_is_shut_out_ends_and_says_why(worker: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    begun = worker(done="False", grace=0.05)
    (tmp_path / "journal").rename(tmp_path / "journal.fenced")

    said, complained = begun.communicate(timeout=PATIENCE_SECONDS)

    assert (begun.returncode, said) == (shares.SHUT_OUT, "")
    assert f"{tmp_path / 'journal'} is shut out" in complained


def test_what_is_nearly_done_is_done_within_the_grace(worker: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    begun = worker(done="looks and not looks[-1]", grace=PATIENCE_SECONDS)
    (tmp_path / "journal").rename(tmp_path / "journal.fenced")

    said, _ = begun.communicate(timeout=PATIENCE_SECONDS / 2)

    assert (begun.returncode, said) == (0, "done False\n")


def test_a_worker_whose_claim_is_its_drivers_is_left_alone(worker: Callable[..., subprocess.Popen[str]]) -> None:
    begun = worker(done="len(looks) > 5", grace=0.0)

    said, complained = begun.communicate(timeout=PATIENCE_SECONDS)

    assert (begun.returncode, said, complained) == (0, "done True\n", "")
