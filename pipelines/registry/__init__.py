"""The schema registry: a small client of Confluent's API, and the schemas that were got from it."""
