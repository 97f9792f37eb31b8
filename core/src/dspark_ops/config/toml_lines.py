"""Line numbers of TOML keys, which the standard parser does not give. The text must already have parsed."""

from __future__ import annotations

import re
from typing import Final

Path = tuple[str, ...]

_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY: Final = re.compile(r'[ \t]*(?:"((?:[^"\\\n]|\\.)*)"|\'([^\'\n]*)\'|([A-Za-z0-9_-]+))[ \t]*')
_STRING: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'',
    re.DOTALL,
)
_BARE: Final = re.compile(r"[^,\]}#\n]+")


def lines_of(text: str) -> dict[Path, int]:
    """Return the line, from 1, at which each table and each key of a valid TOML document is written.

    A path holds the plain names (``("ops", "argmax_rows", "pin")``). Keys inside inline tables are included; an
    array of tables gives the line of its last header. Keys of tables inside plain arrays are not.
    """
    return _Scanner(text).document()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}

    def document(self) -> dict[Path, int]:
        table: Path = ()
        self._blank()
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                brackets = 2 if self.text.startswith("[[", self.at) else 1
                start = self.at
                self.at += brackets
                table = self._key()
                self.at += brackets
                self._note(table, start)
            else:
                self._pair(table)
            self._blank()
        return self.lines

    def _pair(self, table: Path) -> None:
        start = self.at
        path = table + self._key()
        self.at += 1  # the sign =
        self._note(path, start)
        self._value(path)

    def _note(self, path: Path, start: int) -> None:
        line = self.text.count("\n", 0, start) + 1
        for length in range(1, len(path)):
            self.lines.setdefault(path[:length], line)
        self.lines[path] = line

    def _blank(self) -> None:
        match = _BLANK.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _key(self) -> Path:
        parts: list[str] = []
        while match := _KEY.match(self.text, self.at):
            parts.append(next(group for group in match.groups() if group is not None))
            self.at = match.end()
            if self.text[self.at : self.at + 1] != ".":
                break
            self.at += 1
        return tuple(parts)

    def _value(self, path: Path | None) -> None:
        self._blank()
        opening = self.text[self.at]
        if opening in "[{":
            self._members(path if opening == "{" else None, "}" if opening == "{" else "]")
            return
        match = _STRING.match(self.text, self.at) or _BARE.match(self.text, self.at)
        self.at = match.end() if match else len(self.text)

    def _members(self, path: Path | None, closing: str) -> None:
        """Read the members of an inline table or an array; `path` is None where keys have no path of their own."""
        self.at += 1
        self._blank()
        while self.text[self.at] != closing:
            if closing == "]":
                self._value(None)
            elif path is not None:
                self._pair(path)
            else:
                self._key()
                self.at += 1
                self._value(None)
            self._blank()
            if self.text[self.at] == ",":
                self.at += 1
                self._blank()
        self.at += 1
