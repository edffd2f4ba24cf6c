"""The demo of sources, on a few records: it kills who works for it, and its sums agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.demo_sources.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_sums_agree_whoever_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--records", "5000", "--kills", "4"], tmp_path) == 0
    said = capsys.readouterr().out
    assert said.count("All agree: each order came once.") == 3
    assert "killed: 4 takers, " in said
