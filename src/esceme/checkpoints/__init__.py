"""Import and export of published weights of HAMT, TD-STP and ESceme."""

from esceme.checkpoints.exchange import (
    AgentName,
    ReaderName,
    Switches,
    TensorReport,
    export_weights,
    import_weights,
    navigator_from,
)
from esceme.checkpoints.names import names_of
from esceme.checkpoints.published import PublishedWeights, read_weights

__all__ = [
    "AgentName",
    "ReaderName",
    "TensorReport",
    "Switches",
    "PublishedWeights",
    "export_weights",
    "import_weights",
    "names_of",
    "navigator_from",
    "read_weights",
]
