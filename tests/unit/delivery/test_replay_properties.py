"""What holds for any script."""

from __future__ import annotations

import warnings
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_poison.core.delivery.replay import replay
from airflow_poison.core.delivery.script import Action, Script, Scripted
from airflow_poison.core.events import EventType
from airflow_poison.core.policies.msmq4 import Msmq4

ENDINGS = {EventType.COMMITTED, EventType.DROPPED, EventType.REJECTED}
KEPT = {"main", "retry", "retry1", "retry2", "retry3", "poison", "postponed"}

outcomes = st.lists(
    st.sampled_from(["ok", "rb", "rb(3)", "timeout", "crash", "unprocessable", "before_operation", "postpone(5)", "ok(50)"]), max_size=6
).map(" ".join)


@st.composite
def policies(draw: st.DrawFn) -> Msmq4:
    with warnings.catch_warnings(action="ignore"):
        return Msmq4(
            receive_retry_count=draw(st.integers(0, 3)),
            max_retry_cycles=draw(st.integers(0, 3)),
            receive_error_handling=draw(st.sampled_from(["Fault", "Drop", "Reject", "Move"])),
            max_batch_size=draw(st.integers(0, 3)),
            batch_fallback=draw(st.sampled_from(["first_abort", "when_poison"])),
            receive_context=draw(st.booleans()),
            retry_subqueues=draw(st.sampled_from(["one", "per_cycle"])),
            return_order=draw(st.sampled_from(["due_time", "head_timer"])),
        )


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    made = st.builds(
        Scripted,
        name=st.just(""),
        outcomes=outcomes | st.just("rb*"),
        at=st.integers(0, 3600),
        priority=st.integers(0, 10),
        ttl=st.none() | st.integers(0, 3600),
        unreadable=st.sampled_from(["", "", "", "bad framing"]),
        locked=st.sampled_from([0, 0, 1, 51]),
    )
    messages = draw(st.lists(made, min_size=1, max_size=5))
    named = [Scripted(f"m{n}", m.outcomes, m.at, m.priority, m.ttl, m.size, m.unreadable, {}, m.locked) for n, m in enumerate(messages)]
    verbs = st.sampled_from(["close", "open", "restart"])
    return Script(*named, actions=draw(st.lists(st.builds(Action, st.integers(0, 7200), verbs), max_size=4)))


@given(st.integers(0, 6), st.integers(0, 3), st.booleans())
def test_wcf_7_a_hopeless_message_is_delivered_exactly_as_often_as_the_formula_says(retries: int, cycles: int, context: bool) -> None:  # noqa: FBT001
    policy = Msmq4(receive_retry_count=retries, max_retry_cycles=cycles, receive_error_handling="Move", receive_context=context)

    assert len(replay(policy, "rb*").deliveries) == (retries + 1) * (cycles + 1)


@settings(max_examples=60, deadline=None)
@given(policies(), scripts())
def test_wcf_7_8_17_no_message_is_delivered_more_often_lost_or_settled_twice(policy: Msmq4, script: Script) -> None:
    result = replay(policy, script)

    most = (policy.receive_retry_count + 1) * (policy.max_retry_cycles + 1)
    postponed = Counter(call.message for call in result.deliveries if call.outcome == "postpone")
    settled = Counter(event.details["message"] for event in result.events if event.type in ENDINGS)
    assert not result.endless
    for message in result.messages:
        assert message.deliveries - postponed[message.name] <= most
        assert settled[message.name] == (message.place not in KEPT | {"not_arrived"})
        calls = [call.outcome for call in result.deliveries if call.message == message.name]
        assert message.place != "processed" or calls[-1].startswith("ok")


@settings(max_examples=60, deadline=None)
@given(policies(), scripts())
def test_wcf_14_counts_never_fall_but_the_abort_count_at_moves(policy: Msmq4, script: Script) -> None:
    seen: dict[int, tuple[int, int]] = {}
    for event in replay(policy, script).events:
        if event.lookup_id is None:
            continue
        abort_count, move_count = seen.get(event.lookup_id, (0, 0))
        if event.type is not EventType.DELIVERED:
            assert event.move_count >= move_count
            assert event.abort_count >= abort_count or event.move_count > move_count
        seen[event.lookup_id] = (event.abort_count, event.move_count)


@settings(max_examples=20, deadline=None)
@given(policies(), scripts())
def test_a_replay_is_deterministic(policy: Msmq4, script: Script) -> None:
    assert replay(policy, script) == replay(policy, script)
