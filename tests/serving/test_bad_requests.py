"""A hundred bad requests: each is a 4xx with one sentence, and none stops the server."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simic.serving import app, bodies
from tests.serving.conftest import JSON, STREAM, Server, arrow, running

GOOD = {"a": 1, "b": 2.0, "time": "day"}
# One a line, with GOOD for three good values and HUGE for a number of 400 digits.
NO_JSON_OBJECT = r"""

{
}
nul
{'rows': []}
{"rows": [}
{"rows": [{"a": NaN}]}
{"rows": [{"a": Infinity}]}
{"rows": [{"a": -Infinity}]}
{"rows": [{"a": 1e}]}
{"rows": [{"a": 01}]}
[1] [2]
"\ud800"
rows=1
<xml/>
{"a": 1,}
[]
1
null
true
"rows"
1e999
HUGE
[{"a": 1}]"""
NO_ROWS = """
{}
{"rows": []}
{"rows": null}
{"rows": 1}
{"rows": {}}
{"rows": "a"}
{"rows": [1]}
{"rows": [[1, 2, "day"]]}
{"rows": [null]}
{"rows": [{}]}
{"rows": [{GOOD}, 1]}
{"rows": [{GOOD}, null]}
{"rows": [{GOOD}, {"a": 1}]}
{"rows": [{GOOD}, {GOOD, "c": 1}]}
{"columns": {}}
{"columns": []}
{"columns": null}
{"columns": {"a": 1}}
{"columns": {"a": [1], "b": [1, 2], "time": ["day"]}}
{"columns": {"a": [], "b": [], "time": []}}
{"columns": {"a": {"0": 1}}}
{"columns": {"a": "12", "b": "34", "time": "no"}}
{"rows": [{GOOD}], "columns": {"a": [1]}}
{"rows": [{GOOD}], "extra": 1}
{"instances": [{GOOD}]}
{"inputs": [{GOOD}]}
{"dataframe_split": {"columns": ["a"], "data": [[1]]}}"""
NO_ROW = r"""
"a": 1
"a": 1, "b": 2
"a": 1, "time": "day"
"x": 1, "y": 2, "z": 3
"a": 1, "b": 2, "tim": "day"
GOOD, "c": 1
GOOD, "A": 1
GOOD, "": 1
GOOD, "a\u200b": 1
GOOD, "a.b": 1
GOOD, "a": HUGE
GOOD, "a": 1e400
GOOD, "a": "many"
GOOD, "a": "1,5"
GOOD, "a": "1.5 kg"
GOOD, "a": "0x10"
GOOD, "a": "1e400"
GOOD, "a": "HUGE"
GOOD, "a": "inf"
GOOD, "a": "-Infinity"
GOOD, "a": "day"
GOOD, "a": "2024-01-01"
GOOD, "a": "1 2"
GOOD, "a": "<script>"
GOOD, "a": "\u001b[31m"
GOOD, "a": []
GOOD, "a": [1]
GOOD, "a": {}
GOOD, "a": {"b": 1}
GOOD, "a": [[1]]
GOOD, "b": [1, 2]
GOOD, "b": "two"
GOOD, "time": []
GOOD, "time": ["day"]
GOOD, "time": {"day": 1}
GOOD, "time": [null]"""
NO_ARROW = [b"", b"ARROW1", b"PAR1", b"\xff\xff\xff\xff", b"FEA1", b"\0" * 64, b'{"rows": []}']


def lines(block: str, form: str = "{}") -> list[bytes]:
    texts = [form.format(line) for line in block.split("\n")[1:]]
    good = json.dumps(GOOD)[1:-1]
    huge = "1" + "0" * 400
    return [text.replace("GOOD", good).replace("HUGE", huge).encode() for text in texts]


def frames() -> Iterator[pd.DataFrame]:
    good = pd.DataFrame([GOOD])
    yield good.head(0)
    yield good[["a"]]
    yield good.assign(c=1)
    yield good.astype({"time": "category"})
    for change in ({"a": [1.0]}, {"a": np.inf}, {"time": b"day"}, {"time": {"day": 1}}):
        yield pd.DataFrame([GOOD | change])
    yield good.assign(time=pd.Timestamp(0))


def bad() -> Iterator[tuple[bytes, str, int]]:
    """Body, type and the status that it deserves."""
    odd = [b"[" * 5000, b"\x00", b"\xff\xfe{}", "\ufeff{}".encode()]
    yield from ((body, JSON, 400) for body in [*lines(NO_JSON_OBJECT), *odd])
    many = json.dumps({"rows": [GOOD] * (bodies.MOST_ROWS + 1)}).encode()
    rows = lines(NO_ROW, '{{"rows": [{{{}}}]}}')
    yield from ((body, JSON, 422) for body in [*lines(NO_ROWS), *rows, many])
    whole = arrow(pd.DataFrame([GOOD]))
    yield from ((body, STREAM, 400) for body in [*NO_ARROW, whole[:-80], whole[:40]])
    yield from ((arrow(frame), STREAM, 422) for frame in frames())
    # Much of nothing.
    nothing = pd.DataFrame(np.zeros((2**16, 3)), columns=[*GOOD])
    yield from ((arrow(nothing, packed), STREAM, 422) for packed in ("zstd", "lz4"))
    good = json.dumps({"rows": [GOOD]}).encode()
    yield from ((good, media, 415) for media in ("", "text/plain", "text/csv"))
    yield b"x" * (app.MOST_BYTES + 1), JSON, 413


@pytest.fixture(scope="module")
def server(networks: list[Path]) -> Iterator[Server]:
    with running(networks[0]) as server:
        yield server


BAD = [*bad()]


def test_they_are_more_than_a_hundred() -> None:
    assert len({(content, media) for content, media, _ in BAD}) > 100


@pytest.mark.parametrize(("content", "media", "expected"), BAD, ids=range(len(BAD)))
def test_each_is_a_4xx_with_one_sentence_and_the_server_goes_on(
    server: Server, content: bytes, media: str, expected: int
) -> None:
    status, answer = server.ask(content, media=media)
    assert (status, [*answer]) == (expected, ["detail"]), (content[:200], answer)
    sentence = answer["detail"]
    assert 10 < len(sentence) < 700 and sentence.isprintable(), (content[:200], sentence)
    assert server.ask({"rows": [GOOD]})[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/predict", 405), ("POST", "/model", 405), ("GET", "/x", 404)],
)
def test_other_methods_and_paths_are_refused(
    server: Server, method: str, path: str, status: int
) -> None:
    connection = http.client.HTTPConnection(server.address.removeprefix("http://"))
    connection.request(method, path)
    response = connection.getresponse()
    assert response.status == status and [*json.loads(response.read())] == ["detail"]
    connection.close()


def test_a_body_that_does_not_come_is_not_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS", 0.1)
    connection = http.client.HTTPConnection(server.address.removeprefix("http://"))
    connection.putrequest("POST", "/predict")
    connection.putheader("Content-Length", "100")
    connection.endheaders(b"{")
    response = connection.getresponse()
    assert response.status == 408 and b"did not come within" in response.read()
    connection.close()


def test_offsets_of_arrow_that_lead_outside_are_refused(server: Server) -> None:
    """They would end the process where they were believed."""
    before, _, after = arrow(pd.DataFrame([GOOD])).rpartition(np.int32([0, 3]).tobytes())
    status, answer = server.ask(before + np.int32([0, 999]).tobytes() + after, media=STREAM)
    assert status == 400 and "binary offsets" in answer["detail"]


def test_arrow_with_bytes_that_were_changed_is_refused_or_read(server: Server) -> None:
    whole = arrow(pd.DataFrame([GOOD]))
    draw = np.random.default_rng(0)
    for _ in range(300):
        content = np.frombuffer(whole, np.uint8).copy()
        content[draw.integers(len(content), size=2)] = draw.integers(256, size=2)
        status, answer = server.ask(content.tobytes(), media=STREAM)
        assert status in (200, 400, 422), answer


def test_columns_that_are_there_twice_and_what_follows_a_stream_are_refused(
    server: Server,
) -> None:
    status, answer = server.ask({"rows": [GOOD | {" a ": 2}]})
    assert status == 422 and "column 'a': is there twice" in answer["detail"]
    whole = arrow(pd.DataFrame([GOOD]))
    assert server.ask(whole, media=STREAM)[0] == 200
    for more in (whole, b"xxxx"):
        status, answer = server.ask(whole + more, media=STREAM)
        assert status == 400 and "goes on behind" in answer["detail"]


def test_a_page_whose_name_leads_to_this_machine_reads_nothing(server: Server) -> None:
    for name, status in (("evil.example", 400), ("localhost", 200)):
        connection = http.client.HTTPConnection(server.address.removeprefix("http://"))
        connection.request("GET", "/model", headers={"Host": name})
        assert connection.getresponse().status == status
        connection.close()


def test_without_the_token_nothing_but_health_is_answered(networks: list[Path]) -> None:
    body = {"rows": [GOOD]}
    with running(networks[0], token="s3cret") as server:
        for token in ("", "s3cre", "s3crets", "S3CRET", "Ã©"):
            for path in ("/predict", "/model", "/metrics"):
                sent = body if path == "/predict" else None
                status, answer = server.ask(sent, path, token=token)
                assert status == 401 and "bearer token" in answer["detail"]
        assert server.ask(path="/health")[0] == 200
        assert server.ask(body, token="s3cret")[0] == 200
        assert server.metric('simic_requests_total{status="401"}', "s3cret") == 5
    # Headers have the bytes of UTF-8 as Latin-1.
    with running(networks[0], token="schlüssel") as server:
        assert server.ask(body, token="schlüssel".encode().decode("latin-1"))[0] == 200
        assert server.ask(body, token="schlussel")[0] == 401
