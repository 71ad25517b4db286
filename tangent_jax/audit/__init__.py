"""Audits of private training (canaries and lower bounds of epsilon), membership inference, and a test of removal."""

from tangent_jax.audit.attacks import ATTACKS, Ranking
from tangent_jax.audit.audit import canary_scores, epsilon_lower_bound, noise_scale
from tangent_jax.audit.bounds import OneRunBound, one_run_bound
from tangent_jax.audit.canaries import FEWEST, Audit, Audited, make_canaries
from tangent_jax.audit.membership import Membership, confidence, membership_attack
from tangent_jax.audit.one_run import fit_audited
from tangent_jax.audit.relative import Relative, relative_test

__all__ = [
    "ATTACKS",
    "FEWEST",
    "Audit",
    "Audited",
    "Membership",
    "OneRunBound",
    "Ranking",
    "Relative",
    "canary_scores",
    "confidence",
    "epsilon_lower_bound",
    "fit_audited",
    "make_canaries",
    "membership_attack",
    "noise_scale",
    "one_run_bound",
    "relative_test",
]
