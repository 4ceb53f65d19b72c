"""The gate of exports: what is written is read strictly, and what is not known does not pass."""

import pytest

from millrace.training.checkpoints.exports.export_gate import missing, parse_condition, unknown_names


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("auc_pr >= 0.30", ("auc_pr", ">=", 0.3)),
        ("staleness<5m", ("staleness", "<", 300.0)),
        (" records > 100_000 ", ("records", ">", 100_000.0)),
        ("clicked/loss <= 1e-3", ("clicked/loss", "<=", 0.001)),
    ],
)
def test_a_condition_is_a_name_a_comparison_and_a_value(text: str, read: tuple[str, str, float]) -> None:
    found = parse_condition(text)
    assert (found.name, found.sign, found.bound) == read
    assert parse_condition(str(found)) == found


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("auc", "'auc' is no condition; write a name, >=, <=, > or <, and a value: loss < 0.4"),
        ("auc == 1", "'auc == 1' is no condition"),
        ("auc >= 0.3 and loss < 1", "is no condition"),
        ("__import__('os') > 1", "is no condition"),
        ("auc >= 30%", "'30%' is no number, which auc is compared with; write 0.30, or 100_000"),
        ("auc >= nan", "'nan' is no number"),
        ("records > 5m", "'5m' is no number"),
        ("staleness < 300", "'300' is no duration, which staleness is compared with; write 5m, or 30s"),
        (3, "'3' is no condition"),
    ],
)
def test_what_is_no_condition_is_refused_with_an_example(text: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"is no") as caught:
        parse_condition(text)
    assert complaint in str(caught.value)


def test_what_does_not_hold_and_what_is_not_known_is_missing() -> None:
    conditions = [parse_condition(text) for text in ("auc >= 0.30", "staleness < 5m", "records > 100_000", "loss < 1")]
    assert missing(conditions, {"auc": 0.27, "staleness": 400.04, "records": 100_000.0}) == (
        "auc is 0.27, and auc >= 0.30 is asked",
        "staleness is 400.0s, and staleness < 5m is asked",
        "records is 100,000, and records > 100_000 is asked",
        "loss is not known yet, and has to be < 1",
    )
    assert missing(conditions, {"auc": 0.3, "staleness": 299.0, "records": 1e9, "loss": 0.5}) == ()
    assert missing(conditions[:1], {"auc": float("nan")}) == ("auc is not known yet, and has to be >= 0.30",)


def test_a_name_that_the_model_does_not_have_is_found() -> None:
    conditions = [parse_condition(text) for text in ("auc > 0", "f1 > 0", "records > 0", "staleness < 1s")]
    assert unknown_names(conditions, ["loss", "auc"]) == ["f1"]
