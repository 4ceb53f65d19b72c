"""The routes of exports: which versions are published, and one of them to take along."""

from fastapi import APIRouter
from starlette.responses import StreamingResponse

from millrace.app.api.export_reads import ExportReader
from millrace.app.api.routes.reads import NOT_FOUND, Number
from millrace.app.monitoring.envelope import stamp
from millrace.app.monitoring.export_models import ExportList
from millrace.app.monitoring.observer import Observer

_TAR = "application/x-tar"


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
