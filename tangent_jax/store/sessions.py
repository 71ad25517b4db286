"""The anchors of first sessions that a removal concerns: it changes none, and says how each is made again."""

import shlex
from collections.abc import Iterable, Set

from tangent_jax.store.provenance import Provenance


def anchors_that_saw(origins: Iterable[Provenance], gone: Set[str], store: str) -> tuple[str, ...]:
    """A line for each anchor that was fine-tuned on removed images: their number, what it spent, and its command.

    Args: origins: of the components; gone: identifiers of the removed images; store: the path of the store, whose
          removed images the command leaves out.
    """
    lines = []
    for origin in {origin.anchor: origin for origin in origins}.values():
        session = origin.session
        if session is None:
            continue
        file = f"anchor {origin.anchor[:12]}.safetensors" if origin.recipe is None else origin.recipe.anchor.weights
        if not session.images:
            lines.append(
                f"removed images may be in the anchor {file}, which was fine-tuned on {session.count} images: it came "
                "with an export, which names none; ask who made it"
            )
            continue
        count = len(gone & session.identifiers)
        if not count:
            continue
        flags = {**session.settings, "store": store, "save_anchor": file}
        command = shlex.join(["tangent-jax", session.command, *(f"--{name}={value}" for name, value in flags.items())])
        images, them = (
            ("1 of the removed images is", "it") if count == 1 else (f"{count} of the removed images are", "them")
        )
        spent = f" and spent {session.paid}" if session.paid else ""
        lines.append(
            f"{images} in the anchor {file}, which was fine-tuned on {them}{spent}: the anchor does not change, and is "
            f"whole for all other images; make it again without {them} with: {command}"
        )
    return tuple(lines)
