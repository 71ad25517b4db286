"""Audits of private training: canaries, attacks, and the epsilon that they prove; membership inference."""

from tangent_jax.audit.audit import canary_scores, epsilon_lower_bound, noise_scale
from tangent_jax.audit.bounds import OneRunBound, one_run_bound
from tangent_jax.audit.canaries import make_canaries
from tangent_jax.audit.membership import Membership, membership_attack
from tangent_jax.audit.one_run import fit_audited

__all__ = [
    "Membership",
    "OneRunBound",
    "canary_scores",
    "epsilon_lower_bound",
    "fit_audited",
    "make_canaries",
    "membership_attack",
    "noise_scale",
    "one_run_bound",
]
