"""AWS answers by script, below botocore: requests are really built and signed, answers really parsed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import msgspec
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders

_HEADERS = {"content-type": "application/x-amz-json-1.1"}


class Reply(msgspec.Struct, frozen=True):
    """`body` is sent as JSON, or as it is when it is bytes. `error` is an error code instead."""

    body: Any = {}
    status: int = 200
    error: str | None = None
    message: str = "as scripted"


class Wire:
    """Answers the requests of a client with `replies`, in order; an exception among them is raised."""

    def __init__(self, client: Any, *replies: Reply | Exception) -> None:
        self.replies = list(replies)
        self.requests: list[tuple[str, Any]] = []
        """(operation, body) of each request so far."""
        self.headers: list[dict[str, str]] = []
        client.meta.events.register("before-send", self._answer)

    def _answer(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        headers = {k.lower(): v.decode() if isinstance(v, bytes) else str(v) for k, v in request.headers.items()}
        self.headers.append(headers)
        sent: Any = request.body
        self.requests.append((headers["x-amz-target"].rpartition(".")[2], json.loads(sent or b"{}")))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        body = reply.body
        status = reply.status
        if reply.error is not None:
            body = {"__type": f"com.amazonaws#{reply.error}", "message": reply.message}
            status = status if status != 200 else 400
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return AWSResponse(request.url, status, HTTPHeaders.from_dict(_HEADERS), _Raw(raw))


class _Raw(io.BytesIO):
    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()
