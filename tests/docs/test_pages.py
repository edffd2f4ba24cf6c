"""What the pages name is there: links, blocks, parameters, errors."""

from __future__ import annotations

import inspect
import re
import tomllib
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from airflow_poison import Msmq4
from airflow_poison.hooks.connection import FIELDS
from airflow_poison.passes.runs import ReceiveResult
from airflow_poison.values import errors
from airflow_poison.values.schema import table_schema
from tests.given.pages import PAGES, ROOT, blocks, name

if TYPE_CHECKING:
    from pathlib import Path

LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(page.read_text())}


def table_names(page: str) -> set[str]:
    """Return what stands in backquotes in the first cells of a page's tables."""
    first_cells = re.findall(r"^\|([^|]*)\|", (ROOT / page).read_text(), re.MULTILINE)
    return {word for cell in first_cells for word in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{name(page)} links to {target}"
        assert not anchor or anchor in anchors(there), f"{name(page)} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        assert block.language in {"python", "bash", "console", "diff", ""}, f"{name(page)}:{block.line} is {block.language!r}"


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target).resolve() for target, _ in LINK.findall(index.read_text())}
    assert {page for page in PAGES if (ROOT / "docs") in page.parents} - {index} <= linked


def test_the_reference_has_every_error_and_no_other() -> None:
    there = {
        error.__name__
        for error in vars(errors).values()
        if inspect.isclass(error) and issubclass(error, Exception) and error.__module__ == errors.__name__
    }
    assert table_names("docs/reference/errors.md") == there


def test_the_page_on_installation_has_every_extra_and_no_other() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (ROOT / "docs/how-to/install.md").read_text()
    assert {*re.findall(r"^\| `([a-z-]+)` \|[^|]*\|[^|]*\|$", text, re.MULTILINE)} == declared.keys()


def test_the_reference_has_every_setting() -> None:
    text = (ROOT / "docs/reference/msmq4.md").read_text()
    assert [field.name for field in fields(Msmq4) if f"`{field.name}`" not in text] == []


def test_the_reference_has_every_field_of_the_connection_and_every_number_of_a_pass() -> None:
    text = (ROOT / "docs/reference/airflow.md").read_text()
    assert [word for word in (*FIELDS, *(field.name for field in fields(ReceiveResult))) if f"`{word}`" not in text] == []


def test_the_columns_of_a_queue_are_described() -> None:
    assert set(table_schema().names) - table_names("docs/how-to/query-queue-tables.md") == set()
