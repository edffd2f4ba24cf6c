"""Data frames on Spark: claims whose messages a transformation takes."""
