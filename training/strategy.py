"""Devices: MirroredStrategy over the pod's GPUs, or over one or several logical CPU devices.

Owns TensorFlow's process-wide set-up, which must come before anything else initialises its runtime. Runs on the
starting thread.
"""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from consumers.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """Which devices train."""

    replicas: int | None = None
    """How many; None takes every GPU, or one CPU device where there is none."""
    deterministic: bool = False
    """The same bits on every run: TensorFlow's deterministic kernels and a fixed number of threads."""
    threads: int | None = None
    """Threads inside and between TensorFlow's operations; None leaves the choice to TensorFlow."""


def make_strategy(options: DeviceOptions) -> Any:
    """Set TensorFlow up and return the MirroredStrategy that training runs under."""
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    if threads := options.threads or (1 if options.deterministic else None):
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(max(threads, 2))
    devices = _devices(options.replicas)
    if devices[0].startswith("GPU"):
        return tf.distribute.MirroredStrategy(devices)
    # Collectives between logical CPUs know their group by a number that every strategy begins to count anew, so two
    # strategies in one process (the proof has two) would take each other's; summing on one device has no such state.
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())


def _devices(replicas: int | None) -> list[str]:
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)  # noqa: FBT003 - TensorFlow's own signature
        if replicas is not None and replicas > len(gpus):
            raise ConfigError(f"training.replicas: {replicas} is more than the {len(gpus)} GPUs here; lower it")
        return [f"GPU:{index}" for index in range(replicas or len(gpus))]
    count = replicas or 1
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or [None]) < count:
        try:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        except RuntimeError as error:
            raise ConfigError(
                f"training.replicas: {count} CPU replicas must be set up before TensorFlow starts; "
                "model.py must not compute anything when it is imported"
            ) from error
    return [f"CPU:{index}" for index in range(count)]
