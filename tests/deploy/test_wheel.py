"""The wheel: built as the Dockerfile builds it, and installed beside a user's packages that have our folders' names."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from millrace.app.settings.environment import of_others
from tests.conftest import MakeTopic, Produce
from tests.deploy.dockerfile import stages_of
from tests.deploy.manifests import ROOT

STAGE = stages_of(ROOT / "Dockerfile")["wheel"]
MAKEFILE = (ROOT / "Makefile").read_text()
OURS = ("app", "consumers", "pipelines", "training")
"""The folders of the tree, which are packages of `millrace` once they are installed."""
COMPILED = "millrace/pipelines/formats/shared/libplain.so"
NOBODYS = "raise ImportError('a package of the user is imported in place of one of ours')\n"
OF_THE_MODEL_ALONE = """\
import sys
from pathlib import Path

frame, model = sys._getframe(), str(Path(__file__).parents[1] / "model.py")
while frame is not None and frame.f_code.co_filename != model:
    frame = frame.f_back
if frame is None:
    raise ImportError("only the user's model.py imports this package")
"""
FEATURES = """\
import keras


def inputs():
    return {"price": keras.Input((), name="price")}
"""
MODEL = """\
import keras
from training.features import inputs


def build_model():
    given = inputs()
    model = keras.Model(given, keras.layers.Dense(1)(keras.layers.Reshape((1,))(given["price"])))
    model.compile(optimizer="adam", loss="mse")
    return model
"""
CONFIG = """\
name: clicks
kafka: {{bootstrap_servers: ['{broker}'], topics: [{topic}]}}
records: {{features: {{price: float32}}, label: {{clicked: float32}}}}
model: {{build: ./model.py:build_model}}
checkpoints: {{path: ./checkpoints}}
api: {{listen: '127.0.0.1:0'}}
"""


@pytest.fixture(scope="module")
def copied() -> list[Path]:
    """Return every file and link of the tree that the Dockerfile copies for the wheel."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *STAGE.copied()]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60).stdout.decode()
    found = [Path(name) for name in listed.split("\0") if name and (ROOT / name).exists()]
    return [name for name in found if name.parts[0] != "requirements"]


@pytest.fixture(scope="module")
def wheel(copied: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel by the Dockerfile's command, in a copy that has only what the Dockerfile copies."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in copied:
        target = folder / "build" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        else:
            target.write_bytes((ROOT / name).read_bytes())
    (command,) = [text for text in STAGE.texts("RUN") if " wheel " in text]
    command = command.replace("/opt/millrace/bin/python", sys.executable).replace("/wheel", str(folder / "wheel"))
    command = command.replace("pip ", f"{sys.executable} -m pip --verbose ", 1)
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder / "build", capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "importable" not in done.stdout + done.stderr, "a folder of the page's files is taken for a package"
    (built,) = (folder / "wheel").iterdir()
    return built


def test_the_wheel_holds_every_file_that_is_copied_for_it(copied: list[Path], wheel: Path) -> None:
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    ours = (f"millrace/{name}" for name in copied if name.parts[0] in OURS and name.suffix not in {".c", ".h"})
    expected = {"millrace/__init__.py", *ours, *([] if wheel.name.endswith("-any.whl") else [COMPILED])}
    assert files == expected
    assert "millrace/app/page/static/index.html" in files


@pytest.mark.slow
def test_make_dist_builds_the_wheel_of_the_image_out_of_an_sdist_of_the_tree(
    copied: list[Path], wheel: Path, tmp_path: Path
) -> None:
    (command,) = re.findall(r"^\tSOURCE_DATE_EPOCH=.*? --format=%ct\) (.*) --out-dir dist$", MAKEFILE, re.MULTILINE)
    command = command.replace("$(BIN)", str(Path(sys.executable).parent))
    shutil.copytree(wheel.parents[1] / "build", tmp_path / "tree", symlinks=True)
    shutil.copy(ROOT / "MANIFEST.in", tmp_path / "tree")
    command = f"{command} --offline --out-dir ../dist"
    subprocess.run(["sh", "-c", command], cwd=tmp_path / "tree", env=of_others(), check=True, timeout=180)
    (built,) = (tmp_path / "dist").glob("*.whl")
    assert built.name.endswith("-any.whl")
    assert _contents(built) == {name: data for name, data in _contents(wheel).items() if name != COMPILED}
    with tarfile.open(next((tmp_path / "dist").glob("*.tar.gz"))) as packed:
        files = {name.partition("/")[2] for name in packed.getnames()}
    ours = {str(name) for name in copied if name.suffix == ".py" and not name.is_symlink()}
    assert {name for name in files if name.endswith(".py")} == ours


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        files = (name for name in opened.namelist() if not name.endswith(("/RECORD", "/WHEEL")))
        return {name: opened.read(name) for name in files}


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel, and return a user's folder with packages of the names of our folders, which Python sees first.

    What the wheel needs comes from the environment of the tests, without the tree that is installed there: a path file
    that another path file leads to is not read.
    """
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=120)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=120)
    (packages,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    (packages / "tests.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    home = folder / "home"
    for name in OURS:
        (home / name).mkdir(parents=True)
        (home / name / "__init__.py").write_text(OF_THE_MODEL_ALONE if name == "training" else NOBODYS)
    (home / "training" / "features.py").write_text(FEATURES)
    (home / "model.py").write_text(MODEL)
    return home


def millrace(home: Path, *arguments: str) -> str:
    """Run the installed command in the user's folder; return its output, which is that of a success."""
    done = subprocess.run(
        [home.parent / "venv" / "bin" / "millrace", *arguments],
        cwd=home,
        env=of_others() | {"PYTHONPATH": str(home)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_installed_demo_learns_beside_a_user_s_own_packages_of_our_names(home: Path) -> None:
    millrace(home, "demo", "--plain", "--for", "6s", "--folder", "demo")
    witness = json.loads((home / "demo" / "report.json").read_text())["witness"]
    assert witness["learnt"] > 0
    assert (witness["lost"], witness["learnt_twice"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_installed_trainer_learns_with_a_model_that_imports_its_own_training(
    home: Path, broker: str, topic: MakeTopic, produce: Produce
) -> None:
    name = topic()
    produce(name, [json.dumps({"price": number / 7, "clicked": number % 2}).encode() for number in range(300)])
    (home / "millrace.yaml").write_text(CONFIG.format(broker=broker, topic=name))
    millrace(home, "validate", "-c", "millrace.yaml")
    millrace(home, "run", "-c", "millrace.yaml", "--until", "now")
    newest = json.loads(millrace(home, "checkpoints", "show", "latest", "-c", "millrace.yaml", "--json"))
    assert sum(counts["learnt"] for counts in newest["history"].values()) == 300
