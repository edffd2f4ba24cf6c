"""The worked examples of the specification as data, one file for each system."""

from __future__ import annotations

from tests.conformance.examples import default_messaging, msmq3, service_broker, wcf, websphere_mq

EXAMPLES = (*wcf.EXAMPLES, *websphere_mq.EXAMPLES, *service_broker.EXAMPLES, *msmq3.EXAMPLES, *default_messaging.EXAMPLES)
