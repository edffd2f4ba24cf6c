"""Commands about settings: they open no queue."""

from __future__ import annotations

from typing import Final

from airflow_poison.cli.declared.argument import OUTPUT, POLICY_JSON, SET, Argument, Command, option, several, switch

_SYSTEM: Final = Argument(("system",), {"metavar": "SYSTEM", "nargs": "?", "help": "the messaging system, for example Msmq4"}, "systems")

POLICIES: Final = Command(
    name="policies",
    help="List the messaging systems, or the settings of one",
    description="List the messaging systems whose rules a queue can have; with SYSTEM: its settings.",
    function="airflow_poison.cli.settings.policies",
    arguments=(_SYSTEM, OUTPUT),
)

SIMULATE: Final = Command(
    name="simulate",
    help="Show what settings would do to messages",
    description="Play messages against the settings of a messaging system, on a virtual clock and with the rules that queues use.",
    function="airflow_poison.cli.settings.simulate",
    arguments=(
        _SYSTEM,
        SET,
        POLICY_JSON,
        several("--message", "NAME=OUTCOMES", "messages, with the outcomes of their deliveries: 'a=rb*5 ok' (default: m=rb*, one that always fails)"),
        several("--at", "NAME=DURATION", "when messages arrive (default: at the start)"),
        several("--action", "AT:VERB[:WHAT]", "what people do: 2h:enable, 30m:remove:a, 1h:alter:ReceiveRetryCount=2,MaxRetryCycles=0"),
        option("--until", "DURATION", "stop the clock then (default: when nothing is left to happen)"),
        option("--most-receives", "N", "stop an endless simulation after N receives (default: 10000)", default="10000"),
        several("--access", "QUEUE=ACCESS", "queues that the endpoint cannot send to: missing or denied"),
        option("--queue", "NAME", "the queue's name (default: orders)", default="orders"),
        switch("--events", "list every event but deliveries, commits and rollbacks"),
        switch("--routine", "list those events, too"),
        OUTPUT,
    ),
)
