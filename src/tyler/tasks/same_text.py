"""Whether two problems are the same text, by a hash that leaves out how it is written."""

from __future__ import annotations

import hashlib
import re
import unicodedata

_DRESS = re.compile(r"\\(?:[,;:!() \[\]]|(?:left|right|displaystyle|q?quad)(?![A-Za-z])|[dt](?=frac))|[~\s]+")
_PUNCTUATION = re.compile(r"[;:!?\"'`$\\{}‘’“”]|(?<!\d)[.,]|[.,](?!\d)|,(?=\d{3}(?!\d))")


def fingerprint(text: str) -> bytes:
    """A hash of a problem's text that case, spaces (LaTeX's too), math delimiters and punctuation do not change.

    Operators, parentheses and decimal points stay, so that `2 + 3` is not `2 - 3`, nor `1.5` the same as `15`.
    """
    text = _PUNCTUATION.sub("", _DRESS.sub("", unicodedata.normalize("NFKC", text)))
    return hashlib.sha256(text.casefold().encode("utf-8", "surrogatepass")).digest()
