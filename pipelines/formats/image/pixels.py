"""The pixels of images, by TensorFlow, in the size that the model takes.

Images are decoded some at a time, in parallel and without the GIL. One that TensorFlow refuses makes it refuse those
beside it too, so each of them is then decoded alone, by the same graph: the pixels depend on the image alone. Runs on
the decode pool's threads and on those of tf.data, and holds no state but the graphs.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.pipelines.formats.image.images import image_in
from millrace.pipelines.schema import Column, Field

Mask = npt.NDArray[np.bool_]
_SLICE = 64
"""Images that are decoded at once: so many are decoded again where one of them is refused."""
_BRIGHTEST = 255


def pixels_of(column: Column, field: Field) -> tuple[Column, Mask]:
    """Return the pixels of what records hold, from 0 to 255, and which are no images, in whose place any pixels are."""
    assert field.image is not None
    images = [image_in(held, field.image) for held in column.tolist()]
    good = np.fromiter((image is not None for image in images), np.bool_, len(images))
    pixels: Column = np.zeros((len(images), *field.shape), field.dtype)
    rows = np.flatnonzero(good)
    for start in range(0, len(rows), _SLICE):
        part = rows[start : start + _SLICE]
        found = _decoded([image for row in part.tolist() if (image := images[row]) is not None], field)
        for row, one in zip(part.tolist(), found, strict=True):
            if one is None:
                good[row] = False
            else:
                pixels[row] = one
    return pixels, ~good


def _decoded(images: Sequence[bytes], field: Field) -> Sequence[Column | None]:
    graph = _graph(field.shape, field.dtype)
    try:
        return [*graph(tf.constant(images, tf.string)).numpy()]
    except tf.errors.OpError:
        return [None] if len(images) == 1 else [_decoded([image], field)[0] for image in images]


@lru_cache(maxsize=64)
def _graph(shape: tuple[int, ...], dtype: str) -> Any:
    """Return the graph that decodes any number of images to one size."""
    height, width, channels = shape
    whole = tf.as_dtype(dtype).is_integer

    def one(image: Any) -> Any:
        pixels = tf.io.decode_image(image, channels=channels, expand_animations=False)
        pixels.set_shape([None, None, channels])
        sized = tf.image.resize(pixels, [height, width], antialias=True)
        kept = tf.clip_by_value(tf.round(sized) if whole else sized, 0, _BRIGHTEST)
        return tf.cast(kept, dtype)

    spec = tf.TensorSpec([None], tf.string)
    mapped = tf.function(
        lambda images: tf.map_fn(one, images, fn_output_signature=tf.TensorSpec(shape, dtype), parallel_iterations=4),
        autograph=False,
    )
    return mapped.get_concrete_function(spec)
