"""What `kcl-host doctor` makes of what it found out, and which permissions it asks for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from kcl_host.cli.doctor import ask, check_children, platform_of, try_child
from kcl_host.cli.main import cli
from kcl_host.config.settings import (
    DeadLetterTarget,
    PoisonSettings,
    RetrievalSettings,
    Settings,
    StreamSettings,
    TableSettings,
)
from kcl_host.decisions.doctor import examine, exit_code_of
from kcl_host.decisions.doctor_finding import Checked, ChildCheck, Finding
from kcl_host.decisions.fleet_looks import FleetSnapshot, PartFailure
from kcl_host.decisions.permissions import policy_document, required_permissions
from kcl_host.errors import AccessError
from kcl_host.model.access import Identity, Outcome, Permission, Probed, StreamFacts
from kcl_host.model.lease import LeaseListing, TableState
from kcl_host.model.state import ClientVersionState, LeaderLock, TableMigrationState
from kcl_host.model.worker import WorkerListing, WorkerMetricStats
from tests.unit.coordination_rig import lease, settings_of

WALL_S = 1_800_000_000.0
SETTINGS = settings_of("me")
STREAM = SETTINGS.streams[0].name
FACTS = StreamFacts(
    arn=f"arn:aws:kinesis:eu-west-1:1:stream/{STREAM}", status="ACTIVE", mode="PROVISIONED",
    open_shards=4, retention_hours=24, consumers=0,
)  # fmt: skip
WELL = FleetSnapshot(
    taken_s=WALL_S,
    at_s=1.0,
    table=TableState(status="ACTIVE", index_status="ACTIVE"),
    listing=LeaseListing(leases=(lease("s1"),)),
    has_coordinator_table=True,
    lock=LeaderLock(owner_name="me", lease_duration_ms=10_000, record_version_number="v"),
    workers=WorkerListing(workers=(WorkerMetricStats(worker_id="me", last_update_s=int(WALL_S)),)),
)
NEW = FleetSnapshot(taken_s=WALL_S, at_s=1.0, has_coordinator_table=False)


def fanout(**fields: Any) -> Settings:
    fields = {"consumer_name": "app", **fields}
    return replace(SETTINGS, retrieval=RetrievalSettings(mode="FANOUT", mode_reason="test", **fields))


class FakeProber:
    """Answers the same to everything but what `answers` names by action."""

    def __init__(self, outcome: Outcome = "allowed", answers: dict[str, Outcome] | None = None) -> None:
        self.outcome = outcome
        self.answers = answers or {}
        self.asked: list[Permission] = []
        self.skew_s: dict[str, float] = {}
        self.streams: dict[str, StreamFacts] = {STREAM: FACTS} if outcome == "allowed" else {}

    def probe(self, permission: Permission) -> Probed:
        self.asked.append(permission)
        outcome = self.answers.get(permission.action, self.outcome)
        return Probed(permission=permission, outcome=outcome, said="because")


def checked(
    prober: FakeProber | None = None, snapshot: FleetSnapshot = WELL, settings: Settings = SETTINGS, **fields: Any
) -> Checked:
    return replace(ask(settings, prober or FakeProber(), lambda: snapshot), **fields)


def found(checked: Checked, kind: str, settings: Settings = SETTINGS) -> list[Finding]:
    return [finding for finding in examine(checked, settings) if finding.kind == kind]


def only(checked: Checked, kind: str, settings: Settings = SETTINGS) -> Finding:
    (finding,) = found(checked, kind, settings)
    return finding


def levels(findings: list[Finding]) -> set[str]:
    return {finding.level for finding in findings}


# All of it


def test_a_fleet_that_is_well_has_neither_error_nor_warning() -> None:
    findings = examine(checked(skew_s={"kinesis": 0.4}, platform_grace_s=30.0), SETTINGS)
    assert {finding.level for finding in findings} == {"ok"}, findings
    assert exit_code_of(findings) == 0
    assert {finding.kind for finding in findings} >= {
        "permissions", "metadata", "index", "fleet", "stream", "retrieval", "clock", "descriptors", "grace"
    }  # fmt: skip


def test_whatever_is_an_error_or_a_warning_says_what_to_do() -> None:
    def refuse() -> FleetSnapshot:
        raise AccessError("not allowed to look")

    for settings in (SETTINGS, fanout()):
        for outcome in ("denied", "no_credentials", "missing", "unreachable", "failed"):
            result = ask(settings, FakeProber(outcome), refuse)  # type: ignore[arg-type]
            findings = examine(replace(result, skew_s={"kinesis": 40.0}, platform="ecs"), settings)
            assert all(finding.advice for finding in findings if finding.level in ("warn", "error")), findings


@pytest.mark.parametrize(("codes", "expected"), [((), 0), ((1, 6), 6), ((6, 4), 4), ((4, 3), 3), ((1, 3, 2), 2)])
def test_the_exit_code_is_that_of_what_comes_first(codes: tuple[int, ...], expected: int) -> None:
    errors = [Finding(level="error", kind="k", where="w", message="m", exit_code=code) for code in codes]
    assert exit_code_of([*errors, Finding(level="warn", kind="k", where="w", message="m", exit_code=2)]) == expected


def test_a_file_that_is_wrong_is_told_as_json_too(tmp_path: Path) -> None:
    path = tmp_path / "app.properties"
    path.write_text("applicationName = app\nstreamName = orders\n")
    result = CliRunner().invoke(cli, ["doctor", "-p", str(path), "--json"], standalone_mode=False)
    document = json.loads(result.stdout)
    assert (result.return_value, document["ok"], document["application"]) == (2, False, None)
    assert any("executableName" in finding["message"] for finding in document["findings"])


# Who, and what may be done


def test_no_permission_at_all_names_every_action_that_was_asked_for() -> None:
    def refuse() -> FleetSnapshot:
        raise AccessError("not allowed to look")

    prober = FakeProber("denied")
    findings = examine(ask(SETTINGS, prober, refuse), SETTINGS)
    said = " ".join(finding.message for finding in findings if finding.kind == "permissions")
    assert all(permission.api in said for permission in prober.asked)
    assert exit_code_of(findings) == 3
    assert "not allowed to look" in next(f.message for f in findings if f.kind == "metadata")


def test_one_permission_that_is_missing_is_the_only_error() -> None:
    findings = examine(checked(FakeProber(answers={"Query": "denied"}), skew_s={"kinesis": 0.0}), SETTINGS)
    (error,) = [finding for finding in findings if finding.level == "error"]
    assert "dynamodb:Query" in error.message and "LeaseOwnerToLeaseKeyIndex" in error.where
    assert exit_code_of(findings) == 3


def test_a_permission_that_one_can_do_without_is_a_warning() -> None:
    findings = examine(checked(FakeProber(answers={"BatchGetItem": "denied"}), skew_s={"kinesis": 0.0}), SETTINGS)
    (warning,) = [finding for finding in findings if finding.level == "warn"]
    assert "one by one" in warning.message and exit_code_of(findings) == 0


def test_what_exists_need_not_be_created() -> None:
    answers: dict[str, Outcome] = dict.fromkeys(("CreateTable", "UpdateTable", "DeleteTable"), "not_probed")
    assert levels(found(checked(FakeProber(answers=answers)), "permissions")) == {"ok"}
    missing = {**answers, "DescribeTable": "missing"} | dict.fromkeys(("Scan", "GetItem", "PutItem"), "missing")
    findings = found(checked(FakeProber("missing", missing), NEW), "permissions")
    assert "CreateTable, UpdateTable" in " ".join(f.message for f in findings if f.level == "not_probed")


def test_a_service_that_does_not_answer_is_said_once_and_the_tables_are_left_alone() -> None:
    def never() -> FleetSnapshot:
        raise AssertionError("DynamoDB is down")

    prober = FakeProber("unreachable", {"PutMetricData": "not_probed"})
    findings = examine(ask(SETTINGS, prober, never), SETTINGS)
    assert sorted(f.where for f in findings if f.kind == "network") == ["dynamodb", "kinesis"]
    assert exit_code_of(findings) == 1


@pytest.mark.parametrize(
    ("identity", "level", "code"),
    [
        (Identity(services=("kinesis",), arn="arn:aws:iam::1:role/r"), "ok", 0),
        (Identity(services=("kinesis",), outcome="not_probed", said="x"), "not_probed", 0),
        (Identity(services=("kinesis",), outcome="unreachable", said="x"), "not_probed", 0),
        (Identity(services=("kinesis",), outcome="no_credentials", said="expired"), "error", 3),
    ],
)
def test_who_the_credentials_are(identity: Identity, level: str, code: int) -> None:
    finding = only(checked(identities=(identity,)), "credentials")
    assert (finding.level, finding.exit_code) == (level, code)


def test_without_credentials_the_rest_is_not_probed() -> None:
    findings = examine(Checked(no_clients="no AWS credentials"), SETTINGS)
    assert {f.kind: f.level for f in findings if f.kind != "grace"} == {
        "credentials": "error", "metadata": "not_probed", "stream": "not_probed", "clock": "not_probed",
        "descriptors": "not_probed",
    }  # fmt: skip


# Tables and fleet


def test_a_new_application_is_fine() -> None:
    finding = only(checked(FakeProber("missing"), NEW), "metadata")
    assert finding.level == "ok" and "three tables" in finding.message
    assert not found(checked(FakeProber("missing"), NEW), "fleet")


def test_a_fleet_in_migration_is_told_how_far_it_is() -> None:
    moving = replace(
        WELL,
        table_migration=TableMigrationState(
            status="TABLE_MIGRATION_STATUS_DEPLOYED", modified_by="me", modified_ms=round(WALL_S * 1000)
        ),
    )
    finding = only(checked(snapshot=moving), "migration")
    assert finding.level == "ok" and "TABLE_MIGRATION_STATUS_DEPLOYED" in finding.message
    assert only(checked(snapshot=moving), "metadata").level == "ok"


def test_a_fleet_in_2x_mode_is_waited_for() -> None:
    rolled_back = replace(
        WELL, client_version=ClientVersionState(client_version="CLIENT_VERSION_2X", modified_by="t", modified_ms=0)
    )
    finding = only(checked(snapshot=rolled_back), "metadata")
    assert finding.level == "warn" and "2.x mode" in finding.message


def test_two_leaders_are_a_conflict() -> None:
    torn = replace(WELL, listing=replace(WELL.listing, entity_types=frozenset({"LEADER", "LEASE"})))
    findings = examine(checked(snapshot=torn), SETTINGS)
    assert exit_code_of(findings) == 6
    assert "Two leaders" in next(f.message for f in findings if f.kind == "metadata")


@pytest.mark.parametrize(("status", "level"), [(None, "warn"), ("CREATING", "warn"), ("ACTIVE", "ok")])
def test_the_state_of_the_index(status: Any, level: str) -> None:
    snapshot = replace(WELL, table=TableState(status="ACTIVE", index_status=status))
    assert only(checked(snapshot=snapshot), "index").level == level


def test_what_cannot_be_read_is_named_and_nothing_is_guessed() -> None:
    torn = replace(WELL, failures=(PartFailure(part="leases", error="denied"),))
    finding = only(checked(snapshot=torn), "metadata")
    assert (finding.level, finding.message) == ("not_probed", "not readable: leases")


def test_a_stopped_fleet_is_a_warning() -> None:
    finding = only(checked(snapshot=replace(WELL, lock=None)), "fleet")
    assert finding.level == "warn" and "no_leader" in finding.message


# Streams


def test_a_stream_that_does_not_exist() -> None:
    prober = FakeProber(answers={"DescribeStreamSummary": "missing"})
    prober.streams = {}
    findings = examine(checked(prober), SETTINGS)
    assert exit_code_of(findings) == 4 and [f.where for f in findings if f.kind == "stream"] == [f"stream {STREAM}"]


def test_each_of_several_streams_is_judged() -> None:
    streams = (StreamSettings(name=STREAM), StreamSettings(name="second"))
    settings = replace(SETTINGS, multi_stream=True, streams=streams)
    result = replace(checked(settings=settings), streams={STREAM: FACTS, "second": replace(FACTS, status="CREATING")})
    assert [finding.level for finding in found(result, "stream", settings)] == ["ok", "warn"]
    asked = {(p.name, p.action) for p in required_permissions(settings)}
    assert {(name, "GetRecords") for name in (STREAM, "second")} <= asked


def test_streams_of_one_name_in_two_accounts_are_two() -> None:
    arns = [f"arn:aws:kinesis:eu-west-1:{account * 12}:stream/orders" for account in "12"]
    streams = (*(StreamSettings(name="orders", arn=arn) for arn in arns), StreamSettings(name="orders", account="3"))
    settings = replace(SETTINGS, multi_stream=True, streams=streams)
    asked = [p.name for p in required_permissions(settings) if p.action == "GetRecords"]
    assert asked == [*arns, "3:orders"]
    resources = [s["Resource"] for s in policy_document(settings, "eu-west-1")["Statement"] if "Stream" in s["Sid"]]
    assert resources == [[arns[0]], [arns[1]], ["arn:aws:kinesis:us-east-1:3:stream/orders"]]
    result = replace(checked(settings=settings), streams={arns[1]: FACTS})
    assert [finding.level for finding in found(result, "stream", settings)] == ["not_probed", "ok", "not_probed"]


def test_polling_more_often_than_a_shard_allows() -> None:
    greedy = replace(SETTINGS, retrieval=replace(SETTINGS.retrieval, idle_between_reads_s=0.1))
    assert only(checked(), "retrieval").level == "ok"
    assert only(checked(settings=greedy), "retrieval", greedy).level == "warn"


def test_a_key_of_the_customers_is_asked_about() -> None:
    facts = replace(FACTS, kms_key="arn:aws:kms:eu-west-1:1:key/2")
    finding = only(checked(streams={STREAM: facts}), "encryption")
    assert (finding.level, "kms:Decrypt" in finding.advice) == ("not_probed", True)
    assert not found(checked(streams={STREAM: replace(FACTS, kms_key="alias/aws/kinesis")}), "encryption")


@pytest.mark.parametrize(
    ("status", "consumers", "level"),
    [("ACTIVE", 3, "ok"), ("CREATING", 3, "warn"), (None, 3, "warn"), (None, 20, "error")],
)
def test_fanout_consumers_and_their_cost(status: str | None, consumers: int, level: str) -> None:
    settings = fanout()
    facts = replace(FACTS, consumer_status=status, consumers=consumers, open_shards=100)
    finding = only(checked(settings=settings, streams={STREAM: facts}), "fanout", settings)
    assert finding.level == level and f"{consumers} of 20 consumers" in finding.message
    if status == "ACTIVE":
        assert "1.50 USD an hour for 100 shards" in finding.message and "2025" in finding.message


def test_on_demand_streams_do_not_bill_fanout_by_the_hour() -> None:
    facts = replace(FACTS, consumer_status="ACTIVE", mode="ON_DEMAND")
    assert "an hour" not in only(checked(settings=fanout(), streams={STREAM: facts}), "fanout", fanout()).message


# This machine


@pytest.mark.parametrize(
    ("skew_s", "level", "words"),
    [(0.6, "ok", "behind"), (-4.9, "ok", "ahead of"), (5.0, "warn", "5 s behind"), (-30.0, "error", "30 s ahead of")],
)
def test_the_clock(skew_s: float, level: str, words: str) -> None:
    finding = only(checked(skew_s={"kinesis": skew_s, "dynamodb": 0.1}), "clock")
    assert finding.level == level and words in finding.message


def test_open_files_must_do_for_every_shard() -> None:
    many = {STREAM: replace(FACTS, open_shards=1000)}
    assert only(checked(streams=many, descriptors=8200), "descriptors").level == "ok"
    few = only(checked(streams=many, descriptors=8199), "descriptors")
    assert few.level == "warn" and "maxLeasesForWorker = 999" in few.advice
    assert only(checked(streams=many, descriptors=None), "descriptors").level == "ok"
    capped = replace(SETTINGS, lease=replace(SETTINGS.lease, max_leases_for_worker=999))
    assert only(checked(streams=many, descriptors=8199), "descriptors", capped).level == "ok"


@pytest.mark.parametrize(
    ("platform", "given_s", "drain_s", "level"),
    [
        (None, None, 20.0, "not_probed"),
        ("kubernetes", None, 20.0, "ok"),
        ("kubernetes", None, 29.0, "warn"),
        ("systemd", None, 60.0, "ok"),
        ("kubernetes", 60.0, 50.0, "ok"),
        (None, 20.0, 20.0, "error"),
        (None, 22.0, 20.0, "ok"),
    ],
)
def test_the_time_to_stop(platform: Any, given_s: float | None, drain_s: float, level: str) -> None:
    settings = replace(SETTINGS, coordinator=replace(SETTINGS.coordinator, shutdown_grace_s=drain_s))
    finding = only(checked(platform=platform, platform_grace_s=given_s), "grace", settings)
    assert finding.level == level and (finding.exit_code == 2) == (level == "error")


def test_a_batch_that_takes_longer_than_the_stop() -> None:
    settings = replace(SETTINGS, child=replace(SETTINGS.child, response_timeout_s=60.0))
    findings = found(checked(platform_grace_s=30.0), "grace", settings)
    assert [finding.level for finding in findings] == ["ok", "warn"]


@pytest.mark.parametrize(
    ("environ", "platform"),
    [
        ({}, None),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "INVOCATION_ID": "x"}, "kubernetes"),
        ({"ECS_CONTAINER_METADATA_URI_V4": "http://"}, "ecs"),
        ({"INVOCATION_ID": "x"}, "systemd"),
    ],
)
def test_who_stops_the_process(environ: dict[str, str], platform: str | None) -> None:
    assert platform_of(environ) == platform


@pytest.mark.parametrize(
    ("check", "level", "code"),
    [
        (ChildCheck(command=("c",), path=None), "error", 2),
        (ChildCheck(command=("c",), path="/c"), "not_probed", 0),
        (ChildCheck(command=("c",), path="/c", answers=True), "ok", 0),
        (ChildCheck(command=("c",), path="/c", answers=False, said="exits"), "error", 2),
    ],
)
def test_the_child(check: ChildCheck, level: str, code: int) -> None:
    finding = only(checked(children=(check,)), "child")
    assert (finding.level, finding.exit_code) == (level, code)


def test_each_command_is_tried_once(tmp_path: Path) -> None:
    streams = tuple(StreamSettings(name=name, command=command) for name, command in (
        ("one", None), ("two", ("/bin/sh", "x")), ("three", ("/bin/sh", "x")), ("four", (str(tmp_path),)),
    ))  # fmt: skip
    settings = replace(
        SETTINGS, streams=streams, multi_stream=True, child=replace(SETTINGS.child, command=("/bin/sh",))
    )
    tried: list[Any] = []
    checks = check_children(settings, lambda command: tried.append(command) or "")
    assert tried == [("/bin/sh",), ("/bin/sh", "x")]
    assert [check.answers for check in checks] == [True, True, None] and checks[-1].path is None


def test_a_child_that_exits_is_told_with_its_last_words() -> None:
    said = try_child(("/bin/sh", "-c", "echo out of memory >&2; exit 3"))
    assert "out of memory" in said and "initialize" in said


# Permissions


def test_the_policy_covers_every_permission_but_the_deletion_of_tables() -> None:
    for settings in (SETTINGS, fanout(), replace(SETTINGS, multi_stream=True)):
        document = policy_document(settings, "eu-west-1")
        granted = {api for statement in document["Statement"] for api in statement["Action"]}
        wanted = {permission.api for permission in required_permissions(settings)}
        assert wanted - granted == {"dynamodb:DeleteTable"} and granted <= wanted
        sids = [statement["Sid"] for statement in document["Statement"]]
        assert len(set(sids)) == len(sids) and all(sid.isalnum() for sid in sids)


def test_the_policy_names_things_as_exactly_as_the_file_does() -> None:
    arn = "arn:aws-cn:kinesis:cn-north-1:123456789012:stream/orders"
    settings = replace(
        fanout(),
        streams=(StreamSettings(name="orders", arn=arn),),
        dynamodb=replace(SETTINGS.dynamodb, region="cn-north-1"),
        lease_table=TableSettings(name="app"),
    )
    by_kind = {s["Sid"].rstrip("0123456789"): s for s in policy_document(settings, None)["Statement"]}
    assert by_kind["Stream"]["Resource"] == [arn]
    assert by_kind["Consumer"]["Resource"] == [arn, f"{arn}/consumer/app:*"]
    assert by_kind["LeaseTable"]["Resource"] == ["arn:aws-cn:dynamodb:cn-north-1:*:table/app"]
    index = "arn:aws-cn:dynamodb:cn-north-1:*:table/app/index/LeaseOwnerToLeaseKeyIndex"
    assert by_kind["Index"]["Resource"] == [index]
    assert by_kind["Metrics"]["Condition"] == {"StringEquals": {"cloudwatch:namespace": settings.application_name}}


def test_a_smaller_configuration_needs_less() -> None:
    def apis(settings: Settings) -> set[str]:
        return {f"{p.kind} {p.action}" for p in required_permissions(settings)}

    quiet = replace(SETTINGS, metrics=replace(SETTINGS.metrics, level="NONE"))
    assert apis(SETTINGS) - apis(quiet) == {"metrics PutMetricData"}
    single = replace(SETTINGS, coordinator=replace(SETTINGS.coordinator, metadata_table_format="single"))
    assert apis(single) < apis(SETTINGS) and "coordinator table CreateTable" not in apis(single)
    moving = replace(SETTINGS, coordinator=replace(SETTINGS.coordinator, migrate_all_entities=True))
    assert apis(moving) - apis(SETTINGS) == {"coordinator table ConditionCheckItem"}
    assert apis(fanout()) - apis(SETTINGS) == {
        "consumer RegisterStreamConsumer", "consumer DescribeStreamConsumer", "consumer SubscribeToShard"
    }  # fmt: skip
    own = fanout(consumer_arn="arn:aws:kinesis:eu-west-1:1:stream/s/consumer/c:1")
    assert "consumer RegisterStreamConsumer" not in apis(own)


def test_the_documented_table_is_this_list() -> None:
    """docs/switching-from-java.md, with everything switched on."""
    table = TableSettings(name="t", point_in_time_recovery=True, tags={"a": "b"})
    settings = replace(
        fanout(),
        lease_table=table,
        coordinator=replace(SETTINGS.coordinator, migrate_all_entities=True),
    )
    targets = DeadLetterTarget("sqs", "https://sqs.eu-west-1.amazonaws.com/1/q"), DeadLetterTarget("s3", "bucket")
    all_settings = [replace(settings, poison=PoisonSettings(after_failures=3, target=target)) for target in targets]
    document = (Path(__file__).parents[2] / "docs" / "switching-from-java.md").read_text()
    section = document.partition("## Permissions")[2].partition("\n## ")[0]
    cells = [line.split("|") for line in section.splitlines() if line.startswith("| ")]
    documented = {action for line in cells for action in re.findall(r"`([A-Z][A-Za-z]+)`", line[2])}
    assert documented == {p.action for settings in all_settings for p in required_permissions(settings)}


@pytest.mark.parametrize(
    ("target", "api", "arn"),
    [
        (
            DeadLetterTarget("sqs", "https://sqs.eu-central-1.amazonaws.com/123456789012/dead"),
            "sqs:SendMessage",
            "arn:aws:sqs:eu-central-1:123456789012:dead",
        ),
        (DeadLetterTarget("s3", "bucket", "app/dead"), "s3:PutObject", "arn:aws:s3:::bucket/app/dead/*"),
        (DeadLetterTarget("s3", "bucket"), "s3:PutObject", "arn:aws:s3:::bucket/*"),
    ],
)
def test_what_dead_letters_need(target: DeadLetterTarget, api: str, arn: str) -> None:
    settings = replace(SETTINGS, poison=PoisonSettings(after_failures=3, target=target))
    statements = policy_document(settings, "eu-west-1")["Statement"]
    assert [s["Resource"] for s in statements if s["Action"] == [api]] == [[arn]]
    assert not [s for s in policy_document(SETTINGS, None)["Statement"] if s["Sid"].startswith("DeadLetters")]
