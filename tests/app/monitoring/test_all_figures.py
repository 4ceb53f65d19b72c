"""Figures declare their metrics once, on their fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.app.monitoring.all_figures import Reading, readings
from millrace.consumers.metric import Metric, PartFigures, counter, gauge, metrics_of, name_of, reported_by


@dataclass(frozen=True, slots=True)
class LensFigures(PartFigures):
    """Lenses, for these tests."""

    name: ClassVar = "lenses"
    per: ClassVar = "lens"

    held: Annotated[int | None, gauge("lens_held", "Bad: none.")]
    """How many
    are held."""
    dropped: Annotated[Mapping[str, int], counter("lens_dropped", "Bad: it grows.", "why")]
    """How many were dropped."""

    @property
    def doubled(self) -> Annotated[int, gauge("lens_doubled", "Bad: odd.")]:
        """Twice the lenses."""
        return 2 * (self.held or 0)


def test_the_text_of_a_field_and_its_annotation_make_a_metric() -> None:
    held, dropped, doubled = metrics_of(LensFigures).values()
    assert held == Metric(short="lens_held", kind="gauge", help="How many are held. Bad: none.", labels=("lens",))
    assert (dropped.name, dropped.labels) == ("millrace_lens_dropped_total", ("lens", "why"))
    assert doubled.help == "Twice the lenses. Bad: odd."


def test_parts_report_under_the_name_of_their_figures_and_none_for_an_empty_report() -> None:
    class Held:
        def figures(self) -> Mapping[str, PartFigures]:
            return {"left": LensFigures(1, {})}

    class Empty:
        def figures(self) -> Mapping[str, PartFigures]:
            return {}

    found = reported_by([Held(), Empty(), object()])
    assert found == {"lenses": {"left": LensFigures(1, {})}}
    assert name_of(found["lenses"]) == "lenses"


def test_each_label_and_key_has_a_reading_and_what_is_not_known_has_none() -> None:
    lenses = {"left": LensFigures(1, {"scratch": 3, "age": 4}), "right": LensFigures(None, {})}
    assert list(readings([lenses], at=0.0)) == [
        Reading("lens_held", 1, ("left",)),
        Reading("lens_dropped_total", 3, ("left", "scratch")),
        Reading("lens_dropped_total", 4, ("left", "age")),
        Reading("lens_doubled", 2, ("left",)),
        Reading("lens_doubled", 0, ("right",)),
    ]
