"""`esceme features`."""

from __future__ import annotations

from pathlib import Path

import tyro

from esceme.cli.console import print_json, progress
from esceme.world import open_features
from esceme.world import pack as pack_features


def pack(
    source: tyro.conf.Positional[Path],
    /,
    out: Path | None = None,
    width: int | None = None,
    json: bool = False,
) -> int:
    """Turn an HDF5 feature file into a mapped half-precision one.

    Writes NAME.npy (viewpoints x 36 x width) and its index NAME.json. The file is mapped, not read: it opens
    at once, processes share it, and observing is several times faster than from HDF5.

    Examples:
        esceme features pack pth_vit_base_patch16_224_imagenet.hdf5 --width 768
        esceme features pack features.hdf5 --out fast/features.npy

    Args:
        source: the HDF5 file, one entry of 36 x (width + extra) numbers per viewpoint.
        out: the .npy file to write; by default beside the source.
        width: how many numbers describe a view; what follows in the file (classifier scores) is left out.
        json: print what was written as one json object.
    """
    store = open_features(source, width=width)
    written = pack_features(
        store,
        out or source.with_suffix(".npy"),
        progress=lambda keys: progress(keys, "packing", total=len(store)),
    )
    size = written.stat().st_size
    if json:
        print_json({"out": str(written), "viewpoints": len(store), "width": store.width, "bytes": size})
    else:
        print(f"{written}: {len(store):,} viewpoints, {store.width} numbers a view, {size / 1e6:.0f} MB")
    return 0
