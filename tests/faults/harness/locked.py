"""A broker that lets nobody in without a password, and one listener beside it for those who write."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.tools.local_broker import LocalBroker
from app.tools.local_broker.broker import free_port
from app.tools.local_broker.properties import HOST

USER = "trainer"
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@contextmanager
def locked(folder: Path, password: str) -> Iterator[tuple[LocalBroker, str]]:
    """Yield the broker, and its address that needs the password."""
    plain, sasl, controller = free_port(), free_port(), free_port()
    settings = {
        "listeners": f"PLAINTEXT://{HOST}:{plain},LOCKED://{HOST}:{sasl},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{plain},LOCKED://{HOST}:{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOCKED:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.locked.plain.sasl.jaas.config": f'{_MODULE} user_{USER}="{password}";',
    }
    with LocalBroker(folder, port=plain, settings=settings) as broker:
        yield broker, f"{HOST}:{sasl}"
