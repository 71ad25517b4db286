"""The first session of an anchor: the images on which a network was fine-tuned before it was linearised."""

import dataclasses
import math
import re

from tangent_jax.core.checks import InputError, visible

HASH = re.compile("[0-9a-f]{64}")
FLAG = re.compile("[a-z][a-z0-9_]*")
COMMANDS = ("finetune", "private")


@dataclasses.dataclass(frozen=True)
class Paid:
    """The privacy budget that a first session spent; `private` is False if a fixed seed drew the noise.

    >>> print(tj.models.Paid(2.995, 1e-5, "example"))
    epsilon 3.00 at delta 1e-05 for each example
    """

    epsilon: float
    delta: float
    unit: str
    private: bool = True

    def __post_init__(self) -> None:
        """Raises InputError for numbers that are not a budget."""
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0 and (0 <= self.delta < 1)):
            raise InputError(
                f"epsilon must be finite and >= 0, and delta in [0, 1); got {self.epsilon} and {self.delta}"
            )

    def __str__(self) -> str:
        """The budget in words, with epsilon rounded upwards to hundredths."""
        epsilon = math.ceil(round(100 * self.epsilon, 9)) / 100
        words = f"epsilon {epsilon:.2f} at delta {self.delta:g} for each {visible(self.unit)}"
        return words if self.private else f"no privacy, as a fixed seed drew the noise ({words})"


@dataclasses.dataclass(frozen=True)
class FirstSession:
    """The first session of an anchor: how it was fine-tuned, and on which images.

    An export names no image: `count` is then their number.

    Attributes:
        source: The fingerprint of the pre-trained weights without their head.
        dataset, classes: Those of its images.
        images: (content identifier, name) of each.
        command, settings: The command that made it, and its flags as texts, so that it can be made again.
        paid: The privacy budget that it spent, None without privacy.

    >>> session = tj.models.FirstSession("0" * 64, "signs", ("stop", "yield"), (("1" * 64, "a.png"),))
    >>> str(session)
    'the anchor was fine-tuned on 1 image of signs'
    """

    source: str
    dataset: str
    classes: tuple[str, ...]
    images: tuple[tuple[str, str], ...]
    command: str = "finetune"
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    paid: Paid | None = None
    count: int = 0

    def __post_init__(self) -> None:
        """Makes texts visible.

        Raises:
            InputError: Identifiers that are not hashes, no image, another command, or a name that no flag has.
        """
        hashes = [self.source, *(identifier for identifier, _ in self.images)]
        wrong = [text for text in hashes if not HASH.fullmatch(text)]
        if wrong:
            raise InputError(f"source and images must be SHA-256 sums of 64 hex digits; got {wrong[:1]}")
        if bool(self.images) == bool(self.count):
            raise InputError("a first session must have images, or the number of images that it does not name")
        if self.command not in COMMANDS:
            raise InputError(f"command must be {' or '.join(COMMANDS)}; got {self.command!r}")
        wrong = [name for name in self.settings if not FLAG.fullmatch(name)]
        if wrong:
            raise InputError(f"settings must have the names of flags; got {wrong[:1]}")
        object.__setattr__(self, "dataset", visible(self.dataset))
        object.__setattr__(self, "classes", tuple(map(visible, self.classes)))
        object.__setattr__(self, "images", tuple((identifier, visible(name)) for identifier, name in self.images))
        object.__setattr__(self, "settings", {name: visible(value) for name, value in self.settings.items()})

    def __hash__(self) -> int:  # of a predictor, at each call of a compiled program
        return hash((self.source, len(self.images), self.count))

    def __str__(self) -> str:
        """The session in one sentence, without the names of images."""
        count = len(self.images) or self.count
        images = f"{count} image{'s' * (count != 1)}"
        return f"the anchor was fine-tuned on {images} of {self.dataset}" + (f", with {self.paid}" if self.paid else "")

    @property
    def identifiers(self) -> frozenset[str]:
        """The content identifiers of its images.

        Raises:
            InputError: The session of an export, which names none.
        """
        if self.count:
            raise InputError(
                f"the anchor must name the {self.count} images on which it was fine-tuned; it came with an export, "
                "which names none. Take the file of the anchor itself"
            )
        return frozenset(identifier for identifier, _ in self.images)
