"""Moves of an anchor: each adds a composition of components, or of a model tuned on public images.

    anchor = w + sum over moves of size * dw        summed in f32, in the order of the moves (solver/rounds.py)

A recipe lists its moves. So the provenance of a component at a moved anchor has the anchor's history, and the component
can be trained again from it.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tangent_jax.core import Tree, require, trees
from tangent_jax.core.checks import visible
from tangent_jax.solver.rounds import step_along
from tangent_jax.store.files import read_component


@dataclasses.dataclass(frozen=True)
class Move:
    """One move: by `size` times the composition of a round's components.

    `file`: the absolute path of the composition, in that round's store; `dw`: its fingerprint; `merge`, `penalty`: how
    it was merged; `components`: the fingerprints of the merged components, by name; `examples`: (content identifier,
    name) of each image that they saw and no earlier move did; `public`: True if these images are public and need no
    removal.
    """

    file: str
    dw: str
    size: float
    merge: str
    penalty: float
    components: dict[str, str]
    examples: tuple[tuple[str, str], ...]
    public: bool = False

    def __post_init__(self) -> None:
        plain = Path(self.file).is_absolute() and ".." not in Path(self.file).parts and self.file.isprintable()
        require(plain, "Move", "the absolute path of a file, without ..", repr(self.file))
        object.__setattr__(self, "examples", tuple((identifier, visible(name)) for identifier, name in self.examples))


def images_of(moves: Iterable[Move], public: bool) -> tuple[tuple[str, str], ...]:
    """(content identifier, name) of each image that moved the anchor: of public moves, or of the others."""
    return tuple(pair for move in moves if move.public == public for pair in move.examples)


def total_of(zero: Tree, moves: Sequence[Move]) -> Tree:
    """The sum of all moves, on the host, with the leaves of `zero`.

    Raises: InputError if a composition's file is missing or has changed.
    """
    total, do = jax.tree.map(np.asarray, zero), "Repeat its rounds: a removal, or another hand, took it out"
    for number, move in enumerate(moves, 1):
        expected = f"the step of move {number} of the anchor in {move.file}"
        require(Path(move.file).is_file(), "Recipe.predictor", expected, "no such file", do)
        dw = read_component(move.file)[0]
        require(trees.fingerprint(dw) == move.dw, "Recipe.predictor", expected, "another one", do)
        total = step_along(total, move.size, trees.restrict(dw, total))
    return total


def anchors_that_saw(left: Mapping[str, Any], rows: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """A line for each anchor that the removed images moved in earlier rounds.

    Args: left: the provenance of each remaining component, by name; rows: (content identifier, name) of the images.
    """
    gone, names, counts = {identifier for identifier, _ in rows}, dict[str, list[str]](), dict[str, int]()
    for name, origin in left.items():
        saw = gone & {identifier for identifier, _ in images_of(origin.moves, False)}
        if saw:
            names.setdefault(origin.anchor, []).append(name)
            counts[origin.anchor] = len(saw)
    of = "removed images moved it in earlier rounds, and it did not move back"
    return tuple(f"the anchor {key[:12]} of {', '.join(names[key])}: {counts[key]} {of}" for key in names)


def without_names(moves: Iterable[Move]) -> tuple[Move, ...]:
    """The moves as an export lists them: files without folders, images by identifier, components by number."""
    return tuple(
        dataclasses.replace(
            move,
            file=f"/{Path(move.file).name}",
            components={f"component {i}": value for i, value in enumerate(move.components.values(), 1)},
            examples=tuple((identifier, identifier) for identifier, _ in move.examples),
        )
        for move in moves
    )
