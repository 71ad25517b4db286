"""One line for each error of a file system at a URL, and for a URL that nothing opens: what to do."""

import errno
import re
from typing import NamedTuple

from tangent_jax.core.checks import InputError, without_secrets


class Cause(NamedTuple):
    """A cause of errors: the pattern of their classes, codes and text, and the message, with {url}, {text}, {right}."""

    pattern: str
    message: str


NO_BUCKET = "NoSuchBucket|(bucket|container) does not exist|ContainerNotFound"
CAUSES = (
    Cause(
        "NoCredentials|PartialCredentials|CredentialRetrieval|TokenRetrieval|ProfileNotFound|DefaultCredentialsError",
        "{url} needs credentials; there are none. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what your "
        "provider's client reads; for a public bucket of S3 set FSSPEC_S3_ANON=true",
    ),
    # botocore of 2025 and later sends checksums, which servers such as older MinIO, Ceph and Qumulo do not know
    Cause(
        "MissingContentLength|XAmzContentSHA256Mismatch|x-amz-content-sha256|x-amz-(sdk-)?checksum|x-amz-trailer|"
        "STREAMING-UNSIGNED-PAYLOAD|aws-chunked|header you provided implies functionality",
        "the server of {url} must know the checksums which the S3 client sends; {text}. Set "
        "AWS_REQUEST_CHECKSUM_CALCULATION=when_required and AWS_RESPONSE_CHECKSUM_VALIDATION=when_required, and run "
        "the same command again",
    ),
    Cause(
        "ExpiredToken|RequestExpired|TokenRefreshRequired|InvalidToken|InvalidAccessKeyId|SignatureDoesNotMatch|"
        "UnauthorizedSSOToken|RefreshError",
        "the credentials for {url} must be valid; {text}. Get new ones, or mend those that are set; the same command "
        "goes on",
    ),
    Cause(
        "RequestTimeTooSkewed|request time and the current time",
        "the clock must be within 15 minutes of that of {url}; {text}. Set this machine's clock, as by NTP",
    ),
    Cause(NO_BUCKET, "the bucket of {url} must exist; there is no such bucket. Make it, or mend its name"),
    Cause(
        "PreconditionFailed|pre-conditions|FileExpired",
        "{url} must be as it was listed; it changed while it was read. Run the same command again, once nobody writes "
        "there",
    ),
    Cause(
        "ENOSPC|EDQUOT|HTTP507|quota|StorageFull|InsufficientStorage|no space left",
        "{url} needs more room; {text}. Free some there, or raise the quota; the same command goes on",
    ),
    Cause("PermissionError", "the right to read or write {url} is missing; {text}. {right}"),
    Cause("FileNotFoundError", "{url} does not exist. Mend its name, or put it there"),
)
"""The first cause whose pattern fits explains an error."""

PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "adl": "adlfs",
    "hf": "huggingface_hub",
}


def check_url(url: str) -> None:
    """Raises InputError for a URL that names no single place, or that holds credentials, which would be stored."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() in ("file", "local"):
        raise InputError(
            f"a URL must be of a remote file system; got {url}. Write a local path alone, without a scheme"
        )
    names = rest.rstrip("/").split("/")
    if not names[0] and (scheme in PACKAGES or not any(names)):
        raise InputError(f"a URL must name a bucket or a folder; got {url}. Name it, as in s3://bucket/folder")
    if "\0" in url or {"", ".", ".."} & {*names[1:]} or names[0] in (".", ".."):
        raise InputError(f"a URL must be plain; got {url!r}. Leave out empty names, . and ..")
    if scheme.lower() not in ("git", "github") and without_secrets(url) != url:  # git://path:branch@revision
        raise InputError(
            f"a URL must be without credentials; got {url}. Set them in the environment, as your provider's client "
            "reads them"
        )


def explain_package(url: str, error: ImportError) -> InputError:
    """The InputError that names the missing package of a file system."""
    scheme = url.partition("://")[0]
    package = PACKAGES.get(scheme.lower())
    if package is None:
        text = " ".join(str(error).split()).rstrip(".")
        return InputError(f"{scheme}:// needs a package that reads it; there is none ({text}). Install it by pip")
    advice = "pip install 'tangent-jax[url]'" if package == "s3fs" else f"pip install {package}"
    return InputError(f"{scheme}:// needs {package}, which is not installed. {advice}")


def kinds_of(error: Exception) -> set[str]:
    """The names of an error's classes, of its causes', of its errno, and the codes of a server's answer."""
    kinds: set[str] = set()
    for each in filter(None, (error, error.__cause__, error.__context__)):
        kinds |= {kind.__name__ for kind in type(each).__mro__}
        kinds |= {errno.errorcode.get(getattr(each, "errno", None) or 0, "")}
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            kinds |= {str(response.get("Error", {}).get("Code"))}
            kinds |= {f"HTTP{response.get('ResponseMetadata', {}).get('HTTPStatusCode')}"}
    return kinds


def explain(url: str, error: Exception) -> InputError:
    """The InputError that explains an error of a file system."""
    text = " ".join((str(error) or type(error).__name__).split())[:200].rstrip(".")
    searched = " ".join([*kinds_of(error), text.replace(url.partition("://")[2], "")])
    for cause in CAUSES:
        if re.search(cause.pattern, searched, re.IGNORECASE):
            return InputError(cause.message.format(url=url, text=text, right=how_to_get_right(url)))
    return InputError(f"{url} must answer; {type(error).__name__}: {text}. Run the same command again")


def how_to_get_right(url: str) -> str:
    """The remedy for a bucket that denies access, by what this process set for S3."""
    from fsspec.config import conf

    if url.partition("://")[0].lower() not in ("s3", "s3a"):
        return "Ask the owner of the bucket"
    if conf.get("s3", {}).get("anon"):
        return "It is not public: unset FSSPEC_S3_ANON and set credentials, or ask the owner of the bucket"
    return (
        "Ask the owner of the bucket; if it is public set FSSPEC_S3_ANON=true, and if its readers pay "
        "FSSPEC_S3_REQUESTER_PAYS=true"
    )


def is_bare(error: Exception) -> bool:
    """True for S3's refusal of a HEAD request, whose answer cannot hold a reason."""
    return str(error).endswith(("Forbidden", "Bad Request")) or "HeadObject" in str(error)


def is_taken(error: Exception) -> bool:
    """True for the answer to the creation of an object that exists, or that another writer creates now."""
    taken = {"FileExistsError", "EEXIST", "PreconditionFailed", "ConditionalRequestConflict"}
    return bool(taken & kinds_of(error)) or "pre-conditions" in str(error)


def is_no_bucket(error: Exception) -> bool:
    """True where a whole bucket is missing, not only an object."""
    return re.search(NO_BUCKET, " ".join([*kinds_of(error), str(error)]), re.IGNORECASE) is not None
