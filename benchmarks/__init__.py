"""Speed and memory of the package, as ratios against straightforward baseline implementations."""
