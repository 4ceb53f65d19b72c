"""A profile is taken of real calls of a real trainer, and of nothing else."""

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from millrace.training.commands import Pause, Profile, Profiled, Resume, Save
from millrace.training.errors import ProfileError
from millrace.training.trainer.profiling import LONGEST_S
from tests.training.trainer_rig import SHARE, Clock, Run, Topic, running

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def run(tmp_path: Path, topic: Topic) -> Iterator[Run]:
    with running(tmp_path, topic) as run:
        yield run


def traces(folder: Path) -> list[Path]:
    return list(folder.glob("plugins/profile/*/*.xplane.pb"))


def begun(run: Run, folder: Path, calls: int = 1) -> "Future[Profiled]":
    """Begin a profile. Commands are carried out in order, so the answer of the next one shows that it has begun."""
    answer: Future[Profiled] = run.commands.send(Profile(calls=calls, folder=folder))
    run.ask(Resume())
    return answer


def test_a_profile_ends_after_its_calls_and_lies_where_it_was_wanted(run: Run, topic: Topic, tmp_path: Path) -> None:
    folder = tmp_path / "profiles" / "one"
    answer = begun(run, folder, calls=2)
    topic.produce(4 * SHARE)
    assert answer.result(60) == Profiled(folder=folder, calls=2)
    (trace,) = traces(folder)
    assert trace.stat().st_size > 0
    run.reaches(4 * SHARE)


def test_what_is_learnt_under_a_profile_is_learnt_as_always(run: Run, topic: Topic, tmp_path: Path) -> None:
    answer = begun(run, tmp_path / "one")
    topic.produce(2 * SHARE)
    answer.result(60)
    run.reaches(2 * SHARE)
    assert run.ask(Save()).positions == {"clicks:0": 2 * SHARE}


def test_a_second_profile_is_refused_until_the_first_is_written(run: Run, topic: Topic, tmp_path: Path) -> None:
    first = begun(run, tmp_path / "one")
    with pytest.raises(ProfileError, match="already"):
        run.ask(Profile(calls=1, folder=tmp_path / "two"))
    topic.produce(SHARE)
    first.result(60)
    again = begun(run, tmp_path / "three")
    topic.produce(SHARE)
    assert again.result(60).calls == 1


def test_a_profile_of_an_idle_or_paused_trainer_ends_after_a_while(tmp_path: Path, topic: Topic) -> None:
    clock = Clock()
    with running(tmp_path, topic, clock=clock) as run:
        answer = begun(run, tmp_path / "one", calls=5)
        run.ask(Pause())
        clock.now += LONGEST_S
        assert answer.result(60).calls == 0
        run.ask(Resume())


def test_a_stop_answers_with_what_there_is(run: Run, tmp_path: Path) -> None:
    answer = begun(run, tmp_path / "one", calls=5)
    run.stop()
    assert answer.result(0).calls == 0
    assert traces(tmp_path / "one")


def test_a_folder_that_cannot_be_is_said_and_disturbs_nothing(run: Run, topic: Topic, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ProfileError, match="NotADirectoryError"):
        run.ask(Profile(calls=1, folder=tmp_path / "file" / "one"))
    topic.produce(SHARE)
    run.reaches(SHARE)
