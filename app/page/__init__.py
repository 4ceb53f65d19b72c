"""The page that people look at: `/`."""

from app.page.files import PageFiles

__all__ = ["PageFiles"]
