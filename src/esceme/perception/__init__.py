"""Features of views, computed from panoramas by an encoder or from object annotations (semantic features)."""

from esceme.perception.encoders import ENCODERS, Encoder, encode_panorama, make_encoder
from esceme.perception.views import cut_ids, cut_views

__all__ = ["ENCODERS", "Encoder", "cut_ids", "cut_views", "encode_panorama", "make_encoder"]
