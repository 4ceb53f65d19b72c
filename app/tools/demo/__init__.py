"""The demo: a local Kafka, a stream whose rule drifts, a trainer, and a view of how the model copes.

The process of `millrace demo` owns a folder, the broker, the trainer and the judge as children that die with it, and
the thread that writes the stream. It learns about the trainer only over HTTP and from the checkpoints on disk.
"""
