"""Fine-tunes the last block of a timm ViT on class folders, as a PyTorch user's script does.

    python -m experiments.peers.torch_job FOLDER SIZE EPOCHS WORKERS DTYPE

torchvision's ImageFolder and DataLoader, features below the last block kept in memory, Adam with batches of 32. The
last line of stdout is JSON: the seconds of each phase. Weights are random, as speed does not depend on them. It needs
torch, timm and torchvision, as `make parity` installs them.
"""

import json
import sys
import time
import types
import warnings
from pathlib import Path

BEGAN = time.perf_counter()
warnings.filterwarnings("ignore")
if (programs := Path(__file__).parents[2] / "build/programs").exists():  # a torchvision that is built for CUDA alone
    sys.path.append(str(programs))
    sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")

import timm  # noqa: E402
import torch  # noqa: E402
from timm.data import create_transform, resolve_data_config  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402

SIZES = {"Ti": "tiny", "S": "small", "B": "base", "L": "large"}
FEATURES_AT_ONCE = 256
BATCH = 32


def main(folder: str, size: str, epochs: int, workers: int, dtype: torch.dtype) -> None:
    taken = {"import": time.perf_counter() - BEGAN}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True

    start = time.perf_counter()
    sets = {split: ImageFolder(f"{folder}/{split}") for split in ("train", "test")}
    taken["data"] = time.perf_counter() - start

    start = time.perf_counter()
    model = timm.create_model(f"vit_{SIZES[size]}_patch16_224", num_classes=len(sets["train"].classes))
    model = model.eval().to(device, dtype)
    transform = create_transform(**resolve_data_config({}, model=model))
    taken["weights"] = time.perf_counter() - start

    start = time.perf_counter()
    features = {}
    for split, images in sets.items():
        images.transform = transform
        loader = DataLoader(images, FEATURES_AT_ONCE, num_workers=workers, pin_memory=device.type == "cuda")
        features[split] = trunk(model, loader, device, dtype)
    synchronize(device)
    taken["features"] = time.perf_counter() - start

    start = time.perf_counter()
    tail = nn.Sequential(model.blocks[-1], model.norm).float()
    head = model.head.float()
    train(tail, head, *features["train"], epochs, dtype)
    synchronize(device)
    taken["training"] = time.perf_counter() - start

    start = time.perf_counter()
    with torch.inference_mode():
        x, y = features["test"]
        right = sum(
            (head(tail(x[i : i + FEATURES_AT_ONCE].float())[:, 0]).argmax(-1) == y[i : i + FEATURES_AT_ONCE]).sum()
            for i in range(0, len(x), FEATURES_AT_ONCE)
        )
    accuracy = float(right) / len(x)
    taken["evaluation"] = time.perf_counter() - start
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    print(json.dumps({"phases": taken, "accuracy": accuracy, "device": name, "torch": torch.__version__}))


@torch.inference_mode()
def trunk(model: nn.Module, loader: DataLoader, device: torch.device, dtype: torch.dtype) -> tuple:
    """The input of the last block for every image, and the labels, on the device."""
    inputs, labels = [], []
    for images, targets in loader:
        x = model.norm_pre(model._pos_embed(model.patch_embed(images.to(device, dtype, non_blocking=True))))
        for block in model.blocks[:-1]:
            x = block(x)
        inputs.append(x)
        labels.append(targets.to(device))
    return torch.cat(inputs), torch.cat(labels)


def train(tail: nn.Module, head: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int, dtype: torch.dtype) -> None:
    """Trains the last block, the norm and the head by Adam on cross entropy, under autocast in half precision."""
    optimizer = torch.optim.Adam([*tail.parameters(), *head.parameters()], 1e-4, fused=True)
    is_half = dtype != torch.float32
    for _ in range(epochs):
        for rows in torch.randperm(len(x), device=x.device).split(BATCH):
            with torch.autocast(x.device.type, dtype if is_half else torch.bfloat16, enabled=is_half):
                outputs = head(tail(x[rows].clone())[:, 0])
            loss = functional.cross_entropy(outputs.float(), y[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()


def synchronize(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    folder, size, epochs, workers, dtype = sys.argv[1:]
    main(folder, size, int(epochs), int(workers), getattr(torch, dtype))
