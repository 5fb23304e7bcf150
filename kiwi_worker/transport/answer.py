"""What came back from a server."""

from __future__ import annotations


class Answer:
    """A whole answer. A 4xx or 5xx is an answer like any other: look at `status`.

    Attributes:
        status: the status code, 200 to 599.
        body: the whole body, transfer coding removed.
    """

    __slots__ = ("_head", "body", "status")

    def __init__(self, status: int, body: bytes, head: bytes = b"") -> None:
        self.status = status
        self.body = body
        self._head = head

    def header(self, name: str) -> str | None:
        """The value of a header field, whatever its case; None when there is none, the first of several."""
        wanted = name.lower().encode("latin-1")
        # Few answers are asked for a field, so the lines are kept as they came until one is.
        for line in self._head.split(b"\r\n")[1:]:
            field, colon, value = line.partition(b":")
            if colon and field.lower() == wanted:
                return value.strip(b" \t").decode("latin-1")
        return None

    def __repr__(self) -> str:
        return f"<Answer {self.status}, {len(self.body)} bytes>"
