"""docs/events.md is what the source says, and explains every event."""

from __future__ import annotations

from tests.event_catalogue import DOCUMENT, document, events, meanings


def test_the_catalogue_is_that_of_the_source() -> None:
    """Otherwise: python -m tests.event_catalogue, and a meaning for what is new."""
    text = DOCUMENT.read_text()
    assert document(text) == text


def test_every_event_has_a_meaning() -> None:
    known = meanings(DOCUMENT.read_text())
    assert [action for action in events() if not known.get(action)] == []


def test_the_source_is_read_whole() -> None:
    found = events()
    assert len(found) > 120
    assert {"lease_lost", "reads_throttled", "subscription_silent", "batch_fetched", "checkpoint_failed"} <= set(found)
    assert {said.module for said in found["handover_failed"]} == {
        "coordination.held_leases",
        "runtime.shard_consumer",
    }
