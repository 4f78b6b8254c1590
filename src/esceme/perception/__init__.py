"""Pictures and annotations turned into features: cutting views, encoding them, and doing without pictures."""

from esceme.perception.encode import ENCODERS, Encoder, encode_panorama, make_encoder
from esceme.perception.views import cut_ids, cut_views

__all__ = ["ENCODERS", "Encoder", "cut_ids", "cut_views", "encode_panorama", "make_encoder"]
