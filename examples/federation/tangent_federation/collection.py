"""The server's side: files of contributors are checked, added to a store, composed, removed. Nothing here knows Flower.

A file that cannot be used is left out, with one line that says why; the store then is what it would be without it. The
server knows the anchor itself, so no contributor decides what others must fit.
"""

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tangent_jax as tj
from tangent_federation.contributor import Contribution, in_classes, read_bytes
from tangent_federation.settings import Request, check
from tangent_jax.composition.kinds import check_beside, check_component
from tangent_jax.composition.origin import check_one_body
from tangent_jax.core.checks import instance
from tangent_jax.core.notation import Tree
from tangent_jax.store import Receipt, is_store, make_provenance, plan_removal, read_factors, remove
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.recipe import AnyRecipe

LONGEST = 200  # characters of a name


class Removed(NamedTuple):
    """The receipt of a removal, and the content identifiers that each contributor must remove of its own."""

    receipt: Receipt
    forget: dict[str, tuple[str, ...]]


@dataclasses.dataclass
class Collection:
    """The components of a federation, as they come in.

    Attributes:
        store: The store of the components.
        request: What every contributor was asked for.
        predict: The predictor, or feature map.
        recipe: As the provenance says it.
        left_out: A line for each contributor that is left out.
        bytes: The bytes of each file that was taken.
    """

    store: tj.Store
    request: Request
    predict: tj.Predictor
    recipe: AnyRecipe
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    bytes: dict[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.expected = make_provenance(self.predict, self.recipe, self.request.classes)

    def take(self, name: str, sent: Contribution | None, said: str = "it sent nothing") -> bool:
        """Adds what a contributor sent; else notes why it is left out, and returns False.

        Args:
            sent: None where nothing came, and then `said`: why.
        """
        with leaving_out(name, self.left_out):
            check(sent is not None, "a contribution", said)
            assert sent is not None
            self.add(name, sent)
            self.left_out.pop(name, None)
            self.bytes[name] = sum(map(len, sent))
            return True
        return False

    def add(self, name: str, sent: Contribution) -> None:
        """Adds a component to the store, with the provenance that the server vouches for.

        Raises:
            InputError: A file that is too large or no component, of another anchor or other leaves or shapes, of
                classes that nobody asked for, with numbers that no images give, of an image that was removed, or under
                a name that is taken.
        """
        for part in sent:
            check_file(part, self.request.most_bytes)
        dw, metadata = read_bytes(sent.component)
        said = Provenance.from_json(metadata.get("provenance", ""), name)
        origin = self.vouch(name, said)
        self.check_said(said)
        check_one_body(self.expected, origin)
        check_component(dw, origin, is_new=False)
        check_beside(dw, origin, self.zeros(), self.expected)
        check(origin.data.examples, "a list of its images", "none, by which a removal finds them")
        if origin.features is not None:
            images, listed = int(dw["counts"].sum()), len(origin.data.examples)
            check(images == listed, f"a list of the {images} images that the counts count", f"one of {listed}")
        self.store.add(name, dw, origin, self.factors(name, dw, sent) if self.request.factors else None)

    def check_said(self, said: Provenance) -> None:
        """Raises InputError unless the classes are those asked for, by name; of statistics, some, in the same order."""
        asked = self.request.classes
        some = tuple(name for name in asked if name in said.classes)
        wanted = asked if said.features is None else some
        do = f"{', '.join(said.classes)[:100]} of {', '.join(asked)[:100]}"
        check(said.classes == wanted != (), "the classes asked for, in their order", do)

    def vouch(self, name: str, said: Provenance) -> Provenance:
        """The provenance of a contributor's component: what decides a sum is checked, all else is the server's."""
        hidden = tuple((identifier, identifier) for identifier, _ in said.data.examples)
        owners = {identifier: name for identifier, _ in hidden}
        own = said.with_training(recipe=self.recipe.for_shard(name), folders=(), run=None, privacy=None)
        return own.with_data(examples=hidden, owners=owners, public=())

    def zeros(self) -> Tree:
        """A component that those expected fit: of their shapes, or as many features."""
        if self.expected.features is None:
            return self.predict.zeros()
        return {"sums": np.zeros((0, sum(self.predict.sizes)))}

    def factors(self, name: str, dw: Tree, sent: Contribution) -> tj.solver.Curvature:
        """The Kronecker factors that came with a component; InputError where it cannot be merged by them."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "factors.safetensors"
            path.write_bytes(sent.factors)
            factors = read_factors(path)
        penalty = instance("recipe", self.recipe, tj.Recipe).objective.penalty
        tj.merge({name: tj.Component(dw, None, factors)}, "inputs", float(penalty))  # refuses what no examples sum to
        return factors

    def missing(self, names: Sequence[str]) -> list[str]:
        """The contributors whose component the store has not; those of other weights are taken out first."""
        self.store.reload()
        origins = {name: self.store.provenance(name) for name in self.store}
        here = self.expected.anchor, self.expected.head
        stale = [name for name, origin in origins.items() if (origin.anchor, origin.head) != here]
        if stale:
            self.store.discard(stale)
        return [name for name in names if name not in self.store]


@contextmanager
def leaving_out(name: str, left_out: dict[str, str]) -> Iterator[None]:
    """Notes why a contributor is left out, whatever its answer makes of the readers: it ends nobody else's run."""
    try:
        yield
    except OSError:
        raise  # the server's disk, and no contributor's fault
    except Exception as error:
        left_out[name] = one_line(error)


def check_file(content: Any, most: int) -> bytes:
    """The bytes of a file that an answer holds; InputError for anything else, and for more bytes than are taken."""
    check(isinstance(content, bytes), "a file of bytes", type(content).__name__)
    check(len(content) <= most, f"a file of at most {most} bytes", len(content))
    return content


def who(answer: Mapping[str, Any] | None, why: str) -> tuple[str, set[str]]:
    """(the name of a contributor, the names of its classes) in its answer; InputError for others than plain names."""
    check(answer is not None, "an answer", why)
    assert answer is not None
    name, text = answer.get("name"), answer.get("classes")
    check(is_name(name), f"a name of up to {LONGEST} characters that show", repr(name)[:LONGEST])
    classes = json.loads(text) if isinstance(text, str) else None
    good = isinstance(classes, list) and all(map(is_name, classes))
    check(good, "a list of the names of classes", repr(text)[:LONGEST])
    return str(name), {*classes}


def is_name(name: Any) -> bool:
    """True for a text of some characters that show."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST and name.isprintable()


def accuracy(predict: Any, dw: Tree, classes: Sequence[str], test: str, cache: str) -> dict[str, Any]:
    """{"accuracy": on the test images of a data set, by the names of classes, "unknown": its classes that nobody has}.

    An image of a class that nobody has counts as wrong.
    """
    dataset = tj.open_dataset(test)
    every = tj.extract(predict, dataset.test, tj.Cache(cache))
    own, unknown = {*dataset.classes} & {*classes}, {*dataset.classes} - {*classes}
    rows = np.flatnonzero([dataset.classes[label] in own for label in every.targets])
    known = in_classes(every.take(rows), dataset.classes, (*classes, *sorted(unknown)))
    right = tj.evaluate(predict, dw, known) * len(known) / len(every) if len(known) else 0.0
    return {"accuracy": right, "unknown": sorted(unknown)}


def one_line(error: Exception) -> str:
    """An error as one line of at most 400 characters."""
    return " ".join(f"{error}".split())[:400] or type(error).__name__


def remove_from(folder: Path, what: str) -> Removed:
    """Removes a contributor, or one image by its content identifier, from a store; the receipt lies in the store.

    A contributor goes by its name alone: neither another whose name differs in letter case, nor one whose images it
    lists, goes with it.
    """
    check(is_store(folder), "a store to remove from", f"none in {folder}")
    store = tj.Store(folder)
    plan = plan_removal(store, names=[what]) if what in store else plan_removal(store, examples=[what])
    check(plan.components, "a contributor or an image of this store", what)
    asked = {
        name: {i for i, _ in store.provenance(name).data.examples} & {*plan.identifiers} for name in plan.components
    }
    return Removed(remove(store, plan), {name: tuple(sorted(own)) for name, own in asked.items() if own})
