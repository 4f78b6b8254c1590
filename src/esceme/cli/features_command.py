"""`esceme features`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.table import Table

from esceme.cli.console import note, print_json, progress, tables
from esceme.errors import ConfigError
from esceme.perception.encoders import encode_panorama, make_encoder
from esceme.perception.next_hop_matching import NextHopAuc, match_next_hops
from esceme.perception.semantic_features import SemanticSummary, WordTable, write_semantic
from esceme.perception.views import find_panoramas, read_panorama
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.world import open_features
from esceme.world import pack as pack_features
from esceme.world.features import HDF5_SUFFIXES, write_features


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
    if out is not None and out.suffix != ".npy":
        raise ConfigError(f"--out {out}: give a name that ends in .npy")
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


def extract(
    panoramas: tyro.conf.Positional[Path],
    /,
    out: Path,
    encoder: Literal["small", "vit-b-16"] = "small",
    weights: Path | None = None,
    json: bool = False,
) -> int:
    """Turn panoramas into the features of their 36 views, an HDF5 file of the published form.

    Each equirectangular picture is cut into the simulator's views, and the encoder makes one vector of each;
    it sees their pixels and nothing else. `small` is fixed and needs nothing; `vit-b-16` needs timm
    (pip install 'esceme[timm]') and a local file of weights.

    Examples:
        esceme features extract panoramas --out features/small.hdf5
        esceme features extract panoramas --out vit.hdf5 --encoder vit-b-16 --weights vit_b_16.safetensors

    Args:
        panoramas: the folder of pictures, <scene>/<viewpoint>.jpg or <scene>_<viewpoint>.jpg.
        out: the HDF5 file to write; it appears when it is complete.
        encoder: what looks at the views.
        weights: the encoder's parameters, .safetensors or a torch file (.pth), if it has any.
        json: print what was written as one json object.
    """
    if out.suffix not in HDF5_SUFFIXES:
        raise ConfigError(f"--out {out}: give a name that ends in {' or '.join(HDF5_SUFFIXES)}")
    chosen = make_encoder(encoder, weights)
    found = find_panoramas(panoramas)

    def features() -> Iterator[tuple[str, NDArray[np.float32]]]:
        for key, path in progress(found.items(), "looking", total=len(found)):
            yield key, encode_panorama(chosen, read_panorama(path))

    write_features(out, features())
    size = out.stat().st_size
    if json:
        written = {"out": str(out), "encoder": encoder, "viewpoints": len(found), "width": chosen.width}
        print_json(written | {"bytes": size})
    else:
        print(f"{out}: {len(found):,} viewpoints, {chosen.width} numbers a view, {size / 1e6:.1f} MB")
    return 0


def semantic(
    data: Path,
    out: Path,
    glove: str | None = None,
    reach: float = 7.0,
    split: str = "val_unseen",
    json: bool = False,
) -> int:
    """Make features of real scenes from what people annotated: no picture, no licence mail.

    Object boxes are triangulated across viewpoints and re-projected into every view that sees them; a view is
    described by the words of what it shows, weighted by area, and by the room one stands in. These features
    come from human annotations, not from vision: say so wherever you report results with them.

    Prints how much the views say, from the annotated boxes alone and re-projected, and how often the right
    next viewpoint of R2R matches the instruction better than another candidate (AUC; 0.5 is chance).

    Examples:
        esceme features semantic --data datasets --out features/semantic.hdf5
        esceme features semantic --data datasets --out semantic.hdf5 --glove none --reach 5 --json

    Args:
        data: the data folder, with connectivity, objects and rooms.
        out: the HDF5 file to write; it appears when it is complete.
        glove: PREFIX of PREFIX_glove.npy and PREFIX_vocab.txt, or none for random vectors of words; by
            default glove/REVERIE_train below the data folder, where it is.
        reach: objects farther than this many metres are not seen.
        split: of R2R, to match instructions with.
        json: print one json object instead of tables.
    """
    if out.suffix not in HDF5_SUFFIXES:
        raise ConfigError(f"--out {out}: give a name that ends in {' or '.join(HDF5_SUFFIXES)}")
    words, episodes = _words(data, glove), _instructed(data, split)
    summary = write_semantic(data, out, words=words, reach=reach, progress=progress)
    matching = match_next_hops(data, episodes, reach=reach, progress=progress) if episodes else None
    if json:
        report = {"out": str(out), "words": words.source, "reach": reach, "bytes": out.stat().st_size}
        matched = None if matching is None else {"split": split} | matching._asdict()
        described = summary._asdict() | {
            "near": summary.near._asdict(),
            "reprojected": summary.reprojected._asdict(),
        }
        print_json(report | described | {"next_hop_auc": matched})
    else:
        _show(out, summary, matching, split)
    return 0


def _words(data: Path, glove: str | None) -> WordTable:
    if glove is None:
        prefix = data / "glove" / "REVERIE_train"
        if prefix.with_name(f"{prefix.name}_vocab.txt").is_file():
            return WordTable.read(prefix)
        note(f"no {prefix}_vocab.txt: words get random vectors")
    return WordTable.random() if glove in (None, "none") else WordTable.read(glove)


def _instructed(data: Path, split: str) -> list[Episode]:
    """The episodes of R2R whose way is known, if there are any."""
    file = DataFolder(data).annotations("r2r", split)
    found = [] if file is None else [each for each in TASKS["r2r"].read(file) if not each.goal_withheld]
    if not found:
        note(f"no R2R {split} with paths here: not matched with instructions")
    return found


def _show(out: Path, summary: SemanticSummary, matching: NextHopAuc | None, split: str) -> None:
    table = Table("", "annotated boxes", "re-projected")
    for row, field, style in (
        ("names per viewpoint", "names_per_viewpoint", ".1f"),
        ("views without objects", "empty_views", ".0%"),
    ):
        near, all_of_it = (getattr(each, field) for each in (summary.near, summary.reprojected))
        table.add_row(row, f"{near:{style}}", f"{all_of_it:{style}}")
    if matching is not None:
        for row, near, all_of_it in (
            ("its view", matching.view_near, matching.view),
            ("what is seen from there", matching.memory_near, matching.memory),
        ):
            table.add_row(f"next hop, {split}, by {row}: AUC", f"{near:.3f}", f"{all_of_it:.3f}")
        table.add_row(f"next hop, {split}, by its room: AUC", "", f"{matching.room:.3f}")
        table.add_row(f"next hop, {split}, by both: AUC", "", f"{matching.memory_and_room:.3f}")
    tables().print(table)
    unknown = len(summary.unknown_words)
    note(f"{unknown} words of object names have no vector" if unknown else "every word has a vector")
    print(
        f"{out}: {summary.viewpoints:,} viewpoints of {summary.scenes} scenes, {summary.width} numbers a view"
    )
