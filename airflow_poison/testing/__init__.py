"""For your own tests: try a handler and its settings in milliseconds, without Airflow, Spark or a JVM; a transformation on a session of yours."""

from __future__ import annotations

from airflow_poison.delivery.handler_wrappers import sessiongram
from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
from airflow_poison.store.memory import MemoryStore
from airflow_poison.testing.receiving import Call, Outcome, Received, conversation, receive
from airflow_poison.values.clock import VirtualClock

__all__ = [
    "Action",
    "Call",
    "MemoryStore",
    "Outcome",
    "Received",
    "Script",
    "Scripted",
    "VirtualClock",
    "conversation",
    "receive",
    "replay",
    "sessiongram",
]
