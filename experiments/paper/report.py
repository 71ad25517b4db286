"""The report on the whole paper: every table and figure beside our results, with commands and verdicts by one rule.

It runs the other binaries, each in its own folder under --out. Finished results are read, not computed again, so an
interrupted report resumes. --quick: digits, the embedded models and small budgets, 10 to 15 minutes.

With two --weights, Table 7 compares the second, a ResNet's; with five, Table 9 compares the last three (MAE,
supervised, contrastive). Without them these tables use embedded models, and three that are trained here, on digits.
Figure 2c is about data far from the pre-training: it is judged on the data set of --other; Table 10 on --textures.

--out receives report.md with its pictures, a self-contained report.html, and a folder for each command.
The last line of stdout: {"verdicts": {"Table 1": "holds" | "holds in part" | "does not hold" | "not run"}, "counts"}.
"""

import codecs
import dataclasses
import functools
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

import tangent_jax as tj
from experiments.report.claims import CLAIMS
from experiments.report.findings import Claim
from experiments.report.sections import Section, as_html, as_markdown
from experiments.shared import drawn
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.dispatch import COMMANDS
from tangent_jax.commands.shared.settings import Results
from tangent_jax.commands.shared.table import PRESETS
from tangent_jax.core.checks import InputError
from tangent_jax.core.identities import identity
from tangent_jax.core.placement import cores
from tangent_jax.data import ImageSize
from tangent_jax.io.files import expand_path, fingerprint, write_whole
from tangent_jax.io.progress import check_stop
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Results):
    """The flags."""

    architecture: str | None = Recipe.architecture
    blocks: tuple[str, ...] = ("1",)
    cache_dir: str = "~/.cache/tangent_jax"
    dataset: tuple[str, ...] = ("digits",)
    finished: tuple[str, ...] = ()
    image_size: ImageSize | None = Recipe.image_size
    only: tuple[str, ...] = ()
    other: str | None = None
    out: str = "out/paper"
    quick: bool = False
    seed: tuple[str, ...] = ("0", "1", "2")
    shards: tuple[str, ...] = ("10", "25", "50")
    textures: str | None = None
    weights: tuple[str, ...] = ("builtin",)


FULL = {
    "epochs": (),
    "table1": ("--lr=1e-3,1e-4",),
    "search": ("--lr=3e-3,1e-3", "--search_epochs=15"),
    "compose": tuple(f"--{name}={PRESETS['paper'][name]}" for name in ("lr", "rank")),
    "noise": ("--lr=0.02,0.06",),
    "letters": ("--images=20000", "--epochs=12", "--batch_size=64"),
    "times": ("--seconds=60",),
}
QUICK = {
    "epochs": ("--epochs=6",),
    "table1": ("--lr=3e-3,1e-3", "--search_epochs=3"),
    "search": ("--lr=3e-3",),
    "compose": ("--lr=1e-2,3e-3,1e-3", "--rank=8"),
    "noise": ("--epsilon=1,8", "--subset=blocks,head", "--lr=0.06", "--clip_norm=1", "--steps=10"),
    "letters": ("--images=2000", "--epochs=6", "--batch_size=32"),
    "times": ("--seconds=10",),
}
"""Budgets: the flags of all training, of Table 1's search (the paper's), of other searches, compositions, private runs,
pre-training and timing.
"""

METHODS = PRESETS["paper"]["method"]


class Job(NamedTuple):
    """One command: its folder under --out, the binary, its flags, and its data sets."""

    name: str
    binary: str
    flags: tuple[str, ...]
    datasets: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        package = "tangent_jax " if self.binary in COMMANDS else "experiments."
        return ["python", "-m", *f"{package}{self.binary}".split(), *self.flags]


def folder_of(config: Config, job: Job) -> Path:
    """The folder of a job's result."""
    return finished(config).get(job.name, command.out_folder(config) / job.name)


def jobs(config: Config, names: dict[str, str]) -> list[Job]:
    """All commands, in the order of their runs; names: of the data sets, by specification."""
    budget = QUICK if config.quick else FULL
    specs = tuple(names)
    most = config.shards[-1]
    model = given(config, "weights", "architecture", "image_size")
    data = (*model, *given(config, "cache_dir"))
    sets = f"--dataset={','.join(names)}"
    seeds = (f"--seed={','.join(config.seed)}",)
    epochs = budget["epochs"]
    settings = (*seeds, *epochs, *budget["search"])
    blocks = f"--blocks={','.join(config.blocks)}"
    counts = f"--shards={','.join(config.shards)}"
    commands = [
        Job("table1", "paper table1", (*data, *seeds, *epochs, *budget["table1"], sets, blocks), specs),
        Job("ablations", "paper ablations", (*data, *settings, sets, "--radius=1,10"), specs),
    ]
    if config.other:
        far = (*data, *settings, "--only=cls", f"--dataset={config.other}")
        commands.append(Job("far", "paper ablations", far, (config.other,)))
    for spec, name in names.items():
        of_set = (*data, f"--dataset={spec}", *epochs)
        searched = (f"--store={config.out}/stores-searched", counts, f"--method={METHODS}", *budget["compose"])
        stored = (f"--store={config.out}/stores", f"--shards={most}")
        commands.append(Job(f"compose-{name}", "compose", (*of_set, *searched), (spec,)))
        for what, binary in (("forget", "removal forget"), ("influence", "influence effects")):
            commands.append(Job(f"{what}-{name}", binary, (*of_set, *stored), (spec,)))
    if config.textures:
        of_set = (*data, f"--dataset={config.textures}", *epochs)
        searched = (f"--store={config.out}/stores-searched", counts, "--method=taft,soup", *budget["compose"][:1])
        name = setup.open_dataset(config.textures).name
        commands.append(Job(f"textures-{name}", "compose", (*of_set, *searched), (config.textures,)))
    commands.append(Job("table3", "paper table3", (*data, sets, *seeds, *budget["noise"]), specs))
    commands.append(Job("times", "bench times", (*model, *budget["times"]), ()))
    return commands + jobs_of_anchors(config, specs, (*given(config, "cache_dir"), *settings), budget["letters"])


def jobs_of_anchors(
    config: Config, specs: tuple[str, ...], flags: tuple[str, ...], letters: tuple[str, ...]
) -> list[Job]:
    """The commands of Tables 7 and 9: with weights from flags on the data sets, else embedded ones on digits."""
    pair = [*config.weights[:2]] if len(config.weights) > 1 else ["builtin", "builtin-resnet"]
    schemes = [*config.weights[2:]]
    commands = []
    if not schemes:
        files = {"mae": "vit_mae", "classes": "vit_builtin", "contrastive": "vit_contrastive"}
        commands = [Job(f"pretrain-{scheme}", "pretrain", (f"--scheme={scheme}", *letters), ()) for scheme in files]
        schemes = [f"{config.out}/pretrain-{scheme}/{file}.safetensors" for scheme, file in files.items()]
    for name, anchors, is_given, more in (
        ("architectures", pair, len(config.weights) > 1, ()),
        ("schemes", schemes, len(config.weights) > 2, ("--shards=1",)),
    ):
        on = specs if is_given else ("digits",)
        where = (f"--dataset={','.join(on)}", f"--weights={','.join(anchors)}")
        commands.append(Job(name, "paper anchors", (*flags, *where, *more), on))
    return commands


def given(config: Config, *names: str) -> tuple[str, ...]:
    """The flags among `names` that were given, as arguments of a command; only the first of --weights."""
    flags = (f"--{name}={config.text(name)}" for name in names if config.gave(name) and name != "weights")
    return (*([f"--weights={config.weights[0]}"] if "weights" in names else ()), *flags)


@functools.cache
def finished(config: Config) -> dict[str, Path]:
    """The folders of --finished, by job."""
    entries = (entry.partition("=") for entry in config.finished)
    folders = {name: expand_path(folder or ".") for name, _, folder in entries}
    for name, folder in folders.items():
        if not (folder / "result.json").exists():
            raise InputError(f"--finished must be JOB=FOLDER with a result.json in FOLDER; got {name}={folder}")
    return folders


def result_of(config: Config, job: Job) -> dict[str, Any]:
    """The job's result: read if the same command has finished on the same data, else computed now.

    Raises:
        InputError: With the command's last line if it fails.
    """
    result = folder_of(config, job) / "result.json"
    if job.name not in finished(config):
        own = identity_of(job)
        if result.exists() and stamp_of(config, job).get("identity") == own:
            print(f"{job.name}: read", file=sys.stderr)
        else:
            print(f"{job.name}: {shlex.join(job.command)}", file=sys.stderr)
            began = time.perf_counter()
            run(config, job)
            took = {"identity": own, "command": job.command, "seconds": round(time.perf_counter() - began)}
            write_whole(folder_of(config, job) / "command.json", json.dumps(took) + "\n")
    read = json.loads(result.read_text())
    if job.binary == "compose" and not folder_of(config, job).joinpath("compose.png").exists():
        drawn.composed(folder_of(config, job) / "compose.png", job.name.partition("-")[2], read)
    return read


def identity_of(job: Job) -> str:
    """The identity of a job's result: its command, images, labels, weights, and our version."""
    named = [Path(value) for flag in job.flags for value in flag.partition("=")[2].split(",")]
    paths = [path for path in named if path.suffix in (".safetensors", ".npz") and path.exists()]
    files = [fingerprint(path.read_bytes()) for path in paths]
    sets = [setup.open_dataset(spec).identity() for spec in job.datasets]
    return identity(job.command, sets, files, tj.__version__)


def run(config: Config, job: Job) -> None:
    """Runs the command, with progress on our stderr; all commands share compiled programs."""
    compiled = {"JAX_COMPILATION_CACHE_DIR": str(command.out_folder(config) / "compiled")}
    compiled["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
    arguments = [sys.executable, *job.command[1:], f"--out={folder_of(config, job)}"]
    tail = b""
    pipes: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    text = codecs.getincrementaldecoder("utf-8")("replace")
    with subprocess.Popen(arguments, env={**compiled, **os.environ}, **pipes) as process:
        assert process.stderr is not None
        while part := os.read(process.stderr.fileno(), 4096):
            print(text.decode(part), end="", file=sys.stderr, flush=True)
            tail = (tail + part)[-2000:]
    check_stop()
    last = (tail.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
    if process.returncode:
        raise InputError(f"{job.name} did not finish: {last.removesuffix('.')}. Run {shlex.join(job.command)}")


def stamp_of(config: Config, job: Job) -> dict[str, Any]:
    """{"identity", "command", "seconds"} of the run in a job's folder, or what of them was saved."""
    stamp = folder_of(config, job) / "command.json"
    return json.loads(stamp.read_text()) if stamp.exists() else {}


def line_of(config: Config, job: Job) -> str:
    """The command of a job with its seconds; of --finished, as its folder has them."""
    stamp = stamp_of(config, job)
    if "command" not in stamp:
        return f"# {job.name}: read from {folder_of(config, job)}, which does not have the command"
    return shlex.join(stamp["command"]) + (f"  # {stamp['seconds']} s" if "seconds" in stamp else "")


def section(config: Config, claim: Claim, done: dict[Job, dict[str, Any]], tests: dict[str, int]) -> Section:
    """One section of the report; done: the results of jobs; tests: the number of test images by data set."""
    results = {job: result for job, result in done.items() if claim.reads(job.name)}
    commands = [line_of(config, job) for job in results]
    files = [folder_of(config, job) / name for job in results for name in claim.pictures]
    pictures = [path for path in files if path.exists()]
    finding = claim.read({job.name: result for job, result in results.items()}, tests) if results else None
    return Section(claim, finding, commands, pictures)


def main(config: Config) -> None:
    if config.quick:
        few = {"shards": ("10", "25"), "seed": ("0", "1")}
        config = dataclasses.replace(config, **{name: few[name] for name in few if not config.gave(name)})
    if config.only:
        config.listed("only", [claim.name for claim in CLAIMS])
    config.numbers("shards", int)
    if len(config.listed("weights")) not in (1, 2, 5):
        forms = "MODEL, MODEL,RESNET or MODEL,RESNET,MAE,SUPERVISED,CONTRASTIVE"
        raise InputError(f"--weights must be {forms}; got {','.join(config.weights)}")
    finished(config)
    sets = setup.open_datasets(config)
    specs = [*sets]
    names = {spec: dataset.name for spec, dataset in sets.items()}
    wanted = [claim for claim in CLAIMS if not config.only or claim.name in config.only]
    every = jobs(config, names)
    unknown = sorted({*finished(config)} - {job.name for job in every})
    if unknown:
        raise InputError(f"--finished must be of {', '.join(job.name for job in every)}; got {', '.join(unknown)}")
    done = {job: result_of(config, job) for job in every if any(claim.reads(job.name) for claim in wanted)}
    read = [setup.open_dataset(spec) for spec in {*specs, *(spec for job in done for spec in job.datasets)}]
    tests = {dataset.name: len(dataset.test) for dataset in read}
    sections = [section(config, claim, done, tests) for claim in wanted]
    out = command.out_folder(config)
    (out / "pictures").mkdir(exist_ok=True)
    for path in {path for s in sections for path in s.pictures}:
        write_whole(out / "pictures" / f"{path.parent.name}-{path.name}", path.read_bytes())
    device = jax.devices()[0].device_kind
    taken = [stamp_of(config, job).get("seconds", 0) for job in done]
    setting = f"tangent_jax {tj.__version__}, jax {jax.__version__}, {device}, {cores()} cores."
    setting += " Accuracy in percent."
    if all(taken):
        setting += f" The commands took {sum(taken) / 60:.1f} minutes."
    title = ", ".join([*names.values(), "quick"] if config.quick else names.values())
    report = as_markdown(sections, f"Tangent Transformers on {title}", setting)
    write_whole(out / "report.md", report)
    write_whole(out / "report.html", as_html(report, out))
    verdicts = {s.claim.name: s.verdict for s in sections}
    counts = {verdict: [*verdicts.values()].count(verdict) for verdict in dict.fromkeys(verdicts.values())}
    print(command.markdown(["", "verdict"], verdicts.items()))
    command.finish(config, {"verdicts": verdicts, "counts": counts})


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
