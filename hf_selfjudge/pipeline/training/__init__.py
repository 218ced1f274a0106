"""From labelled rows to a judge and its thresholds; pure torch, no models."""
