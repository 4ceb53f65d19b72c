"""What the source and the dead letters are told about Kafka. Owns the settings only; aiokafka is not imported here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

OutOfRange = Literal["fail", "earliest"]
OnRecreated = Literal["fail", "earliest"]
IsolationLevel = Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """How to reach Kafka, what to read, and in how large pieces."""

    bootstrap_servers: tuple[str, ...]
    """`host:port` of some brokers; the others are learnt from them."""
    topics: tuple[str, ...]
    """What to read."""
    group_id: str
    """Whose commits are set, so that lag tools see us. Its members are never joined."""
    client_id: str = "millrace"
    """How we show in the broker's logs and quotas."""
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """aiokafka's own client settings, already built: security_protocol, ssl_context, sasl_*."""
    out_of_range: OutOfRange = "fail"
    """When retention has removed what is to be read next: fail, or go on at the earliest and count the gap."""
    on_recreated: OnRecreated = "fail"
    """When another topic stands under the name of the one that was learnt: fail, or begin at its first record."""
    isolation_level: IsolationLevel = "read_committed"
    """Whether records of transactions that were aborted, or still are open, are read."""
    freeze_partitions: bool = False
    """Whether new partitions only wait, and are reported, instead of joining."""
    chunk_records: int = 4096
    """Most records of one poll; about 2 µs each on the loop."""
    fetch_bytes: int = 1024 * 1024
    """Most bytes of one partition in one fetch; a single larger batch arrives whole all the same."""
    fetch_total_bytes: int = 1024 * 1024
    """Most bytes of one fetch from one broker."""
    fetch_wait_ms: int = 100
    """How long a broker holds a fetch for which it has nothing. A partition that gets room again waits for it too."""
    metadata_max_age_ms: int = 5000
    """How soon a new partition is seen."""
    retry_backoff_ms: int = 250
    """How long a client waits before it asks again what was refused, or connects anew to a broker that is away."""
    request_timeout_ms: int = 15_000
    """When an unanswered request counts as failed, and its connection with it."""
    commit_timeout_ms: int = 10_000
    """When a commit that Kafka does not answer counts as refused."""
    missing_after_ms: int = 10_000
    """For how long a partition of ours may be away before it is called missing."""
    log_lines_per_minute: int = 10
    """What each of the client library's loggers may write, so that a broker that is away does not fill a disk."""

    @property
    def servers(self) -> str:
        """The bootstrap servers as one text."""
        return ",".join(self.bootstrap_servers)

    def client_settings(self) -> dict[str, Any]:
        """What every client of ours is built with."""
        return {
            "bootstrap_servers": list(self.bootstrap_servers),
            "client_id": self.client_id,
            "metadata_max_age_ms": self.metadata_max_age_ms,
            "request_timeout_ms": self.request_timeout_ms,
            "retry_backoff_ms": self.retry_backoff_ms,
            **self.security,
        }
