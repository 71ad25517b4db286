#!/usr/bin/env bash
# datasets' class_encode_column renumbers classes that are numbers: of 0 to 10, class 2 becomes 3.
#
# Versions  datasets 5.2.0, pyarrow 26.0.1 (Python 3.11).
# Valid     An integer column of labels 0 to 10, made a ClassLabel by class_encode_column, as
#           train_test_split(stratify_by_column=...) asks for.
# Seen      The values are sorted as text: names are 0, 1, 10, 2, ..., 9, so 2 becomes 3 and 10 becomes 2, and nothing
#           is printed. Up to ten classes all is well. cast_column("label", ClassLabel(num_classes=11)) keeps every
#           number. A head that was trained on the numbers scores at chance on what follows.
# So        cast_column with ClassLabel(num_classes=...) or with names in the order of the numbers; tangent_jax orders
#           whole numbers as numbers.
#
#     bash findings/datasets_class_encode.sh        a minute; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1 numpy==2.4.6 \
  2>pip.log || { cat pip.log; exit 2; }
cat > run.py <<'P'
import datasets

datasets.disable_progress_bars()
for count in (10, 11, 43):
    labels = datasets.Dataset.from_dict({"label": list(range(count))})
    encoded = labels.class_encode_column("label")["label"][:]
    cast = labels.cast_column("label", datasets.ClassLabel(num_classes=count))["label"][:]
    moved = sum(i != j for i, j in enumerate(encoded))
    print(f"{count} classes: class_encode_column moves {moved}: {encoded[:12]}; cast_column moves {sum(i != j for i, j in enumerate(cast))}")
    assert (moved > 0) == (count > 10) and cast == list(range(count))
    assert count != 11 or (encoded[2], encoded[10]) == (3, 2)
print("as described")
P
HF_HUB_OFFLINE=1 venv/bin/python run.py 2>run.log || { tail -5 run.log; exit 1; }
