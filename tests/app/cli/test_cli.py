"""The command line, as processes that a shell would start."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from app.cli.command_list import VERBS, LazyCommands
from app.cli.errors import ending
from app.settings.errors import SettingsError
from consumers.errors import ConfigError, DataLossError, MillraceError, UnreachableError

_ROOT = Path(__file__).parents[3]
_COMMAND = [sys.executable, "-c", "from app.cli import main; main()"]
_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(_ROOT)}


def _run(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*_COMMAND, *arguments], input=given, capture_output=True, env=_ENVIRONMENT, timeout=60, check=False
    )


@contextmanager
def _started(*arguments: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*_COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_ENVIRONMENT, **more
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_help_lists_the_commands() -> None:
    done = _run("--help")
    assert done.returncode == 0
    assert b"local" in done.stdout
    assert done.stderr == b""


@pytest.mark.parametrize("name", VERBS)
def test_the_list_quotes_the_first_sentence_of_each_commands_help(name: str) -> None:
    assert LazyCommands()[name].get_short_help_str(limit=1000) == VERBS[name].help


def test_help_imports_no_verb() -> None:
    code = (
        "import sys\nfrom app.cli.command_list import VERBS, application\n"
        "application(['--help'], standalone_mode=False)\n"
        "print([verb.place for verb in VERBS.values() if verb.place.partition(':')[0] in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=_ENVIRONMENT, timeout=60, check=True)
    lines = done.stdout.decode().splitlines()
    assert lines[-1] == "[]"
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in VERBS)


def test_version_is_one_line() -> None:
    assert _run("--version").stdout.startswith(b"millrace 0")


def test_a_command_that_does_not_exist_is_a_usage_error() -> None:
    done = _run("lern")
    assert done.returncode == 2
    assert b"lern" in done.stderr


def test_importing_the_command_line_loads_no_stage() -> None:
    code = "import sys, app.cli; print([m for m in sys.modules if m.partition('.')[0] in sys.argv])"
    heavy = ["numpy", "tensorflow", "keras", "aiokafka", "fastapi", "pydantic", "pyarrow", "consumers", "training"]
    done = subprocess.run(
        [sys.executable, "-c", code, *heavy], capture_output=True, env=_ENVIRONMENT, timeout=60, check=True
    )
    assert done.stdout.strip() == b"[]"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MillraceError("it failed"), 1),
        (ConfigError("it cannot\nbe"), 2),
        (UnreachableError("nobody there"), 3),
        (DataLossError("it would be lost"), 4),
    ],
)
def test_an_error_that_a_user_can_repair_is_one_line(
    error: MillraceError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    assert ending(fail) == code
    assert capsys.readouterr().err == f"millrace: error: {' '.join(str(error).split())}\n"


def test_every_problem_of_the_settings_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise SettingsError(["one: mend it", "two: mend it too"])

    assert ending(fail) == 2
    assert capsys.readouterr().err == "millrace: error: one: mend it\nmillrace: error: two: mend it too\n"


def test_a_defect_of_ours_keeps_its_traceback() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ending(fail)


def test_ctrl_c_ends_with_130() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    assert ending(interrupted) == 130


def test_a_pipe_that_closes_early_gets_no_error_message() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        code = "from app.cli.errors import ending; raise SystemExit(ending(lambda: print('x' * 100)))"
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=writing,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 1


def test_lines_become_records_in_turn(broker: str, wait_for: Callable[..., object]) -> None:
    name = f"lines-{os.getpid()}"
    to = ["local", "produce", "--topic", name, "--bootstrap-servers", broker]
    missing = _run(*to, given=b"a\n")
    assert missing.returncode == 3
    assert missing.stderr.startswith(f"millrace: error: topic '{name}' does not exist".encode())
    lines = b"".join(b"%d\n" % number for number in range(1000)) + b"no newline"
    done = _run(*to, "--create", "--partitions", "3", "--json", given=lines)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) | {"seconds": 0} == {"topic": name, "partitions": 3, "records": 1001, "seconds": 0}
    few = _run(*to, "--count", "7", "--rate", "100", "--json", given=lines)
    assert json.loads(few.stdout)["records"] == 7


async def _end_of(broker: str, topic: str) -> int:
    async with AIOKafkaConsumer(bootstrap_servers=broker) as consumer:
        ends = await consumer.end_offsets([TopicPartition(topic, 0)])
        return int(ends[TopicPartition(topic, 0)])


@pytest.fixture
def sigint_not_ignored() -> Iterator[None]:
    """Restore SIGINT: a shell starts background processes with SIGINT ignored, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint_not_ignored")
def test_ctrl_c_is_heard_while_the_next_line_has_not_come(
    broker: str, topic: Callable[..., str], wait_for: Callable[..., object]
) -> None:
    name = topic()
    to = ["local", "produce", "--topic", name, "--bootstrap-servers", broker]
    with _started(*to, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        wait_for(lambda: asyncio.run(_end_of(broker, name)) == 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130


def test_an_unreachable_kafka_is_one_line_and_exit_code_3() -> None:
    done = _run("local", "produce", "--topic", "t", "--bootstrap-servers", "127.0.0.1:1", given=b"a\n")
    assert done.returncode == 3
    assert done.stderr.decode().splitlines() == [
        "millrace: error: no Kafka answers at 127.0.0.1:1; is it running there? `millrace local broker` starts one"
    ]


@pytest.mark.slow
def test_a_local_broker_prints_its_address_and_stops_on_a_signal(
    tmp_path: Path, wait_for: Callable[..., object]
) -> None:
    with _started("local", "broker", "--port", "0", "--folder", str(tmp_path), "--json") as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["folder"] == str(tmp_path)
        written = _run("local", "produce", "--topic", "t", "--create", "--bootstrap-servers", said["bootstrap_servers"])
        assert written.returncode == 0, written.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    wait_for(lambda: not Path(f"/proc/{said['pid']}/cmdline").exists())


@pytest.mark.slow
def test_a_local_broker_that_is_killed_ends_the_command(tmp_path: Path) -> None:
    with _started("local", "broker", "--port", "0", "--folder", str(tmp_path), "--json") as process:
        assert process.stdout is not None
        os.kill(json.loads(process.stdout.readline())["pid"], signal.SIGKILL)
        assert process.wait(timeout=30) == 1
        assert process.stderr is not None
        assert b"millrace: error: the broker ended by itself" in process.stderr.read()
