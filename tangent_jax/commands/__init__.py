"""The commands that operators run: `tangent-jax COMMAND`. A command's module defines its flags as it is imported."""
