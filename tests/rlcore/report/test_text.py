"""Text of others, fit to be shown."""

from rlcore.report.text import clean, cut, shortened


def test_what_is_not_seen_is_replaced() -> None:
    assert clean("a\x00b\x1b[1m\r\u202e\ud800") == "a�b�[1m���"
    kept = "naïve\n\t北京 \u00a0👩\u200d💻"
    assert clean(kept) == kept


def test_long_text_keeps_begin_and_end() -> None:
    text = "a" * 5000 + "the answer is 7"
    short = shortened(text)
    assert short.startswith("aaa")
    assert short.endswith("the answer is 7")
    assert "3,015 characters left out" in short
    assert len(short) < 2100
    assert shortened("x" * 40, 30, 0).startswith("x" * 30 + "\n")
    assert shortened("x" * 40, 30, 0).endswith("…\n")
    assert cut("abcdef", 4) == "abc…"
    assert cut("abcd", 4) == "abcd"
