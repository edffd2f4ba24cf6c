"""Tallies of several tasks add up, and so do the counters that their endpoints leave behind."""

from __future__ import annotations

from airflow_poison.delivery.stage import Tally


def endpoint(opened_with: dict[str, int], counters: dict[str, int]) -> Tally:
    tally = Tally()
    tally.close(opened_with, counters)
    return tally


def test_each_endpoint_has_its_say_about_the_groups_that_it_received() -> None:
    found = {"rollbacks:a": 2, "rollbacks:b": 3, "rollbacks:c": 1}
    total = Tally()

    total.add(endpoint(found, {"rollbacks:a": 4, "rollbacks:b": 3, "rollbacks:c": 1}))
    total.add(endpoint(found, {"rollbacks:a": 2, "rollbacks:c": 1, "rollbacks:d": 1}))

    assert total.counters == {"rollbacks:a": 4, "rollbacks:c": 1, "rollbacks:d": 1}


def test_tallies_travel_as_json_values() -> None:
    total = Tally()
    total.add(endpoint({"c": 1}, {"c": 2}))

    again = Tally.from_record(dict(total.to_record()))

    assert (again.opened_with, again.counters) == ({"c": 1}, {"c": 2})


def test_tasks_without_an_endpoint_say_nothing_about_counters() -> None:
    total = Tally()
    total.add(Tally())

    assert total.opened_with is None


def test_what_people_have_changed_meanwhile_stays() -> None:
    ended = endpoint({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 4})

    assert ended.counters_over({"b": 2, "d": 5}) == {"b": 4, "d": 5}
    assert ended.counters_over({"a": 1, "b": 2, "c": 3}) == {"a": 1, "b": 4}
