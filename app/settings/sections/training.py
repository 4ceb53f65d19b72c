"""`training`: how the model learns, and how it is scored."""

from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from millrace.consumers.section import Count, Section, SettingError
from millrace.consumers.units import Duration
from millrace.consumers.user_class import UserClass, named_or_class
from millrace.training.detectors.detectors import DETECTORS


def auto_or_number(value: object, least: int) -> object:
    """Return `auto`, or a whole number from the least; ValueError for everything else."""
    if value == "auto":
        return value
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise ValueError(f"{value!r} is neither auto nor a whole number from {least}; write one of them")
    return number


AutoOrCount = Annotated[
    int | Literal["auto"],
    BeforeValidator(partial(auto_or_number, least=1)),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]}),
]


def at_most(value: int | Literal["auto"], most: int) -> int | Literal["auto"]:
    """Return the value; ValueError if it is a number above the most."""
    if value != "auto" and value > most:
        raise ValueError(f"{value} is more than {most}; write a smaller number")
    return value


DetectorName = Annotated[str | UserClass, *named_or_class(DETECTORS, "./page_hinkley.py:PageHinkley")]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNumbers:
    """How many rows a step takes, how often each batch is learnt, and from how many recent records."""

    batch_size: int = 1024
    passes: int = 1
    memory: int | None = None


class LiveMetricsSettings(Section):
    """The measurements on records before they are learnt."""

    window: Duration = Field(
        300.0, ge=1, description="How far back the live metrics reach. Records scored before that no longer count."
    )
    watch: str | None = Field(
        None,
        min_length=1,
        description="The metric by which the model is judged: the name of a compiled metric, or loss. It leads the "
        "verdict, the page and `millrace status`, and checkpoints are compared by it. Null: an AUC (ROC) that is "
        "compiled; "
        "else accuracy; else the first metric for which it is known whether higher is better; else the loss.",
    )
    better: Literal["higher", "lower"] | None = Field(
        None,
        description="Which values of the watched metric are better. Null: known from the metric (errors and losses: "
        "lower; "
        "accuracy, AUC, F1, precision, recall: higher). A metric of your own needs it.",
    )

    @model_validator(mode="after")
    def _better_of_what(self) -> Self:
        if self.better is not None and self.watch is None:
            raise SettingError("better", "this needs training.live_metrics.watch; name the metric that it is about")
        return self


class MembersSettings(Section):
    """Copies of the model, mixed by how good each was of late."""

    recent: Count = Field(
        300, ge=1, le=1_000_000, description="The later passes of one member draw from the last records, this many."
    )
    since_drift: Count = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Those of the other draw from the records since the stream has changed, at most from this many. "
        "Where its loss rises by more than chance, it begins anew.",
    )
    once: bool = Field(
        default=False,
        description="Whether there is a third member, which learns each record once, in the first pass. It is ahead "
        "where the records tell little, and more passes learn the noise.",
    )

    @model_validator(mode="after")
    def _one_reaches_further(self) -> Self:
        if self.since_drift <= self.recent:
            raise SettingError("since_drift", f"it is not more than recent, {self.recent}; set it to 10000")
        return self


class TrainingSettings(Section):
    """How it learns."""

    batch_size: AutoOrCount = Field(
        "auto",
        description="Rows of one training step, over all replicas. auto: settled once, when the first start begins, by "
        "how fast records come, as `millrace init` would; each later start takes the number of the checkpoint. 1024 in "
        "a group, with rows: together, and where there are only files to learn from.",
    )
    passes: Annotated[AutoOrCount, AfterValidator(partial(at_most, most=1000))] = Field(
        "auto",
        description="How often each batch is learnt, one update after another. More passes learn more from each "
        "record, and the computing grows with them. A record is scored before the first pass and counts "
        "once. auto: settled together with batch_size; 1 beside a batch_size of yours.",
    )
    memory: Annotated[AutoOrCount, AfterValidator(partial(at_most, most=1_000_000))] | None = Field(
        "auto",
        description="The passes after the first draw their rows from the last records that were learnt, this many, "
        "instead of repeating the batch. For the same computing a change is learnt better, and many passes do not wear "
        "the model out. The rows are in each checkpoint. Needs passes of 2 or more and one worker. Null: the batch is "
        "repeated. auto: settled together with passes; null beside passes of yours.",
        examples=[300],
    )
    members: MembersSettings | None = Field(
        None,
        description="Copies of the model, mixed by how good each was of late, in place of one: a change is learnt "
        "better, for about twice the computing. Takes a functional or Sequential model. The rows are in each "
        "checkpoint. Needs passes of 2 or more, one worker, and no training.memory. Null: one model.",
        examples=[{"recent": 300, "since_drift": 10_000}],
    )
    batches_per_call: Count = Field(
        16,
        ge=1,
        description="The most steps that one call into TensorFlow runs. More is faster, but commands and saves wait "
        "longer. If steps are slow, a call has fewer of them, so that it takes about a quarter of a "
        "second.",
    )
    max_wait: Duration | None = Field(
        0.5,
        gt=0,
        description="The longest time from the fetch of a record to its call; then a step runs with the rows at hand. "
        "Null: wait until all steps of a call are full.",
    )
    partial_batches: Literal["pad", "wait"] = Field(
        "pad",
        description="How to treat records that do not fill a batch when max_wait is over. pad: a step runs with them, "
        "and absent rows of weight 0 fill the batch up. wait: they wait for more records, however long "
        "that takes; at the end of a run up to batch_size - 1 records are left for the next one. A model "
        "with BatchNormalization needs wait.",
    )
    rows: Literal["apart", "together"] = Field(
        "apart",
        description="Whether the loss may compare the rows of a batch with each other. apart: each row counts by "
        "itself, and the start proves that a record weighs the same everywhere. together: an in-batch softmax, a "
        "listwise or a pairwise loss is learnt, on whole batches alone; a batch of which one record raises or gives no "
        "finite update is set aside whole. together needs partial_batches: wait, replicas: 1 and one worker.",
    )
    shuffle: Count = Field(
        0, ge=0, description="How many rows are shuffled with each other; 0 keeps the order of arrival."
    )
    deterministic: bool = Field(
        default=False,
        description="The same settings and records give the same weights to the bit, however often the process is "
        "killed. The trainer keeps a journal, with which `millrace rebuild` makes any checkpoint again "
        "from its records. Slower; needs max_wait null and replicas 1.",
    )
    replicas: AutoOrCount = Field(
        "auto",
        description="Copies of the model, one for each device. auto: one on each GPU; without a GPU, one.",
    )
    threads: AutoOrCount = Field(
        "auto",
        description="How many threads work on one TensorFlow operation on CPUs. auto: one less than there are cores, "
        "because fetching and decoding need one. Raise it for a large model on few cores.",
    )
    seed: Count = Field(0, ge=0, le=2**31 - 1, description="The seed of the initial weights and of shuffling.")
    live_metrics: LiveMetricsSettings = Field(
        LiveMetricsSettings(), description="The measurements on records before they are learnt."
    )
    detectors: tuple[DetectorName, ...] = Field(
        (),
        description="What watches the scores of each call and marks where they change: drift, which marks where the "
        "loss rises by more than chance, and classes of yours, FILE:CLASS, the file relative to this one. A mark is an "
        "event and a line through the page's charts; what is learnt stays the same. One worker only.",
        examples=[["drift"]],
    )
    pause_on_mark: bool = Field(
        default=False,
        description="Whether a mark of `training.detectors` pauses the learning, until `millrace resume`; the batches "
        "of the call that shows the change have been learnt by then.",
    )
    on_hyperparameter_change: Literal["build", "checkpoint"] = Field(
        "build",
        description="Which hyperparameters, such as the learning rate, are in force when those of the "
        "checkpoint differ "
        "from those of model.py and these settings. build: those that were just deployed. checkpoint: those of the "
        "checkpoint; a difference that is built into the compiled step then refuses the start.",
    )
    pause_after_crashes: Count | None = Field(
        3,
        ge=1,
        description="How many starts in a row may die in a call with the same offsets and without a new checkpoint, "
        "before the next start comes up paused and names these offsets. Null: a start never comes up paused for this.",
    )
    on_step_error: Literal["set_aside", "halt"] = Field(
        "set_aside",
        description="When a training step or `preprocess` raises an error: set_aside goes back to the newest "
        "checkpoint, finds the culprit records and learns all others; halt ends the training with an error that "
        "names the offsets.",
    )
    proof: Literal["enforce", "warn"] = Field(
        "enforce",
        description="Every start proves on the model that a record weighs the same everywhere: absent rows change "
        "nothing, a record has the weight 1/B, replicas agree. When the proof fails, enforce refuses the start; warn "
        "logs a warning and starts. What was proven of the very same model is remembered beside the checkpoints.",
    )

    @property
    def left_to_auto(self) -> frozenset[str]:
        """The names of the numbers of a step that are not settled."""
        return frozenset(one.name for one in fields(StepNumbers) if getattr(self, one.name) == "auto")

    @property
    def numbers(self) -> StepNumbers:
        """The numbers of a step; 1024 rows, learnt once, where nothing has settled what is left to auto."""
        given = {one.name: getattr(self, one.name) for one in fields(StepNumbers) if one.name not in self.left_to_auto}
        return StepNumbers(**given)

    @property
    def detector_places(self) -> dict[str, str]:
        """By name as the settings have it, where each detector is found."""
        return {str(one): one.place if isinstance(one, UserClass) else one for one in self.detectors}

    @model_validator(mode="after")
    def _each_detector_once(self) -> Self:
        if len(self.detector_places) < len(self.detectors):
            raise SettingError("detectors", "one of them stands there twice; name each once")
        if self.pause_on_mark and not self.detectors:
            raise SettingError("pause_on_mark", "nothing marks; add training.detectors: [drift]")
        return self

    @model_validator(mode="after")
    def _determinism(self) -> Self:
        if not self.deterministic:
            return self
        needs = []
        if self.max_wait is not None:
            needs.append("training.max_wait: null, or timing decides what is learnt")
        if self.replicas != 1:
            needs.append(f"training.replicas: 1, not {self.replicas}")
        if needs:
            raise SettingError("deterministic", f"this needs {'; and '.join(needs)}")
        return self

    @model_validator(mode="after")
    def _rows_together(self) -> Self:
        needs = []
        if self.partial_batches != "wait":
            needs.append("training.partial_batches: wait, or rows are compared with absent ones")
        if self.replicas != 1:
            needs.append(f"training.replicas: 1, not {self.replicas}, or each sees a part of the batch")
        if self.rows == "together" and needs:
            raise SettingError("rows", f"together needs {'; and '.join(needs)}")
        return self

    @model_validator(mode="after")
    def _memory_is_drawn_from(self) -> Self:
        numbers = self.numbers
        if self.members is not None and numbers.memory is not None:
            raise SettingError("memory", "training.members have memories of their own; leave one of the two out")
        name, held = "memory", numbers.memory
        if self.members is not None:
            name, held = "members", self.members.recent
        if held is None:
            return self
        if numbers.passes == 1:
            raise SettingError(
                name, "the passes after the first draw from it, and there is one; set training.passes: 8"
            )
        if "batch_size" not in self.left_to_auto and held < numbers.batch_size:
            raise SettingError(
                name,
                f"{held} records are fewer than one batch of {numbers.batch_size}; set training.batch_size: 32, or "
                "a larger memory",
            )
        if self.rows == "together":
            raise SettingError(
                name,
                f"training.rows: together compares the rows of a batch, and {name} would draw others, some of them "
                f"twice; leave {name} out",
            )
        return self

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        rows = self.numbers.batch_size
        if isinstance(self.replicas, int) and rows % self.replicas and "batch_size" not in self.left_to_auto:
            raise SettingError(
                "batch_size",
                f"{rows} rows cannot be shared evenly by {self.replicas} replicas; write a multiple",
            )
        return self
