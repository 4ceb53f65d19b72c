"""Where each worker of a local group runs: its name, its ports, and the settings that it has for itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from millrace.app.settings import Settings, load
from millrace.app.settings.environment import with_own
from millrace.app.tools.local_broker.broker import free_port, is_free
from millrace.app.tools.local_broker.properties import HOST
from millrace.consumers.errors import ConfigError
from millrace.training.group.membership import Membership

_PORTS_TRIED = 100
_SCALE, _LISTEN, _PROBES, _LOG_FORM = (
    "MILLRACE_SCALE__",
    "MILLRACE_API__LISTEN",
    "MILLRACE_API__PROBES",
    "MILLRACE_LOGS__FORMAT",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One worker's."""

    name: str
    """`chief` or `worker 1`."""
    page: str
    """The address of its page; with port 0 the worker's log names the port."""
    variables: Mapping[str, str]
    """The settings that differ from those of the config, as variables of the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole group."""

    places: tuple[Place, ...]
    """By the workers' numbers, the chief first."""
    grace_s: float
    """How long a worker may take to end after SIGTERM."""


def plan_of(config: Path, workers: int, *, in_terminal: bool, free: Callable[[int], bool] = is_free) -> Plan:
    """Return the places of so many workers of this config; ConfigError where the config does not suit a group."""
    addresses = [f"{HOST}:{port}" for port in _group_ports(workers)]
    common = {f"{_SCALE}WORKERS": str(workers), f"{_SCALE}ADDRESSES": ",".join(addresses)}
    settings = load(config, with_own(common)).settings
    if in_terminal and settings.logs.format == "auto":
        common[_LOG_FORM] = "text"  # a worker writes to a file, and would take JSON
    places, port = [], settings.api.port
    for index in range(workers):
        variables = {**common, f"{_SCALE}INDEX": str(index)}
        if index:
            port = _next_free(port, free)
            variables |= {_LISTEN: _with_port(settings, port), _PROBES: "null"}
        name = Membership(index=index, addresses=addresses, timeout_s=settings.scale.timeout).name
        page = f"{settings.api.scheme}://{_with_port(settings, port)}/"
        places.append(Place(name=name.removeprefix("the "), page=page, variables=variables))
    return Plan(places=tuple(places), grace_s=settings.stop.grace)


def _group_ports(workers: int) -> list[int]:
    """Return as many different free ports."""
    ports: list[int] = []
    while len(ports) < workers:
        if (port := free_port()) not in ports:
            ports.append(port)
    return ports


def _next_free(port: int, free: Callable[[int], bool]) -> int:
    """Return the first free port after this one; 0, which takes any, has none after it."""
    if port == 0:
        return 0
    for candidate in range(port + 1, min(port + 1 + _PORTS_TRIED, 2**16)):
        if free(candidate):
            return candidate
    raise ConfigError(f"none of the {_PORTS_TRIED} ports after {port} is free; write another port in api.listen")


def _with_port(settings: Settings, port: int) -> str:
    return f"{settings.api.listen.rpartition(':')[0]}:{port}"
