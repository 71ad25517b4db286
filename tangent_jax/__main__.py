"""`python -m tangent_jax COMMAND` is `tangent-jax COMMAND`."""

from tangent_jax.commands.main import main

if __name__ == "__main__":
    main()
