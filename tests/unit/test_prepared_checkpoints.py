"""Prepared checkpoints over the life of a shard consumer: DESIGN.md 4.4, PROTOCOL.md section 12."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from kcl_host.config.settings import Settings
from kcl_host.decisions.checkpoint import HANDOVER_STATE
from kcl_host.decisions.consumer_state import ShutdownReason
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TRIM_HORIZON, ExtendedSequenceNumber
from tests.fakes.child import ModelChild, never_checkpoints, well_behaved
from tests.unit.consumer_rig import ME, SETTINGS, SHARD, Rig, with_child

OTHER = "other"
EXTENDED = with_child(protocol_extensions=("prepareCheckpoint",))
NOTING = msgspec.structs.replace(
    SETTINGS, lease=msgspec.structs.replace(SETTINGS.lease, handover_pending_checkpoint=True)
)


def lease(**changes: Any) -> Lease:
    return Lease(
        **{"lease_key": SHARD, "checkpoint": AT_TRIM_HORIZON, "lease_owner": ME, "lease_counter": 1, **changes}
    )


def prepares(child: ModelChild, message: dict[str, Any]) -> None:
    if message["action"] == "processRecords":
        child.say(action="prepareCheckpoint", applicationState="dA==")
    child.answer()


def prepares_and_dies_in_the_next_batch(child: ModelChild, message: dict[str, Any]) -> None:
    if child.names.count("processRecords") == 2:
        child.exit()
    prepares(child, message)


def pending_keys(child: ModelChild) -> list[Any]:
    return [value for key, value in child.actions[0].items() if key.startswith("pending")]


def handed_over(settings: Settings, script: Any) -> tuple[Rig, list[str]]:
    """A consumer whose records a and b were delivered, and whose lease then went to another worker."""
    rig = Rig(settings=settings, script=script)
    rig.alive(OTHER)
    numbers = rig.deliver("a", "b")
    assert rig.table.initiate_handoff(rig.row, OTHER).applied
    rig.renew()
    rig.consumer.stop(ShutdownReason.REQUESTED)
    rig.finish()
    assert rig.row.actual_owner == OTHER
    return rig, numbers


def test_the_next_child_learns_what_was_prepared_and_starts_at_the_checkpoint() -> None:
    rig = Rig(settings=EXTENDED, script=prepares_and_dies_in_the_next_batch)
    numbers = rig.deliver("a")
    assert rig.child.answers == [None]
    assert pending_keys(rig.child) == [None, None, None]
    rig.script = well_behaved
    numbers += rig.put("b")
    rig.turn_until(lambda: len(rig.children) == 2 and len(rig.delivered) >= 4)
    assert pending_keys(rig.child) == [numbers[0], 0, "dA=="]
    assert rig.child.actions[0]["sequenceNumber"] == "TRIM_HORIZON"
    assert rig.delivered == ["a", "b", "a", "b"]
    assert rig.row.checkpoint == ExtendedSequenceNumber(numbers[1])
    assert rig.row.pending_checkpoint is None


def test_without_the_extension_no_child_hears_of_what_a_row_has_pending() -> None:
    rig = Rig(lease(pending_checkpoint=ExtendedSequenceNumber("9"), pending_checkpoint_state=b"x"))
    rig.deliver("a")
    assert list(rig.child.actions[0]) == ["action", "shardId", "sequenceNumber", "subSequenceNumber"]


def test_what_a_child_prepared_goes_with_the_lease() -> None:
    rig, numbers = handed_over(EXTENDED, prepares)
    assert rig.row.pending_checkpoint == ExtendedSequenceNumber(numbers[1])
    assert rig.row.pending_checkpoint_state == b"t"


def test_a_handover_notes_what_was_delivered() -> None:
    rig, numbers = handed_over(NOTING, never_checkpoints)
    assert rig.row.checkpoint == AT_TRIM_HORIZON
    assert rig.row.pending_checkpoint == ExtendedSequenceNumber(numbers[1])
    assert rig.row.pending_checkpoint_state == HANDOVER_STATE


@pytest.mark.parametrize(("settings", "script"), [(SETTINGS, never_checkpoints), (NOTING, well_behaved)])
def test_a_handover_notes_nothing_by_default_or_when_all_is_checkpointed(settings: Settings, script: Any) -> None:
    rig, _ = handed_over(settings, script)
    assert rig.row.pending_checkpoint is None
    assert rig.table.requests["prepare_checkpoint"] == 0


def test_the_note_is_the_last_write_before_the_transfer() -> None:
    rig = Rig(settings=NOTING, script=never_checkpoints)
    rig.alive(OTHER)
    writes: list[str] = []
    rig.table.watch = lambda operation, before, after: writes.append(operation)
    rig.deliver("a")
    assert rig.table.initiate_handoff(rig.row, OTHER).applied
    rig.consumer.stop(ShutdownReason.REQUESTED)
    rig.finish()
    assert writes[-2:] == ["prepare_checkpoint", "assign"]


def test_the_next_owner_says_what_comes_again_and_starts_at_the_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    before, numbers = handed_over(NOTING, never_checkpoints)
    with caplog.at_level(logging.INFO):
        rig = Rig(msgspec.structs.replace(before.row, lease_owner=ME), settings=NOTING)
        rig.deliver("a", "b")
    (line,) = (vars(record) for record in caplog.records if vars(record).get("action") == "replay_window")
    assert (line["after"], line["up_to"]) == ("TRIM_HORIZON", numbers[1])
    assert rig.child.actions[0]["sequenceNumber"] == "TRIM_HORIZON"
    assert rig.delivered == ["a", "b"]
    assert rig.row.pending_checkpoint is None, "the first checkpoint ends the note"


def test_a_child_that_keeps_failing_is_handed_over_with_a_note() -> None:
    def crashes(child: ModelChild, message: dict[str, Any]) -> None:
        if message["action"] == "processRecords":
            child.exit()
        child.answer()

    rig = Rig(settings=NOTING, script=crashes)
    rig.alive(OTHER)
    (number,) = rig.put("a")
    rig.turn_until(lambda: rig.row.lease_owner == OTHER)
    assert rig.row.pending_checkpoint == ExtendedSequenceNumber(number)
    assert rig.row.pending_checkpoint_state == HANDOVER_STATE
