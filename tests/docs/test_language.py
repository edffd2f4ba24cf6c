"""Plain words: docstrings, comments, messages and pages name the task, the pass or the message, and what it does."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING

from tests.given.pages import PAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PHRASES = re.compile(
    r"\b(nobody|somebody|whoever|whom|those who|untold|what becomes of|what of|begun anew|shut out|the dead(?!-))\b"
    r"|\b(is|are|was|were) (told|said)\b",
    re.IGNORECASE,
)
MOST = 65
"""Lines with these phrases: texts that are stored or compared, titles of sources, and what is left to rewrite. It only falls."""


def texts(path: Path) -> Iterator[str]:
    """Yield the lines of docstrings, messages and comments of a module."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from node.value.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def test_texts_name_what_acts_and_what_it_does() -> None:
    pages = [(page, line) for page in PAGES for line in page.read_text().splitlines()]
    code = [(path, line) for path in sorted((ROOT / "airflow_poison").rglob("*.py")) for line in texts(path)]
    found = [f"{path.relative_to(ROOT)}: {line.strip()}" for path, line in (*pages, *code) if PHRASES.search(line)]
    assert len(found) <= MOST, "\n".join(found)
