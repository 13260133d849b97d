"""The embedded DynamoDB: moto's, called without its HTTP stack (no flask), on 127.0.0.1.

moto's conditional updates are not atomic between threads. Here every request runs under one lock, whichever way it
comes. Its tables live in a process-wide registry by account, so each engine takes an account of its own.
"""

from __future__ import annotations

import io
import itertools
import threading
from typing import Any, Final

import msgspec
from botocore.model import OperationNotFoundError
from moto.core.request import Request
from moto.core.responses import ActionResult
from moto.dynamodb.models import dynamodb_backends
from moto.dynamodb.responses import DynamoHandler

from kcl_host.local.aws_json import AwsJsonFront
from kcl_host.local.faults import Faults
from kcl_host.local.http import HttpAnswer, HttpServer
from kcl_host.local.service_error import ServiceError, throttled

REGION: Final = "us-east-1"
CONTENT_TYPE: Final = "application/x-amz-json-1.0"
_TARGET: Final = "DynamoDB_20120810"
_accounts = itertools.count(1)

_DATA_OPERATIONS: Final = frozenset(
    {
        "BatchGetItem",
        "BatchWriteItem",
        "DeleteItem",
        "GetItem",
        "PutItem",
        "Query",
        "Scan",
        "TransactGetItems",
        "TransactWriteItems",
        "UpdateItem",
    }
)


class _Handler(DynamoHandler):
    def serialized(self, action_result: ActionResult) -> Any:
        """moto's general serializer takes 80 % of a Scan; answers of data operations are DynamoDB JSON as they are."""
        result = action_result.result
        if self._get_action() not in _DATA_OPERATIONS or not isinstance(result, dict):
            return super().serialized(action_result)
        present = {name: value for name, value in result.items() if value is not None}
        return 200, {"Content-Type": CONTENT_TYPE}, msgspec.json.encode(present).decode()


class DynamoDbEngine:
    """moto's DynamoDB with faults in front, served from `start()` to `stop()`."""

    def __init__(self, *, port: int = 0) -> None:
        """Raises OSError when the port is taken."""
        self.faults = Faults()
        self.front = AwsJsonFront(
            content_type=CONTENT_TYPE,
            target_prefix=_TARGET,
            operate=self._operate,
            keys_of=fault_keys,
            throttle_error=_throttled,
            faults=self.faults,
        )
        self._lock = threading.Lock()
        self._account = f"{next(_accounts):012d}"
        # moto loads 0.1 s worth of modules with its first request: while the caller does other things.
        self._server = HttpServer(
            self.front.handle, port=port, name="local-dynamodb", warm_up=lambda: self.call("ListTables")
        )
        self.endpoint = self._server.url
        self.start = self._server.start

    def stop(self) -> None:
        """Forgets the tables, too."""
        self._server.stop()
        dynamodb_backends.pop(self._account, None)

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Any operation, without HTTP and faults: `call("GetItem", TableName=..., Key=...)`, in DynamoDB JSON.

        Raises ServiceError.
        """
        answer = self._operate(operation, msgspec.json.encode(parameters))
        content: dict[str, Any] = msgspec.json.decode(answer.body) if answer.body else {}
        if answer.status != 200:
            message = content.get("message") or content.get("Message") or ""
            raise ServiceError(str(content["__type"]).rpartition("#")[2], message, answer.status)
        return content

    def _operate(self, operation: str, body: bytes) -> HttpAnswer:
        # Neither Authorization nor User-Agent: moto would derive account and region from them, and two clients with
        # different credentials would see different tables.
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/",
            "QUERY_STRING": "",
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "CONTENT_LENGTH": str(len(body)),
            "CONTENT_TYPE": CONTENT_TYPE,
            "HTTP_HOST": f"dynamodb.{REGION}.amazonaws.com",
            "HTTP_X_AMZ_TARGET": f"{_TARGET}.{operation}",
            "HTTP_X_MOTO_ACCOUNT_ID": self._account,
        }
        with self._lock:
            try:
                status, headers, text = _Handler.dispatch(Request(environ))
            except (OperationNotFoundError, NotImplementedError):
                raise ServiceError(
                    "UnknownOperationException", f"the embedded DynamoDB does not know {operation}"
                ) from None
        answered = {
            name: str(value) for name, value in headers.items() if name.lower() not in ("status", "content-length")
        }
        return HttpAnswer(int(status), text if isinstance(text, bytes) else text.encode(), answered)


def fault_keys(operation: str, body: bytes) -> frozenset[str]:
    """Table names and the text attributes of keys and whole items in a request, those of a batch or transaction too."""
    keys: set[str] = set()
    _collect(msgspec.json.decode(body or b"{}"), keys)
    return frozenset(keys)


def _collect(node: Any, keys: set[str]) -> None:
    if isinstance(node, list):
        for entry in node:
            _collect(entry, keys)
    if not isinstance(node, dict):
        return
    for name, value in node.items():
        if name == "TableName" and isinstance(value, str):
            keys.add(value)
        elif name in ("Key", "Item") and isinstance(value, dict):
            keys.update(text for v in value.values() if isinstance(v, dict) and isinstance(text := v.get("S"), str))
        elif name == "RequestItems" and isinstance(value, dict):
            keys.update(value)
            _collect(list(value.values()), keys)
        elif name == "Keys" and isinstance(value, list):
            _collect([{"Key": key} for key in value], keys)
        else:
            _collect(value, keys)


def _throttled(operation: str) -> ServiceError:
    if operation in _DATA_OPERATIONS:
        return throttled("Rate exceeded, as was asked for")
    return ServiceError("ThrottlingException", "Rate exceeded, as was asked for")
