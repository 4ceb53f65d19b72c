"""`scale`: how many processes learn one model together."""

import re
import socket
from functools import partial
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from millrace.app.settings.sections.training import auto_or_number
from millrace.consumers.section import Count, Section, SettingError
from millrace.consumers.units import Duration

_ORDINAL = re.compile(r"^(.+)-(\d+)$")


AutoOrIndex = Annotated[
    int | Literal["auto"],
    BeforeValidator(partial(auto_or_number, least=0)),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 0}]}),
]


class ScaleSettings(Section):
    """How many processes learn one model together."""

    workers: Count = Field(
        1,
        ge=1,
        le=256,
        description="The processes of the group; each reads its portion of the partitions, and all hold the same "
        "weights. 1: this process alone.",
    )
    index: AutoOrIndex = Field(
        "auto",
        description="The number of this process in the group; 0 is the chief, which keeps the checkpoints and takes "
        "commands. auto: by the ordinal in the pod's name, `<chief>-0` or `<others>-<n>`.",
    )
    addresses: tuple[str, ...] = Field(
        (),
        description="The address at which each worker listens for the others, host:port, the chief first. Empty: "
        "derived from the names of the StatefulSets and the port.",
    )
    chief: str = Field(
        "millrace",
        min_length=1,
        description="The name of the chief's StatefulSet.",
    )
    chief_service: str = Field(
        "millrace-headless",
        min_length=1,
        description="The name of the headless service that names the chief's pod.",
    )
    others: str = Field(
        "millrace-workers",
        min_length=1,
        description="The name of the other workers' StatefulSet, and of the headless service that names its pods.",
    )
    port: Count = Field(
        9911,
        ge=1,
        le=65535,
        description="The port on which the workers meet, if addresses is empty. It has no authentication: a program "
        "that reaches it can run code, so let only the workers reach it.",
    )
    patience: Duration = Field(
        0.25,
        gt=0,
        description="How long a block that is ready waits for the blocks of the other workers, before a step "
        "runs without their rows.",
    )
    timeout: Duration = Field(
        120.0,
        ge=1,
        description="How long the others may take for one exchange or step before they count as lost. A process that "
        "has ended is noticed at once, a host that is gone within ten seconds.",
    )

    @model_validator(mode="after")
    def _one_address_each(self) -> Self:
        if self.addresses and len(self.addresses) != self.workers:
            raise SettingError(
                "addresses", f"these are {len(self.addresses)}, for {self.workers} workers; give one for each"
            )
        if self.index != "auto" and self.index >= self.workers:
            raise SettingError("index", f"{self.index} is none of {self.workers} workers, who count from 0")
        return self

    @property
    def everyone(self) -> tuple[str, ...]:
        """The address of each process, the chief first."""
        if self.addresses:
            return self.addresses
        others = (f"{self.others}-{number}.{self.others}:{self.port}" for number in range(self.workers - 1))
        return (f"{self.chief}-0.{self.chief_service}:{self.port}", *others)

    def own_index(self, host: str | None = None) -> int:
        """Return which of the processes this one is, by its host's name unless it is set."""
        if self.index != "auto":
            return self.index
        name = socket.gethostname() if host is None else host
        match = _ORDINAL.match(name)
        number = None if match is None else {self.chief: 0, self.others: 1}.get(match[1])
        if match is None or number is None or number + int(match[2]) >= self.workers:
            raise SettingError(
                "index",
                f"the host is called {name!r}, which is neither {self.chief}-0 nor {self.others}-0 to "
                f"{self.others}-{self.workers - 2}; set it",
            )
        return number + int(match[2])
