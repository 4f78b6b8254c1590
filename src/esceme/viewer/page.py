"""The HTML page: one file with its style, its code and its data, which sends no request."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

from esceme.viewer.page_data import PageData

IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<noscript>This page needs JavaScript.</noscript>
<script type="application/json" id="data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def render_page(page: PageData) -> str:
    """Return the page as HTML.

    A content security policy admits only the code and the style of the page itself. A live page may also
    send requests to its own server.
    """
    script, style = bundle_script(), _read(_web() / "page.css")
    sources = "'self'" if page.live else "'none'"
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src 'sha256-{_digest(script)}'",
            f"style-src 'sha256-{_digest(style)}'",
            f"img-src data: blob:{' ' + sources if page.live else ''}",
            f"connect-src {sources}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return TEMPLATE.format(
        policy=policy,
        title=escape(f"ESceme: {page.task} {page.split}"),
        style=style,
        data=encode_data(page),
        script=script,
    )


def encode_data(page: PageData) -> str:
    """Return the data as JSON without the character `<`, so that it can be embedded in a script element."""
    return msgspec.json.encode(page).decode().replace("<", "\\u003c")


@cache
def bundle_script() -> str:
    """Return all modules of the page as one script: in the order of their imports, each in a function.

    A page that is opened without a server cannot import other files.
    """
    functions: dict[str, str] = {}

    def add(name: str) -> None:
        text = _read(_web() / f"{name}.js")
        for _, imported in IMPORT.findall(text):
            if imported not in functions:
                add(imported)
        exports = ", ".join(EXPORT.findall(text))
        body = EXPORT.sub("", IMPORT.sub(r"const \1 = modules.\2;", text))
        functions[name] = f"modules.{name} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();\n"

    add("main")
    return "const modules = {};\n" + "".join(functions.values())


def _web() -> Traversable:
    return files("esceme.viewer") / "web"


def _read(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
