"""The numbers of the errors of conversations."""

from __future__ import annotations

import pickle

import pytest

from airflow_poison.values import errors
from airflow_poison.values.errors import ConversationError, ConversationSendError, MaxQueueReadersError, PoisonError, QueueHaltedError, recalled

NUMBERS = {
    "ConversationNotFoundError": 8426,
    "ConversationEndedError": 8427,
    "ConversationSendError": 8429,
    "ConversationTimerError": 8458,
    "RetentionError": 9618,
    "QueueHaltedError": 9617,
    "ServiceNotFoundError": 8423,
    "ConversationLockedError": None,
    "ErrorDocumentError": None,
}


@pytest.mark.parametrize(("name", "number"), NUMBERS.items())
def test_sb_18_20_43_an_error_has_the_number_of_the_manual_also_in_another_process(name: str, number: int | None) -> None:
    error = pickle.loads(pickle.dumps(recalled(name, "what, and what next")))

    assert type(error) is getattr(errors, name)
    assert isinstance(error, ConversationError | QueueHaltedError)
    assert (error.number, str(error)) == (number, "what, and what next")


def test_sb_43_the_error_of_a_send_names_the_state() -> None:
    error = pickle.loads(pickle.dumps(ConversationSendError("refused", "ER")))

    assert (error.number, error.state, str(error)) == (8429, "ER", "refused")


def test_every_error_of_conversations_is_here() -> None:
    kinds = {kind.__name__ for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ConversationError)}
    assert kinds - {"ConversationError"} == NUMBERS.keys() - {"QueueHaltedError"}


def test_sb_23_error_187_is_a_setting_error() -> None:
    error = pickle.loads(pickle.dumps(MaxQueueReadersError("max_queue_readers", 32768, "0 to 32767")))

    assert (error.number, error.value) == (187, 32768)
    assert isinstance(error, PoisonError)
