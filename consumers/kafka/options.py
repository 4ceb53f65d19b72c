"""The Kafka options of the source and the dead letters. Owns the values only; does not import aiokafka."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from millrace.consumers.errors import MillraceError

OutOfRange = Literal["fail", "earliest"]
OnRecreated = Literal["fail", "earliest"]
IsolationLevel = Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """How to reach Kafka, what to read, and how much at a time."""

    bootstrap_servers: tuple[str, ...]
    """`host:port` of some brokers, which name the others."""
    topics: tuple[str, ...]
    """The topics to read."""
    group_id: str
    """The group whose commits are set, so that lag tools see our progress. The group is never joined."""
    client_id: str = "millrace"
    """The name of this client in the broker's logs and quotas."""
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Settings for aiokafka's clients, ready to use: security_protocol, ssl_context, sasl_*."""
    out_of_range: OutOfRange = "fail"
    """When retention has removed the next offset: fail, or continue at the earliest and count the gap."""
    on_recreated: OnRecreated = "fail"
    """When a topic was deleted and created again: fail, or start at its first record."""
    isolation_level: IsolationLevel = "read_committed"
    """Whether records of aborted or open transactions are read."""
    due_after_s: float = 0.0
    """How long after its time a record is due: what is not due yet does not count as behind."""
    freeze_partitions: bool = False
    """Whether new partitions are only reported instead of joining."""
    only_given: bool = False
    """Whether other processes read all partitions but those of the positions given."""
    chunk_records: int = 4096
    """Most records of one poll; each takes about 2 µs on the loop."""
    fetch_bytes: int = 1024 * 1024
    """Most bytes of one partition in one fetch; a single larger batch still arrives whole."""
    fetch_total_bytes: int = 1024 * 1024
    """Most bytes of one fetch from one broker."""
    fetch_least_bytes: int = 1
    """How much a broker waits for before it answers, for fetch_wait_ms at most."""
    fetch_wait_ms: int = 100
    """How long a broker holds a fetch without data. A partition that gets room again waits for it too."""
    metadata_max_age_ms: int = 5000
    """How soon a new partition is seen."""
    retry_backoff_ms: int = 250
    """How long a client waits before it repeats a refused request or connects again to a broker that is away."""
    request_timeout_ms: int = 15_000
    """When an unanswered request, and its connection, count as failed."""
    commit_timeout_ms: int = 10_000
    """When a commit that Kafka does not answer counts as refused."""
    missing_after_ms: int = 10_000
    """How long a partition may have no leader before it is reported missing."""
    log_lines_per_minute: int = 10
    """The limit for each of aiokafka's loggers, so that a broker that is away does not fill a disk."""

    @property
    def on_this_machine(self) -> bool:
        """Whether every bootstrap server is named by an address of this machine alone."""
        return {server.rpartition(":")[0] for server in self.bootstrap_servers} <= {"localhost", "127.0.0.1", "[::1]"}

    @property
    def user(self) -> str | None:
        """The user that we log in as; None where only the broker knows the name."""
        login = self.security.get("sasl_oauth_token_provider")
        user: str | None = self.security.get("sasl_plain_username") if login is None else login.user
        return user

    @property
    def token_fault(self) -> MillraceError | None:
        """Why there is no new token to log in with; None where there is one, or none is needed."""
        login = self.security.get("sasl_oauth_token_provider")
        fault: MillraceError | None = None if login is None else login.fault
        return fault

    @property
    def servers(self) -> str:
        return ",".join(self.bootstrap_servers)

    def client_settings(self) -> dict[str, Any]:
        """Return the arguments that every aiokafka client of ours gets."""
        return {
            "bootstrap_servers": list(self.bootstrap_servers),
            "client_id": self.client_id,
            "metadata_max_age_ms": self.metadata_max_age_ms,
            "request_timeout_ms": self.request_timeout_ms,
            "retry_backoff_ms": self.retry_backoff_ms,
            **self.security,
        }
