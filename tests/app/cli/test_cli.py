"""The command line: most of it in this process, as the console script runs it; the rest as a shell would start it."""

import asyncio
import errno
import io
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from millrace.app.cli.command_list import VERBS, LazyCommands, ending, main
from millrace.app.cli.options import print_json
from millrace.app.cli.tables import print_table
from millrace.app.settings.secret_files import exposure
from millrace.app.settings.yaml_file import SettingsError
from millrace.app.version import version
from millrace.consumers.errors import ConfigError, DataLossError, MillraceError, UnreachableError
from tests.app.checkpoint_history import config_in
from tests.app.cli.conftest import Typed

_ROOT = Path(__file__).parents[3]
_COMMAND = [sys.executable, "-c", "from millrace.app.cli import main; main()"]
_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(_ROOT)}


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


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_lists_the_commands(option: str, typed: Typed) -> None:
    done = typed(option)
    assert done.returncode == 0
    assert "local" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("verb", [["run"], ["checkpoints"], ["checkpoints", "show"]])
def test_every_verb_has_the_short_help_option(verb: list[str], typed: Typed) -> None:
    assert typed(*verb, "-h").stdout == typed(*verb, "--help").stdout
    assert "-h" in typed(*verb, "-h").stdout


@pytest.mark.parametrize("name", VERBS)
def test_the_list_quotes_the_first_sentence_of_each_commands_help(name: str) -> None:
    assert LazyCommands()[name].get_short_help_str(limit=1000) == VERBS[name].help


def test_help_imports_no_verb() -> None:
    code = (
        "import sys\nfrom millrace.app.cli.command_list import VERBS, application\n"
        "application(['--help'], standalone_mode=False)\n"
        "print([verb.place for verb in VERBS.values() if verb.place.partition(':')[0] in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=_ENVIRONMENT, timeout=60, check=True)
    lines = done.stdout.decode().splitlines()
    assert lines[-1] == "[]"
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in VERBS)


_CLIENTS_OF_KAFKA = ("archive", "dead_letters", "demo", "init", "local", "pretrain", "produce", "prove", "rewind")


@pytest.mark.parametrize(("library", "needed_by"), [("tensorflow", ()), ("keras", ()), ("aiokafka", _CLIENTS_OF_KAFKA)])
def test_a_verb_loads_no_library_that_it_may_not_need(library: str, needed_by: tuple[str, ...]) -> None:
    folder = _ROOT / "app" / "cli"
    modules = sorted({path.stem for path in folder.glob("*.py")} - {"__init__", *needed_by})
    code = (
        f"import sys\nfrom importlib import import_module\nfor module in {modules}:\n"
        "    import_module(f'millrace.app.cli.{module}')\n"
        f"    assert {library!r} not in sys.modules, module"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=_ENVIRONMENT, timeout=120, check=False
    )
    assert "pause_resume" in modules
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (0, [])


def test_version_is_one_line(typed: Typed) -> None:
    done = typed("--version")
    assert done.stdout == f"millrace {version()}\n"


def test_the_verb_version_names_the_libraries_too(typed: Typed) -> None:
    lines = typed("version").stdout.splitlines()
    assert lines[0] == f"millrace {version()}"
    assert [line.split()[0] for line in lines[1:3]] == ["python", "tensorflow"]
    versions = json.loads(typed("version", "--json").stdout)
    assert [f"{name} {number}" for name, number in versions.items()] == lines
    assert versions["keras"] == metadata.version("keras")


def test_a_command_that_does_not_exist_is_a_usage_error(typed: Typed) -> None:
    done = typed("statsu")
    assert done.returncode == 2
    assert "No such command 'statsu'. Did you mean 'status'?" in done.stderr


def test_a_config_without_its_option_is_answered_with_the_option(typed: Typed, tmp_path: Path) -> None:
    file = str(config_in(tmp_path))
    for verb in ("run", "validate"):
        done = typed(verb, file)
        assert done.returncode == 2
        assert done.stderr.startswith(f"Usage: millrace {verb} [OPTIONS]")
        assert done.stderr.endswith("millrace: name the config file with -c FILE\n")
    told = json.loads(typed("validate", file, "--json").stderr)
    assert told["error"].endswith("; name the config file with -c FILE")


def test_validate_refuses_an_invalid_checkpoint_with_the_valid_forms(typed: Typed, tmp_path: Path) -> None:
    done = typed("validate", "-c", str(config_in(tmp_path)), "--against-checkpoint", "newest")
    assert done.returncode == 2
    assert "neither latest nor a checkpoint's number" in done.stderr


def test_under_json_an_error_is_one_json_object(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "none.yaml"
    done = typed("config", "show", "-c", str(file), "--json")
    plain = typed("config", "show", "-c", str(file))
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout) == (2, "")
    assert json.loads(done.stderr) == {"error": plain.stderr.removeprefix("millrace: error: ").strip(), "exit_code": 2}


def test_under_json_all_problems_of_the_settings_are_one_object(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    told = json.loads(typed("config", "show", "-c", str(tmp_path / "empty.yaml"), "--json").stderr)
    assert told["error"] == "; ".join(told["problems"])
    assert len(told["problems"]) == 6
    assert told["exit_code"] == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["statsu"], "No such command 'statsu'"),
        (["checkpoints", "show"], "Missing argument 'latest"),
        (["checkpoints", "show", "newest"], "neither latest nor best nor a checkpoint's number"),
        (["checkpoints", "show", "7" * 5000], "neither latest nor best nor a checkpoint's number"),
        (["bench", "--seconds", "0"], "Invalid value for '--seconds'"),
    ],
)
def test_under_json_a_usage_error_is_one_json_object_too(
    arguments: list[str], error: str, typed: Typed, tmp_path: Path
) -> None:
    config_in(tmp_path)
    done = typed(*arguments, "--json", *(["-c", str(tmp_path / "clicks.yaml")] if len(arguments) > 1 else []))
    told = json.loads(done.stderr)
    assert (done.returncode, done.stdout, told["exit_code"]) == (2, "", 2)
    assert error in told["error"]


@pytest.mark.parametrize("name", ["millrace.yaml", "millrace.yml"])
def test_the_config_of_the_current_folder_is_the_default(
    name: str, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_in(tmp_path).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    done = typed("checkpoints", "list")
    assert (done.returncode, done.stdout) == (0, "there are no checkpoints yet\n")
    assert done.stderr == f"millrace: the config is ./{name}\n"
    assert typed("checkpoints", "list", "--json").stderr == ""


def test_a_config_that_is_named_replaces_that_of_the_folder(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = config_in(tmp_path)
    (tmp_path / "millrace.yaml").write_text("not: [a config")
    monkeypatch.chdir(tmp_path)
    done = typed("config", "show", "-c", str(file))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("listen", "warns"), [("0.0.0.0:8080", True), ("127.0.0.1:8080", False)])
def test_config_show_warns_of_an_address_that_others_reach_without_tokens(
    tmp_path: Path, typed: Typed, listen: str, *, warns: bool
) -> None:
    file = config_in(tmp_path)
    file.write_text(f"{file.read_text()}\napi: {{listen: '{listen}'}}\n")
    done = typed("config", "show", "-c", str(file))
    assert done.returncode == 0, done.stderr
    said = f"millrace: warning: tokens: none, and {listen} can be reached from other machines"
    assert done.stderr.startswith(said) is warns


def test_without_any_config_the_ways_to_name_one_are_shown(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in (["config", "show"], ["checkpoints", "list"], ["validate"], ["run"], ["rewind", "--to", "0"]):
        done = typed(*verb)
        assert done.returncode == 2
        assert done.stderr == (
            "millrace: error: there is no millrace.yaml in this folder: name the config file with -c FILE, or draft "
            "one by `millrace init --topic TOPIC`\n"
        )
    assert typed("status").stderr == (
        "millrace: error: which service? Name it either by --config FILE or by --url http://host:8080; there is no "
        "millrace.yaml in this folder\n"
    )


def test_two_default_configs_are_not_guessed_between(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_in(tmp_path).rename(tmp_path / "millrace.yaml")
    (tmp_path / "millrace.yml").touch()
    monkeypatch.chdir(tmp_path)
    done = typed("config", "show")
    assert done.returncode == 2
    assert "millrace.yaml and millrace.yml are both in this folder; name the config file with -c FILE" in done.stderr


def test_a_variable_that_names_no_setting_is_warned_about(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_LOG_LEVEL", "debug")
    done = typed("checkpoints", "list", "-c", str(config_in(tmp_path)))
    assert done.returncode == 0
    assert done.stderr == (
        "millrace: warning: environment MILLRACE_LOG_LEVEL is ignored, because it names no setting; did you mean "
        "MILLRACE_LOGS__LEVEL?\n"
    )


def test_a_token_file_that_every_user_can_read_is_warned_about(typed: Typed, token: Path) -> None:
    to = ["pause", "--url", "127.0.0.1:1", "--token-file", str(token)]
    first, *_ = typed(*to).stderr.splitlines()
    assert first == f"millrace: warning: --token-file: {exposure(token)}"
    token.chmod(0o600)
    assert "warning" not in typed(*to).stderr


@pytest.mark.parametrize("verb", ["run", "validate", "bench", "prove", "demo", "local group"])
def test_another_backend_of_keras_is_refused_in_one_line(
    verb: str, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.chdir(tmp_path)
    config_in(tmp_path).rename(tmp_path / "millrace.yaml")
    done = typed(*verb.split())
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "millrace: error: environment KERAS_BACKEND: jax cannot be the backend, because millrace trains with "
        "TensorFlow; unset the variable, or set KERAS_BACKEND=tensorflow"
    )


@pytest.mark.parametrize("verb", ["run", "prove"])
def test_a_missing_model_file_is_reported_before_kafka_is_asked(verb: str, typed: Typed, tmp_path: Path) -> None:
    done = typed(verb, "-c", str(config_in(tmp_path)))
    assert done.returncode == 2
    assert done.stderr == (
        f"millrace: error: model.build: there is no file {tmp_path / 'model.py'}; "
        "the path is relative to the config file\n"
    )


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("millrace re", ["resume", "rewind", "rebuild"]),
        ("millrace --ver", ["--version"]),
        ("millrace checkpoints v", ["verify"]),
        ("millrace local g", ["group"]),
        ("millrace checkpoints list --", ["--config", "--json", "--help"]),
    ],
)
def test_a_shell_completes_verbs_and_options(
    words: str, offered: list[str], typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_MILLRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert typed().stdout.split() == offered


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "complete -o default -F _millrace_completion millrace"),
        ("zsh", "compdef _millrace_completion millrace"),
        ("fish", "complete --command millrace "),
    ],
)
def test_the_completion_script_registers_the_command(shell: str, line: str, typed: Typed) -> None:
    done = typed("completion", shell)
    assert done.returncode == 0
    assert any(found.startswith(line) for found in done.stdout.splitlines())
    assert "_MILLRACE_COMPLETE" in done.stdout


def test_a_shell_that_has_no_script_is_a_usage_error(typed: Typed) -> None:
    assert typed("completion", "tcsh").returncode == 2


def test_importing_the_command_line_loads_no_stage() -> None:
    code = "import sys, millrace.app.cli; print([name for name in sys.argv[1:] if name in sys.modules])"
    heavy = ["numpy", "tensorflow", "keras", "aiokafka", "fastapi", "pydantic", "pyarrow"]
    heavy += ["millrace.consumers", "millrace.pipelines", "millrace.training"]
    assert all(find_spec(name) for name in heavy)
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


def test_a_disk_that_is_full_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("x", "x" * 100_000):
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            monkeypatch.setattr(sys, "stdout", full)
            assert ending(partial(full.write, text)) == 1
        assert capsys.readouterr().err == "millrace: error: the output cannot be written: No space left on device\n"


def test_another_failure_to_write_is_a_defect_of_ours() -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        ending(fail)


def test_a_stream_that_is_closed_ends_no_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["millrace", "--version"])
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert sys.stdout is not None
    sys.stdout.close()


def test_what_the_encoding_of_stdout_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "argv", ["millrace", "--version"])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii", write_through=True))
    with pytest.raises(SystemExit):
        main()
    print_table(["name"], [["caf\udce9 → \x1b[31m"]])
    assert raw.getvalue().splitlines()[-1] == rb"caf\udce9 \u2192 \x1b[31m"


def test_a_pipe_that_closes_early_gets_no_error_message() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        code = "from millrace.app.cli.command_list import ending; raise SystemExit(ending(lambda: print('x' * 100)))"
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


def test_lines_become_records_in_turn(broker: str, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"lines-{os.getpid()}"
    to = ["local", "produce", "--topic", name, "--bootstrap-servers", broker]
    missing = typed(*to, given=b"a\n")
    assert missing.returncode == 3
    assert missing.stderr.startswith(f"millrace: error: topic '{name}' does not exist")
    lines = b"".join(b"%d\n" % number for number in range(1000)) + b"no newline"
    done = typed(*to, "--create", "--partitions", "3", "--json", given=lines)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) | {"seconds": 0} == {"topic": name, "partitions": 3, "records": 1001, "seconds": 0}
    few = typed(*to, "--count", "7", "--rate", "100", "--json", given=lines)
    assert json.loads(few.stdout)["records"] == 7
    monkeypatch.setenv("MILLRACE_KAFKA__BOOTSTRAP_SERVERS", broker)
    named = typed("local", "produce", "--topic", name, "--count", "5", "--json", given=lines)
    assert json.loads(named.stdout)["records"] == 5, named.stderr


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


def test_an_unreachable_kafka_is_one_line_and_exit_code_3(typed: Typed) -> None:
    done = typed("local", "produce", "--topic", "t", "--bootstrap-servers", "127.0.0.1:1", given=b"a\n")
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "millrace: error: no Kafka answers at 127.0.0.1:1; is it running there? `millrace local broker` starts one"
    ]


@pytest.mark.slow
def test_a_local_broker_prints_its_address_and_stops_on_a_signal(
    tmp_path: Path, wait_for: Callable[..., object], typed: Typed
) -> None:
    with _started("local", "broker", "--port", "0", "--folder", str(tmp_path), "--json") as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["folder"] == str(tmp_path)
        written = typed(
            "local", "produce", "--topic", "t", "--create", "--bootstrap-servers", said["bootstrap_servers"]
        )
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
        failure = json.loads(process.stderr.read().splitlines()[-1])
        assert "the broker ended by itself" in failure["error"]
        assert failure["exit_code"] == 1


def test_a_number_that_is_not_finite_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    Context().run(print_json, {"loss": math.nan, "epochs": ({"auc": 0.5, "loss": -math.inf}, math.inf), "rows": 3})
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told == {"loss": None, "epochs": [{"auc": 0.5, "loss": None}, None], "rows": 3}
