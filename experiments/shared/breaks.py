"""Mechanisms that are wrong on purpose, which audits must detect."""

import dataclasses

import tangent_jax as tj

BREAKS = ("nothing", "no_noise", "half_noise", "no_clipping", "noise_over_batch")


def break_mechanism(mechanism: tj.privacy.Mechanism, broken: str, examples: int) -> tj.privacy.Mechanism:
    """The broken mechanism that trains instead of the claimed one."""
    sigma = mechanism.noise_multiplier
    clip = mechanism.clip_norm
    changes = {
        "nothing": {},
        "no_noise": {"noise_multiplier": 1e-6 * sigma},
        "half_noise": {"noise_multiplier": sigma / 2},
        "no_clipping": {"clip_norm": 1e6 * clip, "noise_multiplier": sigma / 1e6},  # the same noise
        "noise_over_batch": {"noise_multiplier": sigma / examples},
    }
    return dataclasses.replace(mechanism, **changes[broken])
