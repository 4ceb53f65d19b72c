"""The demo: a local Kafka, a stream whose rule drifts, a trainer, and a screen that shows how it copes.

The process of `millrace demo` owns a folder, the broker, the trainer and the judge as children that die with it, and
the thread that writes the stream. It learns about the trainer over HTTP and from the checkpoints on disk only.
"""
