"""The user's model file: found by path, loaded from the file, called once. Each way to fail has its own error text.

Owns the loading; runs on the thread that starts the service. The file is loaded under a module name of its own, so that
a user's folder called `training` neither shadows ours nor is shadowed by it; `training/model/setup/model_code.py` finds
what it imports from beside itself.
"""

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from millrace.pipelines.shaping.options import takes_seed
from millrace.training.errors import ModelError, gist, is_users
from millrace.training.model.setup.model_code import OURS, ModelCode, model_sha256, modules_of

MODULE_NAME = "millrace_user_model"
PREPROCESS, AUGMENT = "preprocess", "augment"
_plugins = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """Where the model comes from: `file.py:function`, its arguments and its optional `preprocess`."""

    path: Path
    function: str
    args: Mapping[str, Any] = field(default_factory=dict)
    preprocess: str | None = None
    """The function's name; None takes `preprocess` where the file has one."""
    augment: str | None = None
    """The function's name; None takes `augment` where the file has one."""

    @classmethod
    def parse(
        cls, build: str, base: Path, args: Mapping[str, Any] | None = None, preprocess: str | None = None
    ) -> "ModelFile":
        """Read `./model.py:build_model`, relative to `base`."""
        path, _, function = build.rpartition(":")
        if not path or not function:
            raise ModelError(f"model.build: {build!r} lacks its function; write ./model.py:build_model")
        return cls(path=(base / path).resolve(), function=function, args=dict(args or {}), preprocess=preprocess)

    @property
    def sha256(self) -> str:
        """The hash of the model's code, which is part of each checkpoint's provenance."""
        return model_sha256(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModelFile:
    """The functions that the file holds."""

    build: Callable[[], Any]
    preprocess: Callable[..., Any] | None
    augment: Callable[..., Any] | None = None


def load(source: ModelFile) -> LoadedModelFile:
    """Import the file and find its functions. Building is left to the caller, inside the strategy's scope."""
    require_file(source.path)
    module = _import(source.path, "model.build", MODULE_NAME)
    build = _function(module, source.function, source.path, "model.build")
    try:
        inspect.signature(build).bind(**source.args)
    except TypeError as error:
        raise ModelError(
            f"model.args: {source.function}{inspect.signature(build)} cannot be called with "
            f"{', '.join(source.args) or 'no arguments'}: {error}"
        ) from error
    preprocess = _of_a_batch(module, source, PREPROCESS, source.preprocess)
    augment = _of_a_batch(module, source, AUGMENT, source.augment)
    return LoadedModelFile(build=lambda: _call(build, source), preprocess=preprocess, augment=augment)


def user_modules() -> list[ModuleType]:
    """Return the file as it was loaded last in this process, and those beside it that it has imported."""
    module = sys.modules.get(MODULE_NAME)
    return [] if module is None else modules_of(module)


def load_class(path: Path, name: str, setting: str, base: type) -> Any:
    """Import a file of the user's and return an object of a class in it, which extends `base`.

    Raises ModelError with the name of the setting that names the class. Needs no TensorFlow.
    """
    require_file(path, setting)
    module = _import(path, setting, f"millrace_user_plugin_{next(_plugins)}_{path.stem}")
    found = getattr(module, name, None)
    if found is None:
        known = sorted(n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__)
        raise ModelError(f"{setting}: {path} has no class {name!r}; it has {', '.join(known) or 'none'}")
    if not isinstance(found, type):
        raise ModelError(f"{setting}: {name!r} in {path} is a {type(found).__name__}, not a class")
    if not issubclass(found, base):
        raise ModelError(
            f"{setting}: {name} in {path} is no {base.__name__}; write from {base.__module__} import "
            f"{base.__name__}, and class {name}({base.__name__})"
        )
    if lacking := sorted(getattr(found, "__abstractmethods__", ())):
        raise ModelError(f"{setting}: {name} in {path} lacks {' and '.join(lacking)}; define {lacking[0]}")
    try:
        return found()
    except (Exception, SystemExit) as error:
        raise ModelError(f"{setting}: {name}() raised {where_raised(error, path)}") from error


def require_file(path: Path, setting: str = "model.build") -> None:
    """Raise ModelError where there is no such file; this alone needs no TensorFlow."""
    if not path.is_file():
        raise ModelError(f"{setting}: there is no file {path}; the path is relative to the config file")


def _import(path: Path, setting: str, name: str) -> ModuleType:
    if path.suffix != ".py":
        raise ModelError(f"{setting}: {path} is not a Python file; it must end with .py")
    code = ModelCode(path, name)
    try:
        code.run()
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"{setting}: {path} does not import: {where_raised(error, path)}{_way_out(error, path)}"
        ) from error
    return code.module


def _way_out(error: BaseException, path: Path) -> str:
    """Return what to do about an import that is relative, or of what bears the name of a package of ours."""
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        return f"; write `from helper import x` in the place of `from .helper import x`: {path.name} is no package"
    name = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if name != OURS or not ((path.parent / f"{name}.py").exists() or (path.parent / name).is_dir()):
        return ""
    return f"; {name} is this program's own package, so what is called so beside the file is not found: rename it"


def _function(module: ModuleType, name: str, path: Path, setting: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if function is None:
        known = sorted(n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == MODULE_NAME)
        raise ModelError(f"{setting}: {path} has no function {name!r}; it has {', '.join(known) or 'none'}")
    if not callable(function):
        raise ModelError(f"{setting}: {name!r} in {path} is a {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]  # the user's own


def _of_a_batch(module: ModuleType, source: ModelFile, setting: str, name: str | None) -> Callable[..., Any] | None:
    """Return the function that maps a batch, of this name or of the setting's; None where the file has none."""
    if name is None and not hasattr(module, setting):
        return None
    name = name or setting
    function = _function(module, name, source.path, f"model.{setting}")
    # What `augment` draws by is handed to it if it asks for it by name.
    options = {"seed": None} if setting == AUGMENT and takes_seed(function) else {}
    try:
        signature = inspect.signature(function)
        signature.bind("features", "label", "weight", **options)
    except ValueError:
        return function  # a callable that does not tell its signature
    except TypeError as error:
        wanted = "features, label, weight" + (", seed" if options else "")
        raise ModelError(
            f"model.{setting}: {name}{signature} cannot be called with a batch ({error}); write def {name}({wanted})"
        ) from error
    return function


def _call(build: Callable[..., Any], source: ModelFile) -> Any:
    try:
        return build(**source.args)
    except (Exception, SystemExit) as error:
        raise ModelError(f"model.build: {source.function} raised {where_raised(error, source.path)}") from error


def where_raised(error: BaseException, path: Path) -> str:
    """Say what was raised and on which line of the user's file, or of one beside it."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_relative_to(path.parent):
        return f"{type(error).__name__}: {error.msg} ({_line(Path(error.filename), error.lineno, path)})"
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    # The model's own file, or one that stands beside it and is not installed there.
    lines = [
        (file, line)
        for file, line in frames
        if file == path or (file.is_relative_to(path.parent) and is_users(str(file)))
    ]
    return f"{gist(error)} ({_line(*lines[-1], path)})" if lines else gist(error)


def _line(file: Path, line: int | None, path: Path) -> str:
    return f"line {line}" if file == path else f"{file.relative_to(path.parent)}, line {line}"
