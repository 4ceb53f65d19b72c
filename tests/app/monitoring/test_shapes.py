"""What the HTTP side answers is shaped before TensorFlow is loaded, which makes each shape after it dearer."""

import subprocess
import sys
from typing import Any

from millrace.app.cli.run import SHAPES
from millrace.app.monitoring import shapes

WITHOUT_TENSORFLOW = "import sys; from importlib import import_module; [import_module(name) for name in sys.argv[1:]]; "


def test_every_answer_is_shaped_before_tensorflow_is_loaded() -> None:
    import millrace.app.run  # noqa: F401 - loads all that a start loads

    def below(shape: type[Any]) -> set[type[Any]]:
        found: list[type[Any]] = shape.__subclasses__()
        return {one for each in found for one in (each, *below(each))}

    answers = {one.__module__ for one in below(shapes.Shape) if one.__module__.startswith("millrace.app.")}
    assert answers - {shapes.__name__} == {*SHAPES}


def test_the_shapes_load_no_tensorflow() -> None:
    code = f"{WITHOUT_TENSORFLOW}assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, *SHAPES], check=True, timeout=60)
