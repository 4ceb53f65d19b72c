"""The syntax of sources: what each spells, that every name has a spelling, and what is no path."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.consumers.errors import ConfigError
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.formats.csv import CsvSettings
from millrace.pipelines.formats.shared.paths import Envelope, Path, PathStep, escaped, is_envelope, parse
from millrace.pipelines.schema import Field, Schema

AWKWARD = st.text(st.sampled_from("ab.[]\\$ \n\té"), min_size=1, max_size=8)
STEPS = st.lists(
    st.builds(PathStep, AWKWARD | st.text(min_size=1, max_size=6), st.integers(0, 3)), min_size=1, max_size=4
)


@pytest.mark.parametrize(
    ("source", "steps", "text"),
    [
        ("price", [PathStep("price")], "price"),
        ("user.age", [PathStep("user"), PathStep("age")], "user.age"),
        (r"user\.age", [PathStep("user.age")], "user.age"),
        ("tags[]", [PathStep("tags", 1)], "tags"),
        ("items[].price", [PathStep("items", 1), PathStep("price")], "items[].price"),
        ("a.grid[][].x[]", [PathStep("a"), PathStep("grid", 2), PathStep("x", 1)], "a.grid[][].x"),
        (r"a\[\]", [PathStep("a[]")], "a[]"),
        (r"\$key", [PathStep("$key")], "$key"),
        ("a.$key", [PathStep("a"), PathStep("$key")], "a.$key"),
        ("price, net", [PathStep("price, net")], "price, net"),
        (r"a\\b", [PathStep("a\\b")], "a\\b"),
    ],
)
def test_a_source_spells_the_steps_into_a_value(source: str, steps: list[PathStep], text: str) -> None:
    path = parse(source)
    assert path == Path(tuple(steps))
    assert path.text == text
    assert not is_envelope(source)


@pytest.mark.parametrize(
    ("source", "kind", "names"),
    [
        ("$key", Envelope.KEY, ()),
        ("$timestamp", Envelope.TIMESTAMP, ()),
        ("$partition", Envelope.PARTITION, ()),
        ("$offset", Envelope.OFFSET, ()),
        ("$topic", Envelope.TOPIC, ()),
        ("$header.label", Envelope.HEADER, ("label",)),
        ("$header.x.y[0]", Envelope.HEADER, ("x.y[0]",)),
        (r"$header.a\\b", Envelope.HEADER, ("a\\b",)),
    ],
)
def test_a_dollar_spells_what_kafka_has_beside_the_value(source: str, kind: Envelope, names: tuple[str, ...]) -> None:
    path = parse(source)
    assert (path.envelope, path.names, path.text, str(path)) == (kind, names, source, source)
    assert is_envelope(source)


@given(STEPS)
def test_every_path_is_what_its_spelling_spells(steps: list[PathStep]) -> None:
    path = Path(tuple(steps))
    assert parse(str(path)) == path


@given(AWKWARD | st.text(min_size=1))
@example("$key")
@example("$header.x")
@example("a[]")
@example("\\")
def test_every_name_can_be_escaped(name: str) -> None:
    assert parse(escaped(name)) == Path((PathStep(name),))
    assert parse(escaped(name)).text == name
    assert not is_envelope(escaped(name))


@given(st.lists(AWKWARD, min_size=1, max_size=4))
def test_names_in_each_other_are_a_source(names: list[str]) -> None:
    assert parse(str(Path(tuple(map(PathStep, names))))).names == tuple(names)


@given(st.text(st.sampled_from("ab.[]\\$")) | st.sampled_from(["$header.", "$keys"]))
def test_any_text_is_a_path_or_one_clear_line(text: str) -> None:
    said = ""
    try:
        assert parse(str(parse(text))) == parse(text)
    except ConfigError as error:
        said = str(error)
    assert not said or repr(text) in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "a name is empty"),
        ("a..b", "a name is empty"),
        (".a", "a name is empty"),
        ("a.", "a name is empty"),
        ("[]", "[] follows the name of a list"),
        ("a.[]", "[] follows the name of a list"),
        ("a[]b", "a dot must follow []"),
        ("a[0]", "'[' stands alone; write [] for each element of a list, or \\["),
        ("a]", "']' stands alone"),
        ("a\\", "'\\\\' stands alone"),
        ("$id", "a record has no $id beside its value; write one of $key, "),
        ("$id", "or \\$id"),
        ("$header", "a header has a name"),
        ("$header.", "a header has a name"),
        ("$key.a", "a header has a name"),
    ],
)
def test_what_is_no_path_is_refused_in_one_line(source: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(source)
    assert str(refused.value).startswith(f"records: field: {source!r} is no path: ")
    assert says in str(refused.value)


def test_a_flat_format_knows_a_path_by_its_text() -> None:
    fields = tuple(Field(name=source, source=source, dtype="int8") for source in ("user.age", r"a\.b", "c"))
    schema = Schema(features=fields)
    layout = CsvSettings(columns=("c", "other", "a.b", "user.age"))
    decoded = make_decoder("csv", schema, layout).decode([b"3,,2,1"])
    assert {source: column.tolist() for source, column in decoded.columns.items()} == {
        "user.age": [1],
        r"a\.b": [2],
        "c": [3],
    }


def test_two_spellings_of_one_column_are_refused() -> None:
    fields = tuple(Field(name=source, source=source, dtype="int8") for source in ("user.age", r"user\.age"))
    with pytest.raises(ConfigError, match=r"are the same field, 'user\.age'; write it once"):
        make_decoder("csv", Schema(features=fields))


def test_lists_that_the_shape_does_not_have_are_refused() -> None:
    field = Field(name="price", source="items[].price", dtype="float32")
    with pytest.raises(
        ConfigError, match=r"field .price.: .* is in a list; each .. is one dimension of the shape, and this has 0"
    ):
        make_decoder("json", Schema(features=(field,)))
