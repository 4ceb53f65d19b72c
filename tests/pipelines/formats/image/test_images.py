"""Images in fields: base64 as it is written, two sizes of one, and faults beside them."""

import json
from base64 import b64encode, urlsafe_b64encode

import numpy as np
import pytest

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.formats.image.images import MOST_PIXELS, image_in
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.decode import decode_chunk
from tests.pipelines.formats.image.image_verdicts import JPEG, PNG, png
from tests.pipelines.stream.test_decode import chunk_of

pytestmark = pytest.mark.tensorflow


def photo(side: int, channels: int, dtype: str) -> Field:
    return Field(name=f"p{side}", source="photo", dtype=dtype, shape=(side, side, channels), image="base64")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        b64encode(JPEG),
        b64encode(JPEG).rstrip(b"="),
        urlsafe_b64encode(JPEG),
        b"data:image/jpeg;base64," + b64encode(JPEG),
        b"\r\n".join([b64encode(JPEG)[:76], b64encode(JPEG)[76:]]),
    ],
    ids=["plain", "without padding", "the other alphabet", "data URL", "lines"],
)
def test_base64_is_read_as_it_is_written(text: bytes) -> None:
    assert image_in(text, "base64") == JPEG


@pytest.mark.parametrize("text", [b"", b"*", b"a", b64encode(b"no image"), b64encode(JPEG)[:-8], JPEG])
def test_text_that_holds_no_whole_image_is_none(text: bytes) -> None:
    assert image_in(text, "base64") is None


def test_a_thumbnail_inside_of_a_jpeg_that_was_cut_short_is_not_its_end() -> None:
    thumbnail = b"\xff\xe1" + (len(JPEG) + 2).to_bytes(2) + JPEG
    assert image_in(JPEG[:2] + thumbnail + JPEG[2:], "bytes") is not None
    assert image_in(JPEG[:2] + thumbnail + JPEG[2:-2], "bytes") is None


def test_what_is_not_whole_or_would_unfold_to_too_much_never_reaches_the_library() -> None:
    turned = PNG[:-20] + bytes([PNG[-20] ^ 1]) + PNG[-19:]
    assert [image_in(image, "bytes") for image in (turned, PNG[:-1], JPEG[:-2])] == [None] * 3
    side = 5792  # the greatest square within the bound
    assert side**2 <= MOST_PIXELS < (side + 1) ** 2
    assert image_in(png([b"\0"], side, height=side), "bytes") is not None
    assert image_in(png([b"\0"], side + 1, height=side + 1), "bytes") is None


def test_one_field_gives_two_sizes_and_a_bad_one_is_named_behind_other_faults() -> None:
    schema = Schema(
        features=(
            Field(name="x", source="x", dtype="float32"),
            photo(2, 1, "uint8"),
            photo(4, 3, "float32"),
        ),
        weight=Field(name="weight", source="w", dtype="float32"),
    )
    whole = b64encode(png([b"\x00\x40", b"\x80\xff"], 2)).decode()
    cut = b64encode(PNG[:-1]).decode()
    rows = [(1, whole, 1), (2, cut, 1), (None, cut, 1), (4, cut, -1), (5, whole, 2)]
    values = [json.dumps({"x": x, "photo": image, "w": weight}).encode() for x, image, weight in rows]
    decoded = decode_chunk(chunk_of(values), make_decoder("json", schema))
    assert [(one.offset, one.reason, one.field) for one in decoded.refused] == [
        (1, Reason.BAD_IMAGE, "photo"),
        (2, Reason.MISSING, "x"),
        (3, Reason.OUT_OF_RANGE, "w"),
    ]
    assert decoded.features["x"].tolist() == [1, 5]
    assert decoded.features["p2"][:, :, :, 0].tolist() == [[[0, 64], [128, 255]]] * 2
    assert decoded.features["p4"].shape == (2, 4, 4, 3)
    assert decoded.features["p4"].dtype == np.float32
    assert decoded.features["p4"][0, 0, 0].tolist() == [0.0] * 3
    assert decoded.nbytes > 2 * 4 * 4 * 3 * 4
