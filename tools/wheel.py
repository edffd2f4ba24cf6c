"""A build hook: a wheel without the page of queues is not built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGE = "airflow_poison/ui/poison.js"


class PageHook(BuildHookInterface[Any]):
    """Checks that the page is there; an editable installation may be made without it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Refuse to build a wheel without the page. Raises FileNotFoundError."""
        del build_data
        if version != "editable" and not Path(self.root, PAGE).is_file():
            what_to_do = "Install Node 20.19 or newer, run 'make setup', and build again."
            raise FileNotFoundError(f"{PAGE} is not built, so the wheel would have no page. {what_to_do}")
