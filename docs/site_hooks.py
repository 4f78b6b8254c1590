"""MkDocs hooks: the home page is the README, and every module of the package gets an API page."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "esceme"
SKIPPED = {"cli", "__main__"}
"""Modules without an API page: the command line documents itself by `--help`."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the home page and one API page per folder or module of the package."""
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text()))
    pages: list[dict[str, str]] = []
    for path in sorted(PACKAGE.iterdir()):
        name = path.stem
        is_module = path.is_dir() or path.suffix == ".py"
        if name in SKIPPED or name.startswith("__") or not is_module:
            continue
        modules = [f"esceme.{name}"]
        if path.is_dir():
            modules = [f"esceme.{name}.{file.stem}" for file in sorted(path.glob("[!_]*.py"))]
        content = f"# esceme.{name}\n\n" + "\n\n".join(f"::: {module}" for module in modules) + "\n"
        files.append(File.generated(config, f"api/{name}.md", content=content))
        pages.append({f"esceme.{name}": f"api/{name}.md"})
    config.nav = [*(config.nav or []), {"API reference": pages}]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep links within the site; a link to a file outside docs/ becomes plain text.

    `tests/test_links.py` checks that the linked files exist.
    """
    if page.file.src_uri == "index.md":
        markdown = markdown.replace("](docs/", "](")
        outside = r"(?!http|images/)(?!\w[\w-]*\.md)[^)]+|CHANGELOG\.md"
    else:
        outside = r"\.\./[^)]+"
    return re.sub(rf"(?<!!)\[([^\]]+)\]\((?:{outside})\)", r"\1", markdown)
