"""The whole job: `tangent-jax finetune` of a ViT's last block, beside a PyTorch user's own script, nothing cached.

Both get the same JPEGs of 500 x 375 in 50 class folders, which this makes, and decode, compute features, train and
evaluate. They alternate, each in a new process; seconds are from the shell's prompt to the last line, medians of
--repeats. The other script is experiments/peers/torch_job.py; without torch, timm and torchvision ours runs alone.

The last line of stdout: {"ours", "pytorch": {"seconds", "phases": {name: seconds}}, "ratio": ours over PyTorch's,
"device"}.
"""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image

import tangent_jax as tj
from experiments.shared.operations import random_vit
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.settings import Results
from tangent_jax.core.checks import InputError, one_of
from tangent_jax.core.placement import cores
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Results):
    """The flags."""

    dtype: str = Recipe.dtype
    epochs: int = 30
    images: int = 600
    out: str = "out/bench_job"
    repeats: int = 3
    size: str = "Ti"


ROOT = Path(__file__).parents[2]
SIZES = ("Ti", "S", "B", "L")
CLASSES = 50
WIDTH, HEIGHT = 500, 375  # pixels
TEST = 10  # one image of ten in a class is a test image


def make_image(folder: Path, i: int) -> None:
    """Writes the i-th picture: smooth colours with noise, about as many bytes as a photograph."""
    rng = np.random.default_rng(i)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8))
    smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float32)
    noisy = smooth + rng.normal(0, 6, (HEIGHT, WIDTH, 1))
    split = "test" if i // CLASSES % TEST == 1 else "train"
    path = folder / split / f"class_{i % CLASSES:02d}" / f"{i:05d}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def ours(config: Config, folder: Path, scratch: Path) -> dict[str, float]:
    """The seconds of each phase of one run of finetune, and in total."""
    flags = {"weights": folder / "vit.safetensors", "dataset": f"folder:{folder}/images", "epochs": config.epochs}
    flags |= {
        "dtype": config.dtype,
        "cache_dtype": config.dtype,
        "cache_dir": scratch / "cache",
        "out": scratch / "out",
    }
    line = [sys.executable, "-m", "tangent_jax.commands.finetune", *(f"--{name}={flags[name]}" for name in flags)]
    seconds, _ = run(line)
    phases = json.loads((scratch / "out/result.json").read_text())["phases"]
    return phases | {"total": seconds}


def theirs(config: Config, folder: Path) -> tuple[dict[str, float], str]:
    """The seconds of each phase of one run of the PyTorch script, and in total; its device."""
    settings = f"{folder}/images", config.size, config.epochs, cores(), config.dtype
    seconds, line = run([sys.executable, "-m", "experiments.peers.torch_job", *map(str, settings)])
    said = json.loads(line)
    return said["phases"] | {"total": seconds}, said["device"]


def run(line: list[str]) -> tuple[float, str]:
    """Runs a program; returns its seconds, and the last line of its output."""
    began = time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, env=environment)
    seconds = time.perf_counter() - began
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise InputError(f"{' '.join(line[1:3])} must run to its end; got {last[0]}")
    return seconds, done.stdout.strip().splitlines()[-1]


def medians(runs: list[dict[str, float]]) -> dict[str, Any]:
    """The median seconds of the whole and of each phase."""
    phases = {name: round(float(np.median([run.get(name, 0.0) for run in runs])), 2) for name in runs[0]}
    return {"seconds": phases.pop("total"), "phases": phases}


def as_rows(result: dict[str, Any]) -> Iterator[list[str]]:
    """The rows of the table: each phase, then the whole."""
    sides = [result[side] for side in ("ours", "pytorch") if side in result]
    for name in dict.fromkeys(name for side in sides for name in side["phases"]):
        title = "compiling (within the others)" if name == "compiling" else name
        yield [title, *(f"{side['phases'][name]:.1f}" if name in side["phases"] else "" for side in sides)]
    yield ["**whole job**", *(f"**{side['seconds']:.1f}**" for side in sides)]


def main(config: Config) -> None:
    one_of("--size", config.size, SIZES)
    has_vision = importlib.util.find_spec("torchvision") or (ROOT / "build/programs/torchvision").exists()
    has_peer = bool(importlib.util.find_spec("torch") and importlib.util.find_spec("timm") and has_vision)
    if not has_peer:
        print("torch, timm or torchvision is not installed: ours runs alone (see `make parity`)", file=sys.stderr)
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "pytorch": []}
    device = "unknown"
    with tempfile.TemporaryDirectory(prefix="tangent_jax-job-") as name:
        folder = Path(name)
        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(lambda i: make_image(folder / "images", i), range(config.images)))
        tj.save(folder / "vit.safetensors", random_vit(tj.models.vit_config(f"{config.size}/16", classes=1000)))
        for i in range(config.repeats):
            runs["ours"].append(ours(config, folder, folder / f"run-{i}"))
            if has_peer:
                phases, device = theirs(config, folder)
                runs["pytorch"].append(phases)
            said = ", ".join(f"{side} {of_side[-1]['total']:.1f} s" for side, of_side in runs.items() if of_side)
            print(f"round {i + 1} of {config.repeats}: {said}", file=sys.stderr)
    result: dict[str, Any] = {side: medians(of_side) for side, of_side in runs.items() if of_side}
    if has_peer:
        result["ratio"] = round(result["ours"]["seconds"] / result["pytorch"]["seconds"], 3)
    command.write_table(config, "job", ["seconds", *(side for side in runs if side in result)], as_rows(result))
    command.finish(config, {**result, "device": device, "images": config.images, "size": config.size}, runs=runs)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # this process makes pictures; its children have the device
    command.run(main, Config, table=TABLE)
