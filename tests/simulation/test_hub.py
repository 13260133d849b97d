"""The simulated threads behave as real ones do where the workers rely on it."""

from __future__ import annotations

import queue

import pytest

from tests.simulation.hub import Hub, HubClock, Process, ProcessClock, ProcessThreads


class Machine:
    """One process, and what its tasks have said."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.process = Process("p")
        self.threads = ProcessThreads(self.hub, self.process)
        self.said: list[tuple[float, object]] = []

    def say(self, what: object) -> None:
        self.said.append((self.hub.now_s - 1000.0, what))


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_an_event_ends_a_wait_and_time_ends_another(machine: Machine) -> None:
    event = machine.threads.event()

    def waiter() -> None:
        machine.say(event.wait(5.0))
        machine.say(event.wait(5.0))

    def setter() -> None:
        machine.hub.sleep(7.0)
        event.set()

    machine.threads.start("waiter", waiter)
    machine.threads.start("setter", setter)
    machine.hub.run(1100.0)
    assert machine.said == [(5.0, False), (7.0, True)]


def test_a_lock_goes_to_those_who_wait_in_their_order_or_to_nobody_in_time(machine: Machine) -> None:
    lock = machine.threads.lock()

    def holder(name: str, timeout_s: float) -> None:
        if not lock.acquire(timeout=timeout_s):
            machine.say(f"{name} gave up")
            return
        machine.say(name)
        machine.hub.sleep(10.0)
        lock.release()

    for name, timeout_s in (("a", -1.0), ("b", 5.0), ("c", 30.0), ("d", -1.0)):
        machine.threads.start(name, lambda name=name, timeout_s=timeout_s: holder(name, timeout_s))
    machine.hub.run(1100.0)
    assert machine.said == [(0.0, "a"), (5.0, "b gave up"), (10.0, "c"), (20.0, "d")]
    assert lock.acquire(timeout=0)
    assert not lock.acquire(timeout=0)


def test_a_mailbox_keeps_the_order_and_is_empty_after_the_time(machine: Machine) -> None:
    mailbox = machine.threads.mailbox()

    def reader() -> None:
        while True:
            try:
                machine.say(mailbox.get(timeout=3.0))
            except queue.Empty:
                machine.say("empty")
                return

    machine.threads.start("reader", reader)
    machine.hub.at(1001.0, lambda: [mailbox.put(1), mailbox.put(2)])
    machine.hub.run(1100.0)
    assert machine.said == [(1.0, 1), (1.0, 2), (4.0, "empty")]


def test_a_join_ends_with_the_task_or_with_the_time(machine: Machine) -> None:
    def joiner() -> None:
        task = machine.threads.start("sleeper", lambda: machine.hub.sleep(8.0))
        task.join(2.0)
        machine.say(task.is_alive())
        task.join()
        machine.say(task.is_alive())
        event = machine.threads.event()
        machine.say(event.wait(1.0))

    machine.threads.start("joiner", joiner)
    machine.hub.run(1100.0)
    assert machine.said == [(2.0, True), (8.0, False), (9.0, False)]


def test_a_killed_process_never_runs_again(machine: Machine) -> None:
    def body() -> None:
        try:
            machine.hub.sleep(10.0)
        finally:
            machine.say("finally")

    machine.threads.start("body", body)
    machine.hub.at(1005.0, lambda: setattr(machine.process, "alive", False))
    machine.hub.run(1100.0)
    assert machine.said == []


def test_a_stopped_process_goes_on_later_and_its_monotonic_clock_has_not_waited(machine: Machine) -> None:
    clock = ProcessClock(machine.hub, since_s=400.0)

    def body() -> None:
        for _ in range(3):
            machine.hub.sleep(1.0)
            machine.say(clock.monotonic())

    machine.threads.start("body", body)
    machine.hub.at(1001.5, lambda: setattr(machine.process, "paused_until_s", 1030.0))
    machine.hub.run(1100.0)
    assert machine.said == [(1.0, 601.0), (30.0, 630.0), (31.0, 631.0)]


def test_time_inside_a_request_passes_for_its_task_alone(machine: Machine) -> None:
    clock = HubClock(machine.hub)

    def slow() -> None:
        clock.advance(5.0)
        machine.say("slow")

    machine.threads.start("slow", slow)
    machine.threads.start("fast", lambda: machine.say("fast"))
    machine.hub.run(1100.0)
    assert machine.said == [(0.0, "fast"), (5.0, "slow")]


@pytest.mark.parametrize("is_slow, ends_s", [(False, 6.0), (True, 2.0)])
def test_for_each_makes_requests_at_once_while_they_take_time(machine: Machine, is_slow: bool, ends_s: float) -> None:
    machine.process.is_slow = is_slow
    done: list[int] = []

    def body() -> None:
        machine.threads.for_each(lambda n: [machine.hub.sleep(2.0), done.append(n)], range(3))
        machine.say("all")

    machine.threads.start("body", body)
    machine.hub.run(1100.0)
    assert machine.said == [(ends_s, "all")] and done == [0, 1, 2]


def test_what_ends_a_task_ends_the_run(machine: Machine) -> None:
    def body() -> None:
        machine.hub.sleep(3.0)
        raise ZeroDivisionError

    machine.threads.start("body", body)
    machine.hub.run(1100.0)
    assert machine.hub.now_s == 1003.0
    assert isinstance(machine.hub.failures[0][1], ZeroDivisionError)


def test_a_task_that_never_waits_is_found_out(machine: Machine) -> None:
    def body() -> None:
        event = machine.threads.event()
        while True:
            event.wait(0.0)

    machine.threads.start("body", body)
    machine.hub.run(1000.0 + 3600.0)
    assert machine.hub.now_s < 1000.0 + 3600.0 and machine.hub.failures
