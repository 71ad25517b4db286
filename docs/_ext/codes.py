"""The table of exit codes in reference/exit_codes.md, made of the table that the commands use."""

from tangent_jax.commands.shared.codes import MEANINGS

PAGE = "reference/exit_codes"


def text() -> str:
    """The table, in Markdown."""
    rows = [(" or ".join(map(str, row.codes)), row.means, row.stderr, row.again) for row in MEANINGS]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"\n| exit code | means | on stderr | start it again? |\n|---|---|---|---|\n{table}"


def append(app, docname: str, source: list[str]) -> None:
    """What Sphinx calls with every page that it reads, to change its text in place."""
    if docname == PAGE:
        source[0] += text()


def setup(app) -> dict[str, bool]:
    """Registers it with Sphinx."""
    app.connect("source-read", append)
    return {"parallel_read_safe": True}
