"""Why a record was not learnt: the one enumeration that metrics, headers, ledger and docs share.

Owns nothing and runs anywhere. Add a new reason here only; `docs/guarantees.md` lists the reasons, and a test compares
the two.
"""

from enum import StrEnum


class Reason(StrEnum):
    """Why a record was set aside. Headers, metrics and the ledger hold the value."""

    # An enumeration's own hash runs Python, and is not that of the text that it is equal to.
    __hash__ = str.__hash__

    MALFORMED = "malformed"
    """The bytes are not what the format says: no JSON object, the wrong number of bytes."""
    EMPTY = "empty"
    """The record has no value (a tombstone) or an empty one."""
    UNKNOWN_SCHEMA = "unknown_schema"
    """The registry has no schema of the number that the record begins with, or none of the format."""
    MISSING = "missing"
    """A field that the schema asks for is absent or null, and has no `missing` value."""
    WRONG_TYPE = "wrong_type"
    """A field holds another type than the schema says: text for a number, 1.0 for an integer."""
    WRONG_SHAPE = "wrong_shape"
    """A field holds another number of elements than the schema says."""
    OUT_OF_RANGE = "out_of_range"
    """A number does not fit the field's dtype, or lies outside of its `min` and `max`."""
    NOT_ALLOWED = "not_allowed"
    """A field holds a value that is not in its `one_of`."""
    CLASS_LIMIT = "class_limit"
    """A label holds a text of one class more than `records.label.classes` allows, or of more than 500 bytes."""
    NOT_FINITE = "not_finite"
    """A field holds NaN or an infinity."""
    BAD_IMAGE = "bad_image"
    """A field holds no JPEG or PNG that is whole and can be decoded."""
    UPDATE_NOT_FINITE = "update_not_finite"
    """The record decodes, yet a training step with it gives a loss, gradient or weight that is not finite."""
    STEP_RAISED = "step_raised"
    """The record decodes, yet `preprocess` or a training step raises an error with it."""
