"""Tells an MLflow server how a model learns, and registers its versions there."""
