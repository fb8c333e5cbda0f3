"""A report's page as a reader's program sees it."""

from html.parser import HTMLParser

VOID = ("meta", "br", "link", "img")


class Page(HTMLParser):
    """Collect tags, attributes and text of a page; fail on tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
