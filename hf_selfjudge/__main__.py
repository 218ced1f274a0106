"""`python -m hf_selfjudge build ...` and `accelerate launch -m hf_selfjudge build ...`."""

from .cli import main

if __name__ == "__main__":
    main()
