"""Copies the library's decoder of images into one module without this library or jax: images.py beside run.py.

The module holds `decode` and `Preprocessing` with all that they call. So an exported program sees a picture as training
did: EXIF, grey of 16 bits, transparency.
"""

import ast
import builtins
from importlib.resources import files

SOURCES = (
    "io/git_lfs.py",
    "core/checks.py",
    "core/preprocessing.py",
    "data/formats.py",
    "data/tiff.py",
    "data/decode.py",
)
"""The modules that are copied from; those that others import come first."""
ROOTS = ("decode", "Preprocessing")
LEFT_OUT = "normalize"
"""The method that needs jax: a program normalizes its inputs itself."""
ABSENT = ("tangent_jax", "jax", "jaxtyping")
"""Packages that the module does not import; annotations may name them, for they are not evaluated."""
HEADER = '''"""Decodes images as tangent_jax does, whose code this is: decode(content, name, size, preprocessing)."""

from __future__ import annotations
'''


def make_images_module() -> str:
    """The source of the module: imports, then each definition that the roots need."""
    statements = [node for source in SOURCES for node in statements_of(source)]
    needed = needed_names([node for node in statements if not is_import(node)])
    kept = [node for node in statements if names_bound(node) & needed]
    imports = dict.fromkeys(ast.unparse(node) for node in kept if is_import(node))  # each once
    definitions = [ast.unparse(node) for node in kept if not is_import(node)]
    content = "\n\n".join([HEADER, "\n".join(imports), *definitions])
    return content.replace(", or skip it by skip_unreadable", "") + "\n"  # an option of the library


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


def needed_names(definitions: list[ast.stmt]) -> set[str]:
    """The names that the roots use, directly or through others, without Python's own."""
    uses: dict[str, set[str]] = {}
    for node in definitions:
        used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        for name in names_bound(node):
            assert name not in uses, f"two of {SOURCES} define {name}"
            uses[name] = used
    needed: set[str] = set()
    waiting = {*ROOTS}
    while waiting:
        needed |= waiting
        waiting = {name for known in waiting for name in uses.get(known, ())} - needed - {*dir(builtins)}
    return needed
