"""The files that a model is written in: `model.py`, and those beside it that it imports.

What stands beside the model file is imported by its own name, from any of these files and at any time, and is seen by
no other code: `helper` of one model is not that of another, and hides no installed package from a library. Names of the
standard library and `millrace` are never looked up there.

Owns the finding and the import of these files, and their hash. Needs no TensorFlow.
"""

import ast
import builtins
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

OURS = "millrace"
"""The one package that is installed; a file or folder of this name beside the model file is never imported."""
_ROOT = "millrace_user_files"
_numbers = count(1)


def model_sha256(path: Path) -> str:
    """Return the hash of the model's code: of the file alone, or together with what it imports from beside it."""
    own, beside = hashlib.sha256(path.read_bytes()).hexdigest(), beside_sha256(path)
    if not beside:
        return own
    lines = [own, *(f"{name} {digest}" for name, digest in beside.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def beside_sha256(path: Path) -> dict[str, str]:
    """Return the hash of each file beside the model file that it imports, directly or not, by its relative path.

    It is read from the import statements, those in functions among them, so that it needs no import and is the same
    before and after one. What a call of `importlib.import_module` names is not seen.
    """
    found, unread = {path}, [path]
    while unread:
        new = set(_imported(unread.pop(), path.parent)) - found
        found |= new
        unread += new
    names = {file.relative_to(path.parent).as_posix(): file for file in found - {path}}
    return {name: hashlib.sha256(names[name].read_bytes()).hexdigest() for name in sorted(names)}


def is_code_of(path: Path, sha256: str) -> bool:
    """Return whether a checkpoint's `model_sha256` is that of this code, as far as it tells.

    Earlier versions knew of no files beside the model file, which it imported by PYTHONPATH, and hashed it alone.
    """
    return sha256 in {model_sha256(path), hashlib.sha256(path.read_bytes()).hexdigest()}


def named(path: Path) -> str:
    """Return how to call a model's code: by the file, and by what stands beside it of which its hash is made."""
    beside = ", ".join(beside_sha256(path))
    return f"{path.name} (with {beside})" if beside else path.name


def is_beside(folder: Path, name: str) -> bool:
    """Return whether a top-level name is that of a file or package in the model's folder, and may be imported there."""
    if name == OURS or name in sys.stdlib_module_names:
        return False
    return (folder / f"{name}.py").is_file() or any((folder / name).glob("*.py"))


def modules_of(module: ModuleType) -> list[ModuleType]:
    """Return a model file's module and those beside it that it has imported."""
    loader = module.__loader__
    return loader.code.modules() if isinstance(loader, _Loader) else [module]


class ModelCode:
    """The modules of one model, loaded once: the model file as `name`, and those beside it when they are imported."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._root = path, f"{_ROOT}_{next(_numbers)}"
        spec = spec_from_file_location(name, path, loader=_Loader(name, str(path), self))
        assert spec is not None
        self.module = module_from_spec(spec)

    def run(self) -> None:
        """Run the model file; raises what that raises."""
        # Registered before it runs, as by an import: dataclasses in the file look their module up here.
        sys.modules[self.module.__name__] = self.module
        _Loader(self.module.__name__, str(self._path), self).exec_module(self.module)

    def modules(self) -> list[ModuleType]:
        """Return the model file's module, and those beside it that are imported by now."""
        return [self.module, *(module for name, module in sys.modules.items() if name.startswith(f"{self._root}."))]

    def imported(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the names of `__import__`
        locals: Mapping[str, Any] | None = None,  # noqa: A002 - as above
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> Any:
        """Import as `__import__` does, and what stands beside the model file from there."""
        top = name.partition(".")[0]
        if level or not is_beside(self._path.parent, top):
            return builtins.__import__(name, globals, locals, fromlist, level)
        if name == self._path.stem:
            return self.module
        if self._root not in sys.modules:
            sys.modules[self._root] = package = ModuleType(self._root)
            package.__path__ = [str(self._path.parent)]
            _FINDER.codes[self._root] = self
        found = builtins.__import__(f"{self._root}.{name}", globals, locals, fromlist, 0)
        # `import package.part` binds the package.
        return sys.modules[f"{self._root}.{name}"] if fromlist else getattr(found, top)


class _Loader(SourceFileLoader):
    """Runs a file so that its import statements, now and later, find what stands beside the model file."""

    def __init__(self, fullname: str, path: str, code: ModelCode) -> None:
        super().__init__(fullname, path)
        self.code = code

    def exec_module(self, module: ModuleType) -> None:
        # A function looks `__import__` up in the builtins of its module.
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self.code.imported}
        super().exec_module(module)

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write no `__pycache__`: the folder is the user's, and may be read-only."""


class _Finder(MetaPathFinder):
    """Finds the modules of models under their roots, and nothing else."""

    def __init__(self) -> None:
        self.codes: dict[str, ModelCode] = {}

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        code = self.codes.get(fullname.partition(".")[0])
        if code is None or (spec := PathFinder.find_spec(fullname, path, target)) is None:
            return None
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path, code)
        return spec


_FINDER = _Finder()
sys.meta_path.insert(0, _FINDER)  # before the one that would find the same files and run them as any other


def _imported(file: Path, folder: Path) -> Iterator[Path]:
    """Yield the files in the model's folder that this one imports."""
    tree: ast.AST = ast.Module(body=[], type_ignores=[])
    with suppress(SyntaxError, ValueError, OSError):  # the import says it better
        tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(folder, folder, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            base = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else folder
            for alias in node.names:
                yield from _files(folder, base, [*parts, alias.name])


def _files(folder: Path, base: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Yield the packages and the module that an import of this name runs, as far as they are files of the folder."""
    if not base.is_relative_to(folder) or (base == folder and not is_beside(folder, parts[0])):
        return
    for part in parts:
        if (package := base / part / "__init__.py").is_file():
            yield package
        elif (module := base / f"{part}.py").is_file():
            yield module
        base /= part
