"""Sessions to test: the same promises hold in a child process and inline."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from airflow_poison.delivery.handlers import resolve_handler
from airflow_poison.delivery.recovered import RecoveredAttempts
from airflow_poison.delivery.session import open_session
from airflow_poison.delivery.stage import StageJob
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.values.clock import SystemClock
from tests.given import forked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.delivery.session import ServerSession
    from airflow_poison.dialogs.transaction import DialogState


forked.preload(*(f"tests.sessions.{name}" for name in ("worker", "endpoint_worker", "dialog_worker", "speaking_worker")))


class Opener(Protocol):
    def __call__(self, handler: Any = ..., isolation: str = ..., **others: Any) -> ServerSession: ...


def policy(**settings: Any) -> Msmq4:
    """Two retries, no cycles, poison messages move; a transaction may take a second."""
    given: dict[str, Any] = {
        "receive_retry_count": 2,
        "max_retry_cycles": 0,
        "receive_error_handling": "Move",
        "transaction_timeout": timedelta(seconds=1),
    }
    return Msmq4(**given | settings)


def opened_session(
    handler: Any, partition: str = "3", carry: RecoveredAttempts | Path | None = None, dialog_state: DialogState | None = None, **job: Any
) -> ServerSession:
    """Open a session of a queue, as a task does."""
    known = RecoveredAttempts.load(carry) if isinstance(carry, Path) else carry or RecoveredAttempts()
    given: dict[str, Any] = {"queue": "", "handler": resolve_handler(handler), "clock": SystemClock()}
    return open_session(StageJob(**given | job), partition, known, dialog_state)


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    folder = tmp_path / "journal"
    folder.mkdir()
    return folder


@pytest.fixture
def session(journals: Path) -> Iterator[Opener]:
    """Open sessions that end with the test."""
    with ExitStack() as stack:

        def opened(handler: Any = "tests.sessions.sample_handlers:script", isolation: str = "process", **others: Any) -> ServerSession:
            given: dict[str, Any] = {"policy": policy(), "journal_folder": journals}
            return stack.enter_context(opened_session(handler=handler, isolation=isolation, **given | others))

        yield opened


@pytest.fixture(params=["process", "none"])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)
