"""Who was in the training data? Attacks that tell members from others by how well a model fits them."""

import numpy as np
from scipy.special import log_softmax
from scipy.stats import rankdata


def confidence(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """log p_y - log (1 - p_y) of the true class, "n": the statistic of Carlini et al. 2022, Eq. (4)."""
    log_p = log_softmax(np.asarray(logits, np.float64), -1)
    rows = np.arange(len(labels))
    others = log_p.copy()
    others[rows, labels] = -np.inf
    return log_p[rows, labels] - np.logaddexp.reduce(others, 1)


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """The area under the attack's ROC: how often a member scores above another; ties count half."""
    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    return float((ranks.sum() - len(members) * (len(members) + 1) / 2) / (len(members) * len(others)))


def calibrated(target: np.ndarray, shadows: np.ndarray, held: np.ndarray) -> np.ndarray:
    """The target's confidence less the mean of the shadow models that never saw the example, "n".

    Args:   target: "n"; shadows: "k n"; held: "k n", whether shadow k was trained on example n.
    Source: Carlini et al. 2022, the offline likelihood ratio, of means.
    """
    out = ~held
    return target - np.sum(shadows * out, 0) / np.maximum(out.sum(0), 1)
