"""The routes of exports: which versions are published, and one of them to take along, as a tar stream.

Threads read the disk. A version that is pruned while it is sent is sent whole, because its files are open from the
beginning; a few are sent at once.
"""

import contextlib
import logging
import tarfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from io import BufferedReader

import anyio
from fastapi import APIRouter
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from millrace.app.api.offload import run_on_thread
from millrace.app.api.problem_documents import ProblemError
from millrace.app.api.routes.reads import NOT_FOUND, Number
from millrace.app.monitoring.models import ExportList, ExportView
from millrace.app.monitoring.observer import Observer
from millrace.app.monitoring.shapes import stamp
from millrace.training.checkpoints.exports.version_folder import FILE_NAME, VersionFolder
from millrace.training.errors import CorruptError, MissingExportError, NewerFormatError

log = logging.getLogger(__name__)
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


class ExportRoutes:
    """The routes of exports, which change nothing."""

    def __init__(self, observer: Observer, folder: VersionFolder | None) -> None:
        """`folder` is None if no setting names one."""
        self._observer, self._folder = observer, folder
        self._reads, self._streams = anyio.CapacityLimiter(1), anyio.CapacityLimiter(_STREAMS)
        self._sending = 0
        self._left_out: dict[int, str] = {}
        """Of each version that cannot be listed, why."""

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
        exports = await run_on_thread(self._list, self._reads)
        return ExportList(**stamp(self._observer.look().snapshot), exports=exports)

    async def export(self, number: Number) -> StreamingResponse:
        """Send a version as a tar, for those who serve and cannot mount the folder."""
        if self._sending >= _STREAMS:
            raise ProblemError(
                503,
                "Too Many Exports",
                f"{_STREAMS} exports are being sent already.",
                fix="Ask again in some seconds.",
                headers={"retry-after": "5"},
            )
        self._sending += 1  # from now on: others may ask while the files are being opened
        try:
            members, opened = await run_on_thread(partial(self._open, number), self._reads)
        except BaseException:
            self._sending -= 1
            raise
        size = sum(len(one.head) + one.size + one.padding for one in members) + 2 * _BLOCK
        headers = {"content-length": str(size), "content-disposition": f'attachment; filename="{number}.tar"'}
        return _Tar(self._stream(members), headers, partial(self._sent, opened))

    def _list(self) -> list[ExportView]:
        found: list[ExportView] = []
        left_out: dict[int, str] = {}
        if self._folder is None:
            return found
        for number in reversed(self._folder.numbers()):
            with contextlib.suppress(MissingExportError):  # pruned meanwhile
                try:
                    manifest = self._folder.manifest(number)
                except (CorruptError, NewerFormatError) as error:  # one version must not hide the others
                    left_out[number] = str(error)
                    if self._left_out.get(number) != str(error):
                        log.warning("export %d is not listed: %s", number, error)
                    continue
                found.append(
                    ExportView(
                        number=manifest.number,
                        made_at=manifest.made_at,
                        records=manifest.records,
                        metrics=manifest.metrics,
                        bytes=manifest.size,
                        proven_on=manifest.proof.rows,
                        max_difference=manifest.proof.max_difference,
                    )
                )
        self._left_out = left_out
        return found

    def _open(self, number: int) -> tuple[list[_TarMember], ExitStack]:
        """Return the files of a version, opened, and what closes them."""
        if self._folder is None:
            raise MissingExportError("there are no exports: export.path is not set")
        manifest, root, members = self._folder.manifest(number), self._folder.version(number), []
        with ExitStack() as opened:
            for name in (FILE_NAME, *sorted(manifest.files)):
                try:
                    file = opened.enter_context((root / name).open("rb"))
                except FileNotFoundError as error:
                    raise MissingExportError(f"export {number} was pruned just now") from error
                about = tarfile.TarInfo(name)
                about.size = file.seek(0, 2)
                file.seek(0)
                members.append(_TarMember(about.tobuf(tarfile.PAX_FORMAT), file, about.size))
            return members, opened.pop_all()

    def _sent(self, opened: ExitStack) -> None:
        """Make room for the next one, and close the files."""
        self._sending -= 1
        opened.close()

    async def _stream(self, members: Iterable[_TarMember]) -> AsyncIterator[bytes]:
        """Yield the bytes of the tar."""
        for member in members:
            yield member.head
            left = member.size
            while left:
                piece = await run_on_thread(partial(member.file.read, min(left, _PIECE)), self._streams)
                if len(piece) != min(left, _PIECE):
                    raise EOFError("a file of the export was cut short while it was sent")
                left -= len(piece)
                yield piece
            yield bytes(member.padding)
        yield bytes(2 * _BLOCK)


class _Tar(StreamingResponse):
    """A version on its way to one client."""

    def __init__(self, pieces: AsyncIterator[bytes], headers: Mapping[str, str], on_end: Callable[[], None]) -> None:
        super().__init__(pieces, headers=headers, media_type=_TAR)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client has left."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()
