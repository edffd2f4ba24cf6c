"""Speed, as ratios measured in one run. Off by default: ``make bench``."""
