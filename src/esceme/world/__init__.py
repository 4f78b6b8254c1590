"""Scenes: navigation graphs, image features of views, and the atlas, which holds all scenes as arrays."""

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
