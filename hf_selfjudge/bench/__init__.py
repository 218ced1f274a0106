"""`selfjudge bench`: tokens per second of the loop against plain and stock assisted generation and the memory floor."""
