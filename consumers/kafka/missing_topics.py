"""The error text for a topic that does not exist, with the topics that may have been meant. Pure."""

import difflib
from collections.abc import Iterable

_MOST = 3


def missing_topic(topic: str, servers: str, there: Iterable[str] = (), *, local: bool = False) -> str:
    """Return the error text; `there` are the names of the topics that exist.

    With a `local` Kafka it also names the command of those who have none of Kafka's own tools.
    """
    similar = similar_topics(topic, there)
    meant = f"; did you mean {' or '.join(similar)}? If not," if similar else ";"
    ours = f"millrace local produce --bootstrap-servers {servers} --topic {topic} --create --partitions 4 FILE"
    return (
        f"topic {topic} is not at {servers}{meant} create it: "
        f"kafka-topics.sh --bootstrap-server {servers} --create --topic {topic} --partitions 4"
        f"{f', or without it: {ours}' if local else ''}"
    )


def similar_topics(topic: str, there: Iterable[str]) -> list[str]:
    """Return the names that are most like a topic's, the most similar first."""
    by_lower_case = {name.lower(): name for name in sorted(there, reverse=True)}
    near = difflib.get_close_matches(topic.lower(), by_lower_case, n=_MOST)
    return [by_lower_case[name] for name in near]
