"""What a build keeps on disk, and the processes that share it."""
