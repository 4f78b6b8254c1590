"""A memory store as an HTTP service for many robots; see docs/robots.md."""
