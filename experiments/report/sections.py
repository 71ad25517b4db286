"""The report on the paper: a section for each claim, as Markdown, and as one HTML page with its pictures."""

import base64
import html
import re
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

from experiments.report.findings import RULE, Claim, Finding
from experiments.report.published import NOTES, TABLES
from tangent_jax.commands.shared.command import markdown

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:.6em 0;font-size:.9em}
td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left}
img{max-width:min(100%,34em)}pre{background:#f4f4f4;padding:.8em;white-space:pre-wrap;font-size:.8em}
h2{margin-top:2.2em}"""
MARKS = {True: "yes", False: "no", None: "not run"}
COLOURS = {"holds": "#2a7d2e", "holds in part": "#a36a00", "does not hold": "#b3261e", "not run": "#777777"}


class Section(NamedTuple):
    """A claim with our finding (None: not run), and the commands and pictures of its jobs."""

    claim: Claim
    finding: Finding | None
    commands: list[str]
    pictures: list[Path]

    @property
    def title(self) -> str:
        return f"{self.claim.name}: {self.claim.title}"

    @property
    def verdict(self) -> str:
        return self.finding.verdict if self.finding else "not run"


def as_markdown(sections: list[Section], head: str, setting: str) -> str:
    """The text of report.md, whose pictures are in pictures/ beside it; setting: versions, device and time."""
    verdicts = [[f"[{s.claim.name}](#{anchor(s.title)})", s.claim.title, s.verdict] for s in sections]
    parts = [f"# {head}\n\n{setting}\n\n{RULE}\n\n", markdown(["", "", "verdict"], verdicts)]
    for s in sections:
        parts.append(f"\n## {s.title}\n\n*Claim.* {s.claim.says}\n")
        if s.claim.name in NOTES:
            parts.append(f"\n{NOTES[s.claim.name]}\n")
        parts.append("\nThe paper:\n\n" + markdown(*TABLES[s.claim.name]))
        if s.finding is None:
            parts.append(f"\n**Not run.** It needs `{s.claim.needs}`.\n")
            continue
        parts.append("\nHere:\n\n" + markdown(s.finding.columns, s.finding.rows))
        parts += [f"\n![{s.claim.name}](pictures/{path.parent.name}-{path.name})\n" for path in s.pictures]
        needs = f" It needs `{s.claim.needs}`." if s.claim.needs and s.verdict == "not run" else ""
        parts.append(f"\n**Verdict: {s.verdict}.**{needs}\n\n")
        parts += [f"- {MARKS[holds]}: {what}\n" for what, holds in s.finding.checks]
        parts.append("\n```\n" + "\n".join(s.commands) + "\n```\n")
    return "".join(parts)


def anchor(title: str) -> str:
    """The anchor of a heading, by GitHub's rule."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def as_html(report: str, out: Path) -> str:
    """The text of report.html: the Markdown report in the folder `out` as one page with its pictures."""
    page = MarkdownIt("commonmark", {"html": False}).enable("table").render(report)
    page = re.sub("<h2>(.*?)</h2>", lambda m: f'<h2 id="{anchor(html.unescape(m[1]))}">{m[1]}</h2>', page)
    for verdict, colour in COLOURS.items():
        page = page.replace(f"<td>{verdict}</td>", f'<td style="color:{colour}"><b>{verdict}</b></td>')

    def inline(match: re.Match[str]) -> str:
        return f'src="data:image/png;base64,{base64.b64encode((out / match[1]).read_bytes()).decode()}"'

    page = re.sub('src="(pictures/.*?)"', inline, page)
    title = html.escape(report.partition("\n")[0].removeprefix("# "))
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f"{head}<body>{page}</body></html>\n"
