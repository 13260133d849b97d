"""A record that makes every child fail is found, dead-lettered and passed: docs/poison-records.md, consumer_rig."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kcl_host.config.settings import DeadLetterTarget, PoisonSettings, Settings
from kcl_host.decisions.consumer_state import ShutdownReason
from kcl_host.errors import Unavailable
from kcl_host.model.dead_letter import DeadLetter
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_SHARD_END, AT_TRIM_HORIZON, ExtendedSequenceNumber
from tests.fakes.child import ModelChild, Script, never_checkpoints, well_behaved
from tests.kpl import User, aggregate
from tests.unit.consumer_rig import ME, SETTINGS, SHARD, Rig, delivered_to, failing

AFTER = 2


def settings_with(**changes: Any) -> Settings:
    poison = PoisonSettings(after_failures=AFTER, target=DeadLetterTarget("file", "/unused"))
    return msgspec.structs.replace(SETTINGS, poison=msgspec.structs.replace(poison, **changes))


class Letters:
    """Satisfies ports.DeadLetters. While `down` is true every put fails."""

    def __init__(self) -> None:
        self.written: list[DeadLetter] = []
        self.down = False
        self.refused = 0
        self.on_put: Callable[[], None] = lambda: None

    def put(self, letter: DeadLetter) -> None:
        self.on_put()
        if self.down:
            self.refused += 1
            raise Unavailable("the queue does not answer")
        self.written.append(letter)

    @property
    def texts(self) -> list[str]:
        return [base64.b64decode(letter.data).decode() for letter in self.written]


def texts_of(message: dict[str, Any]) -> list[str]:
    return [base64.b64decode(record["data"]).decode() for record in message.get("records", [])]


class FailsOn:
    """The script of a child that fails whenever one of these is among its records; none given: on all.

    `answered` is what children have answered for, first deliveries only.
    """

    def __init__(self, *poison: str, how: str = "exits", otherwise: Script = well_behaved) -> None:
        self._poison, self._fail, self._otherwise = set(poison), failing("processRecords", how), otherwise
        self.answered: dict[str, None] = {}

    def __call__(self, child: ModelChild, message: dict[str, Any]) -> None:
        texts = texts_of(message)
        if texts and (not self._poison or self._poison & set(texts)):
            self._fail(child, message)
            return
        self._otherwise(child, message)
        self.answered |= dict.fromkeys(texts)


def rig_with(letters: Letters, script: Script, **kwargs: Any) -> Rig:
    return Rig(script=script, dead_letters=letters, **{"settings": settings_with(), **kwargs})


def answered(rig: Rig) -> list[str]:
    assert isinstance(rig.script, FailsOn)
    return list(rig.script.answered)


@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("how", ["exits", "hangs", "misbehaves"])
def test_the_others_are_delivered_in_order(at: int, how: str) -> None:
    texts = list("abcde")
    poison = texts[at] = "P"
    letters = Letters()
    rig = rig_with(letters, FailsOn(poison, how=how))
    numbers = rig.put(*texts)
    rig.turn_until(lambda: letters.written)
    rig.deliver("z")
    assert letters.texts == ["P"] and letters.written[0].sequence_number == numbers[at]
    assert answered(rig) == [text for text in texts if text != "P"] + ["z"]
    assert len(rig.children) <= AFTER + 3 + SETTINGS.child.failures_before_handover
    assert rig.consumer.status().child_failures == 0, "the child is not to blame any more"
    assert not rig.fatal


def test_what_a_letter_says() -> None:
    letters = Letters()
    rig = rig_with(letters, FailsOn("P"))
    numbers = rig.put("a", "P")
    rig.turn_until(lambda: letters.written)
    letter = letters.written[0]
    assert letter == DeadLetter(
        application="app",
        stream="orders",
        shard=SHARD,
        sequence_number=numbers[1],
        sub_sequence_number=0,
        partition_key="key",
        approximate_arrival_timestamp=letter.approximate_arrival_timestamp,
        data=base64.b64encode(b"P").decode(),
        error=f"child process {99 + AFTER + 1} ended with status 1",
        failures=AFTER + 1,
        stderr=(f"last words of {99 + AFTER + 1}", "password=***"),
        worker=ME,
        time="2027-01-15T08:00:" + letter.time[-7:],
    )


def test_inside_an_aggregate() -> None:
    """And the checkpoints around it are inside the aggregate too."""
    letters, checkpoints = Letters(), []
    rig = rig_with(letters, FailsOn("P"))
    letters.on_put = lambda: checkpoints.append(rig.row.checkpoint)
    number = rig.stream.put(aggregate([User(b"a"), User(b"P"), User(b"c"), User(b"P"), User(b"e")]), shard_id=SHARD)[1]
    rig.turn_until(lambda: "e" in answered(rig))
    assert [(letter.sequence_number, letter.sub_sequence_number) for letter in letters.written] == [
        (number, 1), (number, 3),
    ]  # fmt: skip
    assert answered(rig) == ["a", "c", "e"]
    assert checkpoints == [ExtendedSequenceNumber(number, 0), ExtendedSequenceNumber(number, 2)]
    assert rig.row.checkpoint == ExtendedSequenceNumber(number, 4)


def test_two_in_one_batch_that_is_never_checkpointed() -> None:
    letters = Letters()
    rig = rig_with(letters, FailsOn("P", "Q", otherwise=never_checkpoints))
    rig.put("a", "P", "c", "Q", "e")
    rig.turn_until(lambda: "e" in answered(rig))
    assert letters.texts == ["P", "Q"] and delivered_to(rig.child) == ["a", "c", "e"]
    assert rig.row.checkpoint == AT_TRIM_HORIZON, "nothing is checkpointed that the child did not ask for"


def test_the_letter_is_durable_before_any_checkpoint_passes_it() -> None:
    letters = Letters()
    rig = rig_with(letters, FailsOn("P"))
    before = rig.put("a", "P", "c", "d")[0]

    def check() -> None:
        assert rig.row.checkpoint == ExtendedSequenceNumber(before)
        assert "c" not in answered(rig) and rig.consumer.status().child_pid is None

    letters.on_put = check
    rig.turn_until(lambda: "d" in answered(rig))
    assert letters.texts == ["P"]


def test_at_the_end_it_is_found_again_after_a_restart_until_a_checkpoint_is_past_it() -> None:
    letters = Letters()
    rig = rig_with(letters, FailsOn("P"))
    numbers = rig.put("a", "P")
    rig.turn_until(lambda: letters.written)
    for _ in range(5):
        rig.turn()
    assert rig.row.checkpoint == ExtendedSequenceNumber(numbers[0]), "the child has not asked for more"
    lease = Lease(lease_key=SHARD, checkpoint=rig.row.checkpoint, lease_owner=ME, lease_counter=1)
    rig = rig_with(letters, FailsOn("P"), lease=lease)
    assert rig.put("a", "P", "c")[:2] == numbers
    rig.turn_until(lambda: "c" in answered(rig))
    assert letters.texts == ["P", "P"] and letters.written[0].name == letters.written[1].name
    assert rig.row.checkpoint > ExtendedSequenceNumber(numbers[1])


def test_the_last_record_of_a_shard() -> None:
    letters = Letters()
    rig = rig_with(letters, FailsOn("P"))
    rig.put("a", "P")
    rig.end_shard()
    rig.finish()
    assert letters.texts == ["P"]
    assert rig.row.checkpoint == AT_SHARD_END and rig.shard_ends == 1
    assert sum(names.count("shardEnded") for names in rig.calls) == 1


def test_a_child_that_fails_on_everything() -> None:
    """No more than the bound, then the shard stands as without dead letters."""
    letters = Letters()
    rig = rig_with(letters, FailsOn(), settings=settings_with(per_hour=2))
    rig.put("a", "b", "c", "d")
    for _ in range(3000):
        rig.turn()
    assert letters.texts == ["a", "b"]
    assert rig.consumer.status().child == "FATAL"
    assert rig.row.checkpoint == AT_TRIM_HORIZON and rig.held_leases.is_held(rig.held)


def test_a_child_that_fails_on_everything_here_is_tried_elsewhere_first() -> None:
    letters = Letters()
    rig = rig_with(letters, FailsOn())
    rig.alive("other")
    rig.put("a", "b", "c", "d")
    rig.finish()
    assert letters.written == []
    assert rig.row.lease_owner == "other" and rig.row.owner_switches_since_checkpoint == 1


def test_many_poison_records_do_not_send_the_lease_round() -> None:
    letters = Letters()
    rig = rig_with(letters, FailsOn("P", "Q"), settings=settings_with(per_hour=1))
    rig.alive("other")
    rig.put("a", "P", "c", "Q", "e")
    rig.turn_until(lambda: rig.consumer.status().child == "FATAL")
    assert letters.texts == ["P"] and rig.row.lease_owner == ME
    assert answered(rig) == ["a", "c"]


def test_a_target_that_is_down_blocks_the_shard_and_loses_nothing() -> None:
    letters = Letters()
    letters.down = True
    rig = rig_with(letters, FailsOn("P"))
    number = rig.put("a", "P", "c")[0]
    rig.turn_until(lambda: letters.refused)
    children, waits = len(rig.children), []
    while letters.refused < 5:
        refused, since_s = letters.refused, rig.clock.monotonic()
        rig.turn_until(lambda refused=refused: letters.refused > refused)
        waits.append(rig.clock.monotonic() - since_s)
    assert waits[0] < waits[1] < waits[2]
    assert len(rig.children) == children, "no child is started before the letter is written"
    assert rig.row.checkpoint == ExtendedSequenceNumber(number) and rig.held_leases.is_held(rig.held)
    assert "does not answer" in rig.consumer.status().last_error
    letters.down = False
    rig.turn_until(lambda: "c" in answered(rig))
    assert letters.texts == ["P"] and answered(rig) == ["a", "c"]


def test_a_target_that_is_down_here_is_tried_from_another_worker() -> None:
    letters = Letters()
    letters.down = True
    rig = rig_with(letters, FailsOn("P"))
    rig.alive("other")
    number = rig.put("a", "P", "c")[0]
    rig.finish()
    assert rig.row.lease_owner == "other" and rig.row.checkpoint == ExtendedSequenceNumber(number)
    assert letters.refused >= 1


def test_a_stop_is_not_held_up_by_a_target_that_is_down() -> None:
    letters = Letters()
    letters.down = True
    rig = rig_with(letters, FailsOn("P"))
    rig.put("a", "P", "c")
    rig.turn_until(lambda: letters.refused)
    rig.consumer.stop(ShutdownReason.REQUESTED)
    rig.finish()
    assert rig.row.lease_owner is None and not rig.fatal


@pytest.mark.parametrize("reason", [ShutdownReason.REQUESTED, ShutdownReason.LEASE_LOST])
def test_a_handover_between_the_parts_of_a_batch(reason: ShutdownReason) -> None:
    letters = Letters()

    def script(child: ModelChild, message: dict[str, Any]) -> None:
        well_behaved(child, message)
        if texts_of(message) == ["a"]:
            rig.consumer.stop(reason)

    rig = rig_with(letters, FailsOn("P", otherwise=script))
    number = rig.put("a", "P", "c", "d")[0]
    rig.finish()
    assert letters.written == [] and answered(rig) == ["a"]
    end = ["leaseLost"] if reason is ShutdownReason.LEASE_LOST else ["shutdownRequested", "leaseLost"]
    assert rig.child.names == ["initialize", "processRecords", *end]
    assert rig.row.checkpoint == ExtendedSequenceNumber(number)


def test_a_stop_of_the_host_puts_no_blame_on_a_record() -> None:
    letters = Letters()

    def script(child: ModelChild, message: dict[str, Any]) -> None:
        if message["action"] == "processRecords":
            rig.consumer.stop(ShutdownReason.REQUESTED)
            rig.consumer.kill_child()
        child.answer()

    rig = rig_with(letters, script, settings=settings_with(after_failures=1))
    rig.put("a")
    rig.finish()
    assert letters.written == []


@pytest.mark.parametrize("action", ["initialize", "shardEnded"])
def test_a_child_that_fails_elsewhere_has_no_poison_record(action: str) -> None:
    letters = Letters()
    rig = rig_with(letters, failing(action, "exits"))
    rig.put("a")
    rig.end_shard()
    rig.turn_until(lambda: rig.consumer.status().child == "FATAL")
    assert letters.written == []


def test_it_is_off_by_default() -> None:
    letters = Letters()
    rig = rig_with(letters, FailsOn("P"), settings=SETTINGS)
    rig.put("a", "P", "c")
    rig.turn_until(lambda: rig.consumer.status().child == "FATAL")
    assert letters.written == [] and all(delivered_to(child) == ["a", "P", "c"] for child in rig.children)


def test_what_was_passed_is_not_counted() -> None:
    letters = Letters()
    rig = rig_with(letters, FailsOn("P"))
    rig.put("P", "bb", "dddd")
    rig.turn_until(lambda: answered(rig) == ["bb", "dddd"])
    assert (rig.consumer.status().records, rig.consumer.status().payload_bytes) == (2, 6)
