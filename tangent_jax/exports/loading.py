"""The lines of Python in a card that load an export."""

from dataclasses import asdict

from tangent_jax.models.ntk import ComponentPredictor
from tangent_jax.models.protocol import input_dtype
from tangent_jax.pretrained.load import family_of

LOADING = {
    "safetensors": """import numpy as np
import tangent_jax as tj

pretrained, dw = tj.exports.load_export(".")
predict = tj.{make}(pretrained, kind="everything"{options})
outputs = predict(dw, np.zeros({shape}, np.{dtype}))""",
    "features": """import numpy as np
import tangent_jax as tj

pretrained, head = tj.exports.load_export(".")
predict = tj.models.FeatureSettings({settings}).of(pretrained)
images = tj.examples(np.zeros({shape}, np.{dtype}), np.zeros(1, int))
outputs = tj.outputs(predict, head, tj.extract(predict, images))""",
    "program": """import runpy

import numpy as np

serve = runpy.run_path("run.py")["load"](".")
outputs = serve(np.zeros({shape}, np.{dtype}))""",
}
LOADING |= {"stablehlo": LOADING["program"], "onnx": LOADING["program"]}


def loading(predict: ComponentPredictor, format: str) -> str:
    """Returns the lines of Python that load the export; run them in its folder."""
    shape = (1, *predict.model.input_shape(0))
    if format == "safetensors" and family_of(predict.model) is None:
        return "`tj.exports.load_export(folder, model=...)` with its model, which the files cannot name."
    options = ', output="tangent"' if predict.output == "tangent" else ""
    fields = {"make": "tangent" if predict.method == "taft" else "nonlinear", "options": options, "shape": shape}
    fields |= {"dtype": input_dtype(predict.model).name}
    own = predict.features
    fields["settings"] = ", ".join(f"{name}={value!r}" for name, value in asdict(own).items()) if own else ""
    lines = LOADING["features" if own and format == "safetensors" else format]
    return f"In this folder:\n\n```python\n{lines.format(**fields)}\n```"
