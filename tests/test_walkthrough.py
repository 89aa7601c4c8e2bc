"""The walkthrough shows what the compiler does today."""

from tests.walkthrough import PAGE, page


def test_the_page_is_what_the_compiler_does() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "rewrite it: python -m tests.walkthrough"
