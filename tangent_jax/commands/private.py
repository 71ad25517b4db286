"""Trains the tangent weights of a pre-trained ViT under differential privacy (DP-SGD), and prints the spent budget.

Without --noise_seed the noise comes from the operating system's entropy, and the ledger in --out is written before
every step: the same command resumes, or reads its result, and pays no step twice. With --noise_seed the result is
marked as not private. --canaries=M adds M canaries, each in by a secret coin; the result's "audit" is the lower bound
of epsilon that an attacker who sees every step of this run can prove. The last line of stdout: {"method", "subset",
"dataset", "accuracy", "epsilon": spent, "delta", "noise_multiplier", "clip_norm", "steps": taken, "steps_paid",
"sampling_rate", "unit", "neighbouring", "private", ..., "audit": None, or {"canaries", "canaries_in", "epsilon_lower":
by guesses, "gaussian_epsilon_lower": proved were the mechanism Gaussian (None for Poisson samples), "confidence": of
both together, "guesses", "right", "kept": both within the claim}}.

Not in the account: names and number of the classes, which are public. --classes names them, or a list of the data set
does; where the images do, stderr says so, with the classes that one image or owner alone shows. Nor is a choice of
settings by results on the private images: ten runs of epsilon 2.1 spend 7.9 together, and the best of them alone, if
their number is drawn at random, 3.5 to 4.8.

Nor is the division of a data set of one split, where one image may move another of its class into training; stderr says
so. Give test images a split of their own.

--subset trains LoRA or adapters of --rank, or other leaves, of the last --blocks; one clip norm bounds the gradient of
all. A linearized LoRA trains B alone (lora_b). New leaves are drawn from --seed, which is public.

--unit=example --owners=CSV also prints the epsilon of an owner of the most images (--sampling=full --noise=gaussian).

--method=exact and --method=place train nothing. They release noisy statistics of features once, as one step, and solve
for the head (privacy/statistics.py): of the features before the head, and for place also of where features of a middle
block lie in the image, in --width numbers. --out receives head.safetensors, the head and what whitened its features.

Kernels, or the features, are whitened (privacy/public.py) by --public images, or without them by the layer norm below;
--nowhiten switches that off. The result's "whitening": "images", "norm", or None.
"""

import dataclasses
import json
import sys
from collections import Counter
from typing import Any, Literal

import tangent_jax as tj
from tangent_jax.commands.shared import anchors, command, plan, setup
from tangent_jax.commands.shared import audited as audits
from tangent_jax.commands.shared.settings import (
    Compute,
    FirstSession,
    Job,
    Reading,
    Results,
    Training,
    choice,
    only_with,
)
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, one_of
from tangent_jax.core.identities import identity
from tangent_jax.core.notation import Tree
from tangent_jax.data import Dataset, Examples, Owner
from tangent_jax.io.log import current_log
from tangent_jax.io.progress import shown
from tangent_jax.store.recipe import Recipe

TRAINED = ("taft", "nlft")
"""The methods that train tangent weights."""
RELEASED = {"exact": ("h",), "place": ("h", "place")}
"""The features of each method that releases statistics."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(FirstSession, Reading, Compute, Training, Job, Results):
    """One private run; the objective's defaults are the paper's: cross entropy, the tangent alone."""

    blocks: int = 1
    canaries: int | None = None
    classes: str | None = None
    clip_norm: float = 1.0
    dataset: str = Recipe.dataset
    delta: float = 1e-5
    epochs: int = 50
    epsilon: float = 3.0
    head: str = Recipe.head
    loss: str = "ce"
    lr: float = 0.03
    method: str = choice(*TRAINED, *RELEASED)
    noise: Literal["gaussian", "discrete"] = "gaussian"
    noise_seed: int | None = None
    out: str = "out/private"
    output: str = "tangent"
    owners: str | None = None
    part: str | None = None
    penalty: float = 0.0
    public: str | None = None
    rank: int = Recipe.rank
    reset: bool = Recipe.reset
    sampling: str = "full"
    seed: int = Recipe.seed
    store: str | None = None
    subset: str = Recipe.kind
    unit: Literal["example", "owner"] = "example"
    whiten: bool = True
    width: int = 256
    needs = (
        only_with("epochs", "lr", "subset", "rank", "sampling", "plan", "loss", "penalty", "batch_size", method=TRAINED)
        | only_with("output", "head", "reset", "linearization", method=TRAINED)
        | only_with("public", whiten=True)
        | only_with("width", method="place")
    )


FEW_OWNERS = 50
CONFIDENCE = 0.95  # confidence of the bounds of --canaries


def mechanism_of(config: Config, units: int) -> tj.privacy.Mechanism:
    """The mechanism of the flags, for this public number of images or owners."""
    one_of("sampling", config.sampling, ("full", "poisson"))
    rate = 1.0 if config.sampling == "full" else min(1.0, config.batch_size / units)
    steps = 1 if config.method in RELEASED else max(1, round(config.epochs / rate))
    return tj.make_mechanism(config.epsilon, config.delta, steps, config.clip_norm, rate, config.unit, config.noise)


def open_private(config: Config) -> Dataset:
    """Opens the data set, in the classes of --classes."""
    if config.classes is None:
        return setup.open_tested(config.dataset)
    if "," in config.classes:
        return setup.open_tested(config.dataset, tuple(name.strip() for name in config.classes.split(",")))
    return setup.open_tested(config.dataset, tuple(setup.read_words("classes", config.classes)))


def say_classes(config: Config, dataset: Dataset, owners: dict[str, Owner]) -> None:
    """Prints on stderr that images name the classes, if they do, and the classes that one unit alone shows."""
    if dataset.classes_from != "images":
        return
    train = dataset.train
    units = {*zip(train.labels.tolist(), (owners.get(name, name) for name in train.names), strict=True)}
    times = Counter(label for label, _ in units)
    alone = [name for label, name in enumerate(dataset.classes) if times[label] == 1]
    shown = f"; images of one {config.unit} alone show {', '.join(alone)}" if alone else ""
    print(
        f"{dataset.name}: names and number of the {len(dataset.classes)} classes are public, and come from the private "
        f"images{shown}. Name the classes by --classes",
        file=sys.stderr,
    )


def owners_of(config: Config, dataset: Dataset) -> dict[str, Owner]:
    """The owner of each training image by name, by --owners; none without it."""
    says_unit = config.given is None or "unit" in config.given
    if (config.unit == "owner" and not config.owners) or (config.owners and not says_unit):
        raise InputError("--owners=CSV and --unit must be given together: owner protects owners, example images alone")
    if not config.owners:
        return {}
    whose = dict(zip(dataset.train.names, tj.shards.every_owner(dataset.train.names, config.owners), strict=True))
    names = [name for examples in dataset.splits.values() for name in examples.names]
    owner_of = tj.shards.read_owners(config.owners)
    stated = [*owner_of.values()][1:]  # the first line may be a header
    without_image = sorted({*stated} - {*tj.shards.owners_of(names, owner_of)})
    if without_image:
        raise InputError(f"--owners must name owners of an image of {dataset.name}; {without_image[0]} has none")
    return whose


def part_of(train: tj.Features, index: int, count: int) -> tj.Features:
    """The images of one part by content identifier or by owner: a unit's part does not depend on the others."""
    identifiers = [i for i, _ in train.examples] if train.owners is None else [*map(identity, train.owners)]
    rows = tj.shards.by_identifier(identifiers, count)[index]
    if len(rows) < 2:
        raise InputError(f"--part must hold two images or more; {index}/{count} holds {len(rows)}")
    return train.take(rows)


def train_audited(
    config: Config, predict: tj.Predictor | tj.privacy.Contribution, train: tj.Features, classes: int, **settings: Any
) -> tuple[tj.Fitted, dict | None]:
    """Returns the private step, and with --canaries the bounds on epsilon that they prove."""
    objective = settings.pop("objective")
    if config.canaries is None:
        settings |= {"ledger": tj.Ledger(settings.pop("folder")), "seed": config.noise_seed, "progress": shown}
        return tj.fit_private(predict, train, objective, **settings), None
    canaries = tj.audit.make_canaries(train, classes, config.canaries)
    audited = tj.audit.fit_audited(predict, train, canaries, objective, **settings)
    scores: Any = audited.info.audit
    audit = audits.summary(scores, settings["mechanism"], CONFIDENCE)
    if not audit["kept"]:
        print(f"the audit proves more than epsilon {config.epsilon:g} ({CONFIDENCE:.0%} confidence)", file=sys.stderr)
    return audited, audit


def check_units(config: Config, dataset: Dataset, owners: dict[str, Owner]) -> None:
    """Raises InputError for flags that the number of images, or of protected owners, does not allow."""
    count = len({*owners.values()}) if owners else len(dataset.train)
    units = "owners" if owners else "images"
    if owners and count < FEW_OWNERS:
        print(f"{count} owners: accuracy under user-level privacy needs hundreds", file=sys.stderr)
    if config.delta >= 1 / count:
        raise InputError(f"--delta must be below 1 / {units} = {1 / count:.2g}; got {config.delta}")
    if config.canaries is not None and config.canaries > count:
        raise InputError(f"--canaries must be at most {count}, one for each image; got {config.canaries}")
    if owners and config.canaries is not None:
        raise InputError("--canaries needs --unit=example, as canaries are images; got owner")
    if owners and config.plan:
        raise InputError("--plan needs --unit=example, as micro-batches of owners differ; got owner")


def counts_of(train: tj.Features) -> dict[str, int | None]:
    """The number of examples or of owners, whichever is public."""
    owners = len({*train.owners}) if train.owners else None
    return {"examples": None if owners else len(train), "owners": owners}


def warn(config: Config, spent: tj.privacy.Spent, train: tj.Features, owner_of: dict[str, Owner]) -> None:
    """Prints on stderr what the budget is not: private, or that of an owner of the most images, a private number."""
    if not spent.private:
        print("a fixed seed drew the noise: this result is NOT private", file=sys.stderr)
    mechanism = spent.mechanism
    if (
        owner_of
        and not config.part
        and (mechanism.unit, mechanism.noise, mechanism.sampling_rate) == ("example", "gaussian", 1)
    ):
        most = max(Counter(owner_of[name] for _, name in train.examples).values())
        epsilon = spent.compute_epsilon(group=most)
        print(f"epsilon {epsilon:.4g} for an owner of the most images, {most}, which is private", file=sys.stderr)


def warn_divided(spent: tj.privacy.Spent, name: str) -> None:
    """Prints on stderr that one image may move another between train and test, and the epsilon of two images."""
    mechanism = spent.mechanism
    is_exact = (mechanism.unit, mechanism.noise, mechanism.sampling_rate) == ("example", "gaussian", 1)
    cost = f", which costs epsilon {spent.compute_epsilon(group=2):.4g}" if is_exact else ""
    print(
        f"{name}: every fifth image of one split is test, and the budget does not cover this choice: one image may "
        f"move another of its class into training{cost}. Give test images a split of their own",
        file=sys.stderr,
    )


def train_features(config: Config, predict: tj.Predictor, dataset: Dataset, owners: dict[str, Owner]) -> tj.Features:
    """The features of the training images, with owners if there are any."""
    train = setup.features(config, predict, setup.train_images(config, dataset), "train inputs")
    in_anchor = predict.session.identifiers if predict.session else frozenset()
    seen = in_anchor & {identifier for identifier, _ in train.examples}
    if seen:
        raise InputError(
            f"private training images must not be in the anchor, which no epsilon of this run covers; {len(seen)} are "
            f"in {config.weights}. Pass --leave_out_anchor_images"
        )
    return dataclasses.replace(train, owners=tuple(owners[n] for _, n in train.examples)) if owners else train


def whitening_of(config: Config, predict: tj.Predictor) -> str | None:
    """The source of whitening: "images", "norm", or None for no image and no kernel above a layer norm."""
    if config.public or not config.whiten:
        return "images" if config.public else None
    whitened = ["head/kernel"] if config.method in RELEASED else predict.subset.paths
    return "norm" if {*whitened} & {*getattr(predict.model, "input_norms", {})} else None


def train_weights(config: Config, 
    predict: tj.Predictor, train: tj.Features, test: tj.Features, mechanism: tj.privacy.Mechanism,
    recipe: tj.Recipe, origin: tj.store.Provenance, public: Examples | None, dataset: Dataset,
) -> tuple[tj.Fitted, Tree, dict[str, Any] | None]:  # fmt: skip
    """Trains tangent weights, and writes them to --out; returns (the run, the weights, its audit)."""
    trained = setup.whitened(config, config.public, predict, train) if config.whiten else predict
    out = command.out_folder(config)
    every = max(1, mechanism.steps // 10)
    measure = tj.metrics.Measure(trained, test, every=every, last=mechanism.steps)
    settings = {"objective": recipe.objective, "optimizer": tj.privacy.momentum(config.lr)}
    settings |= {"folder": out, "on_step": measure, "log": current_log()}
    with tj.show_progress(f"{config.method} {config.subset} epsilon {config.epsilon:g}"):
        fitted, audit = train_audited(config, trained, train, len(origin.classes), mechanism=mechanism, **settings)
    dw = tj.privacy.unwhiten(trained, fitted.dw)
    public_images = tuple(zip(public.identifiers(), public.names, strict=True)) if public else ()
    account = {"privacy": fitted.info.spent, "whitening": whitening_of(config, predict)}
    origin = origin.trained_on(train, fitted.seconds, (str(out.absolute()),), run=fitted.run, **account)
    origin = origin.with_data(public=public_images)
    tj.store.write_component(out / "dw.safetensors", dw, {"provenance": origin.to_json()})
    anchors.save(config, predict, dw, origin.data.examples + public_images, dataset, "private", fitted.info.spent)
    return fitted, dw, audit


def map_of(config: Config, predict: tj.Predictor) -> tj.models.FeatureMap:
    """The feature map of a method of RELEASED."""
    pretrained = tj.Pretrained(predict.model, predict.w, "", session=predict.session)
    map_ = tj.models.feature_map(
        pretrained, RELEASED[config.method], blocks=config.blocks, width=config.width, seed=config.seed
    )
    return map_.in_dtype(predict.dtype)


def release(
    config: Config,
    built: tj.models.FeatureMap,
    train: tj.Features,
    mechanism: tj.privacy.Mechanism,
    classes: tuple[str, ...],
) -> tuple[tj.Fitted, tj.models.FeatureMap, Tree, dict[str, Any] | None]:
    """Releases noisy statistics of features, and writes the head; returns (the run, their map, the head, its audit)."""
    public = (
        setup.features(config, built.predict, setup.open_dataset(config.public).train, "public inputs")
        if config.public
        else None
    )
    map_ = tj.privacy.on_sphere(built, public, train, whiten=config.whiten)
    with tj.show_progress(f"statistics, epsilon {config.epsilon:g}") as progress:
        step, rows, settings = tj.privacy.contributions(map_, train, classes, mechanism, progress=progress)
        more: Any = {**settings, "folder": command.out_folder(config), "log": current_log()}
        fitted, audit = train_audited(config, step, rows, len(classes), mechanism=mechanism, **more)
    head = step.head(step.statistics(fitted, map_, rows, classes), classes, mechanism)
    whitening = {"center": map_.center, "root": map_.root}
    texts = {"features": json.dumps(dataclasses.asdict(built.features)), "identity": built.identity}
    texts |= {"classes": json.dumps(classes), "privacy": json.dumps(dataclasses.asdict(fitted.info.spent))}
    tj.store.write_component(
        command.out_folder(config) / "head.safetensors", {"head": head, "whitening": whitening}, texts
    )
    return fitted, map_, head, audit


def check_flags(config: Config) -> None:
    """Raises InputError for incompatible flags."""
    if config.canaries is not None and config.noise_seed is not None:
        raise InputError(
            f"--canaries must be without --noise_seed, whose noise is not what is claimed; got {config.noise_seed}"
        )
    if config.plan and config.part:
        raise InputError("--plan must be without --part; got both")
    if config.part:
        config.part_in("part")


def main(config: Config) -> None:
    check_flags(config)
    dataset = open_private(config)
    owner_of = owners_of(config, dataset)
    owners = owner_of if config.unit == "owner" else {}
    check_units(config, dataset, owners)
    say_classes(config, dataset, owners)
    mechanism = mechanism_of(config, len({*owners.values()} or dataset.train))  # before any long work
    public = setup.public_images(config.public, dataset.train) if config.public else None
    recipe = setup.recipe(config, **{"method": "taft"} if config.method in RELEASED else {})
    anchors.check_flags(config, recipe)
    if config.plan:
        return plan.show(recipe, dataset, config.topology, mechanism)
    predict = setup.predictor(recipe, dataset.classes)
    anchors.check(config, predict)
    map_ = map_of(config, predict) if config.method in RELEASED else None
    mapped = predict if map_ is None else map_.predict
    train = train_features(config, mapped, dataset, owners)
    train = part_of(train, *config.part_in("part")) if config.part else train
    test = setup.features(config, mapped, dataset.test, "test inputs")
    mechanism = mechanism_of(config, len({*train.owners} if train.owners else train))
    how = f"{mechanism.steps} steps, noise multiplier {mechanism.noise_multiplier:.4f}"
    norms = "gradient norms in closed form" if predict.has_factors else "gradients one by one, under vmap"
    what = "statistics" if map_ else f"{predict.subset}; {norms}"
    print(f"{dataset.name}: {len(train)} train; {what}; {how}", file=sys.stderr)
    origin = tj.store.make_provenance(predict, recipe, dataset.classes).with_data(owners=owners)
    evaluated: Any = predict
    if map_:
        fitted, evaluated, dw, audit = release(config, map_, train, mechanism, dataset.classes)
    else:
        fitted, dw, audit = train_weights(config, predict, train, test, mechanism, recipe, origin, public, dataset)
    spent = fitted.info.spent
    measured = [row for row in fitted.history if "test_accuracy" in row]
    epsilon = spent.compute_epsilon()
    warn(config, spent, train, owner_of)
    if dataset.is_divided:
        warn_divided(spent, dataset.name)
    result = {
        "method": config.method,
        "subset": None if map_ else predict.subset.name,
        "dataset": dataset.name,
        "accuracy": tj.evaluate(evaluated, dw, test),
        "epsilon": epsilon,
        **facts_of(config, fitted, spent),
        **counts_of(train),
        "public": {"dataset": config.public, "examples": len(public)} if public else None,
        "whitening": whitening_of(config, predict),
        "audit": audit,
    }
    command.finish(config, result, history=measured)


def facts_of(config: Config, fitted: tj.Fitted, spent: tj.privacy.Spent) -> dict[str, Any]:
    """The mechanism, steps and cost of a private run, for the result."""
    return {
        "neighbouring": spent.mechanism.neighbouring,
        **dataclasses.asdict(spent.mechanism),
        "private": spent.private,
        "steps": fitted.steps,
        "steps_paid": spent.steps_paid,
        "learning_rate": None if config.method in RELEASED else config.lr,
        "trainable_parameters": sum(leaf.size for leaf in trees.leaves(fitted.dw).values()),
        "train_seconds": round(fitted.seconds, 3),
    }


if __name__ == "__main__":
    command.run(main, Config, processes=True)
