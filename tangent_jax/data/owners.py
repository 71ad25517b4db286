"""The owners of files, by the names of the files."""

from collections.abc import Mapping

from tangent_jax.core.names import normal_name, other_spellings
from tangent_jax.core.owners import Owner


def by_normal_name(owners: Mapping[str, str]) -> dict[str, set[Owner]]:
    """The owners of each file, under the normal form of its name and under other spellings that no line has itself."""
    spelled = {owner: Owner(owner) for owner in {*owners.values()}}  # few owners of many images
    table: dict[str, set[Owner]] = {}
    for name, owner in owners.items():
        table.setdefault(normal_name(name), set()).add(spelled[owner])
    written = {*table}
    for name, owner in owners.items():
        for form in other_spellings(name):
            if form not in written:
                table.setdefault(form, set()).add(spelled[owner])
    return table
