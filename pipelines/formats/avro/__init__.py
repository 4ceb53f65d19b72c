"""Avro: a plan made of the writer's schema reads whole chunks column by column."""
