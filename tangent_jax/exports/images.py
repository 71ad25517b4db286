"""Copies parts of the library into a module without this library or jax, beside run.py: images.py.

images.py holds `decode` and `Preprocessing` with all that they call. So an exported program sees a picture as training
did: EXIF, grey of 16 bits, transparency.
"""

import ast
import builtins
from collections.abc import Sequence
from importlib.resources import files

SOURCES = (
    "io/git_lfs.py",
    "core/checks.py",
    "core/preprocessing.py",
    "data/formats.py",
    "data/tiff.py",
    "data/decode.py",
)
"""The modules that images.py is copied from; those that others import come first."""
ROOTS = ("decode", "Preprocessing")
LEFT_OUT = "normalize"
"""The method that needs jax: a program normalizes its inputs itself."""
ABSENT = ("tangent_jax", "jax", "jaxtyping")
"""Packages that the module does not import; annotations may name them, for they are not evaluated."""
HEADER = "Decodes images as tangent_jax does, whose code this is: decode(content, name, size, preprocessing)."


def make_images_module() -> str:
    """The source of images.py."""
    content = make_module(HEADER, SOURCES, ROOTS)
    return content.replace(", or skip it by skip_unreadable", "")  # an option of the library


def make_module(header: str, sources: Sequence[str], roots: Sequence[str]) -> str:
    """The source of a module: imports, then each definition of these sources that the roots need."""
    statements = [node for source in sources for node in statements_of(source)]
    needed = needed_names([node for node in statements if not is_import(node)], roots)
    kept = [node for node in statements if names_bound(node) & needed]
    imports = dict.fromkeys(ast.unparse(node) for node in kept if is_import(node))  # each once
    definitions = [ast.unparse(node) for node in kept if not is_import(node)]
    first = f'"""{header}"""\n\nfrom __future__ import annotations\n'
    return "\n\n".join([first, "\n".join(imports), *definitions]) + "\n"


def statements_of(source: str) -> list[ast.stmt]:
    """The statements of a module of the library; an import from ABSENT leaves an assignment where it renames."""
    found: list[ast.stmt] = []
    for node in ast.parse(files("tangent_jax").joinpath(source).read_text()).body:
        if isinstance(node, ast.ClassDef):
            node.body = [inner for inner in node.body if getattr(inner, "name", "") != LEFT_OUT]
        package = ""
        if isinstance(node, ast.ImportFrom):
            package = node.module or ""
        elif isinstance(node, ast.Import):
            package = node.names[0].name
        if package.partition(".")[0] not in ABSENT:
            found.append(node)
        elif isinstance(node, ast.ImportFrom):
            found += [ast.parse(f"{alias.asname} = {alias.name}").body[0] for alias in node.names if alias.asname]
    return found


def is_import(node: ast.stmt) -> bool:
    """True for an import."""
    return isinstance(node, (ast.Import, ast.ImportFrom))


def names_bound(node: ast.stmt) -> set[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", ast.Constant(""))]
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def needed_names(definitions: list[ast.stmt], roots: Sequence[str]) -> set[str]:
    """The names that the roots use, directly or through others, without Python's own."""
    uses: dict[str, set[str]] = {}
    for node in definitions:
        used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        for name in names_bound(node):
            assert name not in uses, f"two definitions of {name}"
            uses[name] = used
    needed: set[str] = set()
    waiting = {*roots}
    while waiting:
        needed |= waiting
        waiting = {name for known in waiting for name in uses.get(known, ())} - needed - {*dir(builtins)}
    return needed
