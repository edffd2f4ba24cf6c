"""Tests that run beside each other in one Airflow, as the DAGs of its users do: they wait much more than they compute."""

from __future__ import annotations

import inspect
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.live.live_airflow import LiveAirflow

AT_ONCE = 6


def beside(test: Callable[..., None]) -> Callable[..., None]:
    """Let a test run beside all others that are decorated so; what it found is told when its turn comes.

    It may have parameters, and want ``airflow`` and ``tmp_path``; it must leave the processes of Airflow alone, and those of other tests.
    """

    def tell(ended: dict[str, Future[None]], request: pytest.FixtureRequest, **parameters: Any) -> None:
        ended[request.node.nodeid].result()

    own = [each for each in inspect.signature(test).parameters.values() if each.name not in {"airflow", "tmp_path"}]
    given = [each for each in inspect.signature(tell).parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    tell.__signature__ = inspect.Signature([*given, *own])  # type: ignore[attr-defined]  # what pytest reads
    tell.__name__, tell.__doc__, tell.__module__ = test.__name__, test.__doc__, test.__module__
    tell.beside = test  # type: ignore[attr-defined]
    return tell


def run_all(items: list[pytest.Item], airflow: LiveAirflow, folder: Callable[[], object]) -> dict[str, Future[None]]:
    """Run those of the items that may run beside each other, some at once; return how each ended, by its id.

    :param folder: returns a new empty folder, what ``tmp_path`` is.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {item.nodeid: pool.submit(_call(item, airflow, folder)) for item in items if hasattr(getattr(item, "function", None), "beside")}


def _call(item: Any, airflow: LiveAirflow, folder: Callable[[], object]) -> Callable[[], None]:
    test = item.function.beside
    fixtures = {"airflow": lambda: airflow, "tmp_path": folder}
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    given = {name: fixtures[name]() for name in inspect.signature(test).parameters if name in fixtures}
    return partial(test, **given, **parameters)
