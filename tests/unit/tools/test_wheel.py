"""The page in a wheel: built where Node is, and a warning where it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hatchling.bridge.app import Application

from tools.wheel import PAGE, PageHook

if TYPE_CHECKING:
    from pathlib import Path

NPM = 'test "$4" = ci || echo built > "{0}"'


@pytest.mark.parametrize(
    ("programs", "says"),
    [
        ({}, "there is no Node with npm on PATH"),
        ({"node": "echo v20.18.3", "npm": NPM}, "Node 20.19 or newer, and this is v20.18.3"),
        ({"node": "echo v22.1.0", "npm": "echo no such registry >&2; exit 1"}, "'npm ci' failed: no such registry"),
        ({"node": "echo v20.19.0", "npm": NPM}, None),
    ],
)
def test_a_wheel_has_the_page_or_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], programs: dict[str, str], says: str | None
) -> None:
    page = tmp_path / PAGE
    page.parent.mkdir(parents=True)
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script.format(page)}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    hook: Any = PageHook(str(tmp_path), {}, None, None, str(tmp_path), "wheel", Application())  # type: ignore[arg-type]  # no settings of a project
    hook.initialize("standard", {})

    warned = capsys.readouterr().err
    assert ("no page of queues" in warned) == (says is not None)
    assert (says or "") in warned
    assert page.is_file() == (says is None)
