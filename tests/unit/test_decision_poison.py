"""The record that makes children fail is found by cutting its batch (DESIGN.md 4.4)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_host.config.settings import PoisonSettings
from kcl_host.decisions import poison
from kcl_host.decisions.poison import PoisonState, Verdict
from kcl_host.model.records import Record
from kcl_host.model.sequence import ExtendedSequenceNumber

SETTINGS = PoisonSettings(after_failures=3, per_hour=10)


def shard(aggregates: list[int]) -> list[Record]:
    """One Kinesis record for each, with so many user records in it."""
    return [
        Record(
            data="",
            partition_key="p",
            sequence_number=str(90 + 7 * i),
            approximate_arrival_timestamp=0,
            sub_sequence_number=sub,
        )
        for i, size in enumerate(aggregates)
        for sub in range(size)
    ]


class World:
    """A shard that is delivered again from the checkpoint whenever the child has failed.

    `fails` says of a piece whether it does, `page` draws the size of the next page, `checkpoints` whether the child
    checkpoints the piece that it has answered for.
    """

    def __init__(
        self,
        records: list[Record],
        fails: Callable[[list[Record]], bool],
        settings: PoisonSettings = SETTINGS,
        page: Callable[[], int] = lambda: 10_000,
        checkpoints: Callable[[], bool] = lambda: False,
    ) -> None:
        self.records, self.fails, self.settings, self.page, self.checkpoints = (
            records, fails, settings, page, checkpoints,
        )  # fmt: skip
        self.state = PoisonState()
        self.checkpoint = 0
        """How many records it covers."""
        self.delivered: list[Record] = []
        self.letters: list[Record] = []
        self.verdicts: list[Verdict] = []
        self.now_s = 0.0

    def child(self) -> bool:
        """The life of one child. True when it has come to the end of the shard."""
        at = self.checkpoint
        while at < len(self.records):
            size = self.page()
            rest, at = self.records[at : at + size], at + size
            while rest:
                piece, rest = poison.next_piece(self.state, rest, self.settings)
                if piece and not self.answers(piece):
                    return False
        return True

    def answers(self, piece: list[Record]) -> bool:
        if self.fails(piece):
            self.state, verdict = poison.failed(self.state, piece, self.settings, self.now_s)
            self.verdicts.append(verdict)
            if verdict in (Verdict.POISON, Verdict.UNPROVEN):
                assert len(piece) == 1
                self.letters.append(piece[0])
                self.state = poison.passed(self.state, piece[0].position, self.now_s)
            return False
        self.state = poison.processed(self.state, piece)
        self.delivered += piece
        if self.checkpoints():
            self.checkpoint = self.records.index(piece[-1]) + 1
            self.state = poison.checkpointed(self.state, piece[-1].position)
        return True

    def run(self, children: int) -> int:
        """How many children it took."""
        for number in range(1, children + 1):
            if self.child():
                return number
        raise AssertionError(f"not after {children} children: {self.state}")


def restarts_of_one(batch: int, settings: PoisonSettings) -> int:
    return settings.after_failures + math.floor(math.log2(batch)) + 1


def in_order_of_first_delivery(records: list[Record]) -> list[ExtendedSequenceNumber]:
    return list(dict.fromkeys(record.position for record in records))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.lists(st.integers(1, 6), min_size=1, max_size=30), st.integers(1, 4))
def test_any_set_of_poison_records(data: st.DataObject, aggregates: list[int], after_failures: int) -> None:
    """Exactly these are dead-lettered, the others delivered in order, and it takes log2 of the batch for each."""
    records = shard(aggregates)
    bad = {r.position for r in data.draw(st.lists(st.sampled_from(records), max_size=5), label="poison")}
    rules = PoisonSettings(after_failures=after_failures, per_hour=10_000)
    world = World(
        records,
        lambda piece: any(record.position in bad for record in piece),
        rules,
        page=lambda: data.draw(st.integers(1, 200), label="page"),
        checkpoints=lambda: data.draw(st.booleans(), label="checkpoint"),
    )
    children = world.run(1000)
    assert [r.position for r in world.letters] == sorted(bad)
    assert in_order_of_first_delivery(world.delivered) == [r.position for r in records if r.position not in bad]
    assert children <= 1 + len(bad) * restarts_of_one(len(records), rules)


@pytest.mark.parametrize("at", [0, 1, 499, 998, 999])
def test_one_in_a_thousand(at: int) -> None:
    records = shard([1] * 1000)
    world = World(records, lambda piece: records[at] in piece)
    assert world.run(100) <= 1 + restarts_of_one(1000, SETTINGS)
    assert world.letters == [records[at]]
    assert world.verdicts[:3] == [Verdict.AGAIN, Verdict.AGAIN, Verdict.NARROWED]


def test_the_batch_is_whole_until_it_has_failed_so_often() -> None:
    records, sizes = shard([1] * 8), []

    def fails(piece: list[Record]) -> bool:
        sizes.append(len(piece))
        return records[7] in piece

    World(records, fails).run(100)
    # Then half of it, and what is left of it is halved without another try of the whole.
    assert sizes == [8, 8, 8, 4, 2, 1, 1, 7]


def test_what_lies_around_the_suspicion_is_delivered_apart_from_it() -> None:
    state, _ = poison.failed(PoisonState(), shard([1] * 6)[2:4], SETTINGS, 0.0)
    piece, rest = poison.next_piece(state, shard([1] * 6), SETTINGS)
    assert (piece, rest) == (shard([1] * 6)[:2], shard([1] * 6)[2:])
    piece, rest = poison.next_piece(state, rest, SETTINGS)
    assert (piece, rest) == (shard([1] * 6)[2:4], shard([1] * 6)[4:])
    assert poison.next_piece(state, rest, SETTINGS) == (rest, [])


def test_without_suspicion_a_batch_is_passed_on_as_it_is() -> None:
    records = shard([1, 3])
    piece, rest = poison.next_piece(PoisonState(), records, SETTINGS)
    assert piece is records and rest == []
    state = poison.processed(PoisonState(), records)
    assert poison.processed(state, records) is state, "nothing is kept of what goes well"


def test_a_child_that_has_done_nothing_yet_proves_nothing() -> None:
    """It may be the child, or what it depends on: the rules of restarts come first."""
    records = shard([1] * 4)
    world = World(records, lambda piece: records[0] in piece)
    world.run(100)
    assert world.verdicts[-1] is Verdict.UNPROVEN
    world = World(records, lambda piece: records[1] in piece)
    world.run(100)
    assert world.verdicts[-1] is Verdict.POISON


def test_what_was_processed_long_ago_proves_nothing() -> None:
    state = poison.processed(PoisonState(), shard([1]))
    for _ in range(3):
        state, verdict = poison.failed(state, shard([1, 1])[1:], SETTINGS, 0.0)
    assert verdict is Verdict.UNPROVEN


def test_a_run_of_poison_records_is_proven_by_what_came_before_it() -> None:
    records = shard([1] * 6)
    world = World(records, lambda piece: any(r in records[2:5] for r in piece), checkpoints=lambda: True)
    world.run(100)
    assert [v for v in world.verdicts if v in (Verdict.POISON, Verdict.UNPROVEN)] == [Verdict.POISON] * 3


def test_a_batch_that_only_fails_as_a_whole_goes_through_in_parts() -> None:
    """A time-out that is too short for it, say."""
    records = shard([1] * 100)
    world = World(records, lambda piece: len(piece) > 40, checkpoints=lambda: True)
    world.run(20)
    assert world.letters == [] and world.delivered == records
    assert world.state.suspicion is None


def test_failures_here_and_there_are_not_of_one_batch() -> None:
    records, state = shard([1] * 4), PoisonState()
    for number in range(12):
        state, verdict = poison.failed(state, [records[number % 4]], SETTINGS, 0.0)
        assert verdict is Verdict.AGAIN


def test_a_child_that_fails_on_everything_dead_letters_no_more_than_the_bound() -> None:
    records = shard([1] * 64)
    world = World(records, lambda piece: True, checkpoints=lambda: True)
    for _ in range(1000):
        world.child()
        world.now_s += 100.0
    assert world.letters == records[: SETTINGS.per_hour], "hours do not help, only a record processed does"
    assert world.verdicts[-1] is Verdict.TOO_MANY


def test_the_bound_of_an_hour() -> None:
    records = shard([1] * 64)
    world = World(records, lambda piece: any(int(r.sequence_number) % 2 for r in piece), checkpoints=lambda: True)
    for _ in range(300):
        world.child()
    assert len(world.letters) == SETTINGS.per_hour and world.verdicts[-1] is Verdict.TOO_MANY
    world.now_s = 3599.0
    world.child()
    assert len(world.letters) == SETTINGS.per_hour
    world.now_s = 3600.0
    for _ in range(300):
        world.child()
    assert len(world.letters) == 2 * SETTINGS.per_hour


def test_what_was_passed_is_forgotten_once_the_checkpoint_is_past_it() -> None:
    first, second = (record.position for record in shard([1, 1]))
    state = poison.passed(poison.passed(PoisonState(), first, 0.0), second, 0.0)
    assert poison.next_piece(state, shard([1, 1, 1]), SETTINGS) == (shard([1, 1, 1])[2:], [])
    assert poison.checkpointed(state, first).passed == {second}
    assert poison.checkpointed(state, ExtendedSequenceNumber("SHARD_END")).passed == frozenset()
