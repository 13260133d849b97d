"""Unmodified clients of Amazon's MultiLangDaemon as children of ours: amazon_kclpy from PyPI, aws-kcl from npm."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable

import pytest
from hosted_child import SHARD_ID, HostedChild

from kcl_host.model.records import Record
from tests.interop.clients import kclpy_command, node_command

pytestmark = pytest.mark.interop

Command = tuple[list[str], dict[str, str]]


def records(count: int, payload: bytes = b"payload", key: str = "ключ 🔑") -> list[Record]:
    return [
        Record(
            data=base64.b64encode(payload).decode(),
            partition_key=key,
            sequence_number=str(10**55 + i),
            approximate_arrival_timestamp=1735689600123,
        )
        for i in range(count)
    ]


@pytest.fixture(params=[kclpy_command, node_command], ids=["amazon_kclpy", "aws-kcl"])
def hosted(request: pytest.FixtureRequest) -> HostedChild:
    make: Callable[[], Command] = request.param
    command, variables = make()
    return HostedChild(command, **variables)


LAST_OF_THREE = str(10**55 + 2)


def test_records_are_processed_and_checkpointed_until_the_lease_is_lost(hosted: HostedChild) -> None:
    with hosted:
        hosted.initialize()
        hosted.actions.process_records(records(3), 1250)
        assert [c[0] for c in hosted.checkpoints] == [LAST_OF_THREE]
        hosted.actions.process_records([], None)
        hosted.actions.shutdown_requested()
        assert [c[0] for c in hosted.checkpoints] == [LAST_OF_THREE, None]
        hosted.actions.lease_lost()
        assert hosted.actions.end() == 0
        assert all(allowed for _, _, allowed in hosted.checkpoints)


def test_the_end_of_a_shard_is_checkpointed(hosted: HostedChild) -> None:
    with hosted:
        hosted.initialize()
        hosted.actions.shard_ended()
        assert hosted.checkpoints == [(None, None, True)]
        assert hosted.actions.end() == 0


def test_a_refused_checkpoint_is_understood(hosted: HostedChild) -> None:
    with hosted:
        hosted.errors.append("ShutdownException")
        hosted.initialize()
        hosted.actions.process_records(records(1), None)
        hosted.actions.lease_lost()
        assert hosted.actions.end() == 0


def test_10_mb_on_one_line(hosted: HostedChild) -> None:
    with hosted:
        hosted.initialize()
        hosted.actions.process_records(records(3, os.urandom(3_300_000)), 0)
        assert [c[0] for c in hosted.checkpoints] == [LAST_OF_THREE]
        hosted.actions.lease_lost()
        assert hosted.actions.end() == 0


def test_what_the_node_client_says() -> None:
    command, variables = node_command()
    with HostedChild(command, "ThrottlingException", **variables) as hosted:
        hosted.initialize()
        hosted.actions.process_records(records(1, "grüße".encode()), 0)
        hosted.actions.lease_lost()
        assert hosted.actions.end() == 0
        assert hosted.stderr == [
            f"initialize {SHARD_ID}",
            "record grüße",
            f"checkpoint {10**55} ThrottlingException",
            "lease lost",
        ]
