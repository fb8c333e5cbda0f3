"""Texts of users in a terminal, a log and a Markdown page."""

import pytest

from simic.errors import SimicError, as_markdown, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;own\x07b\r\n", r"\x1b]0;own\x07b\r\n"),
        ("right\u202eleft", r"right\u202eleft"),
        ("http://user:secret@host/x: refused", "http://***@host/x: refused"),
        (
            "postgresql+psycopg://u:p@db, s3://k@bucket",
            "postgresql+psycopg://***@db, s3://***@bucket",
        ),
        ("https://host/a@b and you@host", "https://host/a@b and you@host"),
    ],
)
def test_a_line_does_nothing_to_a_terminal_and_tells_no_password(text: str, shown: str) -> None:
    assert printable(text) == shown == str(SimicError(text))


@pytest.mark.parametrize(
    "text", ["<script>1</script>", "a|b", "![x](y)", "[x](javascript:1)", "`x`", "*x*", "# x"]
)
def test_markup_in_a_users_text_is_text_in_markdown(text: str) -> None:
    escaped = as_markdown(text)
    assert escaped.replace("\\", "") == text and "\\" in escaped
    assert not any(f"{mark}" == escaped[:1] for mark in "<#`*")
