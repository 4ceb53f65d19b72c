"""The numbers of classes that have appeared, taken over with weights that were learnt for them."""

from collections.abc import Mapping, Sequence
from typing import Any

from millrace.app.service.provenance import hyperparameter_options
from millrace.app.settings import Settings
from millrace.consumers.errors import ConfigError
from millrace.pipelines.shaping.appearing import NAME as CLASSES
from millrace.pipelines.shaping.appearing import AppearingClasses
from millrace.pipelines.shaping.shaper import Shaper
from millrace.training.checkpoints.parts import PartState
from millrace.training.errors import CorruptError
from millrace.training.model.hyperparameters import NAME as HYPERPARAMETERS

PARTS = frozenset({HYPERPARAMETERS, CLASSES})
"""The parts of a checkpoint that say which number each class has."""


def carry_classes(settings: Settings, shapers: Sequence[Shaper], parts: Mapping[str, PartState], what: str) -> None:
    """Give each label the numbers that the classes of its field have in a checkpoint; others begin anew.

    `what` names the checkpoint. ConfigError where more have appeared than there may be now.
    """
    recorded, known = (parts.get(name, PartState()).facts for name in (HYPERPARAMETERS, CLASSES))
    numbers, now = known.get("labels", {}), hyperparameter_options(settings).settings
    by_field = {field: numbers.get(name, []) for name, field in _fields_of(recorded.get("records.label")).items()}
    fields = _fields_of(now.get("records.label"))
    labels = {name: by_field[field] for name, field in fields.items() if field in by_field}
    for one in shapers:
        if isinstance(one, AppearingClasses):
            try:
                one.load({}, {"labels": labels})
            except (KeyError, TypeError, ValueError) as error:
                raise CorruptError(f"{what}: its classes cannot be read; name another") from error
            for name, found in one.figures().items():
                if found.known > found.most:
                    raise ConfigError(
                        f"{one.setting}: {found.most} for {name}, and {found.known} have appeared in {what}; write "
                        "that or more"
                    )


def _fields_of(label: Any) -> Mapping[str, str]:
    """Return the field whose texts become classes, by the name of the label, of what is recorded of the labels."""
    if not isinstance(label, Mapping):
        return {}
    labels = {label["field"]: label} if isinstance(label.get("classes"), int) else label
    numbered = {name: one for name, one in labels.items() if isinstance(one, Mapping) and one.get("classes")}
    return {name: one.get("field") or name for name, one in numbered.items()}
