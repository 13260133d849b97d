"""AWS JSON over HTTP: from a request to an operation, with faults in front; and errors as AWS writes them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final
from uuid import uuid4

import msgspec

from kcl_host.local.faults import Fault, Faults
from kcl_host.local.http import Exchange, HttpAnswer, HttpRequest
from kcl_host.local.service_error import ServiceError

_log = logging.getLogger(__name__)

_ACCESS_KEY: Final = re.compile(r"Credential=([^/, ]+)/")
REFUSED_ACCESS_KEYS: Final = {
    "DENIED": ServiceError("AccessDeniedException", "User is not authorized to perform this action"),
    "INVALID": ServiceError("UnrecognizedClientException", "The security token included in the request is invalid."),
    "EXPIRED": ServiceError("ExpiredTokenException", "The security token included in the request is expired"),
}
"""Access key ids that are refused, so that errors of credentials can be tried; every other one is accepted."""


class AwsJsonFront:
    """Turns HTTP requests into calls of `operate(operation, body)`, which answers or raises ServiceError.

    `observe` is called after each applied request with (operation, request body, answer), also when the answer does
    not reach the client.
    """

    def __init__(
        self,
        *,
        content_type: str,
        target_prefix: str,
        operate: Callable[[str, bytes], HttpAnswer],
        keys_of: Callable[[str, bytes], frozenset[str]],
        throttle_error: Callable[[str], ServiceError],
        faults: Faults,
    ) -> None:
        self._content_type = content_type
        self._target_prefix = target_prefix
        self._operate = operate
        self._keys_of = keys_of
        self._throttle_error = throttle_error
        self._faults = faults
        self.observe: Callable[[str, bytes, HttpAnswer], None] | None = None

    def handle(self, request: HttpRequest) -> Exchange:
        try:
            operation = self._operation(request)
            self._check_credentials(request)
        except ServiceError as error:
            refusal = self._error(error)
            return Exchange(apply=lambda: refusal)
        fault = self._faults.take(operation, request.body, self._keys_of)
        if fault is None:
            return Exchange(apply=lambda: self._applied(operation, request.body))
        return self._disturbed(fault, operation, request.body)

    def _disturbed(self, fault: Fault, operation: str, body: bytes) -> Exchange:
        errors = {
            "throttle": self._throttle_error(operation),
            "error": ServiceError("InternalFailure", "a fault that was asked for", 500),
            "deny": REFUSED_ACCESS_KEYS["DENIED"],
            "expired": ServiceError("ExpiredIteratorException", "Iterator expired, as was asked for"),
            "in_use": ServiceError("ResourceInUseException", "In use, as was asked for"),
            "not_found": ServiceError("ResourceNotFoundException", "Not found, as was asked for"),
        }
        if fault.kind in errors:
            refusal = self._error(errors[fault.kind])
            return Exchange(apply=lambda: refusal)
        if fault.kind == "hang":
            return Exchange(apply=None, fate="hang")
        if fault.kind == "drop":
            return Exchange(apply=None, fate="close")
        return Exchange(
            apply=lambda: self._applied(operation, body),
            before_s=fault.delay_s if fault.kind == "late" else 0.0,
            after_s=fault.delay_s if fault.kind == "slow" else 0.0,
            fate="close" if fault.kind == "lost_answer" else "send",
        )

    def _applied(self, operation: str, body: bytes) -> HttpAnswer:
        try:
            answer = self._operate(operation, body)
        except ServiceError as error:
            answer = self._error(error)
        except Exception as error:
            _log.exception("an embedded engine failed", extra={"action": "engine_failed", "operation": operation})
            answer = self._error(ServiceError("InternalFailure", f"{operation}: {error!r}", 500))
        if self.observe is not None:
            self.observe(operation, body, answer)
        return answer

    def _operation(self, request: HttpRequest) -> str:
        if request.method != "POST":
            raise ServiceError("UnknownOperationException", "only POST is served")
        prefix, _, operation = request.headers.get("x-amz-target", "").partition(".")
        if prefix != self._target_prefix or not operation:
            raise ServiceError("UnknownOperationException", f"X-Amz-Target must be {self._target_prefix}.<Operation>")
        content_type = request.headers.get("content-type", self._content_type)
        if "cbor" in content_type:
            raise ServiceError(
                "UnsupportedMediaTypeException",
                "CBOR is not served, only JSON; Java clients: -Daws.cborEnabled=false",
                415,
            )
        return operation

    def _check_credentials(self, request: HttpRequest) -> None:
        authorization = request.headers.get("authorization")
        if authorization is None:
            if self._faults.require_authorization:
                raise ServiceError("MissingAuthenticationTokenException", "Missing Authentication Token")
            return
        found = _ACCESS_KEY.search(authorization)
        if found and found[1] in REFUSED_ACCESS_KEYS:
            raise REFUSED_ACCESS_KEYS[found[1]]

    def _error(self, error: ServiceError) -> HttpAnswer:
        body = msgspec.json.encode({"__type": error.code, "message": error.message})
        return HttpAnswer(error.status, body, {"Content-Type": self._content_type, "x-amzn-RequestId": str(uuid4())})
