"""What Kafka holds after a run: dead letters and committed offsets."""

from app.local_broker.reading import Letter, committed, dead_letters

__all__ = ["Letter", "committed", "dead_letters"]
