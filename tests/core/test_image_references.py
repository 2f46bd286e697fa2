# SPDX-License-Identifier: Apache-2.0
"""References of container images: examples of distribution's reference_test.go and regexp_test.go."""

from __future__ import annotations

import re

import pytest

from trtspec.core.image_references import IMAGE, IMAGE_BY_DIGEST, ImageReference, parse_image

HEX = "0123456789abcdef" * 4
DIGEST = f"sha256:{HEX}"


@pytest.mark.parametrize(
    ("text", "name", "tag", "digest"),
    [
        ("test_com:tag", "test_com", "tag", ""),
        ("test:5000/repo:tag", "test:5000/repo", "tag", ""),
        (f"test:5000/repo@{DIGEST}", "test:5000/repo", "", DIGEST),
        (f"test:5000/repo:tag@{DIGEST}", "test:5000/repo", "tag", DIGEST),
        ("localhost:5000", "localhost", "5000", ""),
        ("lowercase:Uppercase", "lowercase", "Uppercase", ""),
        ("domain/path:latest", "domain/path", "latest", ""),
        ("sub-dom1.foo.com/bar/baz/quux:some-long-tag", "sub-dom1.foo.com/bar/baz/quux", "some-long-tag", ""),
        (
            "b.gcr.io/test.example.com/my-app:test.example.com",
            "b.gcr.io/test.example.com/my-app",
            "test.example.com",
            "",
        ),
        ("xn--n3h.com/myimage:xn--n3h.com", "xn--n3h.com/myimage", "xn--n3h.com", ""),
        ("foo/foo__bar.com:8080", "foo/foo__bar.com", "8080", ""),
        ("192.168.1.1:5000/repo:tag", "192.168.1.1:5000/repo", "tag", ""),
        ("[2001:db8::1]:5000/repo:tag", "[2001:db8::1]:5000/repo", "tag", ""),
        ("Uppercase.example/lower:x", "Uppercase.example/lower", "x", ""),
        (f"a:{'t' * 128}", "a", "t" * 128, ""),
    ],
)
def test_reference_is_parsed(text: str, name: str, tag: str, digest: str) -> None:
    assert re.fullmatch(IMAGE, text)
    assert bool(re.fullmatch(IMAGE_BY_DIGEST, text)) == bool(digest)
    reference = parse_image(text)
    assert reference == ImageReference(name, tag, digest)
    assert reference.pinned == (f"{name}@{digest}" if digest else "")


@pytest.mark.parametrize(
    "text",
    [
        "", ":justtag", f"@{DIGEST}", "repo", "test.com/repo", "repo@sha256:ffff", f"validname@invaliddigest:{HEX}",
        "Uppercase:tag", "aa/asdf$$^/aa:x", "a//b:x", "/a:x", "a/:x", "-a:x", "a-:x", "a__b__:x", "a___b:x", "a b:x",
        "--privileged:x", f"a:{'t' * 129}", "a:.x", "a:-x", "a:t\n", "[fe80::1%eth0]:5000/repo:x", "http://a/b:x",
        "foo_bar.com:8080/x:1",
    ],
)  # fmt: skip
def test_invalid_reference_is_refused(text: str) -> None:
    assert not re.fullmatch(IMAGE, text)
    assert not re.fullmatch(IMAGE_BY_DIGEST, text)
    with pytest.raises(ValueError, match="not an image with a tag or a digest"):
        parse_image(text)
