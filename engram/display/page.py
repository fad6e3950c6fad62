"""Self-contained HTML pages: the files in `web/` with their styles, scripts and data inlined."""

import base64
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

WEB = Path(__file__).with_name("web")
_STYLE = re.compile(r'<link rel="stylesheet" href="([\w.]+)">')
_SCRIPT = re.compile(r'<script src="([\w.]+)"></script>')
_DATA_START, _DATA_END = '<script id="data" type="application/json">', "</script>"
_DATA = _DATA_START + _DATA_END  # empty in the templates
_ALIGNMENT = 8  # bytes: a typed array must begin at a multiple of its item size


def page(template: str, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """A page of `web/` with data: `facts` as JSON, and arrays, which scripts get as typed arrays by name."""
    html = (WEB / template).read_text(encoding="utf-8")
    html = _STYLE.sub(lambda match: f"<style>\n{_text(match[1])}</style>", html)
    html = _SCRIPT.sub(lambda match: f"<script>\n{_text(match[1])}</script>", html)
    layout, packed = pack(arrays)
    content = json.dumps({**facts, "layout": layout, "packed": packed}, allow_nan=False)
    escaped = content.replace("<", r"\u003c")  # "</script>" in a name would end the script
    return html.replace(_DATA, f"{_DATA_START}{escaped}{_DATA_END}")


def pack(arrays: Mapping[str, np.ndarray]) -> tuple[list[dict[str, Any]], str]:
    """Dtype, shape and offset of every array, and all of them as one compressed text."""
    layout, parts, offset = [], [], 0
    for name, array in arrays.items():
        content = np.ascontiguousarray(array).tobytes()
        padding = -len(content) % _ALIGNMENT
        layout.append({"name": name, "dtype": str(array.dtype), "shape": list(array.shape), "offset": offset})
        parts += [content, bytes(padding)]
        offset += len(content) + padding
    return layout, base64.b64encode(zlib.compress(b"".join(parts), 6)).decode()


def _text(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")
