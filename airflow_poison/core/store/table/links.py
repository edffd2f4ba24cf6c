"""A second name for a file: how rows come to another partition without being written again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from uuid import uuid4


def link(source: str | Path, target: str | Path) -> None:
    """Give a file its name in another folder; nothing happens when an earlier, killed try did it. Raises FileNotFoundError.

    The time of change is set to now: a vacuum by somebody else must not see an old file that no version names yet.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except FileNotFoundError:
        if not target.exists():
            raise
        return
    except OSError:  # a file system without hard links
        _copy(Path(source), target)
    os.utime(target)


def _copy(source: Path, target: Path) -> None:
    beside = target.with_name(f".{uuid4().hex}")
    shutil.copyfile(source, beside)
    beside.replace(target)
