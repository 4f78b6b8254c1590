"""Speed and memory as ratios against a slow but obvious implementation, both sides in one run."""
