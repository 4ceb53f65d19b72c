"""The folder of `--cache`: rows as decoding and `preprocess` give them, for the later epochs and for later runs.

    DIR/made-of.json         what the rows are made of; and, once all of them are there, which records were refused
    DIR/epoch.*              the rows that are trained on, as tf.data's `cache` writes them
    DIR/validation/epoch.*   those that are validated on

tf.data takes such files over whatever they hold. So a later run compares what they are made of first, fact by fact, and
makes them again if a fact differs. Owns the folder's lock: any number of runs read the same rows, or one writes them.
"""

import fcntl
import hashlib
import inspect
import json
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from millrace.app.settings import Settings
from millrace.app.settings.sections.records import own_settings, to_format
from millrace.app.tools.pretrain.inputs import InputOptions
from millrace.app.tools.pretrain.shard_sources import ShardSource
from millrace.app.version import version as own_version
from millrace.app.version import version_of
from millrace.consumers.durable_files import replace_durably
from millrace.consumers.errors import ConfigError
from millrace.pipelines.files.visits import CountedShard, Refusals
from millrace.pipelines.stream.dataset import Preprocess
from millrace.training.model.setup.cores import usable_cores
from millrace.training.model.setup.model_code import model_sha256
from millrace.training.pretraining.epochs import Epoch

_FACTS, _LOCK = "made-of.json", ".lock"
_ROWS = ("epoch*", "validation/epoch*")
_SHAPED_BY = "shaped by"
_SHOWN = 40
"""The characters of a value that is shown; others are hashes and lists."""


def cache_folder(options: InputOptions) -> Path | None:
    """Return the folder of the cache; None if there is none. ConfigError if it holds anything but kept rows."""
    if options.cache in {None, "memory"}:
        return None
    folder = Path(str(options.cache))
    if not folder.exists() or (folder / _FACTS).is_file():
        return folder
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - {_LOCK}:
        raise ConfigError(
            f"--cache: {folder} is not an empty folder, nor one with the rows of an earlier pretraining; name an empty "
            "one, or one that is not there yet"
        )
    return folder


@contextmanager
def kept_rows(
    folder: Path | None, made_of: Callable[[], Mapping[str, Any]], refusals: Refusals, say: Callable[[str], None]
) -> Iterator[Callable[[Epoch], None]]:
    """Hold the folder, if there is one; give what is to be called when an epoch has ended.

    Rows that an earlier run has kept stay there if they are made of the same, and their refusals are noted. Otherwise
    they are removed, and a line says why. Raise ConfigError if another pretraining is in the way.
    """
    if folder is None:
        yield lambda _epoch: None
        return
    facts: Mapping[str, Any] = json.loads(json.dumps(made_of()))  # as they are read again: a tuple is a list then
    (folder / "validation").mkdir(parents=True, exist_ok=True)  # tf.data makes no folder
    with (folder / _LOCK).open("a") as lock:
        alone = _took_lock(lock.fileno(), fcntl.LOCK_EX)
        if not alone and not _took_lock(lock.fileno(), fcntl.LOCK_SH):
            raise ConfigError(f"--cache: another pretraining writes to {folder}; wait for it, or name another folder")
        kept: Mapping[str, Any] = {}
        with suppress(FileNotFoundError, ValueError):
            kept = json.loads((folder / _FACTS).read_bytes())
        why = _difference(kept, facts)
        if why is None:
            fcntl.flock(lock, fcntl.LOCK_SH)
            refusals.load(kept["refused"])
            say(f"the rows of an earlier run are read from {folder}")
            yield lambda _epoch: None
            return
        if not alone:
            raise ConfigError(f"--cache: another pretraining reads other rows in {folder} ({why}); name another folder")
        if kept:
            say(f"the rows in {folder} are made again: {why}")
        # First, since a run that is killed meanwhile leaves some of the files.
        _write(folder, {"facts": facts})
        for path in [path for names in _ROWS for path in folder.glob(names)]:
            path.unlink()
        yield partial(_complete, folder, facts, refusals)


def made_of(
    training: ShardSource,
    validation: ShardSource | None,
    settings: Settings,
    options: InputOptions,
    preprocess: Preprocess | None,
) -> Mapping[str, Any]:
    """Return all that decides which rows are kept, and in which windows, by its name in a sentence."""
    ordered = options.deterministic or settings.training.deterministic
    return {
        "the files": _contents(training),
        "the files to validate on": [] if validation is None else _contents(validation),
        "the section records": _records(settings),
        "the code of preprocess": None if preprocess is None else _code_of(preprocess, settings.model.build.file),
        "training.batch_size": settings.training.numbers.batch_size,
        "training.batches_per_call": settings.training.batches_per_call,
        "memory.limit": settings.memory.limit,
        "--shuffle": options.shuffle,
        "the seed of --deterministic": settings.training.seed if ordered else None,
        _SHAPED_BY: next((shaper.setting for shaper in settings.shapers()), None),
        "the version of millrace": own_version(),
        "the version of python": platform.python_version(),
        **{f"the version of {package}": version_of(package) for package in ("tensorflow", "keras", "numpy")},
    }


def _contents(source: ShardSource) -> list[tuple[str | int, ...]]:
    """Return which rows of which files there are, each file by the hash of its contents."""

    def contents(shard: CountedShard) -> str:
        return _file_sha256(Path(shard.path)) if source.images is None else source.images.sha256(shard.first, shard.end)

    with ThreadPoolExecutor(usable_cores()) as pool:
        hashes = [shard.sha256 for shard in source.archived] or [*pool.map(contents, source.shards)]
    found = zip(source.shards, hashes, strict=True)
    return [(shard.name, shard.rows, shard.first, shard.end, sha256) for shard, sha256 in found]


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _records(settings: Settings) -> str:
    """Return the hash of what the settings say of records, and of the files that they name."""
    records = settings.records
    section = records.model_dump(mode="json", exclude={"dead_letters", "registry"})
    with tempfile.TemporaryDirectory() as folder:
        to_format(records).carried(own_settings(records), Path(folder))
        section["files"] = [_file_sha256(path) for path in sorted(Path(folder).iterdir())]
    section["code"] = None if isinstance(records.format, str) else model_sha256(records.format.file)
    return hashlib.sha256(json.dumps(section, sort_keys=True).encode()).hexdigest()


def _code_of(preprocess: Preprocess, model: Path) -> str:
    """Return the hash of the file that defines `preprocess` and of what it imports from beside the model's file.

    A file that is installed elsewhere counts together with the model's, and what it imports from there does not.
    """
    function = inspect.unwrap(getattr(preprocess, "python_function", preprocess))
    if not inspect.isfunction(function) or function.__closure__:
        return model_sha256(model)  # made by other code, which may stand in any file that the model imports
    file = Path(function.__code__.co_filename)
    if file.parent == model.parent:
        return model_sha256(file)
    return model_sha256(model) + (_file_sha256(file) if file.is_file() else "")


def _difference(kept: Mapping[str, Any], facts: Mapping[str, Any]) -> str | None:
    """Return why the rows of a folder are not those of these facts; None if they are."""
    if "refused" not in kept:
        return "they are not complete"
    if facts[_SHAPED_BY]:
        return f"with {facts[_SHAPED_BY]} a run has to see the records themselves"
    for name, value in facts.items():
        if (before := kept["facts"].get(name)) != value:
            shown = f"{before} before, and {value} now"
            return f"{name}: {shown}" if len(shown) <= _SHOWN else f"{name} changed"
    return None


def _complete(folder: Path, facts: Mapping[str, Any], refusals: Refusals, epoch: Epoch) -> None:
    # What a service has lost is in no file either.
    if epoch.number == 1 and not epoch.visited.lacking and not epoch.visited.twice:
        _write(folder, {"facts": facts, "refused": refusals.saved()})


def _write(folder: Path, kept: Mapping[str, Any]) -> None:
    replace_durably(folder / _FACTS, json.dumps(kept).encode())


def _took_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
