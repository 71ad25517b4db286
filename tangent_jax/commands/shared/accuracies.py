"""Accuracy of a store's model on test data: of all components, and without some.

    body = (sum_s body_s) / k,   head = the mean of the heads of one task;   without one: (sum - body_s) / (k - 1)

So each component is read only twice. The result differs from the sum of the survivors by rounding only.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, reduce

import jax
import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import setup
from tangent_jax.commands.shared.settings import Reading
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.data import Dataset
from tangent_jax.models.ntk import ComponentPredictor


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """Test data, and the components with a head of its classes."""

    name: str
    members: tuple[str, ...]
    predict: ComponentPredictor
    test: tj.Features


class Accuracies:
    """The accuracy of each task's model, for any change of a store's components."""

    def __init__(self, store: tj.Store, tasks: Sequence[Task]) -> None:
        self.store = store
        self.tasks = tasks
        self.bodies = reduce(plus, (tj.models.body(store[name].dw) for name in store))
        self.heads = [reduce(plus, (head(store[name].dw) for name in task.members)) for task in tasks]

    def __call__(self, gone: Collection[str] = ()) -> list[float | None]:
        """The accuracy of each task without the components `gone`; None if a task has no component any more."""
        old = {name: self.store[name].dw for name in gone}
        count = len(self.store) - len(gone)
        if not count:
            return [None] * len(self.tasks)
        bodies = mean(self.bodies, map(tj.models.body, old.values()), count)
        return [self.of(i, bodies, old) for i in range(len(self.tasks))]

    @cached_property
    def whole(self) -> list[float | None]:
        """The accuracy of each task with all components."""
        return self()

    def of(self, i: int, bodies: Tree, old: Mapping[str, Tree]) -> float | None:
        """The accuracy of a task with this body."""
        task = self.tasks[i]
        removed = [name for name in old if name in task.members]
        count = len(task.members) - len(removed)
        if not count:
            return None
        heads = mean(self.heads[i], (head(old[name]) for name in removed), count)
        return tj.evaluate(task.predict, {**bodies, **heads}, task.test)


def plus(a: Tree, b: Tree) -> Tree:
    """a + b, on the host."""
    return jax.tree.map(np.add, a, b)


def mean(total: Tree, minus: Iterable[Tree], count: int) -> Tree:
    """(total - sum minus) / count."""
    for tree in minus:
        total = jax.tree.map(np.subtract, total, tree)
    return jax.tree.map(lambda leaf: leaf / np.float32(count), total)


def head(dw: Tree) -> Tree:
    """The head's leaves alone, as a part of dw."""
    return {name: leaf for name, leaf in dw.items() if name == "head"}


def tasks_of(reading: Reading, store: tj.Store, specs: Sequence[str], file: str | None) -> list[Task]:
    """The tasks of a store's components with test data in `specs`; `file`: the network's weights.

    A component's data set is that of its recipe if `specs` has it; otherwise every one with its classes.

    Raises:
        InputError: A data set whose classes no component has.
    """
    origins = {name: store.provenance(name) for name in store}
    summed = [name for name, origin in origins.items() if origin.features]
    if summed:
        raise InputError(f"--dataset needs components of tangent weights; {summed[0]} has statistics. Leave it out")
    members = defaultdict(list)
    for name, origin in origins.items():
        members[origin.head, origin.classes].append(name)
    tasks = []
    features = {}
    for spec in specs:
        dataset = setup.open_dataset(spec)
        fitting = [names for names in members.values() if fits(origins[names[0]], dataset, spec, specs)]
        if not fitting:
            raise InputError(
                f"--dataset must have the classes of a component; {spec} has {len(dataset.classes)} others"
            )
        for names in fitting:
            origin = origins[names[0]]
            predict = tj.store.predictor_of(origin, names[0], file)
            if spec not in features:  # all components have the same trunk
                features[spec] = setup.features(reading, predict, dataset.test, f"{dataset.name}: test inputs")
            test = features[spec].of_classes(dataset.classes, origin.classes or dataset.classes)
            tasks.append(Task(dataset.name, tuple(names), predict, test))
    twice = Counter(task.name for task in tasks)
    return [t if twice[t.name] == 1 else dataclasses.replace(t, name=f"{t.name}, {t.members[0]}") for t in tasks]


def fits(origin: tj.store.Provenance, dataset: Dataset, spec: str, specs: Sequence[str]) -> bool:
    """True if a data set is the component's own, or, if its own is not in `specs`, has its classes."""
    if origin.classes:
        has_classes = {*origin.classes} <= {*dataset.classes}
    else:
        has_classes = origin.config.get("classes") == len(dataset.classes)
    trained_on = origin.recipe.dataset if origin.recipe else None
    return has_classes and (trained_on == spec or trained_on not in specs)
