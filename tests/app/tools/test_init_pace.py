"""What `init` proposes for topics of different speed, and how it measures the speed."""

import time
from pathlib import Path

import pytest

from millrace.app.service.pace import pace_for, records_per_s
from millrace.app.settings import load
from millrace.app.tools.init.column_roles import ChosenRoles, cast
from millrace.app.tools.init.columns import columns_of
from millrace.app.tools.init.drafted_config import DraftTarget, config_text
from millrace.app.tools.init.topic_sample import look_at
from millrace.consumers.kafka.positions import Ago, Latest, Start
from millrace.consumers.records import Partition

P, Q = Partition("t", 0), Partition("t", 1)
HOUR_S, DAY_S = 3600, 86_400


@pytest.mark.parametrize(
    ("held", "rate", "batch_size", "passes", "remembers"),
    [
        (1_000, None, 8, 4, "members"),
        (1_000, 0.5, 8, 4, "members"),
        (1_000, 99.0, 8, 4, "members"),
        (1_000, 100.0, 32, 8, "members"),
        (59_000, None, 8, 4, "members"),
        (60_000, None, 32, 8, "members"),
        (1_000, 200.0, 32, 8, "members"),
        (1_000, 201.0, 32, 8, "memory"),
        (1_000, 400.0, 32, 8, "memory"),
        (1_000, 800.0, 32, 4, "memory"),
        (1_000, 1_000.0, 32, 2, "memory"),
        (1_000, 3_000.0, 32, 1, None),
        (1_000, 20_000.0, 256, 1, None),
        (1_000, 1e6, 1024, 1, None),
        (30_000_000, 0.5, 64, 1, None),
        (30_000_000, None, 64, 1, None),
    ],
)
def test_the_slower_a_topic_the_more_updates_a_record(
    held: int, rate: float | None, batch_size: int, passes: int, remembers: str | None
) -> None:
    remembered = {"memory": 300, "members": {"recent": 300, "since_drift": 10_000, "once": True}}
    pace = {"batch_size": batch_size, "passes": passes}
    assert pace_for(held, rate).training == (pace if remembers is None else {**pace, remembers: remembered[remembers]})


def test_rare_class_is_learnt_once_and_slow_models_get_fewer_updates() -> None:
    rare, pictures, sequences = (
        pace_for(1_000, 0.5, rare=True),
        pace_for(1_000, 300.0, slow=True, images=True),
        pace_for(1_000, 300.0, slow=True),
    )
    assert (rare.batch_size, rare.passes, rare.learning_rate) == (32, 1, 0.001)
    assert "as one class is rare" in rare.why
    assert (pictures.batch_size, pictures.passes, pictures.learning_rate) == (32, 1, 0.001)
    assert (sequences.batch_size, sequences.passes, sequences.learning_rate) == (32, 1, 0.003)
    assert rare.memory is pictures.memory is sequences.memory is pace_for(1_000, 1.0, slow=True).memory is None
    assert pace_for(1_000, 1.0, slow=True).passes == 4


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (None, "it is not known how fast more come: slow enough for small batches and 4 passes"),
        (0.5, "about 1,800 an hour more come: slow enough for small batches and 4 passes"),
        (3_141.0, "about 3,100 a second more come: slow enough for small batches"),
        (50_000.0, "about 50,000 a second more come: too fast for smaller batches"),
    ],
)
def test_the_draft_says_why_and_loads(rate: float | None, said: str, tmp_path: Path) -> None:
    look = look_at([f'{{"x":{number % 7}.5,"y":{number % 2}}}'.encode() for number in range(50)])
    roles = cast(columns_of(look.rows), ChosenRoles(label="y"))
    place = DraftTarget(name="t", bootstrap_servers=("k:9092",), topic="t", held=5_000, records_per_s=rate)
    text, pace = config_text(place, look, roles), pace_for(5_000, rate)
    comment = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    assert said in comment
    (tmp_path / "model.py").touch()
    (tmp_path / "t.yaml").write_text(text)
    settings = load(tmp_path / "t.yaml", {}).settings
    training = settings.training
    assert training.model_dump(exclude_unset=True) == pace.training
    assert settings.model.args == {"learning_rate": pace.learning_rate}


class _Lookup:
    """Answers as Kafka does, by the times of the records: the first offset of each partition that is not older."""

    def __init__(self, *ages_s: float) -> None:
        self._ages_s = sorted(ages_s, reverse=True)

    def __call__(self, start: Start) -> dict[Partition, int]:
        assert isinstance(start, Ago | Latest)
        since = start.seconds if isinstance(start, Ago) else -1.0
        return {P: sum(age > since for age in self._ages_s), Q: 5}


def _ago(seconds: float) -> int:
    return round((time.time() - seconds) * 1000)


def _each(seconds: float, since_s: float, until_s: float) -> list[float]:
    """Return the ages of records that came so often between two ages."""
    return [until_s + seconds * number for number in range(int((since_s - until_s) / seconds))]


def test_the_busier_of_last_hour_and_last_day_is_the_rate() -> None:
    before = _each(20, 10 * DAY_S, DAY_S)
    quiet_now = _Lookup(*before, *_each(10, DAY_S, HOUR_S))
    assert records_per_s(quiet_now, _ago(10 * DAY_S)) == pytest.approx(0.1 * 23 / 24, rel=0.01)
    busy_now = _Lookup(*before, *_each(10, DAY_S, HOUR_S), *_each(0.5, HOUR_S, 0))
    assert records_per_s(busy_now, _ago(10 * DAY_S)) == pytest.approx(2.0, rel=0.01)


def test_a_topic_younger_than_the_span_is_measured_over_its_age() -> None:
    assert records_per_s(_Lookup(*_each(0.5, 600, 0)), _ago(600)) == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("age_s", [1, 60, -30])
def test_a_topic_that_was_filled_just_now_has_no_rate(age_s: float) -> None:
    assert records_per_s(_Lookup(*[age_s] * 600), _ago(age_s)) is None


@pytest.mark.parametrize(
    ("since_s", "until_s"),
    [(300, 286), (3_000, 2_700), (1_200, 600), (20 * HOUR_S, 19.5 * HOUR_S), (3 * DAY_S, 2 * DAY_S)],
    ids=["minutes ago", "an hour ago", "over half of its life", "yesterday", "of a day before"],
)
def test_a_topic_that_was_filled_in_one_go_has_no_rate(since_s: float, until_s: float) -> None:
    filled = _Lookup(*_each((since_s - until_s) / 2_000, since_s, until_s))
    assert records_per_s(filled, _ago(since_s)) is None
