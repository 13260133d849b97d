"""Errors of botocore become errors of ours here, once; the cause is kept.

Throttled covers on-demand throttling (ThrottlingException, RequestLimitExceeded) as well as
ProvisionedThroughputExceeded; Java tells the child "ThrottlingException" only for the latter (spec lease-table 13).
An answer that is in no list below is Unavailable: as in Java it is said and tried again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal

import msgspec
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    EndpointConnectionError,
    EndpointProviderError,
    HTTPClientError,
    InvalidRegionError,
    NoAuthTokenError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)

from kcl_host.errors import (
    AccessError,
    ConfigurationError,
    KclHostError,
    StreamNotFound,
    TableMissing,
    Throttled,
    Unavailable,
)

_CODES: Final[Mapping[type[KclHostError], frozenset[str]]] = {
    Throttled: frozenset(
        {
            "ProvisionedThroughputExceededException",
            "ThrottlingException",
            "Throttling",
            "ThrottledException",
            "RequestThrottled",
            "RequestThrottledException",
            "RequestLimitExceeded",
            "TooManyRequestsException",
            "LimitExceededException",
            "KMSThrottlingException",
        }
    ),
    AccessError: frozenset(
        {
            "AccessDenied",
            "AccessDeniedException",
            "KMSAccessDeniedException",
            "UnauthorizedOperation",
            "UnrecognizedClientException",
            "InvalidClientTokenId",
            "InvalidAccessKeyId",
            "InvalidSignatureException",
            "SignatureDoesNotMatch",
            "IncompleteSignature",
            "IncompleteSignatureException",
            "MissingAuthenticationToken",
            "MissingAuthenticationTokenException",
            "ExpiredToken",
            "ExpiredTokenException",
            "AuthFailure",
            "OptInRequired",
            "SubscriptionRequiredException",
        }
    ),
}
_ERROR_OF_CODE: Final = {code: error for error, codes in _CODES.items() for code in codes}
_PERMISSION_CODES: Final = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})

_NO_CREDENTIALS: Final = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    NoAuthTokenError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)
_NOT_CONFIGURED: Final = (NoRegionError, InvalidRegionError, ParamValidationError, EndpointProviderError)


class Resource(msgspec.Struct, frozen=True):
    """What requests are about."""

    service: Literal["dynamodb", "kinesis", "cloudwatch", "sqs", "s3"]
    name: str

    def __str__(self) -> str:
        return f"{_NOUNS[self.service]} {self.name}"


_NOUNS: Final = {
    "dynamodb": "table",
    "kinesis": "stream",
    "cloudwatch": "metrics namespace",
    "sqs": "queue",
    "s3": "bucket",
}


@contextmanager
def translated(resource: Resource, codes: Mapping[str, type[KclHostError]] | None = None) -> Iterator[None]:
    """Raises our errors for botocore's. `codes` names what an error code means for this request in particular."""
    try:
        yield
    except ClientError as error:
        raise _refusal(error, resource, codes or {}) from error
    except _NO_CREDENTIALS as error:
        raise AccessError(f"{resource}: no usable AWS credentials: {error}") from error
    except _NOT_CONFIGURED as error:
        raise ConfigurationError(f"{resource}: the request cannot be made: {error}") from error
    except EndpointConnectionError as error:
        raise Unavailable(
            f"{resource}: could not connect to {error.kwargs.get('endpoint_url', 'the endpoint')}: "
            f"{_first_line(error.kwargs.get('error', error))}; check the endpoint, the region and the network"
        ) from error
    except HTTPClientError as error:
        raise Unavailable(f"{resource}: {_first_line(error)}") from error
    except BotoCoreError as error:
        raise Unavailable(f"{resource}: {type(error).__name__}: {_first_line(error)}") from error


def error_code(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")


def _refusal(error: ClientError, resource: Resource, codes: Mapping[str, type[KclHostError]]) -> KclHostError:
    code = error_code(error)
    service = "sts" if error.operation_name.startswith("AssumeRole") else resource.service
    api = f"{service}:{error.operation_name}"
    said = error.response.get("Error", {}).get("Message") or "no message"
    what = f"{api} on {resource}: {code}: {said}"
    if code in codes:
        return codes[code](what)
    if code == "ResourceNotFoundException":
        return TableMissing(what) if resource.service == "dynamodb" else StreamNotFound(what)
    kind = _ERROR_OF_CODE.get(code, Unavailable)
    if kind is AccessError:
        advice = (
            f"grant {api} on {resource} to these credentials"
            if code in _PERMISSION_CODES
            else "check the credentials, their region, and the clock of this machine"
        )
        return AccessError(f"{what}; {advice}")
    return kind(what)


def _first_line(error: object) -> str:
    return str(error).partition("\n")[0]
