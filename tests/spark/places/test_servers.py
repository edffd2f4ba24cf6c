"""The machines of a cluster that shares nothing."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from tools.servers.spark import _apart

if TYPE_CHECKING:
    from pathlib import Path


def test_a_worker_sees_its_own_folder_and_neither_the_others_nor_the_drivers(tmp_path: Path) -> None:
    """Also where a path has a blank in it."""
    folder, driver = tmp_path / "a cluster", tmp_path / "a driver"
    for path in (driver, folder / "node-1", folder / "node-2"):
        path.mkdir(parents=True)
        (path / "mark").touch()
    before, own = _apart(folder, 1, [driver])
    look = 'ls "$@"; pwd; touch "$TMPDIR/written"; touch "$1/lost"'

    said = subprocess.run(
        [*before, "sh", "-c", look, "sh", str(driver), str(folder / "node-2"), str(folder / "node-1")],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | own,
    ).stdout

    assert said.split("\n\n") == [f"{folder / 'node-1'}:\nmark", f"{folder / 'node-2'}:", f"{driver}:\n{folder / 'node-1'}\n"]
    assert (folder / "node-1" / "written").exists()
    assert not (driver / "lost").exists()
