"""`kcl-host doctor` against the embedded engines: the questions are harmless, and every refusal is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from kcl_host.aws.clients import clients_for
from kcl_host.aws.probe import Prober, identities_of
from kcl_host.cli.doctor import ask, reader_of
from kcl_host.cli.main import cli
from kcl_host.cli.run import read_settings
from kcl_host.config.settings import ServiceSettings
from kcl_host.decisions.doctor import examine, exit_code_of
from kcl_host.decisions.doctor_finding import Finding
from kcl_host.decisions.permissions import required_permissions
from kcl_host.local.engines import Engines
from kcl_host.model.access import Outcome
from kcl_host.runtime.services import lease_table_of, metadata_tables_of
from tests.integration.counting import Counting
from tests.unit.coordination_rig import lease

pytestmark = pytest.mark.integration

SIGNED = ServiceSettings(region="us-east-1")

NOT_ASKED = {
    "CreateTable", "UpdateTable", "DeleteTable", "RegisterStreamConsumer", "SubscribeToShard", "PutMetricData",
}  # fmt: skip


class App:
    """An application whose three tables and fan-out consumer exist, with one lease that nobody renews."""

    def __init__(self, engines: Engines, folder: Path) -> None:
        self.engines = engines
        self.counting = Counting(
            engines, folder, applicationName="old", retrievalMode="FANOUT", idleTimeBetweenReadsInMillis=None
        )
        self.settings = read_settings(self.counting.properties).settings
        self.clients = clients_for(self.settings)
        tables = metadata_tables_of(self.clients.dynamodb, self.settings)
        leases = lease_table_of(self.clients.dynamodb, self.settings)
        tables.coordinator.create_table()
        tables.worker_metrics.create_table()
        leases.create_table()
        leases.create(lease("shardId-000000000000"))
        arn = self.clients.kinesis.describe_stream_summary(StreamName="numbers")["StreamDescriptionSummary"][
            "StreamARN"
        ]
        self.clients.kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="old")

    def findings(self) -> tuple[Finding, ...]:
        """What doctor says of AWS, by the clients that are there already."""
        prober = Prober(self.settings, self.clients.dynamodb, self.clients.kinesis)
        return examine(ask(self.settings, prober, reader_of(self.settings, self.clients).take), self.settings)

    def outcomes(self) -> dict[Outcome, set[str]]:
        """Actions by what became of the question."""
        prober = Prober(self.settings, self.clients.dynamodb, self.clients.kinesis)
        found: dict[Outcome, set[str]] = {}
        for permission in required_permissions(self.settings):
            found.setdefault(prober.probe(permission).outcome, set()).add(permission.action)
        return found


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with Engines() as running:
        running.create_stream("numbers", 2)
        yield running


@pytest.fixture(scope="module")
def _app(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> App:
    return App(engines, tmp_path_factory.mktemp("old"))


@pytest.fixture
def app(_app: App) -> Iterator[App]:
    yield _app
    _app.engines.dynamodb.faults.clear()
    _app.engines.kinesis.faults.clear()


def everything(engines: Engines) -> dict[str, Any]:
    """All tables with their rows."""
    names = engines.dynamodb.call("ListTables")["TableNames"]
    return {name: engines.dynamodb.call("Scan", TableName=name)["Items"] for name in names}


@pytest.mark.interop  # Long: .ci/run has it.
def test_the_command_lets_a_new_application_through_and_leaves_it_new(engines: Engines, tmp_path: Path) -> None:
    before = everything(engines)
    counting = Counting(engines, tmp_path, applicationName="new")
    arguments = ["doctor", "-p", str(counting.properties), "--json", "--no-child"]
    result = CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)
    document = json.loads(result.stdout)
    assert (result.return_value, document["exit_code"], document["ok"], document["schema"]) == (0, 0, True, 1)
    assert not [f for f in document["findings"] if f["level"] in ("error", "warn")]
    (metadata,) = [f for f in document["findings"] if f["kind"] == "metadata"]
    assert "a new application" in metadata["message"]
    assert everything(engines) == before


def test_asking_for_every_permission_changes_nothing(app: App, engines: Engines) -> None:
    before = everything(engines)
    found = app.outcomes()
    assert everything(engines) == before
    assert found.keys() == {"allowed", "not_probed"} and found["not_probed"] <= NOT_ASKED
    assert not found["allowed"] & NOT_ASKED
    assert {finding.level for finding in app.findings()} >= {"ok"}


def test_each_refusal_is_found_under_its_own_name(app: App, engines: Engines) -> None:
    for actions in ({"Query", "PutItem", "Scan"}, {"BatchGetItem", "UpdateItem", "DeleteItem", "DescribeTable"}):
        faults = [engines.dynamodb.faults.add(action, "deny") for action in actions]
        assert app.outcomes()["denied"] == actions
        for fault in faults:
            engines.dynamodb.faults.remove(fault)
    for action in ("ListShards", "GetRecords", "DescribeStreamConsumer"):
        fault = engines.kinesis.faults.add(action, "deny")
        assert app.outcomes()["denied"] == {action}
        engines.kinesis.faults.remove(fault)


def test_no_permission_at_all(app: App, engines: Engines) -> None:
    engines.dynamodb.faults.add("*", "deny")
    engines.kinesis.faults.add("*", "deny")
    findings = app.findings()
    said = " ".join(finding.message for finding in findings if finding.kind == "permissions")
    assert exit_code_of(findings) == 3
    for permission in required_permissions(app.settings):
        assert permission.action in said, permission


def test_a_service_that_does_not_answer_is_asked_once(app: App, engines: Engines) -> None:
    fault = engines.dynamodb.faults.add("*", "drop")
    findings = app.findings()
    assert [finding.where for finding in findings if finding.kind == "network"] == ["dynamodb"]
    assert (exit_code_of(findings), fault.hits) == (1, 1)


def test_a_stream_and_a_consumer_that_do_not_exist(app: App, engines: Engines) -> None:
    missing = engines.kinesis.faults.add("*", "not_found")
    assert exit_code_of(app.findings()) == 4
    engines.kinesis.faults.remove(missing)
    engines.kinesis.faults.add("DescribeStreamConsumer", "not_found")
    (fanout,) = [finding for finding in app.findings() if finding.kind == "fanout"]
    assert fanout.level == "warn" and "not registered" in fanout.message


def test_nobody_but_aws_is_asked_who_we_are(app: App) -> None:
    (identity,) = identities_of(replace(app.settings, kinesis=SIGNED, dynamodb=SIGNED), app.engines.dynamodb_endpoint)
    assert (identity.outcome, identity.arn) == ("not_probed", None) and "is not AWS" in identity.said
