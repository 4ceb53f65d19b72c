"""Descriptors of Protobuf messages: from a descriptor set, or from the text of a .proto file, which protoc compiles.

Runs once, when a decoder is made. What a record begins with in Confluent's wire format, which message of which schema
it is, is read here too.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from millrace.consumers.errors import ConfigError, NotYetError
from millrace.pipelines.formats.shared.protocol import LONGEST_DETAIL
from millrace.pipelines.schema import RegisteredSchema, Schemas

_COMPILE_S = 60
_TOLD = 300


def descriptor_set(path: Path) -> bytes:
    """Return the FileDescriptorSet of a file, which is one, or is a .proto text. Raise ConfigError where it is not."""
    setting = f"records.protobuf.descriptor: {path}"
    try:
        content = path.read_bytes()
    except OSError as error:
        why = (error.strerror or "it cannot be opened").lower()
        raise ConfigError(f"{setting} cannot be read: {why}; put the descriptor there") from None
    if path.suffix == ".proto":
        try:
            return _compiled(path.parent, path.name, setting)
        except subprocess.TimeoutExpired:
            raise ConfigError(f"{setting} does not compile within {_COMPILE_S} s; import less") from None
    try:
        empty = not descriptor_pb2.FileDescriptorSet.FromString(content).file
    except DecodeError:
        empty = True
    if empty:
        raise ConfigError(
            f"{setting} is no descriptor set; write one by `protoc --include_imports --descriptor_set_out=FILE`, or "
            "name a .proto file"
        )
    return content


def compiled_texts(texts: Mapping[str, str], main: str, setting: str) -> bytes:
    """Return the FileDescriptorSet of .proto texts, by the names under which they import each other."""
    with tempfile.TemporaryDirectory(prefix="millrace-proto-") as folder:
        for name, text in texts.items():
            path = Path(folder, name)
            # The names come from the registry, and none may lead out of the folder.
            if ".." in path.parts or Path(name).is_absolute() or "\0" in name:
                raise ConfigError(f"{setting}: {name!r} is no name to import a file by")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8")
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                raise ConfigError(f"{setting}: {name!r} is the name of a file and of a folder") from None
        return _compiled(Path(folder), main, setting)


def message_of(descriptors: bytes, name: str | None) -> Any:
    """Return the descriptor of a message, by its full name or by the end of it; None for the only one of a set."""
    pool, known = descriptor_pool.DescriptorPool(), dict[str, list[str]]()
    try:
        files_of_set = list(descriptor_pb2.FileDescriptorSet.FromString(descriptors).file)
        for file in files_of_set:
            pool.Add(file)
            known[file.name] = [".".join(filter(None, (file.package, one.name))) for one in file.message_type]
        found = [pool.FindMessageTypeByName(full) for full in _meant(known, files_of_set[-1].name, name, pool)]
    except (TypeError, KeyError) as error:
        raise ConfigError(
            f"records.protobuf.descriptor: it is incomplete: {error}; write it by `protoc --include_imports`"
        ) from None
    if len(found) != 1:
        own = ", ".join(full for names in known.values() for full in names if not full.startswith("google."))
        which = "name the one of the records" if name is None else f"{name!r} is none, or more than one, of them"
        raise ConfigError(f"records.protobuf.message: the descriptor has {own or 'no message'}; {which}")
    return found[0]


def message_at(descriptors: bytes, indexes: Sequence[int]) -> Any:
    """Return the descriptor of a message of the last file, by its place among the messages there, then within those.

    None where there is no message at that place.
    """
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    names, messages = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            return None
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return pool.FindMessageTypeByName(".".join(names))


def _meant(known: Mapping[str, list[str]], last: str, name: str | None, pool: Any) -> list[str]:
    if name is None:
        return known[last]
    try:
        return [pool.FindMessageTypeByName(name.removeprefix(".")).full_name]
    except KeyError:
        return [full for names in known.values() for full in names if full.endswith(f".{name}")]


def _known_folders() -> Iterator[Path]:
    """Yield where the files are that schemas import without giving them: google/protobuf, google/type, confluent."""
    yield Path(str(files("grpc_tools"))) / "_proto"
    yield Path(__file__).parents[1] / "protobuf" / "protos"
    # ptars brings googleapis-common-protos, which has google/type.
    if (types := find_spec("google.type.date_pb2")) is not None and types.origin is not None:
        yield Path(types.origin).parents[2]


def _compiled(folder: Path, name: str, setting: str) -> bytes:
    """Return the FileDescriptorSet of a .proto file, whose imports are looked for in its folder."""
    command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{each}" for each in (folder, *_known_folders()))]
    done = subprocess.run(  # noqa: S603 - protoc, by a path that the settings name
        [*command, "--include_imports", "--descriptor_set_out=/dev/stdout", str(Path(folder, name))],
        capture_output=True,
        timeout=_COMPILE_S,
        check=False,
    )
    if done.returncode or not done.stdout:
        said = done.stderr.decode("utf-8", "replace").splitlines()
        lines = [line for line in said if ": warning:" not in line.lower() and line.strip()]
        why = (lines or ["protoc has ended without a word"])[0].removeprefix(f"{folder}/")[:_TOLD]
        raise ConfigError(f"{setting} does not compile: {why}; correct it, or put what it imports beside it")
    return done.stdout


_NUMBER_ENDS = 5
"""Bytes of a zero and the number of the schema, big-endian."""
_MOST_INDEXES, _VARINT = 64, 5

Header = bytes


def described(registered: RegisteredSchema, number: int) -> bytes | str:
    """Return the descriptors of a registered schema; why not, where it is none of Protobuf. Raise NotYetError."""
    if registered.kind != "PROTOBUF":
        return f"schema {number} is of {registered.kind}, not of PROTOBUF"
    name = f"schema-{number}.proto"
    try:
        return compiled_texts({**dict(registered.references), name: registered.text}, name, f"schema {number}")
    except ConfigError as error:
        return str(error)[:LONGEST_DETAIL]
    except (OSError, subprocess.SubprocessError) as error:
        # A full disk or a busy machine says nothing about the schema, so its records wait.
        raise NotYetError(f"schema {number} cannot be compiled now ({type(error).__name__}); is /tmp full?") from None


def header_of(value: bytes) -> Header:
    """Return what a record begins with before its message; nothing where it is not in Confluent's wire format."""
    if value[:1] != b"\0" or len(value) <= _NUMBER_ENDS:
        return b""
    if value[_NUMBER_ENDS] == 0:
        return value[: _NUMBER_ENDS + 1]
    count, at = _zigzag(value, _NUMBER_ENDS)
    if not 0 < count <= _MOST_INDEXES:
        return b""
    for _ in range(count):
        index, at = _zigzag(value, at)
        if index < 0:
            return b""
    return value[:at]


def number_of(header: Header) -> int:
    """Return the number of the schema of a header that was found whole."""
    return int.from_bytes(header[1:_NUMBER_ENDS])


def indexes_of(header: Header) -> tuple[int, ...]:
    """Return the place of the message of a header that was found whole: among the messages, then within those."""
    count, at = _zigzag(header, _NUMBER_ENDS)
    found = list[int]()
    for _ in range(count):
        index, at = _zigzag(header, at)
        found.append(index)
    return tuple(found) or (0,)


def message_name(header: Header, schemas: Schemas) -> str | None:
    """Return the full name of the message of a header; None where the registry has none. Raise NotYetError."""
    number = number_of(header)
    registered = schemas.get(number)
    descriptors = "" if registered is None else described(registered, number)
    message = None if isinstance(descriptors, str) else message_at(descriptors, indexes_of(header))
    return None if message is None else str(message.full_name)


def _zigzag(text: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag varint at a place, and the place behind it; -1 where there is none."""
    number = 0
    for taken, code in enumerate(text[at : at + _VARINT]):
        number |= (code & 0x7F) << 7 * taken
        if code < 0x80:
            return (number >> 1) ^ -(number & 1), at + taken + 1
    return -1, at
