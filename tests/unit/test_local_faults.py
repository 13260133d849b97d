from __future__ import annotations

import json
from typing import Any

import pytest

from kcl_host.local.aws_json import AwsJsonFront
from kcl_host.local.dynamodb import fault_keys
from kcl_host.local.faults import Fault, Faults
from kcl_host.local.http import HttpAnswer, HttpRequest
from kcl_host.local.service_error import ServiceError, throttled


class FakeClock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def take(faults: Faults, operation: str = "UpdateItem", keys: set[str] | None = None, **body: Any) -> str | None:
    fault = faults.take(operation, json.dumps(body).encode(), lambda *_: frozenset(keys or ()))
    return fault.kind if fault else None


def test_a_fault_happens_as_often_as_asked_for() -> None:
    faults = Faults()
    fault = faults.add("UpdateItem", "error", times=2)
    assert [take(faults), take(faults, "GetItem"), take(faults), take(faults)] == ["error", None, "error", None]
    assert fault.hits == 2


def test_a_fault_lasts_as_long_as_asked_for() -> None:
    clock = FakeClock()
    faults = Faults(clock)
    faults.add("*", "throttle", seconds=60)
    assert take(faults) == "throttle"
    clock.now_s += 59.9
    assert take(faults, "Scan") == "throttle"
    clock.now_s += 0.1
    assert take(faults) is None


def test_a_fault_without_bounds_lasts_until_removed() -> None:
    faults = Faults()
    fault, other = faults.add("*", "hang"), faults.add("*", "drop")
    assert [take(faults) for _ in range(3)] == ["hang"] * 3
    faults.remove(fault)
    faults.remove(fault)
    assert take(faults) == "drop" and other.hits == 1
    faults.clear()
    assert take(faults) is None


def test_a_fault_befalls_only_what_it_names() -> None:
    faults = Faults()
    faults.add("UpdateItem", "error", key=("leases", "shard-1"))
    assert take(faults, keys={"leases", "shard-2"}) is None
    assert take(faults, keys={"leases", "shard-1", "more"}) == "error"
    faults.clear()
    faults.add("UpdateItem", "drop", when=lambda body: "checkpoint" in body["UpdateExpression"], times=1)
    assert take(faults, UpdateExpression="SET leaseCounter = :c") is None
    assert take(faults, UpdateExpression="SET checkpoint = :c") == "drop"


@pytest.mark.parametrize(
    ("operation", "body", "keys"),
    [
        ("UpdateItem", {"TableName": "t", "Key": {"leaseKey": {"S": "k"}}}, {"t", "k"}),
        ("PutItem", {"TableName": "t", "Item": {"leaseKey": {"S": "k"}, "n": {"N": "1"}}}, {"t", "k"}),
        ("Scan", {"TableName": "t"}, {"t"}),
        ("BatchGetItem", {"RequestItems": {"t": {"Keys": [{"a": {"S": "k"}}, {"a": {"S": "l"}}]}}}, {"t", "k", "l"}),
        (
            "TransactWriteItems",
            {"TransactItems": [{"Update": {"TableName": "t", "Key": {"a": {"S": "k"}}}}, {"Put": {"TableName": "u"}}]},
            {"t", "k", "u"},
        ),
        ("ListTables", {}, set()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_dynamodb_request_is_about(operation: str, body: dict[str, Any], keys: set[str]) -> None:
    assert fault_keys(operation, json.dumps(body).encode()) == keys


class Front:
    """An AwsJsonFront over an operation that counts how often it was applied."""

    def __init__(self) -> None:
        self.applied = 0
        self.faults = Faults()
        self.observed: list[tuple[str, int]] = []
        self.front = AwsJsonFront(
            content_type="application/x-amz-json-1.0",
            target_prefix="Service_1",
            operate=self.operate,
            keys_of=lambda operation, body: frozenset(),
            throttle_error=lambda operation: throttled("slow down"),
            faults=self.faults,
        )
        self.front.observe = lambda operation, body, answer: self.observed.append((operation, answer.status))

    def operate(self, operation: str, body: bytes) -> HttpAnswer:
        self.applied += 1
        if operation == "Refuse":
            raise ServiceError("ValidationException", "no")
        if operation == "Break":
            raise RuntimeError("a bug")
        return HttpAnswer(200, b"{}")

    def request(self, target: str = "Service_1.Do", method: str = "POST", **headers: str) -> tuple[int, str]:
        exchange = self.front.handle(HttpRequest(method, "/", {"x-amz-target": target, **headers}, b"{}"))
        assert exchange.apply is not None
        answer = exchange.apply()
        return answer.status, json.loads(answer.body).get("__type", "")


def test_answers_and_errors_of_the_service() -> None:
    front = Front()
    assert front.request() == (200, "")
    assert front.request("Service_1.Refuse") == (400, "ValidationException")
    assert front.request("Service_1.Break") == (500, "InternalFailure")
    assert front.observed == [("Do", 200), ("Refuse", 400), ("Break", 500)]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"target": "Other_1.Do"}, (400, "UnknownOperationException")),
        ({"target": ""}, (400, "UnknownOperationException")),
        ({"method": "GET"}, (400, "UnknownOperationException")),
        ({"content-type": "application/x-amz-cbor-1.1"}, (415, "UnsupportedMediaTypeException")),
        ({"authorization": "AWS4 Credential=DENIED/2025/x"}, (400, "AccessDeniedException")),
        ({"authorization": "AWS4 Credential=INVALID/2025/x"}, (400, "UnrecognizedClientException")),
        ({"authorization": "AWS4 Credential=EXPIRED/2025/x"}, (400, "ExpiredTokenException")),
        ({"authorization": "AWS4 Credential=local/2025/x"}, (200, "")),
        ({}, (200, "")),
    ],
    ids=str,
)
def test_requests_that_do_not_reach_the_service(parameters: dict[str, str], expected: tuple[int, str]) -> None:
    front = Front()
    assert front.request(**parameters) == expected
    assert front.applied == (expected[0] == 200)


def test_a_signature_can_be_demanded() -> None:
    front = Front()
    front.faults.require_authorization = True
    assert front.request() == (400, "MissingAuthenticationTokenException")
    assert front.request(authorization="AWS4 Credential=local/2025/x") == (200, "")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("throttle", (400, "ProvisionedThroughputExceededException")),
        ("error", (500, "InternalFailure")),
        ("deny", (400, "AccessDeniedException")),
        ("expired", (400, "ExpiredIteratorException")),
    ],
)
def test_faults_that_refuse(kind: Any, expected: tuple[int, str]) -> None:
    front = Front()
    front.faults.add("Do", kind, times=1)
    assert front.request() == expected
    assert front.applied == 0
    assert front.request() == (200, "")


@pytest.mark.parametrize(
    ("kind", "applies", "before_s", "after_s", "fate"),
    [
        ("slow", True, 0, 7, "send"),
        ("late", True, 7, 0, "send"),
        ("lost_answer", True, 0, 0, "close"),
        ("hang", False, 0, 0, "hang"),
        ("drop", False, 0, 0, "close"),
    ],
)
def test_faults_of_the_way(kind: Any, applies: bool, before_s: float, after_s: float, fate: str) -> None:
    front = Front()
    fault: Fault = front.faults.add("Do", kind, delay_s=7)
    exchange = front.front.handle(HttpRequest("POST", "/", {"x-amz-target": "Service_1.Do"}, b"{}"))
    assert (exchange.apply is not None) == applies
    assert (exchange.before_s, exchange.after_s, exchange.fate) == (before_s, after_s, fate)
    assert fault.hits == 1 and front.applied == 0  # what applies it is the server, in its time
