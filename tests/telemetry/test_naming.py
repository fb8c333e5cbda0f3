"""A run's name can be said aloud, is always the same, and finds its fingerprint."""

from simic.telemetry import naming


def test_a_name_is_two_words_and_the_start_of_the_fingerprint() -> None:
    name = naming.run_name("0123456789abcdef")
    quality, plant, digits = name.split("-")
    assert quality in naming.QUALITIES and plant in naming.PLANTS and digits == "01234567"
    assert name == naming.run_name("0123456789abcdef") == "sober-acacia-01234567"
