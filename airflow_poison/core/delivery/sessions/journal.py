"""The attempt journal as others use it: words to read, journals to merge, what they say to carry on."""

from airflow_poison.core.delivery.sessions.blame import read_journals
from airflow_poison.core.delivery.sessions.carry import Carry
from airflow_poison.core.delivery.sessions.journalfile import Journal
from airflow_poison.core.delivery.sessions.words import State, attempts_of, crashes_of, states_of

__all__ = ["Carry", "Journal", "State", "attempts_of", "crashes_of", "read_journals", "states_of"]
