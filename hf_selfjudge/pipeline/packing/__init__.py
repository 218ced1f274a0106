"""Many substitutions of a text in one forward."""
