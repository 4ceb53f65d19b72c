"""The contents of the local broker's `server.properties`, and why."""

from collections.abc import Mapping

HOST = "127.0.0.1"

SINGLE_NODE: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # Relative to the folder that Java runs in: Kafka would split an absolute path at a comma.
    "log.dirs": "data",
    # A single node holds one replica, and needs few internal partitions.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # A group does not wait for more members.
    "group.initial.rebalance.delay.ms": "0",
    # A wrong topic name is an error, never a new topic.
    "auto.create.topics.enable": "false",
    # After a kill, the controller admits the broker again when its old session has expired: 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


def server_properties(port: int, controller_port: int, settings: Mapping[str, str]) -> str:
    """Return the properties for these ports; `settings` override them."""
    listening = {
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
    }
    return "".join(f"{key}={value}\n" for key, value in {**SINGLE_NODE, **listening, **settings}.items())
