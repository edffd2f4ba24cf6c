"""What pages, example DAGs and the README show is importable from ``airflow_poison``: nobody has to know where the product keeps it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from tests.given.pages import PAGES, ROOT, blocks, name
from tools import house

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DAGS = sorted((ROOT / "dags").rglob("*.py"))


def imported(code: str) -> Iterator[str]:
    """Yield the modules that a piece of Python imports, in functions, too."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def inner(code: str) -> list[str]:
    return [module for module in imported(code) if is_inside(module)]


def is_inside(module: str) -> bool:
    package, _, below = module.partition(".")
    return package == "airflow_poison" and below.partition(".")[0] in house.inside()


@pytest.mark.parametrize(
    "code",
    [
        "import airflow_poison.store",
        "from airflow_poison import store",
        "from airflow_poison.store import open_store",
        "def function():\n    from airflow_poison.values import errors",
    ],
)
def test_an_inner_import_is_found(code: str) -> None:
    assert inner(code) != []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_imports_what_is_inside(page: Path) -> None:
    assert [module for block in blocks(page) if block.language == "python" for module in inner(block.code)] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_names_a_module_of_the_inside(page: Path) -> None:
    lines = [line for line in page.read_text().splitlines() if not line.startswith("::: ")]
    assert [line for line in lines if any(map(is_inside, re.findall(r"airflow_poison\.\w+\.\w+", line)))] == []


@pytest.mark.parametrize("dag_file", DAGS, ids=name)
def test_no_example_dag_imports_what_is_inside(dag_file: Path) -> None:
    assert inner(dag_file.read_text()) == []
