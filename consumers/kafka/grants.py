"""The errors of a user to whom Kafka does not permit something, with the command that grants it. Pure."""

from millrace.consumers.errors import SourceError
from millrace.consumers.kafka.options import KafkaOptions


def grant(servers: str, user: str | None, operation: str, resource: str, name: str) -> str:
    """Return the command that permits a user an operation on a `topic`, `group` or `transactional-id`."""
    return (
        f"kafka-acls.sh --bootstrap-server {servers} --add --allow-principal {_principal(user)} "
        f"--operation {operation} --{resource} {name}"
    )


def refused_group(options: KafkaOptions) -> SourceError:
    """Return the error of a user who may not use the group."""
    return _refused(options, "Read", "group", options.group_id, "read and commit the offsets of")


def refused_topic(options: KafkaOptions, operation: str, topic: str) -> SourceError:
    """Return the error of a user who may not read from a topic, or write to it."""
    return _refused(options, operation, "topic", topic, {"Read": "read from", "Write": "write to"}[operation])


def refused_transactions(options: KafkaOptions, transactional_id: str) -> SourceError:
    """Return the error of a user who may not write in transactions of this id."""
    return _refused(options, "Write", "transactional-id", transactional_id, "write with")


def _refused(options: KafkaOptions, operation: str, resource: str, name: str, verb: str) -> SourceError:
    user = options.security.get("sasl_plain_username")
    return SourceError(
        f"Kafka does not permit {_principal(user)} to {verb} {resource} {name}. Permit {operation}: "
        f"{grant(options.servers, user, operation, resource, name)}"
    )


def _principal(user: str | None) -> str:
    """Return the user as the authorizer names it, or a word in its place where only the broker knows the name."""
    return f"User:{user or 'NAME'}"
