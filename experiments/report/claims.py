"""The paper's claims, table by table: each compares our commands' results with the claim."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from experiments.report.findings import (
    Check,
    Claim,
    Finding,
    Read,
    Results,
    Rows,
    Tests,
    better,
    better_on_average,
    bound,
    by_set,
    percent,
    settings,
    usual,
)


def table1(results: Results, tests: Tests) -> Finding:
    table = results["table1"]
    columns = [*next(iter(table.values()))]
    checks = []
    for name, row in table.items():
        for column in (c for c in columns if c.startswith("TAFT-")):
            nlft = f"NLFT-{column.removeprefix('TAFT-')}"
            checks.append(better(f"{name}, {column} against {nlft}", row[column], row[nlft], tests[name], False))
        if "TAFT-1" in row:
            checks.append(better(f"{name}, TAFT-1 against FC", row["TAFT-1"], row["FC"], tests[name]))
    return Finding(
        ["data set", *columns], [[n, *(percent(row[c]) for c in columns)] for n, row in table.items()], checks
    )


def composition(against: tuple[str, ...], job: str = "compose") -> Read:
    def read(results: Results, tests: Tests) -> Finding:
        rows = []
        checks = []
        composed = by_set(results, job)
        every = [*next(iter(composed.values()))["methods"]]
        names = every if len(against) > 1 else ["taft", *against]
        for name, result in composed.items():
            for count, row in result["shards"].items():
                rows.append([name, count, *(percent(row[n]) for n in names)])
                checks += [
                    better(f"{name}, {count} shards, TAFT against {other}", row["taft"], row[other], tests[name])
                    for other in against
                ]
            rows.append([name, "one model", *(percent(result["full"][n]) for n in names)])
            numbers = [f"{result['methods'][n]['numbers']:,} ({result['methods'][n]['bytes']:,} B)" for n in names]
            rows.append([name, "numbers, bytes", *numbers])
        return Finding(["data set", "shards", *names], rows, checks)

    return read


def forgetting(results: Results, tests: Tests) -> Finding:
    rows = []
    checks = []
    losses = []
    for name, result in by_set(results, "forget").items():
        curve = result["curve"]
        total = result["inference_passes"]["sisa"]
        half = min(range(len(curve["removed"])), key=lambda i: abs(curve["removed"][i] - total / 2))
        lost = 100 * (curve["taft"][0] - curve["taft"][half])
        rows.append([name, total, curve["removed"][half], percent(curve["taft"][0]), percent(curve["taft"][half])])
        losses.append(lost)
        checks.append(bound(f"{name}, points lost", lost, 4.0))
    if len(losses) > 1:
        checks.append(bound("on average, points lost", sum(losses) / len(losses), 4.0))
    return Finding(["data set", "shards", "removed", "before", "after"], rows, checks)


def sisa(results: Results, tests: Tests) -> Finding:
    rows = []
    checks = []
    for name, result in by_set(results, "forget").items():
        curve = result["curve"]
        for other in ("sisa_mean", "sisa_vote"):
            gaps = [a - b for a, b in zip(curve["taft"], curve[other], strict=True)]
            above = sum(gap > 0 for gap in gaps)
            rows.append([name, other, f"{above} of {len(gaps)}", f"{100 * sum(gaps) / len(gaps):.1f}"])
            checks.append(
                Check(f"{name}, above {other} at every number removed: {above} of {len(gaps)}", above == len(gaps))
            )
    return Finding(["data set", "SISA", "numbers removed at which TAFT is above", "average points"], rows, checks)


def retraining(results: Results, tests: Tests) -> Finding:
    rows = []
    checks = []
    for name, result in by_set(results, "forget").items():
        r = result["retraining"]
        total = result["inference_passes"]["sisa"]
        lost = 100 * (r["before"] - r["shards"])
        rows.append([name, total, percent(r["before"]), percent(r["shards"]), f"{r['speedup']:.0f}x"])
        checks.append(bound(f"{name}, points lost", lost, 6.2))
        checks.append(
            Check(f"{name}, one of {total} shards retrained {r['speedup']:.0f} times faster", r["speedup"] >= total)
        )
    return Finding(["data set", "shards", "before", "retrained", "faster"], rows, checks)


def paragon(results: Results, tests: Tests) -> Finding:
    rows = []
    checks = []
    for name, result in by_set(results, "forget").items():
        r = result["retraining"]
        rows.append([name, percent(r["shards"]), percent(r["paragon"])])
        checks.append(bound(f"{name}, points under the paragon", 100 * (r["paragon"] - r["shards"]), 6.2))
    return Finding(["data set", "shards retrained", "paragon, from scratch"], rows, checks)


def private(results: Results, tests: Tests) -> Finding:
    rows = []
    checks = []
    subsets = []
    tables = {name: table for name, table in results["table3"].items() if name != "with_search"}
    for name, by_epsilon in tables.items():
        for epsilon, row in by_epsilon.items():
            subsets = [*row]
            rows.append([name, epsilon, *(f"{percent(row[s]['taft'])} / {percent(row[s]['nlft'])}" for s in subsets)])
            for s in (s for s in subsets if s != "head"):
                pair = row[s]["taft"], row[s]["nlft"]
                checks.append(better(f"{name}, epsilon {epsilon}, {s}, TAFT against NLFT", *pair, tests[name]))
    return Finding(["data set", "epsilon", *(f"{s}, TAFT / NLFT" for s in subsets)], rows, checks)


def ablation(which: str, best: str) -> Read:
    """One setting against the others, on each data set and on average."""

    def read(results: Results, tests: Tests) -> Finding:
        table = results["ablations"][which]
        checks = []
        columns = [*next(iter(table.values()))]
        rows: Rows = [[name, *(percent(row[c]) for c in columns)] for name, row in table.items()]
        for other in (c for c in columns if c != best):
            pairs = {name: (row[best], row[other], tests[name]) for name, row in table.items()}
            checks += [better(f"{name}, {best} against {other}", *pair) for name, pair in pairs.items()]
            if len(pairs) > 1:
                checks.append(better_on_average(f"on average, {best} against {other}", [*pairs.values()]))
        return Finding(["data set", *columns], rows, checks)

    return read


def class_token(results: Results, tests: Tests) -> Finding:
    """A new class token against the pre-trained one: on the data set of --other."""
    near, far = (results.get(job, {"cls": {}})["cls"] for job in ("ablations", "far"))
    rows = []
    checks = [Check(f"{name}: not of --other", None) for name in near if name not in far]
    for name, row in {**near, **far}.items():
        rows.append([name, percent(row["CLS=F"]), percent(row["CLS=T"])])
        if name in far:
            checks.append(better(f"{name}, CLS=T against CLS=F", row["CLS=T"], row["CLS=F"], tests[name]))
    return Finding(["data set", "CLS=F", "CLS=T"], rows, checks)


def radius(results: Results, tests: Tests) -> Finding:
    """Cross entropy and RSL at the paper's radii; others stand in the table alone."""
    table = results["ablations"]["radius"]
    rows = []
    checks = []
    for name, row in table.items():
        radii = list(dict.fromkeys(column.partition("R=")[2] for column in row))
        for r in radii:
            cells = [row[f"{loss}, R={r}"] for loss in ("CE", "RSL")]
            rows.append([name, r, *map(percent, cells), *(f"{cell['step_norm']:.4g}" for cell in cells)])
        for a, b, r in (("RSL", "CE", "1"), ("CE", "RSL", "10")):
            what = f"{name}, {a} against {b} at R={r}"
            first, second = (row.get(f"{loss}, R={r}") for loss in (a, b))
            checks.append(better(what, first, second, tests[name]) if r in radii else Check(what, None))
    return Finding(["data set", "R", "CE", "RSL", "norm of dw, CE", "norm of dw, RSL"], rows, checks)


def chosen(names: Callable[[list[str]], list[str]], fields: Mapping[str, Any]) -> Read:
    """The chosen settings of columns of our Table 1; for tangents, compared with the paper's usual choice."""

    def read(results: Results, tests: Tests) -> Finding | None:
        table = results["table1"]
        checks = []
        columns = names([*next(iter(table.values()))])
        if not columns:
            return None
        for name, row in table.items():
            for column in (c for c in columns if c.startswith("TAFT")):
                checks += [usual(f"{name}, {column}", row[column], *field) for field in fields.items()]
        return Finding(
            ["data set", *columns], [[n, *(settings(r[c]) for c in columns)] for n, r in table.items()], checks
        )

    return read


def chosen_shards(results: Results, tests: Tests) -> Finding:
    rows = []
    checks = []
    names = []
    for name, result in by_set(results, "compose").items():
        names = [*result["methods"]]
        rows.append([name, *(settings(result["methods"][n]) for n in names)])
        both = [(n, result["methods"][n]) for n in ("taft", "soup")]
        checks += [usual(f"{name}, {n}", own, "learning_rate", 1e-3) for n, own in both]
    return Finding(["data set", *names], rows, checks)


def anchors(job: str, order: Callable[[list[str]], list[tuple[str, str]]]) -> Callable[..., Finding]:
    """Tangents of several pre-trained models; `order` gives pairs, the claimed better one first."""

    def read(results: Results, tests: Tests) -> Finding:
        rows = []
        checks = []
        names = []
        for name, by_anchor in results[job].items():
            names = [*by_anchor]
            titles = [title for title, cell in by_anchor[names[0]].items() if isinstance(cell, dict)]
            for title in titles:
                rows.append([name, title, *(percent(by_anchor[n][title]) for n in names)])
                checks += [
                    better(f"{name}, {title}, {a} against {b}", by_anchor[a][title], by_anchor[b][title], tests[name])
                    for a, b in order(names)
                ]
            sizes = [f"{by_anchor[n]['parameters']:,} ({by_anchor[n]['trained']:,})" for n in names]
            rows.append([name, "parameters (trained)", *sizes])
        return Finding(["data set", "", *names], rows, checks)

    return read


def times(results: Results, tests: Tests) -> Finding:
    result = results["times"]
    sources = [source for source in result if source.startswith("from_")]
    columns = ["nlft_train", "taft_train", "nlft_inference", "taft_inference"]
    rows: Rows = [[s.replace("_", " "), *(f"{result[s][c]:.4g}" for c in columns)] for s in sources]
    checks = []
    for source in sources:
        for what in ("train", "inference"):
            ratio = result[source][f"taft_{what}"] / result[source][f"nlft_{what}"]
            checks.append(bound(f"{source.replace('_', ' ')}, {what}, TAFT over NLFT", ratio, 2.0))
    return Finding(["seconds an example", *columns], rows, checks)


def movement(results: Results, tests: Tests) -> Finding:
    rows = []
    checks = []
    for name, result in by_set(results, "influence").items():
        counts = result["components"]
        moved = result["movement"]
        places = sorted({0, len(counts) // 4, len(counts) // 2, len(counts) - 1})
        rows += [[name, counts[i], f"{moved[i]:.4g}"] for i in places]
        falls = all(moved[a] > moved[b] for a, b in pairwise(places))
        text = f"{name}: falls from {moved[0]:.3g} at {counts[0]} to {moved[-1]:.3g} at {counts[-1]}"
        checks.append(Check(text, falls))
    return Finding(["data set", "components", "L2 change by the last"], rows, checks)


def of_one(names: list[str]) -> list[str]:
    return [name for name in names if name == "FC" or name.endswith("-1")]


def of_many(names: list[str]) -> list[str]:
    return [name for name in names if name not in of_one(names)]


def schemes(names: list[str]) -> list[tuple[str, str]]:
    """(better, worse) in the paper's order: anchors are MAE, supervised, contrastive."""
    masked, supervised, contrastive = names
    return [(supervised, masked), (contrastive, supervised)]


USUAL = {"learning_rate": 1e-3, "reset": True, "new_class_token": False}
RETRAINED = (
    "With half of the images unlearned, retrained shards lose 6.2 points; a shard is retrained up to 50x faster."
)
CLAIMS = (
    Claim("Table 1", "TAFT against non-linear fine-tuning", "TAFT is as good as NLFT, and above a new head alone.",
          ("table1",), table1, ("table1.png",)),
    Claim("Table 2", "composition", "Composed over shards, TAFT is above model soup at every number of shards.",
          ("compose",), composition(("soup",)), ("compose.png",)),
    Claim("Figure 1a", "free forgetting by subtraction", "Half of 50 shards can leave for 4.0 points of accuracy.",
          ("forget",), forgetting, ("forget.png",)),
    Claim("Figure 1b", "against SISA", "TAFT is above SISA at every number of shards removed.", ("forget",), sisa),
    Claim("Figure 1c", "shard retraining", RETRAINED, ("forget",), retraining),
    Claim("Table 3", "differential privacy", "Tangents are above their non-linear models in nearly every cell.",
          ("table3",), private, ("table3.png",)),
    Claim("Figure 2a", "the rescaled square loss", "RSL is above cross entropy and mean squared error.",
          ("ablations",), ablation("loss", "RSL"), ("loss.png",)),
    Claim("Figure 2b", "choice of initialisation", "Drawing the last block afresh (PT=F) improves the average.",
          ("ablations",), ablation("pt", "PT=F"), ("pt.png",)),
    Claim("Figure 2c", "linearising the class token", "A new class token (CLS=T) helps on data far from pre-training.",
          ("ablations", "far"), class_token, ("cls.png",), "--other"),
    Claim("Table 4", "best settings, one block", "Usual: LR 1e-3, PT=F, CLS=F.", ("table1",), chosen(of_one, USUAL)),
    Claim("Table 5", "best settings, many blocks", "Usual: LR 1e-4, PT=T, CLS=F.", ("table1",),
          chosen(of_many, {**USUAL, "learning_rate": 1e-4, "reset": False}), needs="--blocks=1,7"),
    Claim("Table 6", "best settings, shards", "Usual: LR 1e-3 for both.", ("compose",), chosen_shards),
    Claim("Table 7", "linearised ResNet", "TAFT is above a linearised ResNet, alone and over 10 shards.",
          ("architectures",), anchors("architectures", lambda names: [(names[0], names[1])]), ("anchors.png",)),
    Claim("Table 8", "time per example", "A tangent costs potentially twice the model, in training and inference.",
          ("times",), times, ("times.png",)),
    Claim("Figure 3", "against the paragon", "Retrained shards come close to a model trained from scratch.",
          ("forget",), paragon),
    Claim("Table 9", "pre-training schemes",
          "Masked autoencoding transfers worse than classes; a contrastive scheme better than both.",
          ("pretrain", "schemes"), anchors("schemes", schemes), ("anchors.png",)),
    Claim("Figure 4", "change by one more component", "It falls with the number of components.",
          ("influence",), movement, ("influence.png",)),
    Claim("Table 10", "textures (DTD)", "On DTD, too, TAFT composes better than soup.", ("textures",),
          composition(("soup",), "textures"), needs="--textures"),
    Claim("Table 11", "adapters and LoRA", "Composed, TAFT is above adapters, LoRA and soup.",
          ("compose",), composition(("adapter", "lora", "soup"))),
    Claim("Table 12", "projected descent", "RSL is better at R = 1, cross entropy at the larger radius.",
          ("ablations",), radius, ("radius.png",)),
)  # fmt: skip
