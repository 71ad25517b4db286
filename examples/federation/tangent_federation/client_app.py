"""The Flower client: carries a contributor's answers.

A node's configuration says who it is, and what lies where: `flower-supernode --node-config 'name="clinic 3"
dataset="folder:/data/mine" home="/data/federation" weights="/data/vit.safetensors"'`. In a simulation its number does:
every contributor has a uniform shard of the run's data set.
"""

import json
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.compat.common import recorddict_compat as compat

from tangent_federation import faults, private, secure
from tangent_federation.contributor import Contributor
from tangent_federation.settings import Request, Settings, check


def contributor_of(context: Context) -> tuple[Contributor, Settings, str]:
    """(the contributor of this node, the settings of the run, its fault)."""
    settings, node = Settings.of(context.run_config), context.node_config
    number, count = int(node.get("partition-id", 0)), int(node.get("num-partitions", 1))
    is_real = "dataset" in node
    part = (0, 1) if is_real else (number, count)
    name = str(node.get("name", f"contributor {number:0{len(str(count - 1))}}"))
    home = Path(str(node.get("home", f"{settings.out}/contributors/{name}")))
    here = {"cache": str(node.get("cache", settings.cache)), "weights": str(node.get("weights", ""))}
    own = Contributor(name, home, str(node.get("dataset", settings.dataset)), part, **here)
    return own, settings, "" if is_real else faults.fault_of(settings.faults, number)


def secure_where_asked(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """SecAgg+ where the message is one of its own."""
    if RECORD_KEY_CONFIGS in message.content.config_records:
        return secaggplus_mod(message, context, call_next)
    return call_next(message, context)


app = ClientApp(mods=[secure_where_asked])


def reply(message: Message, **fields) -> Message:
    """The answer with these fields."""
    return Message(RecordDict({"answer": ConfigRecord(fields)}), reply_to=message)


@app.query()
def say_who(message: Message, context: Context) -> Message:
    """The name of the contributor, and those of its classes where the settings list none."""
    own, settings, _ = contributor_of(context)
    return reply(message, name=own.name, classes=json.dumps(own.classes(settings.classes)))


@app.train()
def contribute(message: Message, context: Context) -> Message:
    """The files that the server asks for; of a secure sum, the numbers that SecAgg+ masks."""
    own, settings, fault = contributor_of(context)
    if RECORD_KEY_CONFIGS in message.content.config_records:
        check(not fault, "no fault", fault)  # it drops out of the secure sum
        asked = compat.recorddict_to_fitins(message.content, keep_input=True).config
        limbs = secure.limbs_of(own, Request.from_json(str(asked["request"])), settings)
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([*limbs]), 1, {})
        return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)
    record = message.content.config_records["request"]
    request = Request.from_json(str(record["json"]))
    if settings.privacy == "local":
        return reply(message, **private.answer(own, request, private.mechanism_of(settings)))
    if settings.privacy == "central":
        return reply(message, component=private.clipped(own, request, 1.0))
    sent = faults.spoiled(own, request, fault, settings.wait) if fault else own.contribute(request)
    return reply(message, **({} if sent is None else sent._asdict()))
