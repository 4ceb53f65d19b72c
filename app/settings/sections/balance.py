"""`balance`: how much each class counts in what is learnt. `to_balance` makes of it what shaping goes by."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from millrace.app.settings.sections.records import RecordsSettings, to_schema
from millrace.consumers.section import Count, Section
from millrace.pipelines.shaping.options import LABEL, BalanceOptions


def _by_class(value: Any) -> Any:
    """Spell classes as text; YAML reads 0 and true as they are."""
    if not isinstance(value, Mapping):
        return value
    return {str(int(one) if isinstance(one, bool) else one): share for one, share in value.items()}


class BalanceSettings(Section):
    """How much each class counts in what is learnt."""

    by: str = Field(
        "label",
        min_length=1,
        description="What the classes are of: label, or the name of one of several labels or of a feature, as the "
        "model is given it.",
    )
    target: Annotated[Mapping[str, float], BeforeValidator(_by_class)] = Field(
        {},
        description="The share of each class in what is learnt; the shares add up to 1. Records of other classes keep "
        "their weight. Empty: classes count as often as they come.",
        examples=[{"0": 0.5, "1": 0.5}],
    )
    how: Literal["weight", "resample"] = Field(
        "weight",
        description="weight: every record is learnt, and its update is multiplied by the share that its class is to "
        "have over the share that it has on the stream. resample: of the classes that come too often records are left "
        "out, which is faster, and those that are learnt all weigh about the same.",
    )
    half_life: Count = Field(
        100_000,
        ge=100,
        description="The shares on the stream follow it: after so many records, a record counts half as much.",
    )

    @field_validator("target")
    @classmethod
    def _shares(cls, target: Mapping[str, float]) -> Mapping[str, float]:
        if not target:
            return target
        if len(target) < 2 or min(target.values()) <= 0 or abs(sum(target.values()) - 1) > 1e-6:
            raise ValueError(
                f"{dict(target)} are no shares of at least two classes that add up to 1; write as {{0: 0.5, 1: 0.5}}"
            )
        return target


def to_balance(balance: BalanceSettings, records: RecordsSettings) -> BalanceOptions | None:
    """Return the shares that the classes are to have; None where they count as they come."""
    if not balance.target:
        return None
    # Where there is one label, the model is given it without its name.
    by = LABEL if [balance.by] == [label.name for label in to_schema(records).labels] else balance.by
    return BalanceOptions(**{**dict(balance), "by": by})
