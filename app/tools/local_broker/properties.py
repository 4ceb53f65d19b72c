"""What the local broker's `server.properties` says, and why."""

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
    # One node has room for one copy, and needs few partitions of its own.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Nobody waits for members that will not come.
    "group.initial.rebalance.delay.ms": "0",
    # A wrong topic name is an error, never a new topic.
    "auto.create.topics.enable": "false",
    # After a kill, the broker is let in again when its old session is over: 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


def server_properties(port: int, controller_port: int, settings: Mapping[str, str]) -> str:
    """Write the properties for these ports; `settings` stand over them."""
    listening = {
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
    }
    return "".join(f"{key}={value}\n" for key, value in {**SINGLE_NODE, **listening, **settings}.items())
