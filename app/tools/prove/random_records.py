"""Random records by a schema, for a proof on a user's model. Some of them no schema admits.

A pool of records is drawn once, and the stream draws from the pool. Pure; runs on the writer's thread.
"""

from random import Random
from typing import Any

import numpy as np

from millrace.app.tools.traffic.single_writer import ExpectedPosition, Verdict
from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import Format
from millrace.pipelines.schema import Schema

_POOL = 256
_BAD = 0.005
"""The share of records that must be set aside."""
_NEVER_ADMITTED = b"\0\n\xff"
"""At the end of a record: a byte too many, no JSON, two rows."""


class Generated:
    """A stream of a schema's records."""

    def __init__(self, form: Format, schema: Schema, seed: int, settings: Any = None, *, framed: bool = False) -> None:
        """Draw the pool. ConfigError where records of this format cannot be generated.

        `settings` are those of the format; `framed`: whether a record begins with the number of a schema in a registry.
        """
        if framed:
            raise ConfigError(
                "records.registry: no records can be made up that begin with the number of a schema there; for a proof "
                "copy the config, and leave the registry out of the copy"
            )
        self._pool = form.generate(schema, np.random.default_rng(seed), _POOL, settings)

    def draw(self, place: ExpectedPosition, random: Random) -> tuple[bytes | None, Verdict]:  # noqa: ARG002 - a stream's signature
        """Draw one record and its verdict."""
        value = random.choice(self._pool)
        if random.random() >= _BAD:
            return value, None
        return random.choice([(None, Reason.EMPTY), (value + _NEVER_ADMITTED, Reason.MALFORMED)])
