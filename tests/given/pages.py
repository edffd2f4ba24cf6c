"""The pages of the documentation and the Python blocks on them."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(
    r"^(?: *<!-- not run: (?P<reason>[^\n]*\S) -->\n+)?^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A block of code.

    :param line: the line of the page before its first one.
    :param not_run: why no test runs it, from the comment ``<!-- not run: ... -->`` before it; None: one does.
    """

    language: str
    code: str
    line: int
    not_run: str | None = None


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(found["language"], textwrap.dedent(found["code"]), text.count("\n", 0, found.start("code")), found["reason"])
        for found in _BLOCK.finditer(text)
    ]


def script(page: Path) -> str:
    """Return a page's Python blocks as one script: each statement stands on its line of the page, so an error names page and line."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python" and block.not_run is None:
            lines += [""] * (block.line - len(lines)) + block.code.splitlines()
    return "\n".join(lines) + "\n"


def name(page: Path) -> str:
    """Return a page's path in the repository."""
    return page.relative_to(ROOT).as_posix()
