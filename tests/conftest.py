"""Fixtures: f64, and what lies in ../shared (tests that need it skip, visibly, where it is absent)."""

import gc
import os
from importlib.metadata import version
from pathlib import Path

NEED_PYTORCH = ("make_fixtures", "make_frozen_head", "make_architectures", "timm_models", "parity", "naming_cases")
collect_ignore = [f"models/{name}.py" for name in NEED_PYTORCH]  # `make parity`
collect_ignore += ["mutate.py"]  # `make mutate` installs what it needs
ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# All workers and the binaries they start share what they compile (before jax is imported: it reads these then).
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache/jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# Tracebacks in the locations of a program are a third of its lowering.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

# Tracing makes millions of small objects, of which few are ever garbage.
gc.set_threshold(100_000, 20, 50)

# Compiling is most of the time: XLA optimises in `make test-all` alone.
if not os.environ.get("TANGENT_JAX_OPTIMISED"):
    fast = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
    # No emitters save a third of a first run, one object for a program some more. XLA aborts on a flag that
    # it does not know: set only where they were tried.
    tried = ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
    fast += tried * version("jaxlib").startswith("0.10.")
    os.environ.setdefault("XLA_FLAGS", " ".join(fast))

# Shapes and types of annotations are checked at every call (before the library is imported); this costs a third of the
# time.
if os.environ.get("TANGENT_JAX_TYPECHECK"):
    from jaxtyping import install_import_hook

    install_import_hook("tangent_jax", "typed.check")

import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402
from s3_server import serving_bucket  # noqa: E402

from tangent_jax.models.anchor import Pretrained  # noqa: E402
from tangent_jax.models.protocol import initial_weights  # noqa: E402
from tangent_jax.models.vit.config import ViTConfig  # noqa: E402
from tangent_jax.models.vit.model import VisionTransformer  # noqa: E402
from tangent_jax.pretrained.load import save  # noqa: E402

MAPS = Path("/proc/self/maps")


@pytest.fixture(autouse=True, scope="module")
def _few_programs():
    """Frees compiled programs between files: each maps several regions, and beyond 65,530 of a process XLA crashes."""
    yield
    if MAPS.exists() and MAPS.read_text().count("\n") > 30_000:
        jax.clear_caches()


@pytest.fixture
def untyped():
    """Turns the checks of types off: for a wrong value that its annotation, a Literal, rules out too."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def shared():
    if not (SHARED / "weights").is_dir():
        pytest.skip("../shared is absent: needs its weights and photographs")
    return SHARED


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """A real S3 server on this machine, with an empty bucket."""
    pytest.importorskip("moto.server", reason="moto[server] is absent: pip install 'moto[server]' s3fs")
    pytest.importorskip("s3fs", reason="s3fs is absent")
    with serving_bucket(tmp_path_factory.mktemp("copies")) as server:
        yield server


@pytest.fixture(scope="session")
def vit_tiny(shared):
    return shared / "weights/vit_tiny_patch16_224_augreg_in21k_ft_in1k.safetensors"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The flag of a small random ViT, which compiles quickly."""
    model = VisionTransformer(ViTConfig(24, 2, 2, 48, patch_size=4, image_size=16, classes=10))
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save(path, Pretrained(model, initial_weights(model, jax.random.key(0)), "tiny"))
    return f"--weights={path}"
