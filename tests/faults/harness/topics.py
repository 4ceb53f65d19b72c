"""A topic with one writer, who remembers what must become of every record."""

from millrace.app.tools.traffic.single_writer import SingleWriter as Topic

__all__ = ["Topic"]
