"""Server sessions: supervised child processes that run the user's handler, and the attempt journal that survives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_poison.core.delivery.sessions.session import BatchReport, ServerSession, open_session

__all__ = ["BatchReport", "ServerSession", "open_session"]


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): numpy and pyarrow stay out of whoever only names this package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from airflow_poison.core.delivery.sessions import session

    return getattr(session, name)
