"""No block of the documentation goes untested in silence: a test runs it, or the page says why none does."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from airflow_poison.cli.main import parser
from airflow_poison.hooks.connection import FIELDS
from tests.given import pages
from tests.given.pages import PAGES, ROOT, Block, blocks, name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUN: dict[str, str] = {
    "docs/how-to/simulate-settings.md": "tests/unit/cli/test_documented.py",
    "docs/how-to/schedule-retry-cycles.md": "tests/unit/cli/test_documented.py",
    "docs/how-to/work-from-the-shell.md": "tests/unit/cli/test_documented.py",
    "docs/how-to/deal-with-poison.md": "tests/unit/cli/test_documented.py",
    "docs/tutorial/first-queue.md": "tests/docs/test_tutorial.py",
}
"""The pages whose console blocks are run, and by which tests."""


def untested(page: Path) -> Iterator[Block]:
    """Yield the blocks of commands that no test runs, and of which the page does not say so. Python blocks run on every page."""
    for block in blocks(page):
        if block.language in {"console", "bash"} and block.not_run is None and not (block.language == "console" and name(page) in RUN):
            yield block


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    lines = [f"{name(page)}:{block.line}" for block in untested(page)]
    assert lines == [], "run it in a test (and name the page in RUN), or put '<!-- not run: reason -->' before it"


@pytest.mark.parametrize(("page", "test"), RUN.items())
def test_the_tests_that_run_pages_are_there_and_name_them(page: str, test: str) -> None:
    assert page in (ROOT / test).read_text()
    assert any(block.language == "console" for block in blocks(ROOT / page))


def test_an_unmarked_block_is_found_and_a_marked_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```bash\nls\n```\n\n<!-- not run: it waits -->\n```bash\nsleep 9\n```\n\n<!-- not run: it raises -->\n\n```python\n1/0\n```\n")
    assert [block.code for block in untested(page)] == ["ls\n"]
    assert [block.not_run for block in blocks(page)] == [None, "it waits", "it raises"]
    assert pages.script(page).strip() == ""


def test_the_connection_of_the_reference_is_one() -> None:
    [block] = (block for block in blocks(ROOT / "docs/reference/airflow.md") if block.language == "bash")
    said = subprocess.run(["bash", "-c", f'{block.code}echo "$AIRFLOW_CONN_POISON_DEFAULT"'], capture_output=True, text=True, check=True)
    connection = json.loads(said.stdout)
    assert connection["conn_type"] == "poison"
    assert set(connection["extra"]) <= set(FIELDS)


def commands(page: Path) -> Iterator[str]:
    """Yield the commands of this package that a page shows, without pipes and redirections."""
    for block in blocks(page):
        if block.language in {"console", "bash"}:
            for line in block.code.replace("\\\n", " ").splitlines():
                for start in ("$ airflow poison ", "airflow poison ", "$ python -m airflow_poison ", "python -m airflow_poison "):
                    if line.startswith(start):
                        yield line.removeprefix(start)
                        break


@pytest.mark.parametrize(
    ("page", "command"), [pytest.param(page, command, id=f"{name(page)}: {command}") for page in PAGES for command in commands(page)]
)
def test_every_command_that_is_shown_is_one(page: Path, command: str) -> None:
    words = shlex.split(command, comments=True)
    ends = [number for number, word in enumerate(words) if word in {"|", "||", "&&", ">", "<", "2>"}]
    assert parser().parse_args(words[: min(ends, default=len(words))]).function.name == words[0]
