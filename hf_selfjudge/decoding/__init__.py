"""Judge decoding inside transformers' `generate`."""
