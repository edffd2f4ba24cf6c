"""The pictures of the page in docs/images, taken anew in a real Airflow with Chromium: ``python -m tools.pictures``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "images"
STORY = "tests/live/test_night.py"
"""It tells the story of docs/tutorial/night.md, and takes every picture that docs show of the page."""


def take(folder: Path) -> None:
    """Run the story, with its pictures into a folder. Raises CalledProcessError."""
    settings = {**os.environ, "POISON_SCREENSHOTS": str(folder)}
    subprocess.run([sys.executable, "-m", "pytest", "-q", STORY], cwd=ROOT, env=settings, check=True)


def main() -> None:
    """Take all pictures; where one is missing that docs show, change none."""
    with TemporaryDirectory() as folder:
        take(Path(folder))
        taken = {path.name: path for path in Path(folder).glob("*.png")}
        old = sorted({path.name for path in PICTURES.glob("*.png")} - set(taken))
        if old:
            sys.exit(f"No picture was taken for {', '.join(old)} in {PICTURES}: {STORY} must take it, or remove it. Nothing was changed.")
        for name, path in sorted(taken.items()):
            shutil.copyfile(path, PICTURES / name)
            print(PICTURES / name)


if __name__ == "__main__":
    main()
