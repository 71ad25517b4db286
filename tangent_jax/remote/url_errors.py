"""One line for each error of a file system at a URL, and for a URL that nothing opens: what to do."""

import errno
import re

from tangent_jax.core.checks import InputError, refusal, require, without_secrets

NO_BUCKET = "NoSuchBucket|(bucket|container) does not exist|ContainerNotFound"
CAUSES = (
    (
        "NoCredentials|PartialCredentials|CredentialRetrieval|TokenRetrieval|ProfileNotFound|DefaultCredentialsError",
        "credentials for {url}",
        "none",
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what your provider's client reads; "
        "for a public bucket of S3 set FSSPEC_S3_ANON=true",
    ),
    (  # botocore of 2025 and later sends them, and servers such as older MinIO, Ceph and Qumulo do not know them
        "MissingContentLength|XAmzContentSHA256Mismatch|x-amz-content-sha256|x-amz-(sdk-)?checksum|x-amz-trailer|"
        "STREAMING-UNSIGNED-PAYLOAD|aws-chunked|header you provided implies functionality",
        "a server of {url} that knows the checksums which the S3 client sends",
        "{text}",
        "Set AWS_REQUEST_CHECKSUM_CALCULATION=when_required and AWS_RESPONSE_CHECKSUM_VALIDATION=when_required, and "
        "run the same command again",
    ),
    (
        "ExpiredToken|RequestExpired|TokenRefreshRequired|InvalidToken|InvalidAccessKeyId|SignatureDoesNotMatch|"
        "UnauthorizedSSOToken|RefreshError",
        "valid credentials for {url}",
        "{text}",
        "Get new ones, or mend those that are set; the same command goes on",
    ),
    (
        "RequestTimeTooSkewed|request time and the current time",
        "a clock within 15 minutes of that of {url}",
        "{text}",
        "Set this machine's clock, as by NTP",
    ),
    (
        NO_BUCKET,
        "the bucket of {url}",
        "no such bucket",
        "Make it, or mend its name",
    ),
    (
        "PreconditionFailed|pre-conditions|FileExpired",
        "{url} as it was listed",
        "another object: it changed while it was read",
        "Run the same command again, once nobody writes there",
    ),
    (
        "ENOSPC|EDQUOT|HTTP507|quota|StorageFull|InsufficientStorage|no space left",
        "room for {url}",
        "{text}",
        "Free some there, or raise the quota; the same command goes on",
    ),
    ("PermissionError", "the right to read or write {url}", "{text}", "{right}"),
    ("FileNotFoundError", "a file or folder", "{url}, which does not exist", "Mend its name, or put it there"),
)
"""(pattern of an error's classes, codes and text; what was expected; what was found; what to do), first match first."""

PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "adlfs"),
    "hf": "huggingface_hub",
}


def check_url(function: str, url: str) -> None:
    """Raises InputError for a URL that names no single place, or that holds credentials, which would be stored."""
    scheme, _, rest = url.partition("://")
    local, do = scheme.lower() in ("file", "local"), "Write a local path alone, without a scheme"
    require(not local, function, "a URL of a remote file system", url, do)
    names = rest.rstrip("/").split("/")
    require(
        names[0] or (any(names) and scheme not in PACKAGES),
        function,
        "a URL with a bucket or a folder",
        url,
        "Name it, as in s3://bucket/folder",
    )
    plain = "\0" not in url and not {"", ".", ".."} & {*names[1:]} and names[0] not in (".", "..")
    require(plain, function, "a plain URL", repr(url), "Leave out empty names, . and ..")
    do = "Set them in the environment, as your provider's client reads them"
    secret = scheme.lower() not in ("git", "github") and without_secrets(url) != url  # git://path:branch@revision
    require(not secret, function, "a URL without credentials", url, do)


def explain_package(function: str, url: str, error: ImportError) -> InputError:
    """The InputError that names the missing package of a file system."""
    scheme = url.partition("://")[0]
    package = PACKAGES.get(scheme.lower())
    if package is None:
        text = " ".join(str(error).split()).rstrip(".")
        return refusal(function, f"the package that reads {scheme}://", f"none ({text})", "Install it by pip")
    return refusal(function, f"{package}, which reads {scheme}://", "none", f"pip install {package}")


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


def explain(function: str, url: str, error: Exception) -> InputError:
    """The InputError that explains an error of a file system."""
    text = " ".join((str(error) or type(error).__name__).split())[:200].rstrip(".")
    searched = " ".join([*kinds_of(error), text.replace(url.partition("://")[2], "")])
    for pattern, expected, got, do in CAUSES:
        if re.search(pattern, searched, re.IGNORECASE):
            do = do.format(right=how_to_get_right(url))
            return refusal(function, expected.format(url=url), got.format(url=url, text=text), do)
    return refusal(function, f"{url} to answer", f"{type(error).__name__}: {text}", "Run the same command again")


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
