"""The processes that a test started, without the browser that tests of pages share."""

import psutil


def children(recursive: bool = False) -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive) if not child.name().startswith("chrom")]
