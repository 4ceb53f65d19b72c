"""CSV: one line a record."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.pipelines.formats.csv.asked_columns import CsvSettings, columns_of, places_of
from millrace.pipelines.formats.draft import DraftSample, Look
from millrace.pipelines.formats.format import Format, late
from millrace.pipelines.formats.shared.made_up import made_up_columns
from millrace.pipelines.formats.shared.paths import flat_names
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.schema import Schema, Schemas


class CsvFormat(Format):
    """Rows of columns."""

    name = "csv"
    section = "csv"
    is_text = True

    def fits(self, schema: Schema, settings: Any = None, *, registered: bool = False) -> None:
        places_of(schema, settings)

    def decoder(self, schema: Schema, settings: Any = None, schemas: Schemas | None = None) -> Decoder:
        decoder: Decoder = late("csv.decoder:CsvDecoder")(schema, CsvSettings() if settings is None else settings)
        return decoder

    def narrowed(self, settings: Any, whole: Schema, part: Schema) -> CsvSettings:
        narrowed: CsvSettings = settings.model_copy(update={"columns": columns_of(whole, settings, part)})
        return narrowed

    def draft(self, sample: DraftSample) -> Look | None:
        look: Look | None = late("csv.rows:look_at_rows")(sample)
        return look

    def generate(
        self, schema: Schema, random: np.random.Generator, count: int, settings: Any = None
    ) -> Sequence[bytes]:
        csv = CsvSettings() if settings is None else settings
        drawn = made_up_columns(schema, random, count)
        names, records = flat_names(drawn), list[bytes]()
        for row in range(count):
            texts = {names[source]: [*map(str, np.ravel(column[row]).tolist())] for source, column in drawn.items()}
            if csv.lists is not None:
                texts = {name: [csv.lists.join(each)] for name, each in texts.items()}
            columns = texts if csv.columns is None else csv.columns
            records.append(csv.delimiter.join(text for name in columns for text in texts.get(name, [""])).encode())
        return records
