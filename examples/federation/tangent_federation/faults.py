"""Faults of a contributor, for trials and tests: `--run-config 'faults="nan:0 anchor:1 large:2 silent:3"'`.

nan       its numbers hold a NaN                anchor    it trained at another anchor
large     its file is larger than is taken      silent    it answers without a file
late      it answers after the server has stopped waiting                            error    its program fails
"""

import dataclasses
import time

import jax
import numpy as np

from tangent_federation.contributor import Contribution, Contributor, file_bytes, read_bytes
from tangent_federation.settings import Request, check

FAULTS = ("nan", "anchor", "large", "silent", "late", "error")


def fault_of(faults: str, number: int) -> str:
    """The fault of the contributor of this number; "" for none."""
    said = dict(reversed(word.split(":", 1)) for word in faults.split())
    check({*said.values()} <= {*FAULTS}, f"faults of {', '.join(FAULTS)}", faults)
    return said.get(f"{number}", "")


def spoiled(own: Contributor, request: Request, fault: str, wait: float) -> Contribution | None:
    """The answer of a contributor with this fault."""
    check(fault != "error", "no fault", fault)
    if fault == "silent":
        return None
    if fault == "late":
        time.sleep(wait + 5)
    if fault == "anchor":
        other = dataclasses.replace(request.recipe, seed=request.recipe.seed + 1)
        if other.features is not None:
            other = dataclasses.replace(other, features=dataclasses.replace(other.features, width=64, parts=("relu",)))
        request, own = dataclasses.replace(request, recipe=other), dataclasses.replace(own, home=own.home / "other")
    sent = own.contribute(request)
    if fault == "nan":
        dw, metadata = read_bytes(sent.component)
        leaves, structure = jax.tree.flatten(dw)
        leaves[0].reshape(-1)[0] = np.nan
        return sent._replace(component=file_bytes(jax.tree.unflatten(structure, leaves), metadata))
    if fault == "large":
        return sent._replace(component=sent.component.ljust(request.most_bytes + 1, b"\0"))
    return sent
