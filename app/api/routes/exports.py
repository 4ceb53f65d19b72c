"""The routes of exports: which versions are published, and one of them to take along, as a tar stream.

Threads read the disk. A version that is pruned while it is sent is sent whole, because its files are open from the
beginning; a few are sent at once.
"""

import contextlib
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

import anyio
from fastapi import APIRouter
from starlette.responses import StreamingResponse

from millrace.app.api.offload import run_on_thread
from millrace.app.api.problem_documents import ProblemError
from millrace.app.api.routes.reads import NOT_FOUND, Number
from millrace.app.monitoring.models import ExportList, ExportView
from millrace.app.monitoring.observer import Observer
from millrace.app.monitoring.shapes import stamp
from millrace.training.checkpoints.exports.export_manifest import FILE_NAME, ExportManifest
from millrace.training.checkpoints.exports.version_folder import VersionFolder
from millrace.training.errors import MissingExportError

T = TypeVar("T")
_TAR = "application/x-tar"
_PIECE = 1 << 20
_STREAMS = 4
_BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True, slots=True)
class _TarMember:
    head: bytes
    file: BufferedReader
    size: int

    @property
    def padding(self) -> int:
        return -self.size % _BLOCK


class ExportArchive:
    """One version as a tar, whose size is known before it is sent."""

    def __init__(self, members: list[_TarMember], opened: ExitStack) -> None:
        self._members, self._opened = members, opened
        self.size = sum(len(one.head) + one.size + one.padding for one in members) + 2 * _BLOCK

    def read(self, member: int, size: int) -> bytes:
        """Return the next bytes of a file; raise EOFError where it was cut short."""
        piece = self._members[member].file.read(size)
        if len(piece) != size:
            raise EOFError("a file of the export was cut short while it was sent")
        return piece

    def pieces(self) -> list[tuple[int, bytes, int, int]]:
        """Return each file's number, head, size and padding."""
        return [(at, one.head, one.size, one.padding) for at, one in enumerate(self._members)]

    def close(self) -> None:
        """Close the files."""
        self._opened.close()


class ExportReader:
    """Reads the exports of one model."""

    def __init__(self, folder: VersionFolder | None) -> None:
        """`folder` is None where no setting names one."""
        self._folder = folder
        self._reads, self._streams = anyio.CapacityLimiter(1), anyio.CapacityLimiter(_STREAMS)
        self._sending = 0

    async def listing(self) -> list[ExportView]:
        """Return all published versions, the newest first; none where there is no folder."""
        return await self._off_the_loop(self._list)

    async def open(self, number: int) -> ExportArchive:
        """Return a version, its files open. Raises MissingExportError, or ProblemError where too many are sent."""
        if self._sending >= _STREAMS:
            raise ProblemError(
                503,
                "Too Many Exports",
                f"{_STREAMS} exports are being sent already.",
                fix="Ask again in some seconds.",
                headers={"retry-after": "5"},
            )
        return await self._off_the_loop(partial(self._open, number))

    async def stream(self, archive: ExportArchive) -> AsyncIterator[bytes]:
        """Yield the bytes of the tar, and close the files at the end or when the client has left."""
        self._sending += 1
        try:
            for member, head, size, padding in archive.pieces():
                yield head
                left = size
                while left:
                    piece = await run_on_thread(partial(archive.read, member, min(left, _PIECE)), self._streams)
                    left -= len(piece)
                    yield piece
                yield bytes(padding)
            yield bytes(2 * _BLOCK)
        finally:
            self._sending -= 1
            archive.close()

    async def _off_the_loop(self, read: Callable[[], T]) -> T:
        return await run_on_thread(read, self._reads)

    def _list(self) -> list[ExportView]:
        found = []
        for number in reversed(self._folder.numbers() if self._folder is not None else []):
            with contextlib.suppress(MissingExportError):  # pruned meanwhile
                assert self._folder is not None, "only a folder has numbers"
                found.append(_view(self._folder.manifest(number)))
        return found

    def _open(self, number: int) -> ExportArchive:
        if self._folder is None:
            raise MissingExportError("there are no exports: export.path is not set")
        manifest, root = self._folder.manifest(number), self._folder.version(number)
        with ExitStack() as opened:
            members = [_member(root, name, opened) for name in (FILE_NAME, *sorted(manifest.files))]
            return ExportArchive(members, opened.pop_all())


def _member(root: Path, name: str, opened: ExitStack) -> _TarMember:
    try:
        file = opened.enter_context((root / name).open("rb"))
    except FileNotFoundError as error:
        raise MissingExportError(f"export {root.name} was pruned just now") from error
    about = tarfile.TarInfo(name)
    about.size = file.seek(0, 2)
    file.seek(0)
    return _TarMember(about.tobuf(tarfile.PAX_FORMAT), file, about.size)


def _view(manifest: ExportManifest) -> ExportView:
    return ExportView(
        number=manifest.number,
        made_at=manifest.made_at,
        records=manifest.records,
        metrics=manifest.metrics,
        bytes=manifest.size,
        proven_on=manifest.proof.rows,
        max_difference=manifest.proof.max_difference,
    )


class ExportRoutes:
    """The routes of exports, which change nothing."""

    def __init__(self, observer: Observer, reader: ExportReader) -> None:
        self._observer, self._reader = observer, reader

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(tags=["Checkpoints"])
        router.add_api_route("/exports", self.exports, response_model=ExportList)
        router.add_api_route(
            "/exports/{number}",
            self.export,
            response_class=StreamingResponse,
            responses={**NOT_FOUND, 200: {"content": {_TAR: {}}}},
        )
        return router

    async def exports(self) -> ExportList:
        """List the published versions, the newest first."""
        return ExportList(**stamp(self._observer.look().snapshot), exports=await self._reader.listing())

    async def export(self, number: Number) -> StreamingResponse:
        """Send a version as a tar, for those who serve and cannot mount the folder."""
        archive = await self._reader.open(number)
        headers = {"content-length": str(archive.size), "content-disposition": f'attachment; filename="{number}.tar"'}
        return StreamingResponse(self._reader.stream(archive), media_type=_TAR, headers=headers)
