"""A source of tokens as aiokafka asks for it, at each connection, and a refused token in words."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from millrace.consumers.bearer_tokens import PATIENCE_S, Token, TokenSource, moment, to_token
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.consumers.kafka.aiokafka_internals import take_error
from millrace.consumers.suggested_command import install_of


class TokenFault(KafkaConnectionError):  # type: ignore[misc] # noqa: N818 - aiokafka has no types; not seen by users
    """There is no token to log in with. aiokafka handles it as a broker that is away."""


class TokenLogin(AbstractTokenProvider):  # type: ignore[misc] # aiokafka has no types
    """Gives aiokafka's connections their tokens. Runs on any loop, and blocks none."""

    def __init__(self, source: TokenSource, extensions: Mapping[str, str] | None = None) -> None:
        self._source, self._extensions = source, dict(extensions or {})

    async def token(self) -> str:
        """Return a valid token. Raises TokenFault."""
        valid, renewal = self._source.begin()
        if renewal is not None:
            renewed = asyncio.wrap_future(renewal)
            renewed.add_done_callback(take_error)
            await asyncio.wait([renewed], timeout=None if valid is None else PATIENCE_S)
            try:
                return renewed.result().text
            except (asyncio.InvalidStateError, MillraceError) as error:
                if valid is None:
                    raise TokenFault(str(error)) from None
        assert valid is not None, "without a renewal there is a token"
        return valid.text

    @property
    def fault(self) -> MillraceError | None:
        """Why there is no new token; None if there is one."""
        return self._source.fault

    def extensions(self) -> dict[str, str]:
        """Return what goes to the broker beside the token."""
        return self._extensions

    @property
    def user(self) -> str | None:
        """The user as the token names it, where it does; brokers may be set up to take another claim."""
        subject = self._claims.get("sub")
        return subject if isinstance(subject, str) else None

    def refused(self) -> str:
        """Return what to say of a token that a broker refuses."""
        held, claims = self._source.held, self._claims
        if held is not None and held.has_ended:
            return f"refuses the token of {self._source.place}: it has ended at {moment(held.ends_at)}; replace it"
        said = ", ".join(f"{name} {claims[name]}" for name in ("iss", "aud", "sub") if name in claims)
        which = f"{self._source.place}{f' ({said})' if said else ''}"
        return f"refuses the token of {which}: check that the broker trusts who issues it, and for this audience"

    @property
    def _claims(self) -> Mapping[str, Any]:
        return {} if self._source.held is None else self._source.held.claims


def msk_tokens(region: str) -> TokenSource:
    """Return the source of tokens for Amazon MSK: AWS's signer makes them, by the credentials of its usual chain."""
    place = "kafka.sasl_mechanism AWS_MSK_IAM"
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError(f"{place} needs AWS's signer: {install_of('msk')}") from None

    def get() -> Token:
        try:
            text, ends_ms = MSKAuthTokenProvider.generate_auth_token(region)
        except (AttributeError, ValueError):  # as the signer does without any
            raise ConfigError(
                f"{place}: there are no AWS credentials; give this process a role, or a profile"
            ) from None
        return to_token(text, place, ends_ms / 1000 - time.time())

    return TokenSource(get, place)
