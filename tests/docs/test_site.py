"""The site is built without a warning, and has every page, every public class and no dead end."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest

import airflow_poison
from airflow_poison.get_provider_info import get_provider_info
from tests.given.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

API = "\n".join(page.read_text() for page in sorted((ROOT / "docs/reference/api").glob("*.md")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, as ``make docs`` does."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    warnings = [line for line in ran.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))]
    assert warnings == []
    assert ran.returncode == 0, ran.stderr[-2_000:]
    return folder


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {given[key] or "" for key in ("id", "name") if key in given}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")


@cache
def page_at(path: Path) -> Page:
    """Return a page of the site; most are linked to many times."""
    return Page(path)


def dead_ends(path: Path) -> Iterator[str]:
    for link in page_at(path).links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc or link in {".", "#"}:
            continue
        there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not there.exists() or (parts.fragment and there.suffix == ".html" and unquote(parts.fragment) not in page_at(there).anchors):
            yield link


def test_every_page_is_there_and_no_link_of_it_leads_nowhere(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        built = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        assert built.exists()
        assert list(dead_ends(built)) == [], built.name


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """Neither fonts nor scripts: the site can be read where there is no network."""
    for path in site.rglob("*.html"):
        assert re.findall(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="https?:[^"]*"', path.read_text()) == [], path.name


def test_the_docstrings_are_on_the_pages(site: Path) -> None:
    operators = (site / "reference/api/operators.html").read_text()
    assert 'id="airflow_poison.operators.receive.QueueReceiveOperator"' in operators
    assert "what is sent comes from exactly one of" in operators.lower()
    assert 'id="airflow_poison.operators.receive.ReceivingOperator"' in operators
    assert "max_messages" in operators
    assert 'id="airflow_poison.values.errors.SettingError"' in (site / "reference/api/errors.html").read_text()


def modules(info: dict[str, Any]) -> Iterator[str]:
    for kind in ("hooks", "operators", "sensors", "triggers"):
        yield from (module for entry in info[kind] for module in entry["python-modules"])
    yield from (entry["class-name"].rpartition(".")[0] for entry in info["task-decorators"])


@pytest.mark.parametrize("module", sorted(modules(get_provider_info())))
def test_the_reference_has_each_module_that_airflow_is_told_of(module: str) -> None:
    assert f"::: {module}" in API


@pytest.mark.parametrize("public", sorted(set(airflow_poison.__all__) - {"__version__"}))
def test_the_reference_has_each_public_name(public: str) -> None:
    assert re.search(rf"^::: airflow_poison\.\S*\b{public}$", API, re.MULTILINE)
