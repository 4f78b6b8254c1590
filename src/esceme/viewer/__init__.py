"""Results as one HTML page, and a live page on which agents and people walk (docs/view.md)."""
