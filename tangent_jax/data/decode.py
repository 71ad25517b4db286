"""Images as a model wants them: RGB, short side resized, centre cropped, uint8."""

import io
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
from PIL import Image

from tangent_jax.core import InputError, refusal
from tangent_jax.data.preprocessing import Preprocessing

FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def decode(image: bytes | np.ndarray, name: str, size: int, preprocessing: Preprocessing) -> np.ndarray:
    """One image, encoded or as a uint8 array, made "size size 3" uint8.

    Source: torchvision's Resize and CenterCrop, as timm evaluates: short side to floor(size / crop).
    Raises: InputError naming the image where it cannot be read.
    """
    try:
        if isinstance(image, np.ndarray):
            picture = Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image)
        else:
            picture = Image.open(io.BytesIO(image))
        picture = picture.convert("RGB")
    except Exception as error:
        do = "Mend or remove it, or pass --skip_unreadable"
        raise refusal("decode", "an image", f"{name} ({type(error).__name__})", do) from error
    short, (width, height) = int(size / preprocessing.crop), picture.size
    factor = short / min(width, height)
    resized = (short, int(height * factor)) if width <= height else (int(width * factor), short)
    picture = picture.resize(resized, FILTERS.get(preprocessing.interpolation, Image.Resampling.BICUBIC))
    left, top = round((resized[0] - size) / 2), round((resized[1] - size) / 2)
    return np.asarray(picture.crop((left, top, left + size, top + size)))


def decode_ahead(
    jobs: Iterable[Callable[[], np.ndarray]], workers: int, ahead: int
) -> Iterator[np.ndarray | InputError]:
    """The results of `jobs` in order, `ahead` of them decoded in threads before they are asked for.

    Pillow decodes and resizes without the interpreter's lock. An unreadable image yields its InputError.
    """

    def attempt(job: Callable[[], np.ndarray]) -> np.ndarray | InputError:
        try:
            return job()
        except InputError as error:
            return error

    remaining = iter(jobs)
    with ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(attempt, job) for job in islice(remaining, ahead)]
        while waiting:
            result = waiting.pop(0).result()
            waiting += [pool.submit(attempt, job) for job in islice(remaining, 1)]
            yield result
