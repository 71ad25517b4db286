"""Statistics folded by Apache Beam: a `CombineFn` on the direct runner, against one process.

Then the same, while the process that computes a shard is killed, and Beam repeats its bundle.

pip install apache-beam==2.77.0
python beam_statistics.py [WORKERS]
"""

import json
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from fold import Accumulator, Parts, compute_and_die, fold, same_bits

from tangent_jax.solver import Statistics
from tangent_jax.solver.statistics import from_tree
from tangent_jax.store import read_component, write_component


class Combine(beam.CombineFn):
    """A monoid of `fold` as Beam folds it: elements are names of shards."""

    def __init__(self, monoid: Parts) -> None:
        self.monoid = monoid

    def create_accumulator(self) -> Accumulator:
        return self.monoid.zero()

    def add_input(self, mutable_accumulator: Accumulator, element: str) -> Accumulator:
        return self.monoid.add(mutable_accumulator, element)

    def merge_accumulators(self, accumulators: list[Accumulator]) -> Accumulator:
        merged = self.monoid.zero()
        for accumulator in accumulators:
            merged = self.monoid.merge(merged, accumulator)
        return merged

    def extract_output(self, accumulator: Accumulator) -> Statistics:
        return self.monoid.finish(accumulator)


class Killed(Combine):
    """The same; the process that computes the shard `killed` is killed once, after its work and before its answer."""

    def __init__(self, monoid: Parts, killed: str, marks: str) -> None:
        super().__init__(monoid)
        self.killed, self.mark = killed, Path(marks) / killed

    def add_input(self, mutable_accumulator: Accumulator, element: str) -> Accumulator:
        if element == self.killed and not self.mark.exists():
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                pool.submit(compute_and_die, self.monoid, element, self.mark).result()  # raises BrokenProcessPool
        return super().add_input(mutable_accumulator, element)


def write(total: Statistics, path: str) -> None:
    """Writes statistics to a file, whole: what leaves a pipeline leaves it by a file."""
    said = {"classes": total.classes, "sizes": total.sizes, "source": total.source}
    write_component(path, total.tree, {"statistics": json.dumps(said)})


def read(path: str) -> Statistics:
    """The statistics that `write` wrote."""
    tree, metadata = read_component(path)
    said = json.loads(metadata["statistics"])
    return from_tree(tree, said["classes"], tuple(said["sizes"]), said["source"])


def fold_by_beam(monoid: Parts, names: list[str], workers: int = 1, mode: str = "multi_threading") -> Statistics:
    """The sum of these shards, by workers that are threads of this process, or (multi_processing) processes."""
    modes = ["--runner=FnApiRunner", f"--direct_num_workers={workers}", f"--direct_running_mode={mode}"]
    return run(Combine(monoid), names, modes)


def fold_though_killed(monoid: Parts, names: list[str], killed: str, marks: str) -> Statistics:
    """The sum of these shards, though a process is killed; by the runner of this machine that repeats a bundle."""
    return run(Killed(monoid, killed, marks), names, ["--runner=BundleBasedDirectRunner"])


def run(combine: Combine, names: list[str], options: list[str]) -> Statistics:
    """The sum of these shards by a pipeline with these options."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/total.safetensors"
        with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
            shards = pipeline | beam.Create(names) | beam.Reshuffle()
            _ = shards | beam.CombineGlobally(combine) | beam.Map(write, path)
        return read(path)


def main() -> None:
    monoid = Parts()
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    total = fold_by_beam(monoid, monoid.names, workers)
    alone = fold(monoid, monoid.names)
    with tempfile.TemporaryDirectory() as marks:
        repeated = fold_though_killed(monoid, monoid.names, monoid.names[3], marks)
        was_killed = bool(os.listdir(marks))
    result = {"examples": total.counts.sum(), "same_bits": same_bits(total, alone), "accuracy": monoid.accuracy(total)}
    result |= {"killed": was_killed, "same_bits_though_killed": same_bits(repeated, alone)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
