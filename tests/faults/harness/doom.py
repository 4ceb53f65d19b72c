"""Projects on the model with hazards, and records that are one."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.harness.project import Project
from tests.faults.harness.records import ExpectedPosition, Mixture, Verdict, good
from tests.faults.harness.topics import Topic

ABORTS, HANGS = -2.0, -1.5
"""As in hazards.py, which is not imported here: it loads TensorFlow."""
_MODEL = Path(__file__).parent / "hazards.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doom(Mixture):
    """Good records; that of one place bears a curse."""

    place: ExpectedPosition
    curse: float

    def draw(self, place: ExpectedPosition, random: Random) -> tuple[bytes | None, Verdict]:
        """Draw a record that decodes, so that nothing sets it aside."""
        return json.dumps(good(place, random, self.curse if place == self.place else 0.0)).encode(), None


def hazardous(project: Callable[..., Project], topic: Topic, *, waits: bool = False, **sections: Any) -> Project:
    """Make a project whose training steps look at their records."""
    model = {"build": "./hazards.py:build_model", "args": {"waits": waits}}
    made = project(topic, model=model, **sections)
    shutil.copy(_MODEL, made.path / _MODEL.name)
    return made
