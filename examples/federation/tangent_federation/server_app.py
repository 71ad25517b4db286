"""The Flower server: asks contributors, and keeps what they send in a store.

    OUT/store          the store: components, receipts
    OUT/result.json    accuracy, bytes, seconds, and a line for each contributor that is left out

Run again it asks only for what is missing; `remove` takes a contributor or an image out first.
"""

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

import tangent_jax as tj
from tangent_federation import secure_sum
from tangent_federation.collection import Collection, accuracy, check_file, leaving_out, remove_from, who
from tangent_federation.contributor import Contribution, file_bytes
from tangent_federation.private import map_of, mechanism_of, read_clipped, read_release, release_sum
from tangent_federation.settings import Request, Settings, check
from tangent_jax.core import trees
from tangent_jax.core.notation import Tree
from tangent_jax.privacy import Contribution as Step

app = ServerApp()
POLL = 0.1  # seconds


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run: a removal, the components (or one release, or one secure sum), their composition, the result."""
    Federation(grid, context, Settings.of(context.run_config)).run()


@dataclasses.dataclass
class Federation:
    """A run; `nodes`: the node of each contributor, by name; `result`: what result.json will say.

    Attributes:
        left_out: A line for each contributor that is left out.
    """

    grid: Grid
    context: Context
    settings: Settings
    nodes: dict[str, int] = dataclasses.field(default_factory=dict)
    result: dict[str, Any] = dataclasses.field(default_factory=dict)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)

    def run(self) -> None:
        """The whole run."""
        settings, began = self.settings, time.perf_counter()
        self.store = Path(settings.out) / "store"
        forget = self.remove() if settings.remove else {}
        classes = self.meet()
        most = int(settings.most_mb * (1 << 20))
        self.request = Request(settings.recipe(), classes, public=settings.public, most_bytes=most)
        if settings.secure:
            predict, dw, classes = self.sum_securely()
        elif settings.privacy != "none":
            predict, dw, classes = self.release()
        else:
            predict, dw, classes = self.compose(forget)
        if settings.test:
            self.result |= accuracy(predict, dw, classes, settings.test, settings.cache)
        self.result |= {"left_out": dict(sorted(self.left_out.items())), "seconds": time.perf_counter() - began}
        self.result |= {"fingerprint": trees.fingerprint(dw), "names": [*self.nodes]}
        self.result["settings"] = dataclasses.asdict(settings)
        path = Path(settings.out) / "result.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.result, indent=1))
        for name, line in self.left_out.items():
            print(f"{name} is left out: {line}", flush=True)
        shown = {key: value for key, value in self.result.items() if key not in ("settings", "names", "left_out")}
        print(json.dumps(shown), flush=True)

    def remove(self) -> dict[str, tuple[str, ...]]:
        """Removes what the settings say from the store; what each contributor must forget, by name."""
        removed = remove_from(self.store, self.settings.remove)
        self.result["removed"] = sorted(removed.receipt.removed)
        return removed.forget

    # Messages

    def ask(self, kind: str, requests: Mapping[str, RecordDict]) -> Iterator[tuple[str, ConfigRecord | None, str]]:
        """(name, answer, why there is none) of each contributor as it comes; of those that do not, at the end."""
        messages = {
            name: Message(record, dst_node_id=self.nodes[name], message_type=kind) for name, record in requests.items()
        }
        names = dict(zip(self.grid.push_messages(messages.values()), messages, strict=True))
        end = time.monotonic() + self.settings.wait
        while names and time.monotonic() < end:
            for reply in self.grid.pull_messages([*names]):
                name = names.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    yield name, None, f"its program failed: {reply.error.reason}"
                else:
                    yield name, reply.content.config_records.get("answer"), "it sent nothing"
            time.sleep(POLL * bool(names))
        for name in names.values():
            yield name, None, f"no answer within {self.settings.wait:g} s"

    def meet(self) -> tuple[str, ...]:
        """Learns who is there; returns the classes of all, sorted."""
        end = time.monotonic() + self.settings.wait
        while len(ids := sorted(self.grid.get_node_ids())) < self.settings.least and time.monotonic() < end:
            time.sleep(POLL)
        self.nodes = {f"node {node}": node for node in ids}
        known, classes = {}, {*filter(None, map(str.strip, self.settings.classes.split(",")))}
        for node, answer, why in self.ask(MessageType.QUERY, {name: RecordDict() for name in self.nodes}):
            with leaving_out(node, self.left_out):
                name, own = who(answer, why)
                check(name not in known, "a name of its own", f"{name}, which is taken")
                known[name] = self.nodes[node]
                classes |= set() if self.settings.classes else own
        self.nodes = dict(sorted(known.items()))
        check(len(known) >= self.settings.least, f"{self.settings.least} contributors or more", len(known))
        return tuple(sorted(classes))

    def collect(self, collection: Collection, forget: Mapping[str, tuple[str, ...]]) -> None:
        """Asks for the components that are missing, and adds them as they come."""
        requests, request = {}, collection.request
        for name in collection.missing([*self.nodes]):
            own = dataclasses.replace(request, forget=forget.get(name, ()))
            requests[name] = RecordDict({"request": ConfigRecord({"json": own.to_json()})})
        for name, answer, why in self.ask(MessageType.TRAIN, requests):
            fields = {field: answer[field] for field in Contribution._fields if field in (answer or {})}
            collection.take(name, Contribution(**{"component": b"", **fields}) if fields else None, why)

    # Composition

    def compose(self, forget: Mapping[str, tuple[str, ...]]) -> tuple[Any, Tree, tuple[str, ...]]:
        """(predictor, dw) or (feature map, head) of the components of all contributors, and the classes of its outputs.

        Those of statistics are the classes of the components: a class of whoever is left out changes no bit.
        """
        settings, recipe, began = self.settings, self.request.recipe, time.perf_counter()
        predict, store = recipe.predictor(self.request.classes), tj.Store(self.store)
        request = dataclasses.replace(self.request, factors=settings.merge == "inputs")
        collection = Collection(store, request, predict, recipe)
        self.collect(collection, forget)
        self.left_out |= collection.left_out
        check(len(store), "a contributor at least", f"none in {store.root}")
        if settings.method == "taft":
            dw, classes = store.compose(how=settings.merge, penalty=settings.penalty), request.classes
        else:
            total = store.statistics()
            dw, classes = total.solve(), total.classes
        self.result |= {"bytes": sum(collection.bytes.values()), "contributors": len(store)}
        self.result["round_seconds"] = time.perf_counter() - began
        return predict, dw, classes

    # Sums of which the server sees no contributor's part, or adds noise to

    def sum_securely(self) -> tuple[Any, Tree, tuple[str, ...]]:
        """(feature map, head, its classes) of the secure sum of all contributors' statistics."""
        map_ = self.request.recipe.predictor(self.request.classes)
        total, count = secure_sum.run(self.grid, self.context, self.request, map_, self.settings)
        self.result |= {"contributors": count, "images": float(total.counts.sum())}
        numbers = sum(leaf.size for leaf in trees.leaves(total.tree).values())
        self.result["bytes"] = 8 * numbers * self.settings.limbs * count  # of the masked vectors
        path = Path(self.settings.out) / "statistics.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file_bytes(total.tree, {}))
        return map_, total.solve(), total.classes

    def release(self) -> tuple[Any, Tree, tuple[str, ...]]:
        """(feature map, head, its classes) of private statistics."""
        settings, request = self.settings, self.request
        map_ = map_of(request.recipe.predictor(request.classes), request.public, settings.cache)
        mechanism = mechanism_of(settings)
        step = Step(len(request.classes), sum(map_.sizes), (0.0, 1.0, 0.0))
        record, parts = RecordDict({"request": ConfigRecord({"json": request.to_json()})}), {}
        for name, answer, why in self.ask(MessageType.TRAIN, dict.fromkeys(self.nodes, record)):
            with leaving_out(name, self.left_out):
                check(answer is not None and "component" in answer, "a contribution", why)
                content = check_file(answer["component"], request.most_bytes)
                if settings.privacy == "local":
                    parts[name] = read_release(content, map_, request.classes, mechanism)
                else:
                    parts[name] = read_clipped(content, step)
        check(parts, "a contributor at least", "none")
        if settings.privacy == "local":
            noised = sum(parts[name] for name in sorted(parts))
            mechanism = dataclasses.replace(mechanism, noise_multiplier=mechanism.noise_multiplier * len(parts) ** 0.5)
        else:
            noised, fitted = release_sum(parts, map_, request.classes, mechanism, Path(settings.out) / "private")
            self.result["epsilon"] = fitted.info.spent.compute_epsilon()
        self.result["contributors"] = len(parts)
        return map_, step.head(noised, request.classes, mechanism), request.classes
