"""The calls that are made most, without botocore's client stack, which takes more processor time than all their rest.

GetRecords of each shard, UpdateItem of each lease. The first call of a client (of each stream ARN or table) goes
through botocore. The finished request that its event `before-send` shows teaches the endpoint, the region and the user
agent; when our own signature of that very request equals botocore's, later calls are signed and sent from here. Answers
go to the client's own parser, so errors are its own. What the client knows and we do not (a proxy, a path, an answer
without length) stays with botocore for good; so does, for that one call, whatever fails before a request is out:
botocore's errors say why no connection can be made.

A write is sent once. One whose answer was lost, or is not understood, has failed as botocore's would have.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import io
import json
import logging
import os
import re
import time
import weakref
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
from botocore.awsrequest import HeadersDict
from botocore.exceptions import ConnectionClosedError, HTTPClientError
from botocore.session import Session
from botocore.utils import get_environ_proxies

from kcl_host.aws.http1 import Answer, Connections, NoConnection, Origin, Unusual

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest
    from botocore.credentials import Credentials

_log = logging.getLogger(__name__)

_HEADERS: Final = frozenset(
    {
        "content-type", "content-length", "user-agent", "x-amz-target", "authorization", "x-amz-date",
        "x-amz-security-token", "amz-sdk-invocation-id", "amz-sdk-request",
    }
)  # fmt: skip
"""All that botocore sends. The last two number its attempts; we leave them out."""
_SCOPE: Final = re.compile(r"AWS4-HMAC-SHA256 Credential=.*/\d{8}/([^/]+)/([^/]+)/aws4_request, SignedHeaders=")
_PORTS: Final = {"http": 80, "https": 443}


class Operation(msgspec.Struct, frozen=True):
    """`resource` is the parameter on which the endpoint may depend; a repeatable one changes nothing."""

    service: str
    name: str
    method: str
    target: str
    content_type: str
    resource: str
    parameters: frozenset[str]
    repeatable: bool


GET_RECORDS: Final = Operation(
    service="kinesis",
    name="GetRecords",
    method="get_records",
    target="Kinesis_20131202.GetRecords",
    content_type="application/x-amz-json-1.1",
    resource="StreamARN",
    parameters=frozenset({"ShardIterator", "Limit", "StreamARN"}),
    repeatable=True,
)
UPDATE_ITEM: Final = Operation(
    service="dynamodb",
    name="UpdateItem",
    method="update_item",
    target="DynamoDB_20120810.UpdateItem",
    content_type="application/x-amz-json-1.0",
    resource="TableName",
    parameters=frozenset(
        {
            "TableName", "Key", "UpdateExpression", "ConditionExpression", "ExpressionAttributeValues",
            "ReturnValues", "ReturnValuesOnConditionCheckFailure", "ReturnConsumedCapacity",
        }
    ),
    repeatable=False,
)  # fmt: skip


class Target(msgspec.Struct, frozen=True):
    """Where calls go. `host` is the header's value; `service` is the name that signatures use."""

    operation: Operation
    url: str
    origin: Origin
    host: str
    region: str
    service: str
    user_agent: str


def call_directly(client: Any, session: Session, operation: Operation) -> None:
    """That method of `client`, and `close`, are ours from now on. `session` is the one that made it."""
    call, close = DirectCall(client, session, operation), client.close

    def close_both() -> None:
        call.close()
        close()

    setattr(client, operation.method, call)
    client.close = close_both


class DirectCall:
    """Takes the place of a method of `client`: same arguments, same errors. Thread-safe.

    Shared state: `_targets`, replaced member by member, and the connections.
    """

    def __init__(self, client: Any, session: Session, operation: Operation) -> None:
        self._operation = operation
        self._stock: Any = getattr(client, operation.method)
        self._exceptions: Any = client.exceptions
        self._service: Any = client.meta.service_model
        self._shape = self._service.operation_model(operation.name).output_shape
        self._parser = session.get_component("response_parser_factory").create_parser("json")
        self._credentials: Credentials | None = session.get_credentials()
        self._signing = Signing()
        self._targets: dict[str | None, Target] = {}
        config: Any = client.meta.config
        self._proxies = config.proxies or get_environ_proxies(client.meta.endpoint_url)
        self._never = config.client_cert is not None
        self._connections = Connections(
            connect_timeout_s=config.connect_timeout,
            read_timeout_s=config.read_timeout,
            keepalive=bool(config.tcp_keepalive),
            ca_bundle=session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE"),
            limit=config.max_pool_connections,
        )
        self.close = weakref.finalize(self, self._connections.close)
        """Closes the idle connections, and the others once they are idle. Happens by itself when the client is gone."""
        client.meta.events.register(f"before-send.{operation.service}.{operation.name}", self._learn)

    def __repr__(self) -> str:
        learned = "never" if self._never else len(self._targets)
        return f"<DirectCall {self._operation.name} {learned}, {self._connections!r}>"

    def __call__(self, **request: Any) -> Any:
        """Raises ClientError, and botocore's exceptions for connections, as the client does."""
        operation = self._operation
        target = self._targets.get(request.get(operation.resource))
        if target is None or not request.keys() <= operation.parameters:
            return self._stock(**request)
        try:
            message = self._message(target, msgspec.json.encode(request))
            answer = self._connections.exchange(target.origin, message, target.url, repeatable=operation.repeatable)
        except (NoConnection, UnicodeEncodeError):  # Lone surrogates are botocore's business.
            return self._stock(**request)
        except Unusual as error:
            self._never = True
            self._targets.clear()
            extra = {"action": "direct_calls_ended", "operation": operation.name, "reason": str(error)}
            _log.info("requests go through the SDK from now on", extra=extra)
            if not operation.repeatable:
                raise ConnectionClosedError(error=error, request=None, endpoint_url=target.url) from error
            return self._stock(**request)
        return self._parsed(answer)

    def _parsed(self, answer: Answer) -> Any:
        response: dict[str, Any] = {"status_code": answer.status, "headers": {}, "body": answer.body, "context": {}}
        if answer.status >= 300:
            _, _, headers = answer.head.partition(b"\r\n")
            try:
                response["headers"] = HeadersDict(http.client.parse_headers(io.BytesIO(headers)))
            except http.client.HTTPException as error:
                raise HTTPClientError(error=error) from error
        parsed = self._parser.parse(response, self._shape)
        if answer.status >= 300:
            code = parsed.get("Error", {}).get("Code")
            if (fields := self._service.shape_for_error_code(code)) is not None:
                parsed.update(self._parser.parse(response, fields))
            raise self._exceptions.from_code(code)(parsed, self._operation.name)
        return parsed

    def _message(self, target: Target, body: bytes) -> bytes:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        operation = self._operation
        lines = [
            f"POST / HTTP/1.1\r\nHost: {target.host}\r\nUser-Agent: {target.user_agent}",
            f"Accept-Encoding: identity\r\nContent-Type: {operation.content_type}\r\nContent-Length: {len(body)}",
            f"X-Amz-Target: {operation.target}\r\nX-Amz-Date: {stamp}",
        ]
        if self._credentials is not None:
            credentials = self._credentials.get_frozen_credentials()
            if credentials.token:
                lines.append(f"X-Amz-Security-Token: {credentials.token}")
            lines.append(f"Authorization: {self._signing.authorization(target, credentials, stamp, body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body

    def _learn(self, request: AWSPreparedRequest, **_: Any) -> None:
        """From a request that botocore is about to send, if it is one that we would have made, too."""
        target = target_of(request, self._operation)
        if self._never or target is None or self._proxies.get(target.origin.scheme):
            return
        headers, signed = _headers_of(request), None
        body: Any = request.body
        if self._credentials is not None:
            credentials = self._credentials.get_frozen_credentials()
            signed = self._signing.authorization(target, credentials, headers.get("x-amz-date", ""), body)
        if signed == headers.get("authorization"):
            self._targets[json.loads(body).get(self._operation.resource)] = target


class Signing:
    """Signature version 4 of these calls. Keeps the last signing key, which holds for a day."""

    def __init__(self) -> None:
        self._key: tuple[tuple[str, str], bytes] | None = None

    def authorization(self, target: Target, credentials: Any, stamp: str, body: bytes) -> str:
        """The header's value. `credentials` are frozen, `stamp` is X-Amz-Date; a session token has to be sent, too."""
        token = credentials.token
        signed = f"content-type;host;x-amz-date;{'x-amz-security-token;' if token else ''}x-amz-target"
        token_line = f"x-amz-security-token:{token}\n" if token else ""
        canonical = (
            f"POST\n/\n\ncontent-type:{target.operation.content_type}\nhost:{target.host}\nx-amz-date:{stamp}\n{token_line}"
            f"x-amz-target:{target.operation.target}\n\n{signed}\n{hashlib.sha256(body).hexdigest()}"
        )
        scope = f"{stamp[:8]}/{target.region}/{target.service}/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
        signature = hmac.digest(self._signing_key(scope, credentials.secret_key), to_sign.encode(), "sha256").hex()
        return (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, SignedHeaders={signed}, "
            f"Signature={signature}"
        )

    def _signing_key(self, scope: str, secret: str) -> bytes:
        kept = self._key
        if kept is not None and kept[0] == (scope, secret):
            return kept[1]
        key = f"AWS4{secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        self._key = (scope, secret), key
        return key


def _headers_of(request: AWSPreparedRequest) -> dict[str, str]:
    """By lower-case name."""
    return {n.lower(): v.decode("latin-1") if isinstance(v, bytes) else str(v) for n, v in request.headers.items()}


def target_of(request: AWSPreparedRequest, operation: Operation) -> Target | None:
    """None if there is anything about the request that ours would not have."""
    url, headers = urlsplit(request.url), _headers_of(request)
    scope = _SCOPE.match(headers.get("authorization", ""))
    if (
        request.method != "POST"
        or headers.get("content-type") != operation.content_type
        or headers.get("x-amz-target") != operation.target
        or url.scheme not in _PORTS
        or not url.hostname
        or url.username is not None
        or (url.path or "/", url.query, url.fragment) != ("/", "", "")
        or not headers.keys() <= _HEADERS
    ):
        return None
    port = _PORTS[url.scheme]
    return Target(
        operation=operation,
        url=request.url,
        origin=Origin(url.scheme, url.hostname, url.port or port),
        host=url.netloc.lower().removesuffix(f":{port}"),
        region=scope[1] if scope else "",
        service=scope[2] if scope else "",
        user_agent=headers.get("user-agent", ""),
    )
