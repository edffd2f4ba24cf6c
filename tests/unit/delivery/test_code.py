"""The code of a handler: the same in every process, another when the code is another."""

from __future__ import annotations

import functools
import subprocess
import sys
import zipfile
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.core.delivery.code import code_of, is_imported
from airflow_poison.core.delivery.handlers import resolve_handler
from airflow_poison.core.delivery.transform import Transformation

if TYPE_CHECKING:
    from pathlib import Path

HANDLER = """
import logging
from datetime import datetime
log = logging.getLogger("x")
STARTED = datetime.now()
LIMIT = 5
class Rule:
    most = 3
    def holds(self, text):
        return len(text) > self.most
RULE = Rule()
def helper(text):
    return text in {"a", "b", "c", "d"} and len(text) < LIMIT and RULE.holds(text)
def land(message, kinds=("x", "y")):
    log.info("%s", STARTED)
    return [helper(each) for each in message.text if each in kinds]
"""


def by_value(source: str = HANDLER, name: str = "unusual_prefix_0_dag", file: str = "/dags/dag.py") -> str:
    """The code of the function ``land`` of a DAG file."""
    module = ModuleType(name)
    exec(compile(source, file, "exec"), module.__dict__)  # as Airflow does
    sys.modules[name] = module
    try:
        ref = resolve_handler(module.land)
        assert not is_imported(ref)
        code = code_of(ref)
        assert code_of(ref, module.land) == code
        return code
    finally:
        del sys.modules[name]


def test_code_by_value_is_the_same_wherever_and_whenever_it_is_read() -> None:
    first = by_value()
    assert len(first) == 12
    assert by_value(name="unusual_prefix_1_dag", file="/elsewhere/dag.py") == first
    assert by_value("# a comment\n\n" + HANDLER) == first
    command = "from tests.unit.delivery.test_code import by_value; print(by_value())"
    for seed in ("1", "2"):
        found = subprocess.run([sys.executable, "-c", command], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
        assert found.stdout.strip() == first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 5", "LIMIT = 6"),
        ('"c", "d"', '"c", "e"'),
        ("return text in", "return text not in"),
        ("most = 3", "most = 4"),
        ("> self.most", ">= self.most"),
        ('("x", "y")', '("x", "z")'),
        ("for each in message.text if", "for each in message.body if"),
        ('"%s", STARTED', '"%r", STARTED'),
    ],
)
def test_other_code_by_value_is_other_code(old: str, new: str) -> None:
    assert old in HANDLER
    assert by_value(HANDLER.replace(old, new)) != by_value()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with a handler, on the import path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "shop_of_code.py"
    path.write_text("def land(message):\n    pass\ndef clean(df):\n    return df\nclass Landing:\n    def __call__(self, message):\n        pass\n")
    monkeypatch.delitem(sys.modules, "shop_of_code", raising=False)
    return path


def test_code_by_name_is_the_source_of_its_module(shop: Path) -> None:
    def code() -> str:
        return code_of(resolve_handler("shop_of_code:land"))

    first = code()
    assert is_imported(resolve_handler("shop_of_code:land"))
    assert code() == first
    shop.write_text(shop.read_text() + "LIMIT = 5\n")
    assert code() != first


def test_what_holds_a_handler_has_the_source_of_its_module_too(shop: Path) -> None:
    module: Any = __import__("shop_of_code")
    for given in (module.Landing(), functools.partial(module.land)):
        first = code_of(resolve_handler(given), given)
        shop.write_text(shop.read_text() + "# changed\n")
        assert code_of(resolve_handler(given), given) != first


def test_what_is_shipped_counts_by_its_contents(shop: Path, tmp_path: Path) -> None:
    def code(text: str, when: int) -> str:
        archive = tmp_path / "lib.zip"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr(zipfile.ZipInfo("lib.py", (2020, 1, when, 0, 0, 0)), text)
        return code_of(resolve_handler("shop_of_code:land"), shipped=[str(archive)])

    assert shop.exists()
    assert code("A = 1", 1) == code("A = 1", 2) != code("A = 2", 1)


def test_transformations_have_code_too(shop: Path) -> None:
    assert shop.exists()
    named = Transformation("shop_of_code:clean").resolved()
    assert is_imported(named)
    assert code_of(named) == code_of(Transformation("shop_of_code:clean").resolved())
    assert code_of(named) != code_of(Transformation("shop_of_code:clean", "a int").resolved())
    given = Transformation(lambda df: df)
    assert (is_imported(given), len(code_of(given))) == (False, 12)


def test_code_that_cannot_be_told_stops_nothing() -> None:
    class Odd:
        def __call__(self, message: object) -> None: ...

        @property
        def __dict__(self) -> Any:  # type: ignore[override]  # that is what is odd
            raise RuntimeError("no")

    given = Odd()
    assert code_of(Transformation(given)) == ""  # type: ignore[arg-type]  # any callable
