"""The whole paper in one report: every table and figure beside ours, with its command and a verdict by a stated rule.

Runs the other binaries, each in a folder of its own under --out; what is finished is read, not run again, and an
interrupted report goes on where it stopped. --quick: digits, the embedded models and small budgets, under ten minutes.

In --out: report.md with its pictures, report.html that needs no other file, and a folder for each command.
The last line of stdout: {"verdicts": {"Table 1": "holds" | "holds in part" | "does not hold" | "not run"}, "counts"}.
"""

import base64
import html
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
from absl import flags

import tangent_jax as tj
from experiments import binary, common
from experiments.claims import CLAIMS
from experiments.common import F
from experiments.findings import Claim, Finding
from experiments.published import TABLES
from experiments.runs import markdown
from tangent_jax.core import check_stop, identity, require
from tangent_jax.core.files import digest, write_whole

common.define(*common.MODEL, "cache_dir", "datasets", out="out/paper")
flags.DEFINE_bool("quick", False, "Small budgets throughout.")
flags.DEFINE_list("shards", ["10", "25", "50"], "Numbers of shards composed; the last is what shards are removed from.")
flags.DEFINE_list("blocks", ["1"], "Numbers of last blocks for Table 1; many cost much from scratch.")
flags.DEFINE_integer("seeds", 3, "Seeds of final runs.", lower_bound=1)
flags.DEFINE_string("resnet", None, "A ResNet's weights, for Table 7 on --datasets; unset: embedded models on digits.")
flags.DEFINE_list("schemes", [], "MAE, supervised and contrastive weights for Table 9; none: three trained here.")
flags.DEFINE_list("finished", [], "JOB=FOLDER of a command that was run elsewhere, such as table3=out/table3: read.")
flags.DEFINE_list("only", [], "Names of tables and figures, such as 'Table 1'; none: all.")

FULL = {
    "epochs": (),
    "table1": ("--lrs=1e-3,1e-4",),
    "search": ("--lrs=3e-3,1e-3", "--search_epochs=15"),
    "compose": ("--search_lrs=1e-2,3e-3",),
    "noise": ("--lrs=0.02,0.06",),
    "letters": ("--images=20000", "--epochs=12", "--batch_size=64"),
    "times": ("--seconds=60",),
}
QUICK = {
    "epochs": ("--epochs=6",),
    "table1": ("--lrs=3e-3,1e-3", "--search_epochs=3"),
    "search": ("--lrs=3e-3",),
    "compose": ("--search_lrs=1e-2,3e-3", "--search_ranks=8"),
    "noise": ("--epsilons=1,8", "--subsets=full,fc", "--lrs=0.06", "--clip_norms=1", "--epochs=10"),
    "letters": ("--images=2000", "--epochs=6", "--batch_size=32"),
    "times": ("--seconds=10",),
}
"""Budgets: the flags of all training, of Table 1's search (the paper's), of other searches, compositions, private runs,
pre-training and timing.
"""

METHODS = "taft,soup,fc,adapter,lora,tangent_lora,tangent_adapter"
RULE = (
    "A comparison of two accuracies holds where their difference is above the noise: the largest of both spreads over "
    "seeds and of the standard error over the test images. A bound holds where the figure is within it. "
    "All comparisons hold: **holds**; some: **holds in part**; none: **does not hold**."
)


class Job(NamedTuple):
    """One command: its folder under --out, the binary, its flags, and the data sets that it reads."""

    name: str
    binary: str
    flags: tuple[str, ...]
    datasets: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        return ["python", "-m", f"experiments.{self.binary}", *self.flags]


def jobs(names: dict[str, str]) -> list[Job]:
    """All commands, in the order in which they run; names: of the data sets, by their specifications."""
    budget, specs, most = QUICK if F.quick else FULL, tuple(names), F.shards[-1]
    model = given("weights", "architecture", "image_size")
    data, sets = (*model, *given("cache_dir")), f"--datasets={','.join(names)}"
    seeds, epochs = (f"--seeds={F.seeds}",), budget["epochs"]
    settings = (*seeds, *epochs, *budget["search"])
    blocks, counts = f"--blocks={','.join(F.blocks)}", f"--shards={','.join(F.shards)}"
    made = [
        Job("table1", "table1", (*data, *seeds, *epochs, *budget["table1"], sets, blocks), specs),
        Job("ablations", "ablations", (*data, *settings, sets), specs),
    ]
    for spec, name in names.items():
        of_set = (*data, f"--dataset={spec}", *epochs)
        searched = (f"--stores={F.out}/stores-searched", counts, f"--methods={METHODS}", *budget["compose"])
        kept = (f"--stores={F.out}/stores", f"--shards={most}")
        made.append(Job(f"compose-{name}", "compose", (*of_set, *searched), (spec,)))
        made += [Job(f"{what}-{name}", what, (*of_set, *kept), (spec,)) for what in ("forget", "influence")]
    made.append(Job("table3", "table3", (*data, sets, *seeds, *budget["noise"]), specs))
    made.append(Job("times", "times", (*model, *budget["times"]), ()))
    return made + jobs_of_anchors(specs, (*given("cache_dir"), *settings), budget["letters"])


def jobs_of_anchors(specs: tuple[str, ...], flags: tuple[str, ...], letters: tuple[str, ...]) -> list[Job]:
    """Tables 7 and 9: on the data sets where weights for them are given, else the embedded models on digits."""
    pair = [F.weights, F.resnet] if F.resnet else ["builtin", "builtin-resnet"]
    schemes, made = [*F.schemes], []
    if not schemes:
        files = {"mae": "vit_mae", "classes": "vit_builtin", "contrastive": "vit_contrastive"}
        made = [Job(f"pretrain-{scheme}", "pretrain", (f"--scheme={scheme}", *letters), ()) for scheme in files]
        schemes = [f"{F.out}/pretrain-{scheme}/{file}.safetensors" for scheme, file in files.items()]
    for name, anchors, is_given, more in (
        ("architectures", pair, F.resnet, ()),
        ("schemes", schemes, F.schemes, ("--shards=1",)),
    ):
        on = specs if is_given else ("digits",)
        where = (f"--datasets={','.join(on)}", f"--anchors={','.join(anchors)}")
        made.append(Job(name, "anchors", (*flags, *where, *more), on))
    return made


def given(*names: str) -> tuple[str, ...]:
    """Those flags of ours that were given, and --weights, as a command has them."""
    return tuple(f"--{name}={F[name].value}" for name in names if F[name].present or name == "weights")


def result_of(job: Job) -> dict[str, Any]:
    """The job's result: read where the same command has finished on the same data, else run now.

    Raises: InputError with the command's own last line where it fails.
    """
    elsewhere = finished().get(job.name)
    if elsewhere is not None:
        return json.loads((elsewhere / "result.json").read_text())
    out = binary.out_folder() / job.name
    own = identity_of(job)
    done = out / "command.json"
    if done.exists() and (out / "result.json").exists() and json.loads(done.read_text())["identity"] == own:
        print(f"{job.name}: read", file=sys.stderr)
    else:
        print(f"{job.name}: {shlex.join(job.command)}", file=sys.stderr)
        began = time.perf_counter()
        run(job, out)
        took = {"identity": own, "command": job.command, "seconds": round(time.perf_counter() - began)}
        write_whole(done, json.dumps(took) + "\n")
    return json.loads((out / "result.json").read_text())


def identity_of(job: Job) -> str:
    """The digest of all that decides a job's result: its command, images, labels, weights, and our version."""
    named = [Path(value) for flag in job.flags for value in flag.partition("=")[2].split(",")]
    weights = [digest(path.read_bytes()) for path in named if path.suffix in (".safetensors", ".npz") and path.exists()]
    sets = [common.open_dataset(spec).identity() for spec in job.datasets]
    return identity(job.command, sets, weights, tj.__version__)


def run(job: Job, out: Path) -> None:
    """Runs the command, its progress on our stderr; what one command has compiled, the next reads."""
    compiled = {"JAX_COMPILATION_CACHE_DIR": str(binary.out_folder() / "compiled")}
    compiled["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
    command, told = [sys.executable, *job.command[1:], f"--out={out}"], b""
    pipes: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env={**compiled, **os.environ}, **pipes) as process:
        assert process.stderr is not None
        while part := os.read(process.stderr.fileno(), 4096):
            sys.stderr.buffer.write(part)
            sys.stderr.flush()
            told = (told + part)[-2000:]
    check_stop()
    last = (told.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
    do = f"Run {shlex.join(job.command)}"
    require(process.returncode == 0, "paper", f"{job.name} to finish", last.removesuffix("."), do)


def finished() -> dict[str, Path]:
    """The folders of --finished, by job."""
    folders = {name: Path(folder) for name, _, folder in (entry.partition("=") for entry in F.finished)}
    for name, folder in folders.items():
        done = (folder / "result.json").exists()
        require(done, "flags", "--finished=JOB=FOLDER with a result.json in FOLDER", f"{name}={folder}")
    return folders


def seconds(name: str) -> int:
    """What a job of ours took; 0 where that was not kept."""
    return json.loads((binary.out_folder() / name / "command.json").read_text()).get("seconds", 0)


class Section(NamedTuple):
    """A claim with what we found, or why not; the commands and pictures of its jobs."""

    claim: Claim
    finding: Finding | None
    commands: list[str]
    pictures: list[Path]

    @property
    def verdict(self) -> str:
        return self.finding.verdict if self.finding else "not run"


def section(claim: Claim, done: dict[str, dict[str, Any]], all_jobs: dict[str, Job], tests: dict[str, int]) -> Section:
    """One section of the report."""
    mine = [n for n in done if {n, n.partition("-")[0]} & {*claim.jobs}]
    folders = {n: finished().get(n, binary.out_folder() / n) for n in mine}
    ours = [n for n in mine if n not in finished()]
    times = {n: f"  # {seconds(n)} s" if seconds(n) else "" for n in ours}
    commands = [shlex.join(all_jobs[n].command) + times[n] for n in ours]
    commands += [f"# {n}: read from {finished()[n]}" for n in mine if n in finished()]
    pictures = [folders[n] / picture for n in mine for picture in claim.pictures]
    pictures = [path for path in pictures if path.exists()]
    finding = claim.read({n: done[n] for n in mine}, tests) if mine else None
    return Section(claim, finding, commands, pictures)


def as_markdown(sections: list[Section], head: str, made: str) -> str:
    """report.md; pictures lie in pictures/ beside it."""
    verdicts = [[s.claim.name, s.claim.title, s.verdict] for s in sections]
    parts = [f"# {head}\n\n{made}\n\n{RULE}\n\n", markdown(["", "", "verdict"], verdicts)]
    for s in sections:
        parts.append(f"\n## {s.claim.name}: {s.claim.title}\n\n*Claim.* {s.claim.says}\n")
        parts.append("\nThe paper:\n\n" + markdown(*TABLES[s.claim.name]))
        if s.finding is None:
            parts.append(f"\n**Not run.** It needs `{s.claim.needs}`.\n")
            continue
        parts.append("\nHere:\n\n" + markdown(s.finding.columns, s.finding.rows))
        parts += [f"\n![{s.claim.name}](pictures/{path.parent.name}-{path.name})\n" for path in s.pictures]
        parts.append(f"\n**Verdict: {s.verdict}.**\n\n")
        parts += [f"- {'yes' if holds else 'no'}: {what}\n" for what, holds in s.finding.checks]
        parts.append("\n```\n" + "\n".join(s.commands) + "\n```\n")
    return "".join(parts)


def machine() -> str:
    """What made the figures."""
    device = jax.devices()[0].device_kind
    return (
        f"tangent_jax {tj.__version__}, jax {jax.__version__}, {device}, {os.cpu_count()} cores. Accuracy in percent."
    )


STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:.6em 0;font-size:.9em}
td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left}
img{max-width:min(100%,34em)}pre{background:#f4f4f4;padding:.8em;white-space:pre-wrap;font-size:.8em}
.holds{color:#2a7d2e}.part{color:#a36a00}.not{color:#b3261e}.run{color:#777}h2{margin-top:2.2em}"""


def as_html(sections: list[Section], head: str, made: str) -> str:
    """report.html, which holds its pictures."""

    def table(columns: list[str], rows: list[list[object]]) -> str:
        lines = [("th", columns), *(("td", row) for row in rows)]
        cells = ("".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in row) for tag, row in lines)
        return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"

    def coloured(verdict: str) -> str:
        return (
            f'<b class="{verdict.split()[-1].replace("hold", "not") if verdict != "holds" else verdict}">{verdict}</b>'
        )

    rule = re.sub(r"\*\*(.*?)\*\*", r"<b>\1</b>", RULE)
    listed = "".join(
        f'<tr><td><a href="#{i}">{s.claim.name}</a></td><td>{s.claim.title}</td><td>{coloured(s.verdict)}</td></tr>'
        for i, s in enumerate(sections)
    )
    parts = [f"<h1>{html.escape(head)}</h1><p>{made}</p><p>{rule}</p><table>{listed}</table>"]
    for i, s in enumerate(sections):
        parts.append(f'<h2 id="{i}">{s.claim.name}: {s.claim.title}</h2><p><i>Claim.</i> {s.claim.says}</p>')
        parts.append("<p>The paper:</p>" + table(*TABLES[s.claim.name]))
        if s.finding is None:
            parts.append(f"<p><b>Not run.</b> It needs <code>{s.claim.needs}</code>.</p>")
            continue
        parts.append("<p>Here:</p>" + table(s.finding.columns, s.finding.rows))
        for path in s.pictures:
            data = base64.b64encode(path.read_bytes()).decode()
            parts.append(f'<img alt="{s.claim.name}" src="data:image/png;base64,{data}">')
        checks = "".join(f"<li>{'yes' if h else 'no'}: {html.escape(what)}</li>" for what, h in s.finding.checks)
        parts.append(f"<p>Verdict: {coloured(s.verdict)}.</p><ul>{checks}</ul>")
        parts.append(f"<pre>{html.escape(chr(10).join(s.commands))}</pre>")
    page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(head)}</title>'
    return f"{page}<style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"


def main() -> None:
    if F.quick:
        F.shards = F.shards if F["shards"].present else ["10", "25"]
        F.seeds = F.seeds if F["seeds"].present else 2
    common.listed("only", {claim.name for claim in CLAIMS}) if F.only else None
    require(len(F.schemes) in (0, 3), "flags", "--schemes=MAE,SUPERVISED,CONTRASTIVE or none", ",".join(F.schemes))
    common.numbers("shards", int)
    finished()
    specs = common.listed("datasets")
    names = {spec: common.open_dataset(spec).name for spec in specs}
    wanted = [claim for claim in CLAIMS if not F.only or claim.name in F.only]
    every = jobs(names)
    needed = {job for claim in wanted for job in claim.jobs}
    todo = [job for job in every if {job.name, job.name.partition("-")[0]} & needed]
    done = {job.name: result_of(job) for job in todo}
    used = {*specs, *(spec for job in todo for spec in job.datasets)}
    tests = {common.open_dataset(spec).name: len(common.open_dataset(spec).test) for spec in used}
    all_jobs = {job.name: job for job in every}
    sections = [section(claim, done, all_jobs, tests) for claim in wanted]
    out = binary.out_folder()
    (out / "pictures").mkdir(exist_ok=True)
    for path in {path for s in sections for path in s.pictures}:
        write_whole(out / "pictures" / f"{path.parent.name}-{path.name}", path.read_bytes())
    taken = [seconds(name) for name in done if name not in finished()]
    made = machine() + (f" The commands took {sum(taken) / 60:.1f} minutes." if all(taken) else "")
    head = f"Tangent Transformers on {', '.join(names.values())}{', quick' if F.quick else ''}"
    write_whole(out / "report.md", as_markdown(sections, head, made))
    write_whole(out / "report.html", as_html(sections, head, made))
    verdicts = {s.claim.name: s.verdict for s in sections}
    counts = {verdict: [*verdicts.values()].count(verdict) for verdict in dict.fromkeys(verdicts.values())}
    print(markdown(["", "verdict"], verdicts.items()))
    binary.finish({"verdicts": verdicts, "counts": counts})


if __name__ == "__main__":
    binary.run(main)
