r"""Cuts what a child writes into lines, whatever the chunks it arrives in.

`\n`, `\r` and `\r\n` end a line, as in Java's readLine; empty lines do not count. So `\r\n`, even when cut in two,
is an end and an empty line, and no state but the unfinished line is needed. Each byte is copied at most twice.
"""

from __future__ import annotations


class LineSplitter:
    """Lines of one stream. An unfinished or finished line above `max_line_bytes` sets `overflowed` for good."""

    def __init__(self, max_line_bytes: int) -> None:
        self.max_line_bytes = max_line_bytes
        self.overflowed = False
        self._pieces: list[bytes] = []  # of the unfinished line
        self._size = 0

    def __repr__(self) -> str:
        return f"<LineSplitter {'overflowed' if self.overflowed else f'{self._size} bytes unfinished'}>"

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` finishes, without terminators; `b""` is the end, which finishes the last one.

        After an overflow the lines before it are returned, and never again anything.
        """
        if self.overflowed:
            return []
        if not data:
            return self._finish()
        lines: list[bytes] = []
        parts = data.splitlines()  # of bytes: at \n, \r and \r\n, and nowhere else
        unfinished = b"" if data[-1] in b"\r\n" else parts.pop()
        for part in parts:
            self._add(part)
            lines += self._finish()
            if self.overflowed:
                return lines
        self._add(unfinished)
        return lines

    def _add(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
            if self._size > self.max_line_bytes:
                self.overflowed = True
                self._pieces.clear()

    def _finish(self) -> list[bytes]:
        line = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return [line] if line else []
