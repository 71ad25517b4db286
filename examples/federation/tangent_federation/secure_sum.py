"""Flower's SecAgg+ around the numbers of `secure`: the server sees masked vectors, and their sum."""

from typing import Any

from flwr.app import Context
from flwr.common import FitIns, Parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid

from tangent_federation.fixed_point import BITS, MOST
from tangent_federation.secure import SHIFT, sum_of
from tangent_federation.settings import Request, Settings, check
from tangent_jax.models import FeatureMap
from tangent_jax.solver import Statistics

SHARES = 5  # pairs of masks of a contributor with its neighbours


class Sum(FedAvg):
    """Asks every contributor once, and keeps the mean that SecAgg+ gives of `count` of them."""

    def __init__(self, request: Request) -> None:
        super().__init__(fraction_evaluate=0.0, initial_parameters=Parameters([], "numpy.ndarray"))
        self.request, self.mean, self.count = request, None, 0

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> list:
        ins = FitIns(parameters, {"request": self.request.to_json()})
        return [(proxy, ins) for proxy in client_manager.all().values()]

    def aggregate_fit(self, server_round: int, results: list, failures: list) -> tuple[Parameters | None, dict]:
        self.mean, self.count = parameters_to_ndarrays(results[0][1].parameters), len(results)
        return None, {}


def run(grid: Grid, context: Context, request: Request, map_: FeatureMap, settings: Settings) -> tuple[Statistics, int]:
    """(the sum of contributors' statistics, how many they are)."""
    count = len([*grid.get_node_ids()])
    check(3 <= count <= MOST, f"3 to {MOST} contributors to a secure sum", count)
    strategy, shares = Sum(request), min(SHARES, count)
    sizes = {"clipping_range": float(SHIFT), "quantization_range": 1 << BITS, "modulus_range": 1 << 32}
    secagg = SecAggPlusWorkflow(shares, shares // 2 + 1, max_weight=1.0, timeout=settings.wait, **sizes)
    legacy = LegacyContext(context, ServerConfig(num_rounds=1), strategy)
    DefaultWorkflow(fit_workflow=secagg)(grid, legacy)
    check(strategy.mean is not None, "enough contributors that answer", "too few: SecAgg+ stopped")
    assert strategy.mean is not None
    return sum_of(strategy.mean, strategy.count, map_, request, settings.limit), strategy.count
