"""`logs`: what the service logs."""

from typing import Literal

from pydantic import Field

from app.settings.section import Section


class LogSettings(Section):
    """What the service logs on stderr."""

    format: Literal["auto", "text", "json"] = Field(
        "auto", description="text for people, json for machines; auto is text on a terminal and json elsewhere."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The lowest level that is logged; commands are always logged."
    )
