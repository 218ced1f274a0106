"""Where prompts come from: presets, Hub datasets, files, the playground."""
