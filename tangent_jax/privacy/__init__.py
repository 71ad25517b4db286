"""Training under differential privacy: mechanism, clipped sums, noise, accounting, a trainer with a ledger, audits."""
