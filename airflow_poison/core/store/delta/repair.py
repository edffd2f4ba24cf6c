"""What a loss of power can leave in a Delta log, taken away: it was never acknowledged to anybody.

delta-rs gives a commit its name when it is written in full, so while the machine runs nobody sees half of one. After a loss of power
the *newest* commit may be empty or cut, and so may a checkpoint. An earlier commit that cannot be read is damage, and stays an error.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

_MAGIC = b"PAR1"


def repair(root: str) -> bool:
    """Take a torn last commit and torn checkpoints away; False when there was none.

    One process at a time: between its look and its removal nobody can have put another commit of that number there.
    """
    log = Path(root, "_delta_log")
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        checkpoints = _remove_torn_checkpoints(log)
        return _remove_torn_commit(log) or checkpoints
    finally:
        os.close(descriptor)


def _remove_torn_commit(log: Path) -> bool:
    commits = sorted(path for path in log.glob("*.json") if path.stem.isdigit())
    if len(commits) < 2 or is_readable(commits[-1]):  # noqa: PLR2004  (a table's first commit is never torn: creation renames it whole)
        return False
    commits[-1].unlink()
    return True


def is_readable(commit: Path) -> bool:
    """Whether every line of a commit is an action."""
    try:
        lines = commit.read_text().splitlines()
        return bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False


def _remove_torn_checkpoints(log: Path) -> bool:
    torn = [path for path in log.glob("*.checkpoint*.parquet") if not is_whole(path)]
    for path in torn:
        path.unlink(missing_ok=True)
    if torn:
        (log / "_last_checkpoint").unlink(missing_ok=True)
    return bool(torn)


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint ends as a Parquet file does."""
    size = checkpoint.stat().st_size
    if size < 2 * len(_MAGIC):
        return False
    with checkpoint.open("rb") as file:
        file.seek(-len(_MAGIC), os.SEEK_END)
        return file.read() == _MAGIC
