"""Merges the models of several tasks (task arithmetic): one component for each data set, a merged body, separate heads.

Every task trains apart. One merged body then serves all tasks: the mean of the bodies, their sum times a coefficient,
or a mean weighted by the second moments of each body's inputs or by its curvature. They are compared with the soup of
non-linear models, and with joint training on all images. Held-out images choose coefficients and ridges: each task's
validation split, or a fifth of its images, on which components of the other four fifths are measured. --method adds
heads on frozen features (exact, place, ridge, ranpac, lda, as in `compose`), which other tasks do not affect.

--experts gives fine-tuned checkpoints of --weights, one for each data set, in place of the soup's models: none of them
is trained. --blocks and --subset must cover all leaves that differ from --weights. The config.json beside each file
names its classes. Held-out images may be among those that an expert has seen, unless there is a validation split.

The last line of stdout: {"tasks": {NAME: {"single", "mean", "scaled", "inputs", "curvature", "soup_single", "soup",
"soup_scaled", "soup_ties", "joint", "exact", ...}}, "normalised": {"mean", ...}}, test accuracies; "normalised" is the
accuracy relative to the single model's (soups: the single non-linear one; all others: taft's), averaged over tasks.
With --negate=NAME also "negation": {"task", "coefficient", "accuracy", "others"}: that task subtracted from the sum of
the others.
"""

import dataclasses
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.additive import ADDITIVE, choose_held_out, features_of
from tangent_jax.commands.shared.joint import fit_jointly
from tangent_jax.commands.shared.settings import Compute, FeatureFlags, Reading, Results, Training, only_with
from tangent_jax.core.checks import InputError, about
from tangent_jax.core.notation import Tree
from tangent_jax.solver import rows_of
from tangent_jax.solver.statistics import sums_of
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(FeatureFlags, Reading, Compute, Training, Results):
    """Several tasks."""

    blocks: int = 1
    dataset: tuple[str, ...] = ("digits",)
    experts: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    lr: float = Recipe.learning_rate
    lr_nlft: float = 3e-3
    merge: tuple[str, ...] = ("mean", "inputs", "curvature")
    merge_penalty: tuple[str, ...] = ("1e-6", "1e-5", "1e-4", "1e-3", "1e-2")
    method: tuple[str, ...] = ("taft", "soup")
    negate: str | None = None
    out: str = "out/tasks"
    rank: int = Recipe.rank
    store: str = "out/stores"
    subset: str = Recipe.kind
    needs = (
        only_with("directions", "feature_blocks", method="exact")
        | only_with("width", method=("exact", "place"))
        | only_with("experts", method="soup")
    )


COEFFICIENTS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
"""The coefficients of the sum of bodies, chosen on held-out images."""
KEPT = 0.95  # share of the others' held-out accuracy that a subtraction must keep (Ilharco et al. 2023)


@dataclasses.dataclass(frozen=True)
class Task:
    """A data set with its recipe, its predictor, its training images and its evaluation images."""

    name: str
    classes: tuple[str, ...]
    recipe: tj.Recipe
    predict: tj.Predictor
    train: tj.Features
    measured: tj.Features
    expert: tj.Pretrained | None = None

    def accuracy(self, dw: Tree) -> float:
        """The accuracy of tangent weights on the evaluation images."""
        return tj.evaluate(self.predict, dw, self.measured)


class Tasks:
    """The tasks of the flags, each with its component, in one store or of --experts.

    Attributes:
        merges: Those of --merge that these components can have, besides the mean.
    """

    def __init__(self, config: Config, method: str, on_test: bool) -> None:
        """`on_test`: False to evaluate on held-out images."""
        self.method = method
        self.tasks = {task.name: task for task in open_tasks(config, method, on_test)}
        are_experts = method == "nlft" and bool(config.experts)
        can_weigh = method == "taft" or are_experts
        self.merges = [how for how in config.merge if how != "mean" and (can_weigh or how not in tj.store.WEIGHTED)]
        with_factors = not {*self.merges}.isdisjoint(tj.store.WEIGHTED)
        self.components: Mapping[str, tj.Component]
        if are_experts:
            self.components = {task.name: expert_of(task, with_factors) for task in self.tasks.values()}
        else:
            store = tj.Store(config.path("store") / f"tasks-{method}-seed{config.seed}{'' if on_test else '-held_out'}")
            for task in self.tasks.values():
                settle(store, task, with_factors)
            self.components = store
        self.single = {name: task.accuracy(self.components[name].dw) for name, task in self.tasks.items()}

    @property
    def bodies(self) -> dict[str, tj.Component]:
        """The component of each of these tasks, without its head."""
        return {name: body_of(self.components[name]) for name in self.tasks}

    def accuracies(self, body: Tree) -> dict[str, float]:
        """The accuracy of each task with this body and its own head."""
        return {name: task.accuracy({**self.components[name].dw, **body}) for name, task in self.tasks.items()}

    def ratios(self, accuracies: Mapping[str, float]) -> list[float]:
        """The accuracy of each task relative to its single model's."""
        return [accuracies[name] / max(self.single[name], 1e-9) for name in accuracies]

    def normalised(self, accuracies: Mapping[str, float]) -> float:
        """The accuracy relative to the single models', averaged over tasks."""
        return float(np.mean(self.ratios(accuracies)))


def open_tasks(config: Config, method: str, on_test: bool) -> list[Task]:
    """The tasks of --dataset, each with its head in --head, and the soup's with the classes of --experts."""
    specs = config.listed("dataset")
    heads = [{"head": path} for path in config.head] or [{}] * len(specs)
    experts: list[tj.Pretrained | None] = [None] * len(specs)
    if method == "nlft" and config.experts:
        experts = [read_expert(path, config.architecture) for path in config.experts]
    given = zip(specs, heads, experts, strict=True)
    return [open_task(config, s, on_test, {**own, "method": method}, expert) for s, own, expert in given]


def open_task(
    config: Config, spec: str, on_test: bool, changes: Mapping[str, Any], expert: tj.Pretrained | None
) -> Task:
    """The task of a data set, its classes in the order of an expert's outputs."""
    dataset = setup.open_tested(spec, expert and expert.class_names)
    recipe = setup.recipe(config, dataset=spec, **changes)
    predict = setup.predictor(recipe, dataset.classes)
    train, measured = setup.train_and_measured(config, predict, dataset, on_test)
    return Task(dataset.name, dataset.classes, recipe, predict, train, measured, expert)


def read_expert(path: str, architecture: str | None) -> tj.Pretrained:
    """A fine-tuned checkpoint with the names of its outputs."""
    expert = tj.load(path, architecture)
    if not expert.class_names:
        raise InputError(
            f"{path} must name the classes of its {expert.model.classes} outputs; it does not. Write their names, in "
            'order, to config.json beside it: {"label_names": ["owl", "gull"]}'
        )
    return expert


def expert_of(task: Task, with_factors: bool) -> tj.Component:
    """The component of a task's checkpoint, with the factors of its training images if a merge weighs by them."""
    assert task.expert is not None
    with tj.show_progress(f"{task.name}: {task.expert.source}"), about(task.expert.source):
        expert = task.recipe.load(task.expert)
        return tj.task_vector(expert, task.predict, task.classes, task.train if with_factors else None)


def settle(store: tj.Store, task: Task, with_factors: bool) -> None:
    """Adds the task's component to the store, trained now unless the store has it."""
    origin = tj.store.make_provenance(task.predict, task.recipe, task.classes).trained_on(task.train, 0.0)
    if task.name in store:
        is_same = store.provenance(task.name).same_training(origin)
        if is_same and (store.has_factors(task.name) or not with_factors):
            return
        store.discard([task.name])
    with tj.show_progress(f"{task.name} {task.predict.method}"):
        fitted = task.recipe.fit(task.predict, task.train)
    factors = (
        tj.solver.make_curvature(task.predict, task.train, task.recipe.objective, fitted.dw) if with_factors else None
    )
    origin = origin.with_training(seconds=fitted.seconds)
    store.add(task.name, jax.tree.map(np.asarray, fitted.dw), origin, factors)


# The merged body, in each way


def candidates(config: Config, tasks: Tasks) -> dict[str, dict[float, Any]]:
    """For each way, its settings and a function that makes the body of a setting."""
    sums = {c: partial(scaled_sum, tasks.bodies, c) for c in COEFFICIENTS}
    share = 1 / len(tasks.tasks)
    prefix = "soup_" if tasks.method == "nlft" else ""
    mean = "soup" if tasks.method == "nlft" else "mean"
    ways: dict[str, dict[float, Any]] = {mean: {share: partial(tj.compose, tasks.bodies)}, f"{prefix}scaled": sums}
    for how in tasks.merges:
        if how not in tj.store.WEIGHTED:
            ways[prefix + how] = {share: partial(tj.merge, tasks.bodies, how)}
            continue
        with tj.show_progress(f"{how} of {len(tasks.tasks)} bodies"):
            merger = tj.store.Merger(tasks.bodies, how)
        ways[prefix + how] = {
            penalty: partial(merger.at, penalty) for penalty in config.numbers("merge_penalty", float)
        }
    return ways


def body_of(component: tj.Component) -> tj.Component:
    """The body of a task's component, which is summed with those of other tasks, and its factors."""
    factors = component.factors
    return tj.Component(tj.models.body(component.dw), None, factors and tj.store.body_factors(factors))


def scaled_sum(bodies: Mapping[str, tj.Component], coefficient: float) -> Tree:
    """The sum of the bodies times a coefficient."""
    return tj.compose(bodies, dict.fromkeys(bodies, coefficient))


def measured(config: Config, method: str) -> tuple[Tasks, dict[str, dict[str, float]], dict[str, float]]:
    """(tasks, test accuracies of each way by task, each way's setting as held-out images chose it)."""
    held = Tasks(config, method, on_test=False)
    chosen = {}
    for way, settings in candidates(config, held).items():
        scores = {}
        if len(settings) > 1:
            for setting, make in settings.items():
                scores[setting] = held.normalised(held.accuracies(make()))
                print(
                    f"{way} {setting:g}: {scores[setting]:.4f} of the single models' accuracy on held-out images",
                    file=sys.stderr,
                )
        chosen[way] = max(settings, key=lambda setting: scores.get(setting, 0.0))
    tasks = Tasks(config, method, on_test=True)
    ways = candidates(config, tasks)
    return tasks, {way: tasks.accuracies(ways[way][setting]()) for way, setting in chosen.items()}, chosen


def joint(tasks: Tasks) -> dict[str, float]:
    """The accuracy of each task with one model of all heads, trained on all images at once."""
    several = tasks.tasks
    recipe = next(iter(several.values())).recipe
    predicts = {name: task.predict for name, task in several.items()}
    with tj.show_progress("joint model"):
        fitted = fit_jointly(predicts, {name: task.train for name, task in several.items()}, recipe)
    return {name: several[name].accuracy(dw) for name, dw in fitted.items()}


# A task subtracted


def negated(name: str, held: Tasks, tasks: Tasks, coefficient: float) -> dict[str, Any]:
    """The task of --negate subtracted from the sum of the others, as long as they keep KEPT of their accuracy."""

    def body(group: Tasks, less: float) -> Tree:
        return tj.compose(group.bodies, dict.fromkeys(group.bodies, coefficient) | {name: -less})

    def measure(group: Tasks, less: float) -> tuple[float, float]:
        accuracies = group.accuracies(body(group, less))
        others = {other: value for other, value in accuracies.items() if other != name}
        return accuracies[name], group.normalised(others)

    least = KEPT * measure(held, 0.0)[1]
    possible = [less for less in COEFFICIENTS if measure(held, less)[1] >= least]
    less = max(possible, default=0.0)
    accuracy, others = measure(tasks, less)
    return {"task": name, "coefficient": less, "accuracy": accuracy, "others": others}


# Heads on frozen features


def frozen(config: Config) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """(test accuracies of the methods of statistics by task, the settings that held-out images chose)."""
    ways: dict[str, dict[str, float]] = {}
    chosen: dict[str, dict[str, Any]] = {}
    for name in (name for name in config.method if name in ADDITIVE):
        features, how = features_of(config, name, config.feature_blocks)
        map_ = features.of(setup.pretrained(config))
        for dataset in setup.open_datasets(config).values():
            every, test = setup.train_and_measured(config, map_.predict, dataset, on_test=True)
            validation, images = None, setup.validation_images(dataset)
            with tj.show_progress(f"{dataset.name}: {name}") as progress:
                rows = rows_of(map_, every, progress=progress)
                if images is not None:
                    held = setup.features(config, map_.predict, images, "validation inputs")
                    validation = rows_of(map_, held, progress=progress), held.targets
                settings = choose_held_out(map_, every, rows, validation, how, progress).settings
                head = sums_of(rows, every.targets, len(dataset.classes), map_.sizes).solve(settings)
                ways.setdefault(name, {})[dataset.name] = tj.evaluate(map_, head, test)
            chosen.setdefault(name, {})[dataset.name] = settings._asdict()
    return ways, chosen


def main(config: Config) -> None:
    config.listed("merge", tj.store.MERGES)
    if len(config.listed("dataset")) < 2:
        raise InputError(f"--dataset must be two data sets or more; got {len(config.dataset)}")
    for flag in ("head", "experts"):
        given = len(getattr(config, flag))
        if given not in (0, len(config.dataset)):
            raise InputError(f"--{flag} must be one for each of the {len(config.dataset)} data sets; got {given}")
    names = [dataset.name for dataset in setup.open_datasets(config).values()]
    if config.negate not in (None, *names):
        raise InputError(f"--negate must be one of {', '.join(names)}; got {config.negate}")
    config.positive("merge_penalty")
    methods = config.listed("method", ["taft", "soup", *ADDITIVE])
    if config.experts and config.head:
        raise InputError("--experts must be without --head, as experts have their own; got both")
    if config.negate is not None and "taft" not in methods:
        raise InputError(f"--negate needs taft in --method; got {','.join(methods)}")
    groups: dict[str, Tasks] = {}
    table, chosen = frozen(config)
    if "soup" in methods:
        soups, ways, settings = measured(config, "nlft")
        table = {"soup_single": soups.single, **ways, **table}
        chosen |= settings
        groups |= dict.fromkeys(ways, soups)
    tangents = None
    if "taft" in methods:
        tangents, ways, settings = measured(config, "taft")
        table = {"single": tangents.single, **ways, **table, "joint": joint(tangents)}
        chosen |= settings
        groups |= dict.fromkeys([way for way in table if way not in groups and "single" not in way], tangents)
    normalised = {way: group.normalised(table[way]) for way, group in groups.items()}
    rows = [[name, *(f"{table[way][name]:.3f}" for way in table)] for name in names]
    rows.append(["normalised", *(f"{normalised[way]:.3f}" if way in normalised else "" for way in table)])
    command.write_table(config, "tasks", ["task", *table], rows)
    result: dict[str, Any] = {
        "tasks": {name: {way: table[way][name] for way in table} for name in names},
        "normalised": normalised,
    }
    if config.negate and tangents:
        result["negation"] = negated(config.negate, Tasks(config, "taft", on_test=False), tangents, chosen["scaled"])
    command.finish(config, result, chosen=chosen, datasets=config.dataset)


if __name__ == "__main__":
    command.run(main, Config)
