"""A build hook: the page of queues is built into the wheel where Node is; where it is not, the wheel has none, and says so."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGE = "airflow_poison/ui/poison.js"
FRONT = "airflow_poison/ui/frontend"
NODE = (20, 19)


class PageHook(BuildHookInterface[Any]):
    """Builds the page when it is not there; an editable installation is left as it is."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page, or warn that the wheel has none: everything else works without it."""
        del build_data
        if version == "editable" or Path(self.root, PAGE).is_file():
            return
        if why := self._lacking() or self._failed("ci") or self._failed("run", "build"):
            self.app.display_warning(
                f"This wheel has no page of queues in the Airflow UI: {why} Everything else works. For the page, install Node "
                f"{NODE[0]}.{NODE[1]} or newer with npm and make the wheel again."
            )

    def _lacking(self) -> str:
        """Return what is missing to build the page with."""
        if not (shutil.which("node") and shutil.which("npm")):
            return "there is no Node with npm on PATH."
        ran = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False)
        found = ran.stdout.strip()
        numbers = tuple(int(part) for part in found.removeprefix("v").split(".")[:2] if part.isdecimal())
        return "" if numbers >= NODE else f"it is built with Node {NODE[0]}.{NODE[1]} or newer, and this is {found or 'no Node that runs'}."

    def _failed(self, *words: str) -> str:
        """Run npm; return how it failed."""
        self.app.display_info(f"The page of queues: npm {' '.join(words)}")
        ran = subprocess.run(["npm", "--prefix", FRONT, "--silent", *words], cwd=self.root, capture_output=True, text=True, check=False)
        last = (ran.stderr or ran.stdout).strip()[-500:]
        return f"'npm {' '.join(words)}' failed: {last}" if ran.returncode else ""
