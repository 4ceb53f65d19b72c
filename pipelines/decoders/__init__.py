"""pipelines/decoders."""
