"""Restarts: what loses what the systems keep in memory (spec SB-7, M3-4, DMP-19, WMQ-8, ZOS-5)."""

from __future__ import annotations

from enum import StrEnum


class Restart(StrEnum):
    """What is started anew. What each one loses is the policy's to say."""

    ENDPOINT = "endpoint"  # the listener, activation specification or listener port
    SERVER = "server"  # the application's host: service host, application server
    BROKER = "broker"  # database engine, messaging engine, queue manager
