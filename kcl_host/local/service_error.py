"""How an embedded engine refuses a request."""

from __future__ import annotations


class ServiceError(Exception):
    """An error answer in AWS JSON form: `code` becomes `__type`; 5xx statuses are retried by SDKs."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def invalid_argument(message: str) -> ServiceError:
    return ServiceError("InvalidArgumentException", message)


def not_found(message: str) -> ServiceError:
    return ServiceError("ResourceNotFoundException", message)


def in_use(message: str) -> ServiceError:
    return ServiceError("ResourceInUseException", message)


def throttled(message: str) -> ServiceError:
    return ServiceError("ProvisionedThroughputExceededException", message)
