"""The configured chain of credentials providers -> a botocore session (spec configuration 3.3).

Nothing is looked up before a client needs credentials. Then the providers are tried in order; the first one that
yields is kept by the session and refreshes itself, as botocore's credentials do. Services with the same chain should
share one session. Secrets never reach a log or a message of ours.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import botocore
import botocore.credentials
import botocore.session
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

from kcl_host.config.credentials import (
    ANONYMOUS,
    ASSUME_ROLE,
    CONTAINER,
    DEFAULT,
    ENVIRONMENT,
    INSTANCE_PROFILE,
    PROFILE,
    SYSTEM_PROPERTY,
    WEB_IDENTITY,
)
from kcl_host.config.settings import CredentialsProvider
from kcl_host.errors import AccessError

_log = logging.getLogger(__name__)

# our provider -> METHOD of the one in botocore's default chain that does the same
_METHODS: Final = {
    ENVIRONMENT: "env",
    WEB_IDENTITY: "assume-role-with-web-identity",
    CONTAINER: "container-role",
    INSTANCE_PROFILE: "iam-role",
}
_NOT_OF_A_PROFILE: Final = frozenset({"env", "ec2-credentials-file", "boto-config", "container-role", "iam-role"})

Loader = Callable[[], Credentials | None]


def session_for(chain: tuple[CredentialsProvider, ...], region: str | None) -> Session:
    """A session whose clients sign with the credentials of `chain`; an empty one is AWS's default chain.

    `region` is the default region of its clients, None: that of the AWS profile. With AnonymousCredentialsProvider in
    the chain, requests go out unsigned when nothing before it yields. Creating a client raises AccessError, naming
    what was tried, when nothing yields.
    """
    session = botocore.session.Session()
    if region:
        session.set_config_variable("region", region)
    loaders = [
        (provider.name, _loader(provider, region))
        for provider in chain or (CredentialsProvider(name=DEFAULT),)
        if provider.name != ANONYMOUS
    ]
    anonymous = any(provider.name == ANONYMOUS for provider in chain)
    if anonymous:
        names = [provider.name for provider in chain]
        loaders = loaders[: names.index(ANONYMOUS)]
        session.register("choose-signer", _unsigned_without_credentials(session))
    session.register_component("credential_provider", _Chain(loaders, may_be_empty=anonymous))
    return session


def known_regions() -> tuple[str, ...]:
    """Every region name in botocore's data, of all partitions, sorted."""
    data = botocore.session.Session().get_component("data_loader").load_data("partitions")
    return tuple(sorted(r for p in data["partitions"] for r in p["regions"] if not r.endswith("-global")))


class _Chain:
    """botocore's credential resolver over our providers.

    A provider that fails counts as one that has nothing, as in Java, but says so in the log. Besides botocore's errors
    that is a missing token file (OSError) and a role that is expired when it arrives (RuntimeError).
    """

    def __init__(self, loaders: Sequence[tuple[str, Loader]], *, may_be_empty: bool) -> None:
        self._loaders = loaders
        self._may_be_empty = may_be_empty

    def load_credentials(self) -> Credentials | None:
        tried = []
        for name, load in self._loaders:
            try:
                credentials = load()
                if credentials is not None:
                    credentials.get_frozen_credentials()  # credentials of a role are fetched here, or fail here
                    _log.info("credentials found", extra={"action": "credentials_found", "provider": name})
                    return credentials
                tried.append(f"{name} (found nothing)")
            except (BotoCoreError, ClientError, OSError, RuntimeError) as error:
                tried.append(f"{name} ({error})")
                extra = {"action": "credentials_failed", "provider": name, "error": str(error)}
                _log.warning("credentials provider failed", extra=extra)
        if self._may_be_empty:
            return None
        raise AccessError(
            f"no AWS credentials, tried: {'; '.join(tried)}; see AwsCredentialsProvider in the configuration"
        )


def _loader(provider: CredentialsProvider, region: str | None) -> Loader:
    """What fetches the credentials of one provider, None when it has none. It may raise botocore's errors."""
    if provider.name == DEFAULT:
        return lambda: _botocore_chain(_session(region)).load_credentials()
    if provider.name == PROFILE:
        return lambda: _from_profile(provider.arguments[0] if provider.arguments else None, region)
    if provider.name == ASSUME_ROLE:
        return lambda: _from_role(provider, region)
    if provider.name == SYSTEM_PROPERTY:
        return lambda: None
    method = _METHODS[provider.name]
    return lambda: _botocore_chain(_session(region)).get_provider(method).load()


def _session(region: str | None, profile: str | None = None) -> Session:
    session = botocore.session.Session(profile=profile)
    own = os.environ.get("AWS_REGION") or session.get_config_variable("region") or region
    if own:
        session.set_config_variable("region", own)
    return session


def _botocore_chain(session: Session) -> Any:
    return botocore.credentials.create_credential_resolver(session, region_name=session.get_config_variable("region"))


def _from_profile(name: str | None, region: str | None) -> Credentials | None:
    """From the profile files alone; no name: AWS_PROFILE, or `default`."""
    profile = name or os.environ.get("AWS_PROFILE") or "default"
    for provider in _botocore_chain(_session(region, profile)).providers:
        if provider.METHOD not in _NOT_OF_A_PROFILE and (credentials := provider.load()) is not None:
            assert isinstance(credentials, Credentials)
            return credentials
    return None


def _from_role(provider: CredentialsProvider, region: str | None) -> Credentials:
    """AssumeRole with the credentials of the default chain, renewed before they expire.

    The region of STS is `endpointRegion`, else that of the environment or profile, else `region`.
    """
    session = _session(region)
    source = _botocore_chain(session).load_credentials()
    if source is None:
        raise botocore.exceptions.NoCredentialsError
    role_arn, session_name = provider.arguments
    extra_args = {"RoleSessionName": session_name}
    if external_id := provider.nested.get("externalId"):
        extra_args["ExternalId"] = external_id

    def create_client(service: str, **credentials: Any) -> Any:
        return session.create_client(
            service,
            region_name=provider.nested.get("endpointRegion") or session.get_config_variable("region"),
            endpoint_url=provider.nested.get("endpoint"),
            **credentials,
        )

    fetcher = botocore.credentials.AssumeRoleCredentialFetcher(
        client_creator=create_client, source_credentials=source, role_arn=role_arn, extra_args=extra_args
    )
    # the first fetch is made here and not by deferred credentials: those log a traceback when it is refused
    return botocore.credentials.RefreshableCredentials.create_from_metadata(
        fetcher.fetch_credentials(), refresh_using=fetcher.fetch_credentials, method="assume-role"
    )


def _unsigned_without_credentials(session: Session) -> Callable[..., Any]:
    def choose_signer(**_: Any) -> Any:
        return botocore.UNSIGNED if session.get_credentials() is None else None

    return choose_signer
