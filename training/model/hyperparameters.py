"""Hyperparameters: which ones a checkpoint was learnt with, and which ones hold where model or settings differ now.

Owns the part `hyperparameters`: by name, every scalar of every optimizer's config and the settings that matter to what
is learnt, as they were in force. A learning rate is a variable, so a restore brings back the old one whatever the code
says; all others are constants of the compiled step, so the new ones hold whatever the checkpoint says. This part
compares both, logs every difference, and decides by policy. Where nothing differs, it changes nothing.

Runs on the trainer's thread, after the part `optimizer`, whose variables it corrects.
"""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import keras
import numpy as np

from millrace.consumers.errors import ConfigError
from millrace.training.checkpoints.parts import PartState
from millrace.training.errors import OtherModelError
from millrace.training.model.setup.keras_internals import rate_of
from millrace.training.model.variables import assign, differences, optimizer_variables, optimizers_of, read

log = logging.getLogger(__name__)


NAME = "hyperparameters"
UNKNOWN: Mapping[str, PartState] = {NAME: PartState()}
"""Stands in for this part where a checkpoint lacks it."""
_BY_USERS = ("model.args.", "records.features.", "records.where.")
"""Names that users make: of these, a name that only one side has is a difference. Others come and go with versions."""
_CLASS = "class"
_FADED = 0.01


class OnChange(StrEnum):
    """Whose hyperparameters hold after a restore."""

    BUILD = "build"
    """Those of the model as it was built: what was just deployed."""
    CHECKPOINT = "checkpoint"
    """Those of the checkpoint; a value that can no longer be set is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperparameterOptions:
    """What the settings say about hyperparameters."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Those that matter to what is learnt, by name (`training.batch_size`): JSON values, and no secret."""
    on_change: OnChange = OnChange.BUILD
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The names that older checkpoints have for some of them, each with the present one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One hyperparameter that differs between a checkpoint and what was built."""

    name: str
    then: Any
    """The value in the checkpoint, as JSON holds it."""
    now: Any
    """The value in model and settings."""
    used: OnChange
    """Which of the two is in force."""

    def __str__(self) -> str:
        now = _shown(self.now)
        used = _shown(self.then) if self.used is OnChange.CHECKPOINT else now
        return f"{self.name}: {_shown(self.then)} in the checkpoint, {now} in model and settings; {used} is used"


class Hyperparameters:
    """The hyperparameters in force in this process, as a part of a checkpoint."""

    name = NAME

    def __init__(self, model: Any, options: HyperparameterOptions) -> None:
        self._model, self._on_change, self._renamed = model, options.on_change, options.renamed
        self._now = {**_of_optimizers(model), **options.settings}
        variables = optimizer_variables(model)
        self._variables = {name: variables[key] for name in self._now if (key := _key(name)) in variables}
        # Read before any restore, which overwrites the variables.
        self._built = {name: np.array(read(variable)) for name, variable in self._variables.items()}
        self._classes = frozenset(f"{name}.{_CLASS}" for name in optimizers_of(model))
        self._in_force = self._now
        self.changes: tuple[Change, ...] = ()
        """What differed at the last restore."""

    def snapshot(self) -> PartState:
        """Return the hyperparameters in force; some hundred bytes."""
        return PartState(facts=dict(self._in_force))

    def check(self, state: Mapping[str, PartState]) -> None:
        """Refuse another optimizer, and a value that the policy asks for and that cannot be set. Takes all parts."""
        changes = self.foreseen(state)
        for change in changes:
            if change.name in self._classes:
                found = differences(optimizer_variables(self._model), state["optimizer"].arrays)
                variables = f": {found}" if found else ""
                raise OtherModelError(
                    f"the checkpoint holds the state of another optimizer ({change.now} here, {change.then} "
                    f"there){variables}. Take back the change to model.py or model.args, or give the new model a name "
                    "of its own"
                )
        for change in changes:
            if self._on_change is OnChange.CHECKPOINT and not self._can_hold(change):
                then, now = _shown(change.then), _shown(change.now)
                where = "in the settings" if change.name.startswith("training.") else "in model.py"
                raise ConfigError(
                    f"training.on_hyperparameter_change: checkpoint cannot hold {change.name}, which is {then} in the "
                    f"checkpoint and {now} {where}: the compiled step has it built in. Write {then} there, or let "
                    "build decide"
                )

    def foreseen(self, state: Mapping[str, PartState]) -> tuple[Change, ...]:
        """Return the differences that a restore of these parts would find."""
        arrays = state["optimizer"].arrays
        # An older checkpoint holds no hyperparameters, but a rate that is a variable speaks for itself.
        then = {name: float(arrays[key]) for name in self._variables if (key := _key(name)) in arrays}
        return self._compared(state[NAME].facts or then)

    def restore(self, state: PartState) -> None:
        """Decide each difference by policy. The variables must have been restored already."""
        if not state.facts:
            log.info("the checkpoint does not say with which hyperparameters it was learnt")
        restored = {name: float(np.array(read(variable))) for name, variable in self._variables.items()}
        self.changes = self._compared(state.facts or restored)
        for change in self.changes:
            log.warning("%s", change)
            if change.used is OnChange.BUILD and change.name in self._variables:
                assign(self._variables[change.name], self._built[change.name])
        held = {change.name: change.then for change in self.changes if change.used is OnChange.CHECKPOINT}
        self._in_force = {**self._now, **held}
        for warning in faded(self._model):
            log.warning("%s", warning)

    def _compared(self, then: Mapping[str, Any]) -> tuple[Change, ...]:
        """Return every difference from the checkpoint's values, by name; a value that it lacks is no difference."""
        then = {self._renamed.get(name, name): value for name, value in then.items()}
        both = then.keys() & self._now.keys()
        one = {name for name in then.keys() ^ self._now.keys() if then and name.startswith(_BY_USERS)}
        return tuple(
            Change(
                name=name,
                then=then.get(name),
                now=self._now.get(name),
                used=self._on_change if name in self._variables else OnChange.BUILD,
            )
            for name in sorted(both | one)
            if then.get(name) != self._now.get(name)
        )

    def _can_hold(self, change: Change) -> bool:
        """Return whether the checkpoint's value can be set, or is not subject to the policy, as in model.py."""
        if change.name.startswith(("model.", "records.")):
            return True
        return change.name in self._variables and isinstance(change.then, int | float)


def faded(model: Any) -> Iterator[str]:
    """Yield a warning for each schedule whose rate is close to zero, because the model would stop learning."""
    for name, optimizer in optimizers_of(model).items():
        schedule = rate_of(optimizer)
        step, rate = int(np.asarray(optimizer.iterations)), float(np.asarray(optimizer.learning_rate))
        if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule) or not step:
            continue
        # Sampled over the steps so far, because a schedule may warm up before it decays.
        highest = max(float(np.asarray(schedule(step * part // 32))) for part in range(33))
        if rate <= _FADED * highest:
            yield (
                f"{name}.learning_rate: {type(schedule).__name__} gives {rate:.3g} at step {step:,}, after it began "
                f"with up to {highest:.3g}: little or nothing is learnt any more; take a constant rate in model.py, or "
                "a schedule that comes back, as CosineDecayRestarts does"
            )


def _of_optimizers(model: Any) -> dict[str, Any]:
    """Return every scalar of every optimizer's config, by the optimizer's name and the scalar's."""
    facts: dict[str, Any] = {}
    for name, optimizer in optimizers_of(model).items():
        facts[f"{name}.{_CLASS}"] = type(optimizer).__name__
        config = {key: value for key, value in _config(optimizer).items() if key != "name"}
        for key, value in config.items():
            facts.update(_flat(f"{name}.{key}", value))
    return facts


def _config(optimizer: Any) -> Mapping[str, Any]:
    try:
        config = optimizer.get_config()
    except Exception as error:  # noqa: BLE001 - the user's own class may lack one; the rate is known all the same
        log.warning("the hyperparameters of %s are not known: %s", type(optimizer).__name__, error)
        config = {}
    rate = rate_of(optimizer)  # an optimizer of one's own may leave it out of its config
    return {"learning_rate": float(np.asarray(rate)), **config} if isinstance(rate, keras.Variable) else config


def _flat(name: str, value: Any) -> dict[str, Any]:
    """Flatten a value: a serialized object (such as a schedule) becomes its class, and below it its own config."""
    if not isinstance(value, Mapping):
        return {name: _plain(value)}
    kind, config = value.get("class_name"), value.get("config", {})
    facts = {name: kind} if isinstance(kind, str) else {}
    within = config if isinstance(kind, str) else value
    if isinstance(within, Mapping) and not str(kind).startswith("__"):  # a lambda's config is its code
        for key, below in within.items():
            facts.update({} if key == "name" else _flat(f"{name}.{key}", below))
    elif isinstance(within, str):
        facts[name] = within
    return facts


def _plain(value: Any) -> Any:
    """Convert a value to one that JSON can hold and reads back as the same."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return type(value).__name__


def _key(name: str) -> str:
    """Return the key of the optimizer's variable that would hold this hyperparameter."""
    return name.replace(".", "/", 1)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.7g}"
    return value if isinstance(value, str) else json.dumps(value)
