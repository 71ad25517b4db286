"""The server's side: files of contributors are checked, added to a store, composed, removed. Nothing here knows Flower.

A file that cannot be used is left out, with one line that says why; the store then is what it would be without it. The
server knows the anchor itself, so no contributor decides what others must fit.
"""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import tangent_jax as tj
from tangent_federation.contributor import Contribution, read_bytes
from tangent_federation.settings import Request, check
from tangent_jax.core import Tree
from tangent_jax.store import Receipt, kind_of, make_provenance, plan_removal, read_factors, remove
from tangent_jax.store.provenance import Provenance, check_one_body
from tangent_jax.store.rounds import composition_of, move_of


class Removed(NamedTuple):
    """The receipts of a removal, and the content identifiers that each contributor must remove of its own."""

    receipts: list[Receipt]
    forget: dict[str, tuple[str, ...]]


@dataclasses.dataclass
class Collection:
    """The components of one round, as they come in.

    `store`: of the round; `request`: what every contributor was asked for; `predict`: the predictor, or feature map, at
    the round's anchor; `recipe`: as the provenance says it, with the moves of the anchor; `left_out`: a line for each
    contributor that is left out; `bytes`: of each file that was taken.
    """

    store: tj.Store
    request: Request
    predict: tj.Predictor
    recipe: tj.Recipe
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    bytes: dict[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.expected = make_provenance(self.predict, self.recipe, self.request.classes)

    def take(self, name: str, sent: Contribution | None, said: str = "it sent nothing") -> bool:
        """Adds what a contributor sent; else notes why it is left out, and returns False.

        Args: sent: None where nothing came, and then `said`: why.
        """
        try:
            check(sent is not None, "a contribution", said)
            assert sent is not None
            self.add(name, sent)
            self.left_out.pop(name, None)
            self.bytes[name] = sum(map(len, sent))
            return True
        except OSError:
            raise  # the server's disk, and no contributor's fault
        except Exception as error:  # whatever a file makes of the readers: it ends nobody else's run
            self.left_out[name] = one_line(error)
            return False

    def add(self, name: str, sent: Contribution) -> None:
        """Adds a component to the store, with the provenance that the server vouches for.

        Raises: InputError for a file that is too large or no component, of another anchor or other leaves or shapes,
                with NaN or infinity, of an image that was removed, or under a name that is taken.
        """
        most, size = self.request.most_bytes, max(map(len, sent))
        check(size <= most, f"a file of at most {most} bytes", size)
        dw, metadata = read_bytes(sent.component)
        said = Provenance.from_json(metadata.get("provenance", ""), name)  # without a seal: nothing is opened for it
        origin = self.vouch(name, said)
        kind = kind_of([origin])
        check_one_body("federation", self.expected, origin)
        kind.check(dw, origin)
        kind.check_beside(dw, origin, self.zeros(), self.expected)
        self.store.add(name, dw, origin, self.factors(name, dw, sent) if self.request.factors else None)

    def vouch(self, name: str, said: Provenance) -> Provenance:
        """The provenance of a contributor's component: what decides a sum is checked, all else is the server's."""
        own = {"recipe": self.recipe.for_shard(name), "folders": (), "run": None, "public": (), "privacy": None}
        hidden = tuple((identifier, identifier) for identifier, _ in said.examples)
        owners = {identifier: name for identifier, _ in hidden}
        return dataclasses.replace(said, examples=hidden, owners=owners, **own)

    def zeros(self) -> Tree:
        """A component of the shapes that are expected."""
        if self.expected.features is None:
            return self.predict.zeros()
        k = sum(self.predict.sizes)
        return {"gram": np.zeros(k * (k + 1) // 2)}

    def factors(self, name: str, dw: Tree, sent: Contribution) -> tj.solver.Curvature:
        """The Kronecker factors that came with a component; InputError where it cannot be merged by them."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "factors.safetensors"
            path.write_bytes(sent.factors)
            factors = read_factors(path)
        merged = tj.merge({name: dw}, {name: factors}, "inputs", self.recipe.penalty)
        finite = all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(merged))
        check(finite, "factors by which a component can be merged", "NaN or infinity")
        return factors

    def missing(self, names: Sequence[str]) -> list[str]:
        """The contributors whose component the store has not; those of another anchor are taken out first.

        An earlier round to which a contributor came late moves the anchor of this one.
        """
        self.store.reload()
        origins = {name: self.store.provenance(name) for name in self.store}
        here = self.expected.anchor, self.expected.head  # where only a head is trained, it alone moves
        stale = [name for name, origin in origins.items() if (origin.anchor, origin.head) != here]
        if stale:
            self.store.discard(stale)
        return [name for name in names if name not in self.store]


def one_line(error: Exception) -> str:
    """An error as one line of at most 400 characters."""
    return " ".join(f"{error}".split())[:400] or type(error).__name__


def open_rounds(folder: Path) -> list[tj.Store]:
    """The stores of the rounds below a folder."""
    return tj.store.round_stores(folder)


def remove_from(folder: Path, what: str) -> Removed:
    """Removes a contributor, or one image by its content identifier, from all rounds.

    The first round that held it keeps the others' components; every later round is taken out whole, because its anchor
    moved by what is removed, and is asked for again. Receipts lie in the stores.
    """
    forget: dict[str, set[str]] = {}
    receipts: list[Receipt] = []
    stores = open_rounds(folder)
    check(stores, "a store to remove from", f"none in {folder}")
    for store in reversed(stores):
        plan = plan_removal(store, owner=what) if what in store else plan_removal(store, examples=[what])
        for name in plan.components:
            asked = {i for i, _ in store.provenance(name).examples} & {*plan.identifiers}
            forget.setdefault(name, set()).update(asked)
        if plan.components:
            receipts.append(remove(store, plan))
    check(receipts, "a contributor or an image of this store", what)
    return Removed(receipts, {name: tuple(sorted(asked)) for name, asked in forget.items() if asked})


def compose_round(store: tj.Store, merge: str, penalty: float) -> tuple[dict, Tree]:
    """(the journal's entry, dw) of the composition of a round's components, which the store keeps."""
    check(len(store), "a contributor at least", f"none in {store.root}")
    return composition_of(store, merge, penalty)


def moves_of(stores: Sequence[tj.Store], sizes: Sequence[float], merge: str, penalty: float) -> tuple:
    """The moves of the anchor by these rounds, for the provenance of the next one's components."""
    moves = []
    for store, size in zip(stores, sizes, strict=True):
        moves.append(move_of(store, composition_of(store, merge, penalty)[0], size, merge, penalty, moves))
    return tuple(moves)
