"""Read the body of a request: JSON for policies, rows of a table as JSON or Arrow for networks."""

from typing import Any

import pandas as pd
import pyarrow as pa
from pydantic_core import from_json

from simic.data.own import predict
from simic.serving.refusals import Refusal

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
MOST_ROWS = 10_000
MOST_UNPACKED_BYTES = 2**28
# Types of Arrow that take as much memory as they have bytes.
PLAIN = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_decimal,
    pa.types.is_null,
)
FORM = '{"rows": [{"a": 1}, ...]} or {"columns": {"a": [1, ...]}}'


def read_object(content: bytes, media: str) -> dict[str, Any]:
    """Read a JSON object; Refusal for anything else, NaN and infinity included."""
    if media != JSON:
        raise Refusal(
            415, f"content type {media!r}: must be {JSON}, or {ARROW} of a network's rows"
        )
    try:
        body = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refusal(400, f"the body is a JSON {type(body).__name__}: must be an object")
    return body


def read_rows(content: bytes, media: str) -> pd.DataFrame:
    """Read rows of a table.

    Args:
        content: An Arrow stream, or JSON, {"rows": [{"a": 1}, ...]} or {"columns": {"a": [1, ...]}}.
        media: Type of the content.

    Raises:
        Refusal: It is no table, or has no rows or too many.
    """
    if media == ARROW:
        try:
            frame = _arrow_frame(content)
        # A stream that was changed by a byte ends in errors of many kinds of Arrow and pandas.
        except (pa.ArrowException, ValueError, OSError, LookupError, TypeError) as error:
            raise Refusal(400, f"the body is not Arrow: {' '.join(str(error).split())}") from None
    else:
        frame = _json_frame(read_object(content, media))
    # Spaces around a name do not tell columns apart.
    names = [predict.plain_name(name) for name in frame]
    if len({*names}) < len(names):
        name = max(names, key=names.count)
        raise Refusal(422, f"column {name!r}: is there twice; must be there once")
    if not 1 <= len(frame) <= MOST_ROWS:
        raise Refusal(422, f"{len(frame)} rows: must be 1 to {MOST_ROWS}")
    return frame


def _arrow_frame(content: bytes) -> pd.DataFrame:
    # What takes little room in the body and much in memory is refused before it is unpacked.
    source = pa.BufferReader(content)
    if any(map(_is_packed, pa.ipc.MessageReader.open_stream(source))):
        raise Refusal(422, "the Arrow stream is compressed: must not be")
    if source.tell() < len(content):
        raise Refusal(400, "the body goes on behind the end of the Arrow stream: must not")
    with pa.ipc.open_stream(content) as reader:
        for field in reader.schema:
            if not any(is_plain(field.type) for is_plain in PLAIN):
                reason = f"is {field.type}: must be numbers, booleans or strings"
                raise Refusal(422, f"column {field.name!r}: {reason}")
    return predict.arrow_frame(content, MOST_UNPACKED_BYTES)


def _is_packed(message: Any) -> bool:
    """Tell whether a record batch is compressed, by the fourth field of its description (Arrow's Message.fbs)."""
    table = memoryview(message.metadata)

    def number(place: int, size: int = 4) -> int:
        return int.from_bytes(table[place : place + size], "little", signed=size == 4)

    def field(start: int, slot: int) -> int:
        """Find the place of a field of a table of FlatBuffers; 0 where it is absent."""
        index = start - number(start)
        entry = 4 + 2 * slot
        offset = number(index + entry, 2) if entry < number(index, 2) else 0
        return start + offset if offset else 0

    if message.type != "record batch":
        return False
    # The message's third field is the description of the batch.
    header = field(number(0), 2)
    return field(header + number(header), 3) != 0


def _json_frame(body: dict[str, Any]) -> pd.DataFrame:
    # A table by rows becomes one by columns.
    match body:
        case {"rows": [dict(first), *_] as rows, **others} if not others:
            for number, row in enumerate(rows):
                if not isinstance(row, dict) or row.keys() != first.keys():
                    reason = "must be an object with the columns of the first; missing is null"
                    raise Refusal(422, f"row {number}: {reason}")
            columns = {name: [row[name] for row in rows] for name in first}
        case {"columns": dict(columns), **others} if columns and not others:
            lengths = {len(value) if isinstance(value, list) else -1 for value in columns.values()}
            if len(lengths) != 1 or lengths == {-1}:
                raise Refusal(422, "columns: must be lists of as many values each")
        case _:
            raise Refusal(422, f"the body holds no rows of a table: must be {FORM}")
    # A list would be taken for a text.
    for name, values in columns.items():
        if any(isinstance(value, dict | list) for value in values):
            reason = "holds lists or objects: must be numbers, booleans or strings"
            raise Refusal(422, f"column {name!r}: {reason}")
    return pd.DataFrame(columns)
