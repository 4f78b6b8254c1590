"""Scenes: graphs of viewpoints, features of their views, and the compiled atlas of all scenes."""

from esceme.world.atlas import CANDIDATE, CONTEXT, STOP, Atlas, Panoramas, Pose
from esceme.world.features import ArrayFeatures, FeatureStore, Hdf5Features, open_features, pack
from esceme.world.graph import Candidate, SceneGraph, read_scenes

__all__ = [
    "CANDIDATE",
    "CONTEXT",
    "STOP",
    "ArrayFeatures",
    "Atlas",
    "Candidate",
    "FeatureStore",
    "Hdf5Features",
    "Panoramas",
    "Pose",
    "SceneGraph",
    "open_features",
    "pack",
    "read_scenes",
]
