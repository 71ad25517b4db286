from tangent_jax.exports.folder import FORMATS as FORMATS
from tangent_jax.exports.folder import check_format as check_format
from tangent_jax.exports.folder import load_export as load_export
from tangent_jax.exports.peft import read_peft as read_peft
