"""The numbers of every format: white, black and mid-grey in each number of bits, and what is refused by which name."""

import io
import re
import struct
import sys
import types
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.data.decode import MOST_PIXELS, decode, size_of
from tangent_jax.data.formats import DECODERS, format_of, quiet
from tangent_jax.data.sources import SUFFIXES

ROOT = Path(__file__).resolve().parents[2]
EXACT = Preprocessing(crop=1.0, resize="exact")
SIDE = 8


def encoded(picture, kind, **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def levels(content):
    """The one colour of a picture."""
    got = decode(content, "photo", SIDE, EXACT).reshape(-1, 3)
    assert (got == got[0]).all()
    return got[0].tolist()


def packed(value, bits, samples=1, order=">"):
    """SIDE rows of SIDE equal samples of this number of bits, each row from a byte on."""
    if bits in (16, 32):
        kind = {16: "u2", 32: "u4"}[bits]
        return np.full((SIDE, SIDE, samples), value, order + kind).tobytes()
    row = "".join(f"{value:0{bits}b}" for _ in range(SIDE * samples))
    row = row.ljust(-(-len(row) // 8) * 8, "0")
    return int(row, 2).to_bytes(len(row) // 8, "big") * SIDE


def tiff(*pages, order="<"):
    """A TIFF of pages {"pixels": bytes, tag: whole number or list of 16-bit numbers}; `inner`: pages of SubIFDs."""
    content = bytearray({"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}HI", 42, 8))

    def add(page, following):
        """Appends a page, which begins 2 bytes after the last one ends, and returns the place of its next link."""
        tags = {256: SIDE, 257: SIDE, 258: 8, 259: 1, 262: 1, 277: 1, 278: SIDE, 279: len(page["pixels"]), **page}
        tags = {tag: value for tag, value in tags.items() if isinstance(tag, int) and value is not None}
        tags |= {273: None} | ({330: None} if "inner" in page else {})
        start = len(content)
        content.extend(bytes(2 + 12 * len(tags) + 4))
        places = {273: len(content)}
        content.extend(page["pixels"])
        if "inner" in page:
            places[330] = len(content)
            add(page["inner"], False)
        struct.pack_into(f"{order}H", content, start, len(tags))
        for i, (tag, value) in enumerate(sorted(tags.items(), key=lambda item: item[0])):
            values = value if isinstance(value, list) else [places.get(tag, value)]
            kind, letter = (3, "H") if isinstance(value, list) or tag in (258, 259, 262, 277, 339) else (4, "I")
            data = struct.pack(f"{order}{len(values)}{letter}", *values)
            if len(data) > 4:
                places[tag] = len(content)
                content.extend(data)
                data = struct.pack(f"{order}I", places[tag])
            struct.pack_into(f"{order}HHI4s", content, start + 2 + 12 * i, tag, kind, len(values), data)
        link = start + 2 + 12 * len(tags)
        if following:
            struct.pack_into(f"{order}I", content, link, len(content))

    for i, page in enumerate(pages):
        add(page, i + 1 < len(pages))
    return bytes(content)


def png(bits, colours, pixels, *chunks):
    """A PNG with these packed rows, and other chunks before them."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = [pixels[i : i + len(pixels) // SIDE] for i in range(0, len(pixels), len(pixels) // SIDE)]
    header = struct.pack(">IIBBBBB", SIDE, SIDE, bits, colours, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, content) for kind, content in parts)


def shares(bits):
    """Black, a middle value and white of this number of bits."""
    return sorted({0, 2 ** (bits - 1), 2**bits - 1})


GREYS = [
    *(("PNG", bits, v, png(bits, 0, packed(v, bits))) for bits in (1, 2, 4, 8, 16) for v in shares(bits)),
    *(("PNG RGB", b, v, png(b, 2, packed(v, b, 3))) for b in (8, 16) for v in shares(b)),
    *(("TIFF", bits, v, tiff({"pixels": packed(v, bits, order="<"), 258: bits}))
      for bits in (1, 2, 4, 8, 12, 16) for v in shares(bits)),
    *(("TIFF, big-endian", bits, v, tiff({"pixels": packed(v, bits), 258: bits}, order=">"))
      for bits in (1, 2, 4, 8, 16) for v in shares(bits)),
    *(("TIFF, zlib", bits, v, tiff({"pixels": zlib.compress(packed(v, bits, order="<")), 258: bits, 259: 8}))
      for bits in (1, 4, 8, 12, 16) for v in shares(bits)),
    *(("TIFF, white is zero", bits, 2**bits - 1 - v, tiff({"pixels": packed(v, bits, order="<"), 258: bits, 262: 0}))
      for bits in (1, 2, 4, 8, 12, 16) for v in shares(bits)),
    *(("TIFF, white is zero, big-endian", 16, 65535 - v,
       tiff({"pixels": packed(v, 16), 258: 16, 262: 0}, order=">")) for v in shares(16)),
    *(("TIFF, white is zero, zlib", bits, 2**bits - 1 - v,
       tiff({"pixels": zlib.compress(packed(v, bits, order="<")), 258: bits, 259: 8, 262: 0}))
      for bits in (1, 8, 12, 16) for v in shares(bits)),
    *(("TIFF, one band in planes", bits, v, tiff({"pixels": packed(v, bits, order=o), 258: bits, 284: 2}, order=o))
      for bits in (8, 16) for v in shares(bits) for o in "<>"),
    *(("TIFF RGB", bits, v, tiff({"pixels": packed(v, bits, 3, "<"), 258: [bits] * 3, 262: 2, 277: 3}))
      for bits in (8, 16) for v in shares(bits)),
    *(("PGM", bits, v, b"P5 8 8 %d\n" % (2**bits - 1) + packed(v, 16 if bits > 8 else 8))
      for bits in (4, 8, 10, 12, 16) for v in shares(bits)),
    *(("PPM", bits, v, b"P6\n# made\n8 8\n%d\n" % (2**bits - 1) + packed(v, 16 if bits > 8 else 8, 3))
      for bits in (4, 8, 10, 16) for v in shares(bits)),
    *(("PGM, plain", bits, v, b"P2 8 8 %d\n" % (2**bits - 1) + b"%d " % v * 64)
      for bits in (8, 16) for v in shares(bits)),
    *(("PPM, plain", 8, v, b"P3 8 8 255\n" + b"%d " % v * 192) for v in shares(8)),
    *(("PBM", 1, 1 - v, b"P4 8 8\n" + packed(v, 1)) for v in (0, 1)),
    *(("PBM, plain", 1, 1 - v, b"P1 8 8\n" + b"%d" % v * 64) for v in (0, 1)),
    *((kind, 8, v, encoded(Image.new("RGB", (SIDE, SIDE), (v, v, v)), kind, **options)) for v in shares(8)
      for kind, options in (("BMP", {}), ("GIF", {}), ("JPEG", {}), ("WEBP", {"lossless": True}), ("AVIF", {}))),
    *(("JPEG, CMYK", 8, 255 - v, encoded(Image.new("CMYK", (SIDE, SIDE), (v, v, v, 0)), "JPEG")) for v in shares(8)),
    *(("TIFF, CMYK", 8, 255 - v, encoded(Image.new("CMYK", (SIDE, SIDE), (0, 0, 0, v)), "TIFF")) for v in shares(8)),
    *(("TIFF, JPEG in YCbCr", 8, v, encoded(Image.new("YCbCr", (SIDE, SIDE), (v, 128, 128)), "TIFF",
                                             compression="jpeg")) for v in shares(8)),
    *(("TIFF, fax", 1, v, encoded(Image.new("1", (SIDE, SIDE), v), "TIFF", compression="group4")) for v in (0, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "bits", "value", "content"), GREYS, ids=[f"{g[0]}, {g[1]}, {g[2]}" for g in GREYS])
def test_grey_is_its_share_of_white(kind, bits, value, content):
    assert np.abs(np.array(levels(content)) - 255 * value / (2**bits - 1)).max() <= 1


def palette(value):
    return [value if i == 1 else 0 for _ in range(3) for i in range(256)]


def test_tiff_palette_has_16_or_8_bits():
    pixels = packed(1, 8)
    for white in (65535, 255):
        assert levels(tiff({"pixels": pixels, 262: 3, 320: palette(white)})) == [255] * 3
    assert levels(tiff({"pixels": packed(0, 8), 262: 3, 320: palette(255)})) == [0] * 3


KEYS = [
    (1, 0, 0), (1, 0, 1), (2, 0, 1), (2, 0, 3), (4, 0, 5), (4, 0, 15), (8, 0, 0), (8, 0, 200), (16, 0, 0),
    (16, 0, 40000), (8, 2, 9), (16, 2, 40000),
]  # fmt: skip


LONG = zlib.compress(bytes(2 << 20))


@pytest.mark.parametrize(("bits", "colours"), [(8, 2), (16, 2), (8, 0)])
@pytest.mark.parametrize(
    "chunk",
    [
        (b"iCCP", b"profile\0\0" + LONG),
        (b"zTXt", b"history\0\0" + LONG),
        (b"iTXt", b"XML:com.adobe.xmp\0\1\0en\0\0" + LONG),
        (b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + bytes(2 << 20)),
        (b"zTXt", b"history\0\0" + LONG[:100]),
        (b"tEXt", b"history\0" + bytes(65 << 20)),
    ],
)
def test_png_with_long_texts_is_read(bits, colours, chunk):
    """Pillow refuses texts of more than 1 MiB, and 64 MiB of them."""
    pixels = packed(2**bits // 3, bits, 3 if colours else 1)
    chunks = [(b"tRNS", bytes(6)), chunk] if colours else [chunk]
    assert levels(png(bits, colours, pixels, *chunks)) == levels(png(bits, colours, pixels))


def test_png_is_turned_by_its_texts():
    xmp = b'XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation="3"/>'
    pixels = np.zeros((SIDE, SIDE), np.uint8)
    pixels[0] = 255
    turned = decode(png(8, 0, pixels.tobytes(), (b"iTXt", xmp)), "photo", SIDE, EXACT)
    assert (turned[..., 0] == pixels[::-1]).all()


@pytest.mark.parametrize(("bits", "colours", "value"), KEYS)
def test_png_transparent_colour_is_white(bits, colours, value):
    samples = 3 if colours else 1
    key = struct.pack(">H", value) * samples
    near = value ^ 1  # of the same upper byte
    assert levels(png(bits, colours, packed(value, bits, samples), (b"tRNS", key))) == [255] * 3
    got = levels(png(bits, colours, packed(near, bits, samples), (b"tRNS", key)))
    assert np.abs(np.array(got) - 255 * near / (2**bits - 1)).max() <= 1


def test_transparency_is_shown_on_white():
    clear = np.zeros((SIDE, SIDE, 2), ">u2")
    half = np.full((SIDE, SIDE, 4), [0, 0, 0, 32768], ">u2")
    assert levels(png(16, 4, clear.tobytes())) == [255] * 3
    assert np.abs(np.array(levels(png(16, 6, half.tobytes()))) - 127).max() <= 1
    chunks = (b"PLTE", bytes([9, 9, 9, 50, 60, 70])), (b"tRNS", bytes([255, 0]))
    assert levels(png(8, 3, packed(1, 8), *chunks)) == [255] * 3
    assert levels(png(8, 3, packed(0, 8), *chunks)) == [9] * 3
    assert levels(png(2, 3, packed(1, 2), *chunks)) == [255] * 3


def test_tiff_alpha_is_premultiplied_as_said():
    pixels = bytes([128, 0, 0, 128]) * SIDE**2
    for extra, want in ((1, [255, 127, 127]), (2, [191, 127, 127]), (0, [128, 0, 0])):
        page = {"pixels": pixels, 258: [8] * 4, 262: 2, 277: 4, 338: [extra]}
        assert np.abs(np.array(levels(tiff(page))) - want).max() <= 1


SMALL = {"pixels": packed(50, 8), 254: 1}
LARGE = {"pixels": packed(200, 8)}
TAGS = [{284: planes, 259: packing} for planes in (1, 2) for packing in (1, 8)]  # how bands are stored


@pytest.mark.parametrize("pages", [[LARGE], [SMALL], [LARGE, SMALL], [{**LARGE, "inner": SMALL}],
                                   [LARGE, {**SMALL, 254: 4}]])  # fmt: skip
def test_tiff_preview_is_no_second_picture(pages):
    assert levels(tiff(*pages)) == [200 if pages[0] is not SMALL else 50] * 3


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (tiff(LARGE, LARGE, LARGE), "must be one picture; it is a TIFF of 3 frames"),
        (tiff({**SMALL, "inner": LARGE}), "camera raw"),
        (tiff({**LARGE, "inner": {**LARGE, 262: 32803}}), "camera raw"),
        (tiff({**LARGE, 262: 34892}), "camera raw"),
        (tiff({"pixels": packed(5, 14), 258: 14}), "of 14 bits a sample"),
        *(
            (tiff({**LARGE, 259: way}), f"compressed by the method {way} ")
            for way in (33005, 34712, 34887, 50001, 50002)
        ),
        (tiff({"pixels": packed(5, 32), 258: 32}), "of 32 bits a sample"),
        (tiff({"pixels": packed(5, 16), 258: 16, 339: 3}), "of floats, whose range it does not state"),
        (tiff({"pixels": packed(5, 8), 339: 2}), "of signed numbers"),
        (tiff({"pixels": packed(5, 16, 13), 258: [16] * 13, 277: 13}), "of 13 bands"),
        (tiff({"pixels": packed(5, 8, 3), 258: [5, 6, 5], 277: 3, 262: 2}), "of 5 and 6 bits a sample"),
        (tiff({"pixels": packed(5, 16, 2), 258: [16] * 2, 277: 2, 338: [2]}), "of grey with transparency, in 16"),
        *(
            (
                tiff({"pixels": packed(5, 8, 2), 258: [8] * 2, 277: 2, 338: [2], **tags}),
                "of grey with transparency, in 16",
            )
            for tags in ({284: 2}, {284: 2, 259: 8}, {262: 0})
        ),
        *(
            (tiff({"pixels": packed(5, bits, count), 258: [bits] * count, 277: count, **tags}), f"of {count} bands")
            for count in (2, 3, 4)
            for bits in (8, 16)
            for tags in TAGS
        ),
        *(
            (tiff({"pixels": packed(5, 8, 5), 258: [8] * 5, 262: 2, 277: 5, 338: [2, 0], **tags}), "of 5 bands")
            for tags in TAGS
        ),
        (png(8, 0, packed(5, 8))[:45], "must be a whole PNG picture"),
    ],
)
def test_unknown_numbers_are_refused_by_cause(content, cause, capfd):
    with pytest.raises(InputError, match=f"^photo .*{cause}"):
        decode(content, "photo", SIDE, EXACT)
    assert not capfd.readouterr().err


OTHERS = [
    b"\xff\x0a\xfa\x7f", b"\0\0\0\x0cJXL \r\n\x87\n", b"II*\0\x10\0\0\0CR\x02\0", b"\0\0\0\x18ftypcrx \0\0\0\1crx isom",
    b"%PDF-1.7", b"%!PS-Adobe-3.0 EPSF-3.0", b'<?xml version="1.0"?><svg width="9">', b"\0\0\1\0\1\0", b"P7\nWIDTH 8",
    b"PF\n8 8\n-1.0\n" + bytes(768), b"\0\0\0\x18ftypmp42\0\0\0\0isom", b"PK\3\4", b"", bytes(64), b"no image",
]  # fmt: skip


@pytest.mark.parametrize("content", OTHERS)
def test_other_format_is_refused_by_its_start(content):
    for read in (lambda: decode(content, "cat.jpg", SIDE, EXACT), lambda: size_of(content, "cat.jpg")):
        with pytest.raises(
            InputError, match=rf"^cat.jpg must be a picture .*begins with {re.escape(repr(content[:16]))}"
        ):
            read()


def test_pointer_of_git_lfs_is_no_picture():
    with pytest.raises(InputError, match=r"cat.jpg .* a pointer of Git LFS .* git lfs pull"):
        decode(b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "cat.jpg", SIDE, EXACT)


def boxes(major, *others):
    return struct.pack(">I4s4sI", 16 + 4 * len(others), b"ftyp", major, 0) + b"".join(others)


HEIC = boxes(b"heic", b"mif1", b"heic") + bytes(200)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (HEIC, "HEIC"),
        (boxes(b"mif1", b"mif1", b"heic"), "HEIC"),
        (boxes(b"heix", b"mif1"), "HEIC"),
        (boxes(b"mif1", b"avif", b"mif1"), "AVIF"),
        (boxes(b"avis", b"msf1"), "AVIF"),
        (boxes(b"qt  ", b"qt  "), ""),
    ],
)
def test_brands_tell_heic_from_avif_and_films(content, kind):
    assert format_of(content) == kind


def test_heic_is_named_with_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(InputError, match=r"^hat/1.jpg is a HEIC photograph.*pip install pillow-heif"):
        decode(HEIC, "hat/1.jpg", SIDE, EXACT)


def test_heic_opens_without_registering(monkeypatch):
    def open_it(file):
        assert file.read() == HEIC
        return Image.new("RGB", (SIDE, SIDE), (1, 2, 3))

    monkeypatch.setitem(sys.modules, "pillow_heif", types.SimpleNamespace(HeifImageFile=open_it))
    assert levels(HEIC) == [1, 2, 3]


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_heic_photograph_is_turned_once(orientation):
    heif = pytest.importorskip("pillow_heif")
    half = np.zeros((64, 64, 3), np.uint8)
    half[:32] = 255  # the upper half
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    heif.from_pillow(Image.fromarray(half)).save(buffer, exif=exif.tobytes())
    upright = np.rot90(half, {1: 0, 3: 2, 6: 3, 8: 1}[orientation])
    got = decode(buffer.getvalue(), "IMG_0001.JPG", 64, EXACT)
    assert np.abs(got.astype(int) - upright).mean() < 8


def test_raised_limit_reads_200_megapixels(monkeypatch):
    content = encoded(Image.new("1", (16320, 12240), 1), "PNG")
    with pytest.raises(InputError, match=r"at most 89,000,000 pixels.* it has 16320 x 12240.* most_pixels"):
        decode(content, "photo", SIDE, EXACT)
    seen = []
    monkeypatch.setattr("tangent_jax.data.decode.as_rgb", lambda picture, *_: seen.append(picture.size) or picture)
    monkeypatch.setattr(Image.Image, "resize", lambda self, size, *_: Image.new("RGB", size))
    assert decode(content, "photo", SIDE, EXACT, 200_000_000).shape == (SIDE, SIDE, 3)
    assert seen == [(16320, 12240)]


def with_exif(start, new):
    """A white JPEG whose EXIF has other bytes from `start` on."""
    exif = Image.Exif()
    exif[0x010E] = "a description that is cut off" * 9
    content = encoded(Image.new("RGB", (SIDE, SIDE), "white"), "JPEG", exif=exif)
    place = content.index(b"Exif\0\0") + 6 + start
    return content[:place] + new + content[place + len(new) :]


@pytest.mark.parametrize("start", [0, 2, 4, 8, 12, 14, 18])
def test_exif_that_cannot_be_read_turns_nothing(start):
    assert levels(with_exif(start, b"\x7f\x7f\x7f\x7f")) == [255] * 3
    assert levels(with_exif(start, b"\0\0\0\0")) == [255] * 3


def noisy():
    """Pictures about which Pillow warns: bytes of EXIF, a palette's transparency, a tag with too many values."""
    return {
        "corrupt EXIF": with_exif(18, b"\0\0\x7f\x7f"),
        "palette": png(8, 3, packed(0, 8), (b"PLTE", b"\xff" * 6), (b"tRNS", bytes([9, 99]))),
        "tag": tiff({"pixels": packed(255, 8), 296: [2, 2, 2]}),
    }


@pytest.mark.parametrize("kind", ["corrupt EXIF", "palette", "tag"])
@pytest.mark.parametrize("action", ["error", "always"])
def test_no_warning_of_a_decoder_reaches_the_user(kind, action, capfd):
    content, before = noisy()[kind], [*warnings.filters]
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        assert levels(content) == [255] * 3
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(lambda _: levels(content) == [255] * 3, range(8)))
        assert not quiet.count
        assert quiet.FILTER not in warnings.filters
        with pytest.raises(UserWarning) if action == "error" else warnings.catch_warnings(record=True) as caught:
            warnings.warn_explicit("ours", UserWarning, "file", 1, "PIL.Image")
        assert action == "error" or len(caught) == 1
    assert [*warnings.filters] == before
    assert capfd.readouterr() == ("", "")


def test_decoders_and_suffixes_match():
    assert {decoder.format.upper() for decoder in DECODERS.values()} == {kind.upper() for kind in DECODERS}
    assert DECODERS["JPEG"] is JpegImagePlugin.JpegImageFile  # not its factory, which looks for further pictures
    assert {".heic", ".heif", ".avif", ".pgm", ".pbm", ".pnm", ".jpe"} < {*SUFFIXES}
    assert MOST_PIXELS == 89_000_000


def frames(kind):
    pair = [Image.new("RGB", (SIDE, SIDE), colour) for colour in ("white", "blue")]
    return encoded(pair[0], kind, save_all=True, append_images=pair[1:])


def white(kind, mode="RGB", **options):
    return encoded(Image.new("RGB", (SIDE, SIDE), "white").convert(mode), kind, **options)


def grey(bits, order="<"):
    return tiff({"pixels": packed(2**bits - 1, bits, order=order), 258: bits}, order=order)


JPEG = white("JPEG")
PAGE = [
    ("JPEG", "grey, RGB", [white("JPEG", "L"), JPEG]),
    ("JPEG", "CMYK, also Adobe's inverted", [white("JPEG", "CMYK")]),
    ("JPEG", "followed by a preview or a film (MPO, motion photos)", [frames("MPO"), JPEG + boxes(b"mp42") + bytes(9)]),
    ("JPEG", "cut off", [encoded(Image.new("RGB", (99, 99)), "JPEG")[:-99]]),
    ("PNG", "grey of 1, 2, 4, 8, 16 bits, with or without a transparent colour (tRNS)",
     [png(b, 0, packed(2**b - 1, b), *key) for b in (1, 2, 4, 8, 16) for key in ([], [(b"tRNS", bytes(2))])]),
    ("PNG", "RGB of 8 or 16 bits, with or without a transparent colour (tRNS)",
     [png(b, 2, packed(2**b - 1, b, 3), *key) for b in (8, 16) for key in ([], [(b"tRNS", bytes(6))])]),
    ("PNG", "palette, with or without transparency",
     [png(8, 3, packed(0, 8), (b"PLTE", b"\xff" * 3), *key) for key in ([], [(b"tRNS", b"\x09")])]),
    ("PNG", "with alpha of 8 or 16 bits",
     [png(b, colours, packed(2**b - 1, b, count)) for b in (8, 16) for colours, count in ((4, 2), (6, 4))]),
    ("PNG", "several frames (APNG)", [frames("PNG")]),
    ("TIFF", "grey of 1, 2, 4, 8, 16 bits, little or big-endian, black or white as zero",
     [grey(b, order) for b in (1, 2, 4, 8, 16) for order in "<>"]
     + [tiff({"pixels": packed(0, b), 258: b, 262: 0}, order=order) for b in (1, 2, 4, 8, 16) for order in "<>"]),
    ("TIFF", "grey of 12 bits, little-endian", [grey(12)]),
    ("TIFF", "grey of 12 bits, big-endian", [grey(12, ">")]),
    ("TIFF", "10, 14, 24, 32 or 64 bits a sample", [grey(10)]),
    ("TIFF", "RGB of 8 or 16 bits, CMYK, palette, fax, JPEG in YCbCr",
     [white("TIFF"), white("TIFF", "CMYK"), white("TIFF", "P"), white("TIFF", "1", compression="group4"),
      white("TIFF", "YCbCr", compression="jpeg"),
      tiff({"pixels": packed(65535, 16, 3), 258: [16] * 3, 262: 2, 277: 3})]),
    ("TIFF", "several bands without PhotometricInterpretation RGB, in any storage",
     [tiff({"pixels": packed(5, 16, 3), 258: [16] * 3, 277: 3, **tags}) for tags in TAGS]),
    ("TIFF", "floats", [tiff({"pixels": packed(5, 32), 258: 32, 339: 3})]),
    ("TIFF", "signed numbers", [tiff({"pixels": packed(5, 16), 258: 16, 339: 2})]),
    ("TIFF", "CIELAB", [tiff({"pixels": packed(5, 8, 3), 258: [8] * 3, 277: 3, 262: 8})]),
    ("TIFF", "RGB of 16 bits in separate planes, not compressed",
     [tiff({"pixels": packed(5, 16, 3), 258: [16] * 3, 277: 3, 262: 2, 284: 2})]),
    ("TIFF", "with a preview or a mask beside the picture",
     [tiff({"pixels": packed(255, 8)}, {**SMALL, 254: kind}) for kind in (1, 4)]),
    ("TIFF", "several pages", [frames("TIFF")]),
    ("DNG, NEF, ARW", "camera raw in a TIFF", [tiff(SMALL, LARGE), tiff({**LARGE, 50706: 0x00000401})]),
    ("CR2, CR3, RAF, ORF, RW2, X3F", "camera raw",
     [b"II*\0\x10\0\0\0CR\x02\0", boxes(b"crx "), b"FUJIFILMCCD-RAW", b"IIRO\x08", b"IIU\0", b"FOVb"]),
    ("PGM, PPM", "any maximum up to 65535, binary or plain",
     [b"P5 8 8 1023\n" + packed(1023, 16), b"P2 8 8 9\n" + b"9 " * 64, b"P6 8 8 65535\n" + packed(65535, 16, 3)]),
    ("PBM", "binary or plain", [b"P4 8 8\n" + bytes(8), b"P1 8 8\n" + b"0 " * 64]),
    ("PFM, PAM", "floats; any", [b"PF\n8 8\n-1.0\n" + bytes(768), b"P7\nWIDTH 8\n"]),
    ("BMP", "RGB, palette", [white("BMP"), white("BMP", "P")]),
    ("GIF, WebP, AVIF", "one frame", [white("GIF"), white("WEBP"), white("AVIF")]),
    ("GIF, WebP, AVIF", "several frames", [frames("GIF"), frames("WEBP"), frames("AVIF")]),
    ("HEIC", "with pillow-heif (the extra `[heif]`)", []),
    ("HEIC", "without pillow-heif", [HEIC]),
    ("JPEG XL, JPEG 2000, PSD, SVG, PDF, EPS, ICO, XCF, DICOM, OpenEXR", "any", OTHERS[:2]),
    ("web pages, films, archives, empty files", "named like a picture", [b"<html>", boxes(b"mp42"), b"PK\3\4", b""]),
    ("any", "more pixels than `--most_pixels` (89,000,000)", [encoded(Image.new("1", (10000, 8940)), "PNG")]),
]  # fmt: skip


def rows_of_the_page():
    page = (ROOT / "docs/reference/compatibility.md").read_text()
    section = page.partition("<!-- images -->")[2].partition("<!-- /images -->")[0]
    lines = [line for line in section.splitlines() if line[:2] == "| "]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


@pytest.mark.parametrize(("row", "case"), [*zip(rows_of_the_page(), PAGE, strict=True)])
def test_page_lists_formats_and_refusals(row, case, monkeypatch):
    assert tuple(row[:2]) == case[:2]
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    for content in case[2]:
        if row[2].startswith("read"):
            assert min(levels(content)) >= 254
        else:
            with pytest.raises(InputError, match=re.escape(row[2])):
                levels(content)
