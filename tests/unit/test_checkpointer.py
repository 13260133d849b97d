"""What becomes of a child's checkpoint requests, prepared or not, and what a handover leaves in the row."""

from __future__ import annotations

import logging
from base64 import b64encode

import pytest

from kcl_host.coordination.held_leases import HeldLease
from kcl_host.decisions.checkpoint import HANDOVER_STATE
from kcl_host.log import bind
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_SHARD_END, AT_TRIM_HORIZON, MAX_STATE_BYTES, PreparedCheckpoint
from kcl_host.multilang.dialogue import CheckpointRequested, PrepareCheckpointRequested
from kcl_host.runtime.checkpointer import Checkpointer
from tests.fakes.fault import ANSWER_LOST, THROTTLED, TIMED_OUT
from tests.unit.coordination_rig import FIVE, ME, NINE, OTHER, SEVEN, Worker, befall, lease


class Rig(Worker):
    """A child to which the records up to 9 were delivered; the row says 5."""

    def __init__(self, **fields: object) -> None:
        super().__init__(ME)
        self.held: HeldLease = self.hold(lease(checkpoint=FIVE, **fields))
        self.moved = 0
        log = bind(logging.getLogger("test"))
        self.checkpointer = Checkpointer(self.held, self.held_leases, FIVE, log, self._on_written)
        self.checkpointer.deliver(NINE)

    def _on_written(self) -> None:
        self.moved += 1

    @property
    def row(self) -> Lease:
        return self.table.rows["s1"]

    @property
    def writes(self) -> int:
        return self.table.requests["checkpoint"] + self.table.requests["prepare_checkpoint"]

    def checkpoint(self, number: str | None = None) -> str | None:
        request = CheckpointRequested(sequence_number=number, sub_sequence_number=None, allowed=True)
        return self.checkpointer.answer(request)

    def prepare(self, number: str | None = None, state: str | None = None, *, allowed: bool = True) -> str | None:
        request = PrepareCheckpointRequested(
            sequence_number=number, sub_sequence_number=None, allowed=allowed, application_state=state
        )
        return self.checkpointer.answer(request)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_checkpoint_in_two_phases(rig: Rig) -> None:
    assert rig.prepare("7", b64encode(b"transaction 7").decode()) is None
    assert rig.row == lease(
        counter=4, checkpoint=FIVE, pending_checkpoint=SEVEN, pending_checkpoint_state=b"transaction 7"
    )
    assert (rig.checkpointer.last, rig.moved) == (FIVE, 0), "preparing is no progress"
    assert rig.checkpoint("7") is None
    assert rig.row == lease(counter=5, checkpoint=SEVEN)
    assert (rig.checkpointer.last, rig.moved) == (SEVEN, 1)


def test_without_a_number_everything_delivered_is_prepared(rig: Rig) -> None:
    assert rig.prepare() is None
    assert rig.row.pending_checkpoint == NINE


def test_at_the_end_of_the_shard_its_end_is_prepared_and_not_reached(rig: Rig) -> None:
    rig.checkpointer.enter_shard_end()
    for number in (None, "9", "SHARD_END"):
        assert rig.prepare(number) is None
        assert rig.row.pending_checkpoint == AT_SHARD_END
        assert not rig.checkpointer.last.is_shard_end
    assert rig.checkpoint("9") is None
    assert rig.row.checkpoint == AT_SHARD_END and rig.row.pending_checkpoint is None


def test_preparing_the_last_checkpoint_again_writes_nothing() -> None:
    rig = Rig(pending_checkpoint=SEVEN)
    assert rig.prepare("5") is None
    assert rig.checkpoint("5") is None
    assert (rig.writes, rig.row.pending_checkpoint) == (0, SEVEN)


@pytest.mark.parametrize(
    ("number", "state"),
    [
        ("4", None),
        ("10", None),
        ("SHARD_END", None),
        ("abc", None),
        ("7", "no base64"),
        ("5", "no base64"),
        ("7", b64encode(bytes(MAX_STATE_BYTES + 1)).decode()),
    ],
)
def test_a_refusal_writes_nothing(rig: Rig, number: str, state: str | None) -> None:
    assert rig.prepare(number, state) == "IllegalArgumentException"
    assert rig.writes == 0


def test_nothing_is_prepared_where_no_checkpoint_is_allowed(rig: Rig) -> None:
    assert rig.prepare("7", allowed=False) == "InvalidStateException"
    assert rig.writes == 0


def test_the_largest_state_is_kept(rig: Rig) -> None:
    assert rig.prepare("7", b64encode(bytes(MAX_STATE_BYTES)).decode()) is None
    assert rig.row.pending_checkpoint_state == bytes(MAX_STATE_BYTES)


def test_the_child_learns_why_nothing_was_prepared(rig: Rig) -> None:
    rig.table.faults = befall("prepare_checkpoint", THROTTLED)
    assert rig.prepare("7") == "ThrottlingException"
    rig.table.put(lease(owner=OTHER, counter=4))
    assert rig.prepare("7") == "ShutdownException"
    assert rig.row == lease(owner=OTHER, counter=4)


# The note of a handover (handoverPendingCheckpoint)


def test_a_handover_notes_what_was_delivered_and_the_next_owner_says_so(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.checkpointer.note_delivered()
    assert rig.row == lease(
        counter=4, checkpoint=FIVE, pending_checkpoint=NINE, pending_checkpoint_state=HANDOVER_STATE
    )
    assert rig.checkpointer.last == FIVE
    with caplog.at_level(logging.INFO):
        assert rig.checkpointer.report_pending(rig.row) is None, "no child ever hears of it"
    (line,) = (vars(record) for record in caplog.records if vars(record).get("action") == "replay_window")
    assert (line["after"], line["up_to"]) == ("5", "9")


def test_a_note_is_written_once(rig: Rig) -> None:
    """The transfer may have to be tried again, and then everything before it is."""
    rig.checkpointer.note_delivered()
    rig.checkpointer.note_delivered()
    assert rig.writes == 1


def test_nothing_is_noted_when_all_is_checkpointed(rig: Rig) -> None:
    assert rig.checkpoint() is None
    rig.checkpointer.note_delivered()
    assert rig.table.requests["prepare_checkpoint"] == 0


def test_what_the_child_prepared_is_handed_over_as_it_is(rig: Rig) -> None:
    rig.prepare("7", "dA==")
    rig.checkpointer.note_delivered()
    assert (rig.row.pending_checkpoint, rig.row.pending_checkpoint_state) == (SEVEN, b"t")
    assert rig.checkpointer.report_pending(rig.row) == PreparedCheckpoint(SEVEN, b"t")


def test_a_prepared_checkpoint_whose_answer_was_lost_is_not_replaced_by_a_note(rig: Rig) -> None:
    rig.table.faults = befall("prepare_checkpoint", ANSWER_LOST, TIMED_OUT)
    assert rig.prepare("7", "dA==") == "KinesisClientLibDependencyException"
    rig.checkpointer.note_delivered()
    assert (rig.row.pending_checkpoint, rig.row.pending_checkpoint_state) == (SEVEN, b"t")


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT])
def test_a_note_that_fails_is_only_logged(rig: Rig, caplog: pytest.LogCaptureFixture, fault: object) -> None:
    rig.table.faults = lambda operation, key: fault  # type: ignore[assignment,return-value]
    rig.checkpointer.note_delivered()
    assert [vars(record).get("action") for record in caplog.records] == ["handover_note_failed"]
    assert rig.held_leases.is_held(rig.held)
    assert rig.row.pending_checkpoint is None


def test_a_row_with_nothing_pending_is_nothing_to_talk_about(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert rig.checkpointer.report_pending(lease(checkpoint=AT_TRIM_HORIZON)) is None
    assert caplog.records == []
