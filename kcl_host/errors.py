"""Every error of the host, sorted by what happens next.

stop the host       ConfigurationError (exit 2), AccessError (3), StreamNotFound (4), DrainDeadlineExceeded (5),
                    TwinWorker and MetadataConflict (6)
try again later     Throttled, Unavailable, TableMissing, SubscriptionInUse, ConsumerGone
restart the child   ChildError and what derives from it
"""

from __future__ import annotations


class KclHostError(Exception):
    """Something went wrong in kcl-host."""

    exit_code = 1

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class ConfigurationError(KclHostError):
    """The configuration is wrong."""

    exit_code = 2


class AccessError(KclHostError):
    """AWS refused the credentials, or they lack a permission."""

    exit_code = 3


class StreamNotFound(KclHostError):
    """The stream does not exist."""

    exit_code = 4


class DrainDeadlineExceeded(KclHostError):
    """A child did not finish in time while the host was stopping."""

    exit_code = 5


class TwinWorker(KclHostError):
    """Another process runs with our worker id."""

    exit_code = 6


class MetadataConflict(KclHostError):
    """The metadata tables are in a state that kcl-host must not touch."""

    exit_code = 6


class FleetRolledBack(KclHostError):
    """The application went back to the algorithms of KCL 2.x, which kcl-host does not speak: wait for its return."""

    exit_code = 6


class RetryLater(KclHostError):
    """A remote call failed in a way that may pass. The call may have taken effect all the same."""


class Throttled(RetryLater):
    """The service refused the call because of its rate; it did not take effect."""


class Unavailable(RetryLater):
    """The service did not answer in time or answered with a fault; whether the call took effect is not known."""


class TableMissing(RetryLater):
    """The table, or its index, is not there or not ready."""


class SubscriptionInUse(RetryLater):
    """Another subscription to the shard is less than five seconds old, or has taken over from ours."""


class ConsumerGone(RetryLater):
    """The registered fan-out consumer does not exist any more."""


class SubscriptionEnded(KclHostError):
    """The subscription to a shard has ended as it does after five minutes."""


class ExpiredIterator(KclHostError):
    """The shard iterator is older than five minutes."""


class InvalidPosition(KclHostError):
    """Kinesis does not accept the position or the iterator."""


class SparkServerFailed(KclHostError):
    """The local Spark server could not be started."""


class ChildError(KclHostError):
    """The child process failed."""


class ChildStartFailed(ChildError):
    """The child process could not be started."""


class ChildExited(ChildError):
    """The child process ended, or closed its stdout, before it answered."""


class ChildTimedOut(ChildError):
    """The child process did not answer within timeoutInSeconds."""


class ChildMisbehaved(ChildError):
    """The child process broke the MultiLang protocol."""
