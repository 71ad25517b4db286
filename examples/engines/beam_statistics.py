"""Sums of features by Apache Beam: a `CombineFn` on the runner of this machine.

pip install apache-beam==2.77.0
python beam_statistics.py --dataset=folder:PHOTOS --weights=FILE --shards=8
python beam_statistics.py --kill=3          # on digits: a process is killed, and its bundle repeated

Beam decides which shards a worker adds, and in which order: more blocks wait than in Ray's tree (`fold`), so take fewer
shards, of more images each. A runner of a cluster takes the same pipeline; its workers import this folder.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import reduce
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from fold import Accumulator, Sums, Tree, compute_and_die, parse, tell
from safetensors.numpy import load_file, save_file


class Combine(beam.CombineFn):
    """A monoid of `fold` as Beam folds it: elements are numbers of shards.

    The process that computes the shard `killed` is killed once, after its work and before its answer: if there is no
    file `mark` yet.
    """

    def __init__(self, monoid: Tree, killed: int | None = None, mark: Path | None = None) -> None:
        self.monoid, self.killed, self.mark = monoid, killed, mark

    def create_accumulator(self) -> Accumulator:
        return self.monoid.zero()

    def add_input(self, mutable_accumulator: Accumulator, element: int) -> Accumulator:
        if element == self.killed and self.mark and not self.mark.exists():
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                pool.submit(compute_and_die, self.monoid, element, self.mark).result()  # raises BrokenProcessPool
        return self.monoid.add(mutable_accumulator, element)

    def merge_accumulators(self, accumulators: Iterable[Accumulator]) -> Accumulator:
        return reduce(self.monoid.merge, accumulators, self.monoid.zero())

    def extract_output(self, accumulator: Accumulator) -> Sums:
        return self.monoid.total(accumulator)


def fold_by_beam(combine: Combine, options: list[str], shards: Iterable[int] | None = None) -> Sums:
    """The sum of all shards by a pipeline with these options; `shards`: as they come, other than each once."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/total.safetensors"  # what leaves a pipeline leaves it by a file
        with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
            numbers = pipeline | beam.Create(shards or range(combine.monoid.shards)) | beam.Reshuffle()
            _ = numbers | beam.CombineGlobally(combine) | beam.Map(save_file, path)
        return load_file(path)


def by_workers(workers: int, mode: str = "multi_threading") -> list[str]:
    """Options: workers that are threads of this process, or (multi_processing) processes. Nothing is repeated.

    For small sums alone: two workers took more than 20 GB for five sums of 71 MB, for a reason that is not known.
    """
    return ["--runner=FnApiRunner", f"--direct_num_workers={workers}", f"--direct_running_mode={mode}"]


REPEATING = ["--runner=BundleBasedDirectRunner"]
"""Options: the runner of this machine that repeats a bundle that failed."""


def main() -> None:
    monoid, _, kill = parse(__doc__)  # one worker
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "killed"
        total = fold_by_beam(Combine(monoid, kill, mark), REPEATING)
        killed = None if kill is None else mark.exists()
    tell(monoid, total, time.monotonic() - began, killed)


if __name__ == "__main__":
    main()
