"""The picture of the rooms is that of the code, and the page names each room."""

from __future__ import annotations

import re

from airflow_poison.spark import executors
from tests.given.pages import ROOT
from tools import house


def test_the_picture_is_as_the_code_is() -> None:
    assert house.stale() == {}, "python -m tools.house writes them again"


def test_the_page_names_each_room() -> None:
    page = (ROOT / "docs/explanation/house.md").read_text()
    rooms = {house.room_of(module) for module in house.modules()}
    assert {room for room in rooms if room not in page} == set()


def test_rooms_behind_the_doors_import_downwards() -> None:
    """Only messages and the conversations that they carry know each other."""
    used = house.uses(house.modules())
    both = {frozenset({room, other}) for room in used.keys() - house.DOORS for other in used[room] if room in used.get(other, ())}
    assert both <= {frozenset({"values", "dialogs"})}


def test_executors_get_all_rooms_behind_the_doors() -> None:
    assert {*executors._PACKAGES} == house.inside()


def test_the_page_on_changes_names_what_is_there() -> None:
    page = (ROOT / "docs/explanation/change-it.md").read_text()
    made = {"airflow_poison/rules/redrive.py", "docs/reference/redrive.md"}
    named = set(re.findall(r"`((?:airflow_poison|tests|docs)/[\w./-]+)`", page))
    assert {name for name in named - made if not (ROOT / name).exists()} == set()
    assert len(named) > 15
