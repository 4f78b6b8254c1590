"""Every cited section and pitfall is in docs/spec.md."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_every_cited_section_and_pitfall_exists() -> None:
    spec = (REPOSITORY / "docs" / "spec.md").read_text()
    sections = set(re.findall(r"^### ([A-J]\.\d+)", spec, re.M))
    numbered = re.search(r"^### C\.10.*?(?=^## )", spec, re.M | re.S)
    assert numbered is not None
    sections |= {f"C.10-{number}" for number in re.findall(r"^(\d+)\.", numbered[0], re.M)}
    pitfalls = set(re.findall(r"^(\d+)\.", spec.partition("## Pitfalls")[2], re.M))
    cited, cited_pitfalls = set[str](), set[str]()
    for folder in ("src", "tests", "docs", "benchmarks"):
        for path in (REPOSITORY / folder).rglob("*"):
            if path.suffix in (".py", ".md") and path.name != "spec.md":
                text = path.read_text()
                for citation in re.findall(
                    r"\bspec(?:\.md)? ([A-J]\.\d[\d-]*(?:(?:, | and )[A-J]\.\d[\d-]*)*)", text
                ):
                    cited |= set(re.findall(r"[A-J]\.\d+(?:-\d+)?", citation))
                cited_pitfalls |= set(re.findall(r"pitfalls?[ _](\d+)", text, re.I))
    assert len(cited) > 30 and len(cited_pitfalls) > 9
    assert cited <= sections, sorted(cited - sections)
    assert cited_pitfalls <= pitfalls
