"""Pretraining: epochs over an archive or files, which end as checkpoint 0 of a live model.

Importing `app.tools.pretrain.pretrain` loads TensorFlow; `shard_sources` and this face do not.
"""
