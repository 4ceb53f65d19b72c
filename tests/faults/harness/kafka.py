"""What Kafka holds after a run: dead letters and committed offsets."""

from millrace.app.tools.traffic.topic_reader import Letter, committed, dead_letters

__all__ = ["Letter", "committed", "dead_letters"]
