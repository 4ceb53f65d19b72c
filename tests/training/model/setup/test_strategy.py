"""Devices that were set up too late."""

import logging

import pytest
import tensorflow as tf

from millrace.training.model.setup.strategy import _devices

GPU = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")


def test_a_model_file_that_computes_as_it_is_imported_leaves_a_gpu_to_learn_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What TensorFlow raises then on a machine with a GPU, which this one need not be."""

    def too_late(_gpu: object, _grows: bool) -> None:
        raise RuntimeError("Physical devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _kind: [GPU])
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", too_late)
    with caplog.at_level(logging.WARNING):
        assert _devices(None) == ["GPU:0"]
    assert "it holds all of each GPU; does model.py compute as it is imported?" in caplog.text
