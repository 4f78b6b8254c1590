"""The commands `esceme features`: pack, extract and semantic."""

from __future__ import annotations

from math import radians
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.table import Table

from esceme.cli.console import note, print_facts, print_json, progress, tables
from esceme.cli.data_option import find_data
from esceme.errors import ConfigError
from esceme.perception.encoders import encode_panorama, make_encoder
from esceme.perception.next_hop_matching import NextHopAuc, match_next_hops
from esceme.perception.semantic_features import (
    Annotation,
    SemanticSummary,
    WordTable,
    write_semantic_features,
)
from esceme.perception.views import ViewGrid, find_panoramas, read_panorama
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.world import open_features
from esceme.world import pack as pack_features
from esceme.world.camera import Camera
from esceme.world.features import HDF5_SUFFIXES, write_features


def pack(
    source: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    /,
    out: Path | None = None,
    width: int | None = None,
    json: bool = False,
) -> int:
    """Convert an HDF5 feature file to a memory-mapped half-precision file.

    Writes NAME.npy (viewpoints x 36 x width) and its index NAME.json. The file is mapped, not read: it opens
    immediately, processes share it, and observations are several times faster than from HDF5.

    Examples:
        esceme features pack pth_vit_base_patch16_224_imagenet.hdf5 --width 768
        esceme features pack features.hdf5 --out fast/features.npy

    Args:
        source: HDF5 file with one entry of 36 x (width + extra) numbers per viewpoint.
        out: .npy file to write; by default beside the source.
        width: number of features per view; further numbers in the file (classifier scores) are left out.
        json: print a summary as one JSON object.
    """
    if out is not None and out.suffix != ".npy":
        raise ConfigError(f"--out {out}: give a name that ends in .npy")
    store = open_features(source, width=width)
    written = pack_features(
        store,
        out or source.with_suffix(".npy"),
        progress=lambda keys: progress(keys, "packing", total=len(store)),
    )
    _print_summary(written, len(store), store.width, json=json)
    return 0


def extract(
    panoramas: Annotated[Path, tyro.conf.arg(metavar="FOLDER")],
    /,
    out: Path,
    encoder: Literal["small", "vit-b-16"] = "small",
    weights: Path | None = None,
    width: int | None = None,
    height: int | None = None,
    vfov: float = 60.0,
    headings: int = 12,
    elevations: tuple[float, ...] = (-30.0, 0.0, 30.0),
    json: bool = False,
) -> int:
    """Extract features of the 36 views of panoramas, as HDF5 in the published format.

    Each equirectangular image is cut into the simulator's views, and the encoder computes one vector per view
    from its pixels only. `small` is fixed and needs no weights; `vit-b-16` needs timm
    (pip install 'esceme[timm]') and a local file of weights.

    Other cameras and grids of views are possible, for other programs: the agents of this package need the 36
    views of 60 degrees.

    Examples:
        esceme features extract panoramas --out features/small.hdf5
        esceme features extract panoramas --out wide.hdf5 --width 320 --vfov 75 --headings 8
        esceme features extract panoramas --out vit.hdf5 --encoder vit-b-16 --weights vit_b_16.safetensors

    Args:
        panoramas: folder of images, <scene>/<viewpoint>.jpg or <scene>_<viewpoint>.jpg.
        out: HDF5 file to write; it appears when it is complete.
        encoder: encoder of the views.
        weights: parameters of the encoder, .safetensors or a torch file (.pth), if it has any.
        width: width of the images in pixels; by default that of the encoder.
        height: height of the images in pixels; by default three quarters of the width.
        vfov: vertical field of view in degrees.
        headings: number of headings, from 0 (+y) clockwise at equal distances.
        elevations: elevations of the rows of views in degrees, from the first row to the last.
        json: print a summary as one JSON object.
    """
    _check_suffix(out)
    view_encoder = make_encoder(encoder, weights)
    columns = view_encoder.view_width if width is None else width
    camera = Camera(columns, columns * 3 // 4 if height is None else height, radians(vfov))
    grid = ViewGrid.regular(camera, headings, elevations)
    paths = find_panoramas(panoramas)
    write_features(
        out,
        (
            (key, encode_panorama(view_encoder, read_panorama(path), grid))
            for key, path in progress(paths.items(), "encoding", total=len(paths))
        ),
        # By default, the file names the camera of the published files, whose directions are the same.
        camera=camera if (width, height, vfov) != (None, None, 60.0) else None,
        num_views=len(grid.views),
    )
    _print_summary(out, len(paths), view_encoder.width, json=json, encoder=encoder)
    return 0


def semantic(
    data: str,
    out: Path,
    glove: str | None = None,
    reach: float = 7.0,
    without: tuple[Annotation, ...] = (),
    split: str = "val_unseen",
    json: bool = False,
) -> int:
    """Compute features of real scenes from object annotations, without images.

    Object boxes are triangulated across viewpoints and re-projected into every view that sees them. A view is
    described by the words of its objects, weighted by area, and by its room. The features come from human
    annotations, not from vision: state this wherever you report results with them.

    Prints statistics of the views, with annotated boxes only and with re-projected objects, and how often the
    next viewpoint of R2R matches the instruction better than another candidate (AUC; 0.5 is chance).

    Examples:
        esceme features semantic --data datasets --out features/semantic.hdf5
        esceme features semantic --data datasets --out semantic.hdf5 --glove none --reach 5 --json
        esceme features semantic --data datasets --out blank.hdf5 --without objects rooms

    Args:
        data: data folder with connectivity, objects and rooms; or `embedded`, the generated world.
        out: HDF5 file to write; it appears when it is complete.
        glove: PREFIX of PREFIX_glove.npy and PREFIX_vocab.txt, or none for random word vectors; by default
            glove/REVERIE_train below the data folder, if it exists.
        reach: objects farther than this many metres are not visible.
        without: annotations whose features are 0, for controls.
        split: R2R split whose instructions are matched.
        json: print one JSON object instead of tables.
    """
    _check_suffix(out)
    folder = find_data(data)
    words, episodes = _read_words(folder, glove), _read_episodes(folder, split)
    summary = write_semantic_features(
        folder, out, words=words, reach=reach, without=without, progress=progress
    )
    auc = match_next_hops(folder, episodes, reach=reach, progress=progress) if episodes else None
    if json:
        report = {"out": str(out), "words": words.source, "reach": reach, "bytes": out.stat().st_size}
        statistics = {"near": summary.near._asdict(), "reprojected": summary.reprojected._asdict()}
        matched = None if auc is None else {"split": split} | auc._asdict()
        print_json(report | summary._asdict() | statistics | {"next_hop_auc": matched})
    else:
        _print_tables(out, summary, auc, split)
    return 0


def _check_suffix(out: Path) -> None:
    if out.suffix not in HDF5_SUFFIXES:
        raise ConfigError(f"--out {out}: give a name that ends in {' or '.join(HDF5_SUFFIXES)}")


def _print_summary(out: Path, viewpoints: int, width: int, *, json: bool, **more: str) -> None:
    size = out.stat().st_size
    facts = {"out": str(out), **more, "viewpoints": viewpoints, "width": width, "bytes": size}
    text = f"{out}: {viewpoints:,} viewpoints, {width} numbers a view, {size / 1e6:.1f} MB"
    print_facts(facts, text, json=json)


def _read_words(data: Path, glove: str | None) -> WordTable:
    if glove is None:
        prefix = data / "glove" / "REVERIE_train"
        if prefix.with_name(f"{prefix.name}_vocab.txt").is_file():
            return WordTable.read(prefix)
        note(f"no {prefix}_vocab.txt: words get random vectors")
    return WordTable.random() if glove in (None, "none") else WordTable.read(glove)


def _read_episodes(data: Path, split: str) -> list[Episode]:
    """Return the R2R episodes of a split that have a reference path."""
    file = DataFolder(data).annotations("r2r", split)
    episodes = [] if file is None else TASKS["r2r"].read(file)
    episodes = [episode for episode in episodes if not episode.goal_withheld]
    if not episodes:
        note(f"no R2R {split} with paths here: not matched with instructions")
    return episodes


def _print_tables(out: Path, summary: SemanticSummary, auc: NextHopAuc | None, split: str) -> None:
    near, full = summary.near, summary.reprojected
    table = Table("", "annotated boxes", "re-projected")
    table.add_row("names per viewpoint", f"{near.names_per_viewpoint:.1f}", f"{full.names_per_viewpoint:.1f}")
    table.add_row("views without objects", f"{near.empty_views:.0%}", f"{full.empty_views:.0%}")
    if auc is not None:
        for source, first, second in (
            ("its view", f"{auc.view_near:.3f}", auc.view),
            ("its candidate views", f"{auc.memory_near:.3f}", auc.memory),
            ("its room", "", auc.room),
            ("candidate views and room", "", auc.memory_and_room),
        ):
            table.add_row(f"next hop, {split}, by {source}: AUC", first, f"{second:.3f}")
    tables().print(table)
    unknown = len(summary.unknown_words)
    note(f"{unknown} words of object names have no vector" if unknown else "every word has a vector")
    counts = f"{summary.viewpoints:,} viewpoints of {summary.scenes} scenes"
    print(f"{out}: {counts}, {summary.width} numbers a view")
