"""Pages of HTML as a test reads them."""

from html.parser import HTMLParser


class Balanced(HTMLParser):
    """Fails on tags that do not nest, and gathers the text and the tags."""

    VOID = ("meta", "br", "input", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(page: str) -> Balanced:
    """The text and the tags of a page. Fails on tags that do not nest."""
    reader = Balanced()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader
