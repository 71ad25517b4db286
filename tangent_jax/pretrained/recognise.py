"""Finds the naming scheme of a file's tensors, below a prefix that all of them share.

Training wraps a network: `module.` (DataParallel), `_orig_mod.` (torch.compile), `model.` (Lightning), `params/img/`
(big_vision). A prefix is taken off if all tensors share it, but those that no output depends on (left_out.py), and if a
known naming remains. Nothing is decided by a few names: of the namings that recognise a file, the one that covers the
most of its names reads it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tangent_jax.core.checks import InputError
from tangent_jax.io.records import short
from tangent_jax.pretrained.family import Naming
from tangent_jax.pretrained.files import Tensors
from tangent_jax.pretrained.left_out import AVERAGES, left_out, without

WRAPPERS = re.compile(r"(?<![^./])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""Modules that torch wraps around others, at any depth; no network has a part of such a name."""
FIRST = re.compile(r"[^./]+[./]")
"""The first component of a name with several."""
SHOWN = 3
"""The most names in an error."""


class Fit(NamedTuple):
    """A naming that may read a file, the prefix of its names, the tensors without it, and names it does not cover."""

    naming: Naming
    prefix: str
    tensors: dict[str, Any]
    extra: list[str]


def recognise(file: Tensors, namings: Iterable[Naming]) -> tuple[Naming, Tensors, list[str]]:
    """The naming of a file, the file with the names that it knows, and lines on what was taken off or left out.

    The lines are for a file that is then read.

    Raises:
        InputError: A model_type in config.json that no naming reads, and a file of no known naming; it names the
            nearest one, and the first tensors that it lacks.
    """
    namings = [*namings]
    tensors = unwrapped(file)
    fits = [
        fit(naming, prefix, view) for prefix, view in views(tensors) for naming in namings if naming.recognises(view)
    ]
    best = min(fits, key=lambda own: len(own.extra), default=None)  # the first of equals: the shortest prefix
    if best is None or best.naming.model_types:
        check_model_type(file, namings)
    if best is None or best.extra:
        check_no_adapter(file.path, tensors)
        check_one_network(file.path, tensors, namings)
    if best is None:
        raise unknown(file.path, tensors, namings)
    lines = []
    if best.prefix:
        lines.append(f"{file.path}: the prefix {best.prefix} of its tensors is taken off")
    if AVERAGES in left_out(tensors).values():
        lines.append(f"{file.path}: the moving average of its weights is left out, and the weights themselves are read")
    names = {name.removeprefix(best.prefix) for name in tensors if name.startswith(best.prefix)}
    return best.naming, file._replace(tensors=best.tensors, left_out=frozenset(names - best.tensors.keys())), lines


def check_model_type(file: Tensors, namings: Iterable[Naming]) -> None:
    """Raises InputError for a model_type of Hugging Face's that no naming reads: the cause of all that differs."""
    kind = file.beside.get("config", {}).get("model_type")
    known = [*dict.fromkeys(name for naming in namings for name in naming.model_types)]
    if kind is not None and kind not in known:
        raise InputError(
            f"model_type in config.json beside {file.path} must be one of {', '.join(known)}; got {short(kind)}, which "
            "is no network of this library. Pass a model of your own: docs/tutorials/your_model.ipynb"
        )


def fit(naming: Naming, prefix: str, tensors: dict[str, Any]) -> Fit:
    """The fit of a naming to the tensors below a prefix."""
    return Fit(naming, prefix, tensors, [name for name in tensors if not naming.covers(name)])


def unwrapped(file: Tensors) -> dict[str, Any]:
    """The tensors without the names of torch's wrappers; InputError if two then have one name."""
    tensors: dict[str, Any] = {}
    for name, value in file.tensors.items():
        plain = WRAPPERS.sub("", name)
        if plain in tensors:
            raise InputError(
                f"a tensor must be once in {file.path}; {plain} is there with and without a wrapper's name"
            )
        tensors[plain] = value
    return tensors


def views(tensors: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (prefix, tensors on which an output may depend) below each prefix that all of them share, "" first."""
    prefix, rest = "", without(tensors)
    while True:
        yield prefix, rest
        groups = by_first(rest)
        if len(groups) != 1 or "" in groups:
            return
        ((first, inner),) = groups.items()
        prefix, rest = prefix + first, without(inner)


def by_first(tensors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tensors by the first component of their names, such as "module."; "" for names of one component."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in tensors.items():
        match = FIRST.match(name)
        first = match[0] if match else ""
        groups.setdefault(first, {})[name.removeprefix(first)] = value
    return groups


def check_no_adapter(path: str, tensors: Iterable[str]) -> None:
    """Raises InputError for the factors of PEFT, such as LoRA's or IA3's, alone or beside a network's weights."""
    factor = next(
        (name for name in tensors if re.search(r"^base_model\.model\.|(?:^|\.)lora_[AB]\.|\.base_layer\.", name)), None
    )
    if factor is not None:
        raise InputError(
            f"{path} must hold the weights of a network; it has factors of an adapter of PEFT, such as {factor}. Merge "
            "it by peft, model.merge_and_unload(), and save what that returns: save_pretrained of transformers, or "
            "timm.models.save_for_hf(model, folder, safe_serialization=True)"
        )


def check_one_network(path: str, tensors: Mapping[str, Any], namings: list[Naming]) -> None:
    """Raises InputError if a whole network lies beside other tensors: two networks, or a head of the user's own."""
    *_, (shared, rest) = views(tensors)
    wholes = [
        Fit(naming, shared + first + prefix, view, [])
        for first, inner in by_first(rest).items()
        for prefix, view in views(inner)
        for naming in namings
        if first and naming.recognises(view) and not fit(naming, prefix, view).extra
    ]
    if not wholes:
        return
    inside = [*dict.fromkeys(own.prefix for own in wholes)]
    others = [shared + name for name in rest if not (shared + name).startswith(inside[0])]
    raise InputError(
        f"{path} must hold one network; below {inside[0]} it has one under the names of {wholes[0].naming.title}, and "
        f"beside it {len(others)} other tensors, such as {', '.join(others[:SHOWN])}. Save the tensors below "
        f"{' or '.join(inside[:SHOWN])} alone, or with their head under that program's name"
    )


def unknown(path: str, tensors: Mapping[str, Any], namings: list[Naming]) -> InputError:
    """The error of a file that no naming recognises."""
    titles = "; ".join(naming.title for naming in namings)
    if not tensors:
        return InputError(f"{path} must hold a network's tensors; it has none")
    kinds = left_out(tensors)
    if len(kinds) == len(tensors):
        kind, name = next(iter(kinds.values())), next(iter(kinds))
        return InputError(f"{path} must hold a network; all its tensors are left out, such as {name}, which is {kind}")
    nearest = min(
        (fit(naming, prefix, view) for prefix, view in views(tensors) for naming in namings),
        key=lambda own: len(own.extra),
    )
    count = len(nearest.tensors)
    if not nearest.extra:
        return InputError(
            f"{path} must hold a whole network; it has {count} tensors under names of {nearest.naming.title}, such as "
            f"{', '.join([*nearest.tensors][:SHOWN])}, and none of its embedding and blocks"
        )
    return InputError(
        f"the tensors of {path} must have the names that one of these programs gives them: {titles}. The nearest is "
        f"{nearest.naming.title}, which lacks {len(nearest.extra)} of {count}: {', '.join(nearest.extra[:SHOWN])}"
    )
