"""Devices: MirroredStrategy over the pod's GPUs, or over one or several logical CPU devices.

Owns TensorFlow's process-wide set-up, which must come before anything else initialises its runtime. Runs on the
starting thread.
"""

import logging
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.training.model.setup.cores import usable_cores

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """Which devices train."""

    replicas: int | None = None
    """The number of devices; None takes every GPU, or one CPU device where there is none."""
    deterministic: bool = False
    """The same bits on every run: TensorFlow's deterministic kernels and a fixed number of threads."""
    threads: int | None = None
    """Threads that share one operation on CPUs; None takes all usable cores but the one that ingest needs."""
    group: Any = None
    """The strategy of a group of processes, where this one is a member of one."""


def make_strategy(options: DeviceOptions) -> Any:
    """Set TensorFlow up and return the MirroredStrategy that training runs under."""
    if options.group is not None:
        return options.group
    prepare(options)
    devices = _devices(options.replicas)
    if devices[0].startswith("GPU"):
        return tf.distribute.MirroredStrategy(devices)
    # Collectives between logical CPUs identify their group by a number that every strategy counts from the same start,
    # so two strategies in one process (the proof has two) would mix theirs up; summing on one device has no such state.
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())


def prepare(options: DeviceOptions) -> None:
    """Set what must be set before TensorFlow's runtime starts; a strategy that is made later keeps the threads."""
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    # Operations of a small model are over before a second thread has woken: on two cores an MLP of 28-64-64 learns 1.3
    # times as fast with one thread inside an operation as with two, for 0.75 of the CPU, with nothing else running.
    # Between operations there are always two: with one, a `py_function` that calls a compiled function waits for
    # itself.
    within = 1 if options.deterministic else options.threads or max(1, usable_cores() - 1)
    threading = tf.config.threading
    if threading.get_intra_op_parallelism_threads() == within:
        return
    try:
        threading.set_intra_op_parallelism_threads(within)
        threading.set_inter_op_parallelism_threads(max(within, 2))
    except RuntimeError:
        log.warning("TensorFlow was at work before its threads could be set; does model.py compute as it is imported?")


def _devices(replicas: int | None) -> list[str]:
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        # By default TensorFlow takes all the memory of each GPU at once.
        try:
            for gpu in gpus:
                tf.config.experimental.set_memory_growth(gpu, True)  # noqa: FBT003 - TensorFlow's own signature
        except RuntimeError:
            log.warning(
                "TensorFlow was at work before it could be told to take memory as it needs it, so it holds all of each "
                "GPU; does model.py compute as it is imported?"
            )
        if replicas is not None and replicas > len(gpus):
            raise ConfigError(f"training.replicas: {replicas} is more than the {len(gpus)} GPUs here; lower it")
        return [f"GPU:{index}" for index in range(replicas or len(gpus))]
    count = replicas or 1
    cpu = tf.config.list_physical_devices("CPU")[0]
    # Without a configuration a CPU is one device.
    if len(tf.config.get_logical_device_configuration(cpu) or [None]) < count:
        try:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        except RuntimeError as error:
            raise ConfigError(
                f"training.replicas: {count} CPU replicas must be set up before TensorFlow starts; "
                "model.py must not compute anything when it is imported"
            ) from error
    return [f"CPU:{index}" for index in range(count)]
