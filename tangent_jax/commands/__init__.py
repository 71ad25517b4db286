"""The commands that operators run: `tangent-jax COMMAND`. Importing a command's module defines its flags."""
